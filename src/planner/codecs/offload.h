// SPDX-License-Identifier: Apache-2.0
// Number of gradients per group that hosts encode in place of devices (Espresso, Wang et al.,
// EuroSys 2023, Algorithm 2). Gradients of one size and route are a group, and only a number per
// group has to be chosen, since hosts take those furthest from the output.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

namespace hocket::planner {

/// A number per group.
using OffloadCounts = std::vector<size_t>;

struct OffloadSearch {
  double choices = 1;     ///< there are: the product of the groups' sizes plus one
  bool all_tried = true;  ///< false: there are too many, and groups were decided one after another
  OffloadCounts best;     ///< of the shortest step; 0 of each: nothing is better
  double gain_s = 0;      ///< by which these shorten the step
};

/// Chooses the counts of the shortest step. `step_s`: the predicted step with these counts, if it
/// is to be taken. It is called with all possible counts if these are at most `most_choices`. Else
/// it is called once for each count of one group at a time, until none shortens the step any more.
/// `begin_s`: the step with 0 of each. `stop`: true ends the search with the best so far.
OffloadSearch choose_offload(
    const std::vector<size_t>& group_sizes, double begin_s, double most_choices,
    const std::function<std::optional<double>(const OffloadCounts&)>& step_s,
    const std::function<bool()>& stop);

}  // namespace hocket::planner
