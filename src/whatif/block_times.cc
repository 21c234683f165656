// SPDX-License-Identifier: Apache-2.0
#include "whatif/block_times.h"

#include <string_view>

namespace hocket::whatif {

BlockTimes::BlockTimes(const MeasuredRun& run)
    : run_(run),
      samples_(run.samples()),
      seconds_(run.blocks.size() * run.samples(), 0),
      ops_(run.blocks.size()) {
  for (OpId op = 0; op < run.ops.size(); ++op) {
    const BlockId block = run.ops[op].block;
    ops_[block].push_back(op);
    for (SampleId sample = 0; sample < samples_; ++sample) {
      seconds_[cell(block, sample)] += run.duration[run.at(op, sample)];
    }
  }
  for (BlockId block = 0; block < run.blocks.size(); ++block) {
    const Block& at = run.blocks[block];
    const OpKind& kind = run.kinds[at.kind];
    const std::string_view name = kind.name;
    const bool backward = name.starts_with("backward");
    if (!kind.communicates() && at.micro_batch != kNone &&
        (backward || name.starts_with("forward"))) {
      passes_.push_back({block, backward});
    }
  }
}

void BlockTimes::set(BlockId block, SampleId sample, double seconds,
                     std::vector<double>* durations) const {
  const double now = time(block, sample);
  const std::vector<OpId>& ops = this->ops(block);
  for (const OpId op : ops) {
    double& duration = (*durations)[run_.at(op, sample)];
    duration = now > 0 ? duration * (seconds / now) : seconds / ops.size();
  }
}

std::map<BlockTimes::Alike, Cells> BlockTimes::alike() const {
  std::map<Alike, Cells> groups;
  for (const Pass& pass : passes_) {
    const Block& at = run_.blocks[pass.block];
    for (ReplicaId replica = 0; replica < run_.replicas; ++replica) {
      Cells& cells = groups[{at.worker, replica, at.chunk, pass.backward}];
      for (StepIndex step = 0; step < run_.steps.size(); ++step) {
        cells.push_back({pass.block, run_.sample(step, replica)});
      }
    }
  }
  return groups;
}

Cells BlockTimes::steps_of(BlockId block, ReplicaId replica) const {
  Cells cells;
  cells.reserve(run_.steps.size());
  for (StepIndex step = 0; step < run_.steps.size(); ++step) {
    cells.push_back({block, run_.sample(step, replica)});
  }
  return cells;
}

}  // namespace hocket::whatif
