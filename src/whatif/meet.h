// SPDX-License-Identifier: Apache-2.0
// Who was in a collective with whom, also where records of some of its members were lost.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "whatif/measured_run.h"

namespace hocket::whatif {

/// Collectives of one kind, by a name that only they have: ops of each worker, in their order.
struct Collectives {
  std::map<int32_t, std::vector<int32_t>> of_worker;
  size_t num_members = 0;  ///< workers that should be in all of them; at least those of `of_worker`
  bool numbered = false;   ///< ops of the same number (Op::sequence) are in the same one
};

/// Makes groups of collectives, and sets clocks (set_clocks(); true if it did). Where they are not
/// numbered the k-th ones of all workers meet; where some workers have fewer of a kind than others,
/// or that cannot be since members would have ended before others had started, those meet that were
/// in it at a time, if the trace has starts (`timed`). Notes say what was done, and how many have
/// members missing.
bool meet(const std::vector<Collectives>& kinds, bool timed, MeasuredRun* run);

}  // namespace hocket::whatif
