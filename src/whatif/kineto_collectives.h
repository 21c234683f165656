// SPDX-License-Identifier: Apache-2.0
// Collectives shared by the profiles of several ranks. Members end a collective together. That sets
// clocks, and matches collectives where records are lost.
#pragma once

#include <cstdint>
#include <set>
#include <vector>

#include "whatif/kineto_profile.h"

namespace hocket::whatif::kineto {

/// Sets the clocks of all ranks to the first one's. A rank without a common collective begins its
/// steps with the first rank. Returns the distance of ends left, in seconds: the median of the
/// worst rank.
double set_clocks(const std::set<int64_t>& steps, std::vector<Profile>* profiles, Dropped* dropped);

/// Gives each collective one number on all its ranks (Activity::number). It is the k-th of its name
/// and step, unless a rank lacks a record: then ends match it. `apart` is the result of
/// set_clocks().
void number_collectives(double apart, std::vector<Profile>* profiles);

}  // namespace hocket::whatif::kineto
