// SPDX-License-Identifier: Apache-2.0
// Who was in a transfer with whom, the clocks of workers, and what of a communication is waiting
// for its other members: what importers make of the times of communications once they are in a
// table.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "sim/whatif/measured_run.h"

namespace hocket::sim::whatif {

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

/// Sets the clocks of workers where some of them cannot be right: of the transfers of a worker more
/// than a tenth ended, by more than a thousandth of a step, before all of their members had
/// started. Members of a collective end together, so a clock is off by the median of the
/// differences of these ends; of workers that only exchange messages a message takes as long there
/// as back. Kept if fewer transfers are impossible then. Moves starts and `measured_step`; a note
/// says so. True if it moved any.
bool set_clocks(MeasuredRun* run);

/// Fills `measured_step`: of every step from the first start to the last end.
void measure_steps(MeasuredRun* run);

/// Turns what members of groups waited for each other into waiting: their duration becomes the part
/// after the last start; unless nine of ten groups have members that all start at once, as in a
/// trace of transfers. A part that ends more than 10 ms before that is a clock's fault, counts as
/// 0, and is noted; if more than a tenth are so by more than a thousandth of a step, clocks are
/// apart (MeasuredRun::clocks_apart).
void settle_transfers(MeasuredRun* run);

}  // namespace hocket::sim::whatif
