// SPDX-License-Identifier: Apache-2.0
// What profiles of several ranks have in common: the members of a collective end it together. By
// that clocks are set, and where records are lost it is told which collectives are one.
#pragma once

#include <cstdint>
#include <set>
#include <vector>

#include "whatif/kineto_profile.h"

namespace hocket::whatif::kineto {

/// Sets all ranks by the first one's clock; one that has no collective in common with it begins its
/// steps when that does. Returns how far ends are from each other then, in seconds (of the rank of
/// which that is most, the median).
double set_clocks(const std::set<int64_t>& steps, std::vector<Profile>* profiles, Dropped* dropped);

/// Gives what is one collective one number on all ranks (Activity::number). That is the k-th of its
/// name and step, unless a rank lacks a record: then it is told by when they end. `apart`: what
/// set_clocks() returned.
void number_collectives(double apart, std::vector<Profile>* profiles);

}  // namespace hocket::whatif::kineto
