// SPDX-License-Identifier: Apache-2.0
// Order of tasks across ranks: pairs messages, and collectives over several classes, then runs the
// lanes abstractly. Refuses unmatched messages, disagreeing collectives and deadlocks. Visits every
// task once, for hazards and values, in an order that respects lanes, dependencies, messages and
// collectives.
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

class OrderChecker {
 public:
  explicit OrderChecker(Context& ctx) : ctx_(ctx) {}

  /// Pairs sends with receives, and collectives that cross classes. Reports those without a
  /// partner.
  void match();
  /// Runs all lanes, with sends that complete alone. `interpreter`: null without a reference.
  /// Returns false, and reports, if some lanes get stuck.
  bool run(Hazards& hazards, Interpreter* interpreter);
  /// Returns the cycle of waits if sends waited for their receivers; "" if the program ends then,
  /// too. Requires: run() returned true.
  std::string stuck_when_sends_wait() const;

  int64_t num_messages() const { return num_messages_; }
  int64_t num_collectives() const { return num_collectives_; }

 private:
  struct Message;
  /// Tasks by class, in issue order.
  using ByClass = std::vector<std::vector<int32_t>>;
  void match_messages();
  /// Refuses messages of one tag that a rank of the class sends to one peer by two mappings.
  void report_shared_tags(ClassId cls);
  /// Pairs the ends of the messages of one channel.
  void match_channel(std::span<const Message> ends);
  void pair(int32_t send, int32_t receive);
  void partner(int32_t task, int32_t other);
  void report_unmatched(int32_t message, bool send, ClassId other);
  void match_collectives();
  /// Pairs the k-th collective of a group in these classes. `sorts`: the classes that meet, by sort
  /// of instance.
  Matching::CollectiveMatch match_collectives(const std::vector<ClassId>& classes,
                                              const std::vector<std::vector<ClassId>>& sorts,
                                              size_t k, const ByClass& by_class);
  void check_sides(const std::vector<TaskRef>& refs, Matching::CollectiveMatch* matched);
  const std::vector<ClassId>& peers(ClassId cls, const program::PeerMap& peer_map);
  int32_t lane_index(int32_t global) const;

  Context& ctx_;
  Matching matching_;
  std::map<std::pair<ClassId, program::PeerMap>, std::vector<ClassId>> peers_;
  int64_t num_messages_ = 0, num_collectives_ = 0;
};

}  // namespace hocket::check
