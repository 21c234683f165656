// SPDX-License-Identifier: Apache-2.0
// The ops of a rank by its PyTorch profile, and what they wait for within the rank.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "sim/whatif/kineto_profile.h"

namespace hocket::sim::whatif::kineto {

/// Worker, name and sequence, by which assemble() tells ops apart.
using OpKey = std::tuple<int32_t, int32_t, int32_t>;

/// An op of a rank, and when it ended.
struct Place {
  int32_t name = kNone, sequence = kNone;
  double end = 0;
};

/// What a collective moves.
struct Sent {
  int64_t bytes = 0;
  bool of_backward = false;  ///< a sum that a thread of the backward pass launched
};

/// The ops of all ranks. What they wait for and move is that of the last step seen: all steps are
/// held to be alike.
struct Ops {
  std::vector<std::string> names;
  std::map<std::string, int32_t> name_ids;
  std::vector<Observed> seen;
  std::map<OpKey, std::vector<Place>> waits;
  std::map<OpKey, Sent> sent;
};

/// Adds those of a rank in these steps. `first_start`: when a step begins on the rank that begins
/// it first.
void add_ops(const Profile& profile, int32_t worker, const std::set<int32_t>& steps,
             const std::map<int32_t, double>& first_start, Ops* ops);

}  // namespace hocket::sim::whatif::kineto
