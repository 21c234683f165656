// SPDX-License-Identifier: Apache-2.0
// Runs the lanes of all classes abstractly, one representative rank per class: sends complete
// without their receiver, everything else waits for what it needs. Finds unmatched messages,
// disagreeing collectives and deadlocks, and visits every task once in an order that respects
// lanes, dependencies, messages and meetings.
#pragma once

#include <cstdint>
#include <vector>

#include "check/context.h"
#include "check/hazards.h"
#include "check/values.h"

namespace hocket::check {

class Sweep {
 public:
  explicit Sweep(Context& ctx) : ctx_(ctx) {}

  /// Pairs sends with receives and the collectives that cross stages; reports what does not pair.
  void match();
  /// Runs all lanes. `values` may be null (no reference). False if some lanes got stuck.
  bool run(Hazards& hazards, Values* values);

  int64_t num_messages() const { return num_messages_; }
  int64_t num_collectives() const { return num_collectives_; }

 private:
  struct Meeting {
    std::vector<int32_t> tasks;  ///< global
    size_t arrived = 0;
    bool complete = true;  ///< false: some member lacks its task (reported)
  };
  void match_messages();
  void match_collectives();
  int32_t lane_index(int32_t global) const;
  void report_stuck(const std::vector<int32_t>& head, const std::vector<uint8_t>& done);

  Context& ctx_;
  std::vector<int32_t> partner_;  ///< by global task: the send of a recv and back, -1
  std::vector<int32_t> meeting_;  ///< by global task: index of meetings_, -1
  std::vector<Meeting> meetings_;
  int64_t num_messages_ = 0, num_collectives_ = 0;
};

}  // namespace hocket::check
