// SPDX-License-Identifier: Apache-2.0
// Durations of the blocks of a measured run by sample, and which blocks are passes. The search for
// causes compares and cures them.
#pragma once

#include <cstdint>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "whatif/measured_run.h"

namespace hocket::whatif {

/// A pass, of the pattern: a block of a micro-batch that is no communication.
struct Pass {
  BlockId block;
  bool backward = false;
};

using Cells = std::vector<std::pair<BlockId, SampleId>>;

class BlockTimes {
 public:
  explicit BlockTimes(const MeasuredRun& run);

  double time(BlockId block, SampleId sample) const { return seconds_[cell(block, sample)]; }
  const std::vector<OpId>& ops(BlockId block) const { return ops_[block]; }
  const std::vector<Pass>& passes() const { return passes_; }

  /// Scales every op of `block` in `sample` so that the block takes `seconds`.
  void set(BlockId block, SampleId sample, double seconds, std::vector<double>* durations) const;

  /// Key of passes with equal work: a worker's passes in one chunk and direction differ only by
  /// their sequences.
  using Alike =
      std::tuple<PatternWorkerId, ReplicaId, int32_t, bool>;  // the last two: chunk, backward
  std::map<Alike, Cells> alike() const;

  /// Returns a block in all steps of a replica.
  Cells steps_of(BlockId block, ReplicaId replica) const;

 private:
  size_t cell(BlockId block, SampleId sample) const { return size_t{block} * samples_ + sample; }

  const MeasuredRun& run_;
  const int32_t samples_;
  std::vector<double> seconds_;         ///< [block * samples + sample]
  std::vector<std::vector<OpId>> ops_;  ///< by block
  std::vector<Pass> passes_;
};

}  // namespace hocket::whatif
