// SPDX-License-Identifier: Apache-2.0
// Durations of the blocks of a measured run by lane, and which blocks are passes. The search for
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

using Cells = std::vector<std::pair<int32_t, int32_t>>;  ///< block, lane

class BlockTimes {
 public:
  explicit BlockTimes(const MeasuredRun& run);

  double time(int32_t block, int32_t lane) const { return seconds_[cell(block, lane)]; }
  const std::vector<int32_t>& ops(int32_t block) const { return ops_[static_cast<size_t>(block)]; }
  const std::vector<Pass>& passes() const { return passes_; }

  /// Durations with every op of `block` in `lane` scaled so that the block takes `seconds`.
  void set(int32_t block, int32_t lane, double seconds, std::vector<double>* durations) const;

  /// Key of passes with equal work: a worker's passes in one chunk and direction differ only by
  /// their sequences.
  using Alike = std::tuple<int32_t, int32_t, int32_t, bool>;  // worker, replica, chunk, backward
  std::map<Alike, Cells> alike() const;

  /// A block in all steps of a replica.
  Cells steps_of(int32_t block, int32_t replica) const;

 private:
  size_t cell(int32_t block, int32_t lane) const {
    return static_cast<size_t>(block) * static_cast<size_t>(lanes_) + static_cast<size_t>(lane);
  }

  const MeasuredRun& run_;
  const int32_t lanes_;
  std::vector<double> seconds_;            ///< [block * lanes + lane]
  std::vector<std::vector<int32_t>> ops_;  ///< by block
  std::vector<Pass> passes_;
};

}  // namespace hocket::whatif
