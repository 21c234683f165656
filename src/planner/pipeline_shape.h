// SPDX-License-Identifier: Apache-2.0
// Facts of a pipeline schedule alone, for any model: waits of ranks, the number of micro-batches
// whose activations they keep, their first and last work, and their messages.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "planner/space.h"
#include "sim/schedule_step.h"

namespace hocket::planner {

struct PipelineShape {
  struct Rank {
    /// Its stages, and the share of the micro-batches that it runs of each.
    std::vector<std::pair<int64_t, double>> stages;
    int64_t first_stage = 0;  ///< of its first work, which is a forward pass
    int64_t last_stage = 0;   ///< of its last work
    char last_kind = 'B';     ///< of that: parallel::Action::kind
    /// Largest number of live micro-batches among those shown, in shares of all of its layers.
    double live = 1;
    double pending = 0;  ///< largest number of delayed weight gradients, likewise
    /// Messages of a micro-batch that it sends, by the rank that they go to.
    std::map<int64_t, double> sends = {};
  };
  std::vector<Rank> ranks;
  int64_t shown = 1;  ///< micro-batches; more of them show nothing new
  /// Most micro-batches that a rank has alive of so many: where these were all that it is shown
  /// with, all.
  double live(const Rank& rank, int64_t micro_batches) const {
    const auto all = static_cast<double>(shown);
    return rank.live < all ? rank.live
                           : rank.live * std::max(1.0, static_cast<double>(micro_batches) / all);
  }
  /// Time that ranks wait in a step. The unit is a forward and backward pass of a micro-batch
  /// through all stages of a rank. Forward passes and the two halves of backward passes take the
  /// same.
  double waits = 0;
  bool splits_backward = false;  ///< gradients of weights are work of their own
  bool overlaps = false;         ///< passes of two micro-batches take turns on a rank
};

/// Returns the seconds of a step's passes and messages with these times (sim::schedule_step);
/// micro-batches beyond those that show the constant increment are extrapolated.
double replayed_s(const PlanCandidate& plan, int64_t micro_batches, const sim::CellTimes& times);

/// Shapes of the built-in schedules, each worked out once.
class PipelineShapes {
 public:
  /// Returns the shape of a plan's pipeline. Throws Error if there is no such schedule for these
  /// ranks, chunks and micro-batches.
  const PipelineShape& of(const PlanCandidate& plan, int64_t micro_batches);

 private:
  std::map<std::array<int64_t, 4>, PipelineShape> known_;
};

}  // namespace hocket::planner
