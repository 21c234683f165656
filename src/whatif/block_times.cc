// SPDX-License-Identifier: Apache-2.0
#include "whatif/block_times.h"

#include <string_view>

namespace hocket::whatif {

BlockTimes::BlockTimes(const MeasuredRun& run)
    : run_(run),
      samples_(run.samples()),
      seconds_(run.blocks.size() * static_cast<size_t>(run.samples()), 0),
      ops_(run.blocks.size()) {
  for (int32_t op = 0; op < static_cast<int32_t>(run.ops.size()); ++op) {
    const int32_t block = run.ops[static_cast<size_t>(op)].block;
    ops_[static_cast<size_t>(block)].push_back(op);
    for (int32_t sample = 0; sample < samples_; ++sample) {
      seconds_[cell(block, sample)] += run.duration[run.at(op, sample)];
    }
  }
  for (int32_t block = 0; block < static_cast<int32_t>(run.blocks.size()); ++block) {
    const Block& at = run.blocks[static_cast<size_t>(block)];
    const OpKind& kind = run.kinds[static_cast<size_t>(at.kind)];
    const std::string_view name = kind.name;
    const bool backward = name.starts_with("backward");
    if (!kind.communicates() && at.micro_batch != kNone &&
        (backward || name.starts_with("forward"))) {
      passes_.push_back({block, backward});
    }
  }
}

void BlockTimes::set(int32_t block, int32_t sample, double seconds,
                     std::vector<double>* durations) const {
  const double now = time(block, sample);
  const std::vector<int32_t>& ops = this->ops(block);
  for (const int32_t op : ops) {
    double& duration = (*durations)[run_.at(op, sample)];
    duration = now > 0 ? duration * (seconds / now) : seconds / static_cast<double>(ops.size());
  }
}

std::map<BlockTimes::Alike, Cells> BlockTimes::alike() const {
  std::map<Alike, Cells> groups;
  for (const Pass& pass : passes_) {
    const Block& at = run_.blocks[static_cast<size_t>(pass.block)];
    for (int32_t replica = 0; replica < run_.replicas; ++replica) {
      Cells& cells = groups[{at.worker, replica, at.chunk, pass.backward}];
      for (int32_t sample = replica; sample < samples_; sample += run_.replicas) {
        cells.push_back({pass.block, sample});
      }
    }
  }
  return groups;
}

Cells BlockTimes::steps_of(int32_t block, int32_t replica) const {
  Cells cells;
  for (int32_t sample = replica; sample < samples_; sample += run_.replicas) {
    cells.push_back({block, sample});
  }
  return cells;
}

}  // namespace hocket::whatif
