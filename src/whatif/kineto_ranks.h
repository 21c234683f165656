// SPDX-License-Identifier: Apache-2.0
// Choice of the profiles, and of their steps, that make a run.
#pragma once

#include <cstdint>
#include <set>
#include <vector>

#include "whatif/kineto_profile.h"

namespace hocket::whatif::kineto {

/// Numbers ranks that have no number, and leaves in `profiles` those that are used, by rank.
/// Returns the numbers of the steps that are. Throws Error for two files of one rank, and if none
/// can be used.
std::set<int64_t> choose_ranks_and_steps(std::vector<Profile>* profiles, Dropped* dropped);

}  // namespace hocket::whatif::kineto
