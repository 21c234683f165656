// SPDX-License-Identifier: Apache-2.0
// Matching of a collective's members across workers, also where records of some members were lost.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "whatif/measured_run.h"

namespace hocket::whatif {

/// Collectives of one kind, by a name that only they have: ops of each worker, in their order.
struct Collectives {
  std::map<PatternWorkerId, std::vector<OpId>> of_worker;
  size_t num_members = 0;  ///< workers that should be in all of them; at least those of `of_worker`
  bool numbered = false;   ///< ops of the same number (Op::sequence) are in the same one
};

/// Finds the ops of each collective, makes a Group of them, and aligns clocks (set_clocks()).
/// Returns whether it set any.
/// Unnumbered collectives match by order: the k-th of all workers. Times match them (`timed`: the
/// trace has starts) where workers have different counts, or where members would have ended before
/// others started. Notes report the method, and the collectives with missing members.
bool match_collectives(const std::vector<Collectives>& kinds, bool timed, MeasuredRun* run);

}  // namespace hocket::whatif
