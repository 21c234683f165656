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
  int32_t block = 0;
  bool backward = false;
};

using Cells = std::vector<std::pair<int32_t, int32_t>>;  ///< block, sample

class BlockTimes {
 public:
  explicit BlockTimes(const MeasuredRun& run);

  double time(int32_t block, int32_t sample) const { return seconds_[cell(block, sample)]; }
  const std::vector<int32_t>& ops(int32_t block) const { return ops_[static_cast<size_t>(block)]; }
  const std::vector<Pass>& passes() const { return passes_; }

  /// Durations with every op of `block` in `sample` scaled so that the block takes `seconds`.
  void set(int32_t block, int32_t sample, double seconds, std::vector<double>* durations) const;

  /// Key of passes with equal work: a worker's passes in one chunk and direction differ only by
  /// their sequences.
  using Alike = std::tuple<int32_t, int32_t, int32_t, bool>;  // worker, replica, chunk, backward
  std::map<Alike, Cells> alike() const;

  /// A block in all steps of a replica.
  Cells steps_of(int32_t block, int32_t replica) const;

 private:
  size_t cell(int32_t block, int32_t sample) const {
    return static_cast<size_t>(block) * static_cast<size_t>(samples_) + static_cast<size_t>(sample);
  }

  const MeasuredRun& run_;
  const int32_t samples_;
  std::vector<double> seconds_;            ///< [block * samples + sample]
  std::vector<std::vector<int32_t>> ops_;  ///< by block
  std::vector<Pass> passes_;
};

}  // namespace hocket::whatif
