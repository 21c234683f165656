// SPDX-License-Identifier: Apache-2.0
// Pairs messages, and collectives over several classes, then runs the lanes abstractly: finds
// unmatched messages, disagreeing collectives and deadlocks, and has hazards and values look at
// every task once in an order that respects lanes, dependencies, messages and meetings.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "check/abstract_run.h"
#include "check/context.h"
#include "check/hazards.h"
#include "check/values/interpreter.h"

namespace hocket::check {

class Sweep {
 public:
  explicit Sweep(Context& ctx) : ctx_(ctx) {}

  /// Pairs sends with receives and the collectives that cross classes; reports what does not pair.
  void match();
  /// Runs all lanes, with sends that complete alone. `interpreter` may be null (no reference).
  /// False if some lanes got stuck, which is reported.
  bool run(Hazards& hazards, Interpreter* interpreter);
  /// For a program that ends when sends complete alone: who waits for whom when a send waits for
  /// its receiver instead, or "" if it ends then, too.
  std::string stuck_when_sends_wait() const;

  int64_t num_messages() const { return num_messages_; }
  int64_t num_collectives() const { return num_collectives_; }

 private:
  struct Message;
  /// By class, in issue order.
  using ByClass = std::vector<std::vector<int32_t>>;
  void match_messages();
  /// Refuses messages of one tag that some rank of the class sends to one rank by two ways.
  void tell_shared_tags(ClassId cls);
  /// The ends of the messages of one channel.
  void match_channel(std::span<const Message> ends);
  void pair(int32_t send, int32_t receive);
  void partner(int32_t task, int32_t other);
  void report_unmatched(int32_t message, bool send, ClassId other);
  void match_collectives();
  /// The k-th collective of a group in each of these classes, which meet as `sorts` says.
  Matching::Meeting meet(const std::vector<ClassId>& classes,
                         const std::vector<std::vector<ClassId>>& sorts, size_t k,
                         const ByClass& by_class);
  void check_sides(const std::vector<TaskRef>& refs, Matching::Meeting* meeting);
  const std::vector<ClassId>& peers(ClassId cls, const program::Way& way);
  int32_t lane_index(int32_t global) const;

  Context& ctx_;
  Matching matching_;
  std::map<std::pair<ClassId, program::Way>, std::vector<ClassId>> peers_;
  int64_t num_messages_ = 0, num_collectives_ = 0;
};

}  // namespace hocket::check
