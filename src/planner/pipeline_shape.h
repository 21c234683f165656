// SPDX-License-Identifier: Apache-2.0
// What a pipeline schedule alone says of a step, whatever the model: how long ranks wait, for how
// many micro-batches they keep what backward passes read, where their first and last work lies, and
// which messages they send.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "planner/space.h"
#include "sim/schedule_sim.h"

namespace hocket::planner {

struct PipelineShape {
  struct Rank {
    /// Its stages, and the share of the micro-batches that it runs of each.
    std::vector<std::pair<int64_t, double>> stages;
    int64_t first_stage = 0;  ///< of its first work, which is a forward pass
    int64_t last_stage = 0;   ///< of its last work
    char last_kind = 'B';     ///< of that: parallel::Action::kind
    /// Most micro-batches alive of those that it is shown with, in shares of all of its layers.
    double live = 1;
    double pending = 0;  ///< most whose gradients of weights are put off, likewise
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
  /// Time that ranks wait in a step, in passes (forward and backward) of a micro-batch through all
  /// stages of a rank, where forward passes and the two halves of backward passes take the same.
  double waits = 0;
  bool splits_backward = false;  ///< gradients of weights are work of their own
  bool overlaps = false;         ///< passes of two micro-batches take turns on a rank
};

/// Seconds that the passes of a step and the messages between them take, as long as `times` says:
/// replayed, but for micro-batches beyond those that show what each more of them adds.
double replayed_s(const Choice& choice, int64_t micro_batches, const sim::CellTimes& times);

/// Shapes of the built-in schedules, each worked out once.
class PipelineShapes {
 public:
  /// Error: there is no such schedule for these ranks, chunks and micro-batches.
  const PipelineShape& of(const Choice& choice, int64_t micro_batches);

 private:
  std::map<std::array<int64_t, 4>, PipelineShape> known_;
};

}  // namespace hocket::planner
