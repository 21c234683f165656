// SPDX-License-Identifier: Apache-2.0
// Functions shared by the writers of other trainers' files.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "planner/space.h"
#include "run/config.h"

namespace hocket::interop {

/// Throws Error, naming the key, if the run sets a key of `plan` that the trainer cannot express:
/// not its default, and neither among the keys that every trainer has in some form nor among
/// `others`. `trainer` is the trainer's name for the message.
void expect_expressed(const engine::Run& run, const std::string& trainer,
                      const std::vector<std::string>& others);
/// Throws Error if several sequences of a micro-batch lie over ranks of cp: these share out its
/// tokens here, and every sequence in other trainers.
void expect_one_sequence(const engine::Run& run, const std::string& trainer);
/// Returns whether a candidate has no such micro-batch.
inline bool cuts_alike(const planner::PlanCandidate& plan) {
  return plan.cp == 1 || plan.micro_batch == 1;
}
/// Returns the steps of a training: by train.steps, if its time or a share of its data decides.
int64_t steps_of(const engine::TrainSection& train);
/// A note of each of `keys` that the run sets to something else than its default.
std::vector<std::string> notes_of_left_out(const engine::Run& run, const std::string& trainer,
                                           const std::vector<std::string>& keys);
/// Returns the least number of whole units not shorter than `seconds`; adds a note if they are
/// longer.
int64_t timeout_in(int64_t seconds, const engine::Run& run, const std::string& trainer,
                   std::vector<std::string>* notes);
/// Throws Error for a key with a value that cannot be expressed.
[[noreturn]] void refuse_key(const engine::Run& run, const std::string& trainer,
                             const std::string& key, const std::string& value,
                             const std::string& expected);

}  // namespace hocket::interop
