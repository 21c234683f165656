// SPDX-License-Identifier: Apache-2.0
// Two event queues ordered by (time, rank, task): a monotone queue without removal, and a heap with
// named entries that can be moved and removed.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <functional>
#include <queue>
#include <vector>

#include "base/error.h"
#include "program/program.h"
#include "sim/ids.h"

namespace hocket::sim {

/// Completion of `task` on replayed rank `index` (for a collective: on its lowest member).
struct Event {
  int64_t ns = 0;
  RankIndex index;
  program::TaskId task = 0;

  /// Key that orders events of equal time.
  uint64_t key() const { return uint64_t(uint32_t(index)) << 32 | uint32_t(task); }
  bool operator<(const Event& other) const {
    return ns != other.ns ? ns < other.ns : key() < other.key();
  }
};

/// Monotone priority queue: a radix heap (Ahuja, Mehlhorn, Orlin, Tarjan: Faster Algorithms for the
/// Shortest Path Problem, 1990). Events at the time of the last event taken are due, in order. Any
/// other event is in the bucket of the highest digit in which its time differs from that time, and
/// of that digit's value. The lowest bucket therefore holds the earliest events. When the first of
/// them is taken, the others move to lower buckets. No event moves more often than its time has
/// digits.
class EventQueue {
 public:
  bool empty() const { return due_.empty() && levels_ == 0; }

  /// Adds an event. Requires: it is not earlier than the last event taken, and not already queued.
  void push(const Event& event) {
    HOCKET_CHECK(event.ns >= last_ns_, "an event at {} ns, after one at {}", event.ns, last_ns_);
    put(event);
    if (first_known_ && event.ns > last_ns_ && event < first_) {
      first_ = event;
    }
  }

  /// Returns the earliest event. Requires: the queue is not empty.
  Event top() {
    if (!due_.empty()) {
      const uint64_t name = due_.top();
      return {last_ns_, name >> 32, name};
    }
    if (!first_known_) {
      const std::vector<Event>& lowest = buckets_[lowest_bucket()];
      first_ = *std::min_element(lowest.begin(), lowest.end());
      first_known_ = true;
    }
    return first_;
  }

  /// Removes the earliest event. Requires: the queue is not empty.
  void pop() {
    if (!due_.empty()) {
      due_.pop();
      return;
    }
    const Event taken = top();
    first_known_ = false;
    last_ns_ = taken.ns;
    const size_t bucket = lowest_bucket();
    const size_t level = bucket / kDigits;
    filled_[level] &= ~(uint64_t{1} << bucket % kDigits);
    levels_ &= ~(uint32_t{filled_[level] == 0} << level);
    for (const Event& event : buckets_[bucket]) {
      if (event.key() != taken.key()) {
        put(event);
      }
    }
    buckets_[bucket].clear();
  }

 private:
  static constexpr size_t kBits = 6, kDigits = 1 << kBits, kLevels = 63 / kBits + 1;

  size_t lowest_bucket() const {
    const size_t level = static_cast<size_t>(std::countr_zero(levels_));
    return level * kDigits + static_cast<size_t>(std::countr_zero(filled_[level]));
  }
  void put(const Event& event) {
    if (event.ns == last_ns_) {
      due_.push(event.key());
      return;
    }
    const uint64_t ns = static_cast<uint64_t>(event.ns);
    const int highest_bit = std::bit_width(ns ^ static_cast<uint64_t>(last_ns_)) - 1;
    const size_t level = static_cast<size_t>(highest_bit) / kBits;
    const size_t digit = ns >> level * kBits & (kDigits - 1);
    buckets_[level * kDigits + digit].push_back(event);
    levels_ |= 1u << level;
    filled_[level] |= uint64_t{1} << digit;
  }

  int64_t last_ns_ = 0;
  std::priority_queue<uint64_t, std::vector<uint64_t>, std::greater<>> due_;  ///< names
  std::array<std::vector<Event>, kLevels * kDigits> buckets_;
  uint32_t levels_ = 0;                     ///< a bit per level that has a non-empty bucket
  std::array<uint64_t, kLevels> filled_{};  ///< per level, a bit per non-empty bucket
  // Earliest event in a bucket, cached by top().
  Event first_;
  bool first_known_ = false;
};

/// Min-heap of events that are named by the ids of a table.
template <class Name>
class IndexedEvents {
 public:
  bool empty() const { return heap_.empty(); }
  Name top() const { return heap_.front(); }
  const Event& event(Name name) const { return events_[name]; }

  /// Adds the event of this name, or moves it.
  void set(Name name, const Event& event) {
    const size_t at = name;
    if (at >= events_.size()) {
      events_.resize(at + 1);
      place_.resize(at + 1, kAbsent);
    }
    events_[at] = event;
    if (place_[at] == kAbsent) {
      place_[at] = heap_.size();
      heap_.push_back(name);
    }
    sink(rise(place_[at]));
  }
  void remove(Name name) {
    const size_t hole = place_[name];
    HOCKET_CHECK(hole != kAbsent, "no event {}", name);
    place_[name] = kAbsent;
    const Name last = heap_.back();
    heap_.pop_back();
    if (last == name) return;
    put(hole, last);
    sink(rise(hole));
  }

 private:
  static constexpr size_t kAbsent = SIZE_MAX;

  bool before(Name left, Name right) const { return event(left) < event(right); }
  void put(size_t place, Name name) {
    heap_[place] = name;
    place_[name] = place;
  }
  size_t rise(size_t place) {
    const Name name = heap_[place];
    while (place > 0) {
      const size_t parent = (place - 1) / 2;
      if (!before(name, heap_[parent])) break;
      put(place, heap_[parent]);
      place = parent;
    }
    put(place, name);
    return place;
  }
  void sink(size_t place) {
    const Name name = heap_[place];
    while (true) {
      size_t child = 2 * place + 1;
      if (child >= heap_.size()) break;
      if (child + 1 < heap_.size() && before(heap_[child + 1], heap_[child])) {
        ++child;
      }
      if (!before(heap_[child], name)) break;
      put(place, heap_[child]);
      place = child;
    }
    put(place, name);
  }

  std::vector<Event> events_;
  std::vector<size_t> place_;  ///< position in the heap, by name
  std::vector<Name> heap_;
};

}  // namespace hocket::sim
