// SPDX-License-Identifier: Apache-2.0
// Two queues of events in one order: by time, then rank, then task. One only adds and takes; in the
// other every entry has a name, and may move or go.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/error.h"
#include "program/program.h"

namespace hocket::sim {

/// Completion of `task` on replayed rank `index` (for a collective: on its lowest member).
struct Event {
  int64_t ns = 0;
  int32_t index = 0;
  program::TaskId task = 0;
  bool operator<(const Event& other) const {
    if (ns != other.ns) return ns < other.ns;
    return (uint64_t(uint32_t(index)) << 32 | uint32_t(task)) <
           (uint64_t(uint32_t(other.index)) << 32 | uint32_t(other.task));
  }
};

/// Four-ary min-heap: half the depth of a binary one, children in one cache line.
class EventHeap {
 public:
  bool empty() const { return events_.empty(); }
  const Event& top() const { return events_.front(); }
  void push(const Event& event) {
    events_.push_back(event);
    size_t hole = events_.size() - 1;
    while (hole > 0) {
      const size_t parent = (hole - 1) / 4;
      if (!(event < events_[parent])) break;
      events_[hole] = events_[parent];
      hole = parent;
    }
    events_[hole] = event;
  }
  void pop() {
    // The last event fills the hole at the top: it sinks below every child that comes before it.
    const Event event = events_.back();
    events_.pop_back();
    const size_t n = events_.size();
    if (n == 0) return;
    size_t hole = 0;
    while (true) {
      const size_t first = 4 * hole + 1;
      if (first >= n) break;
      size_t best = first;
      const size_t last = std::min(first + 4, n);
      for (size_t child = first + 1; child < last; ++child) {
        if (events_[child] < events_[best]) {
          best = child;
        }
      }
      if (!(events_[best] < event)) break;
      events_[hole] = events_[best];
      hole = best;
    }
    events_[hole] = event;
  }

 private:
  std::vector<Event> events_;
};

/// Min-heap of events that are named by small numbers.
class NamedEvents {
 public:
  bool empty() const { return heap_.empty(); }
  int32_t top() const { return heap_.front(); }
  const Event& event(int32_t name) const { return events_[static_cast<size_t>(name)]; }

  /// Adds the event of this name, or moves it.
  void set(int32_t name, const Event& event) {
    const size_t at = static_cast<size_t>(name);
    if (at >= events_.size()) {
      events_.resize(at + 1);
      place_.resize(at + 1, kOut);
    }
    events_[at] = event;
    if (place_[at] == kOut) {
      place_[at] = heap_.size();
      heap_.push_back(name);
    }
    sink(rise(place_[at]));
  }
  void remove(int32_t name) {
    const size_t hole = place_[static_cast<size_t>(name)];
    HOCKET_CHECK(hole != kOut, "no event {}", name);
    place_[static_cast<size_t>(name)] = kOut;
    const int32_t last = heap_.back();
    heap_.pop_back();
    if (last == name) return;
    put(hole, last);
    sink(rise(hole));
  }

 private:
  static constexpr size_t kOut = SIZE_MAX;

  bool before(int32_t left, int32_t right) const { return event(left) < event(right); }
  void put(size_t place, int32_t name) {
    heap_[place] = name;
    place_[static_cast<size_t>(name)] = place;
  }
  size_t rise(size_t place) {
    const int32_t name = heap_[place];
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
    const int32_t name = heap_[place];
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
  std::vector<size_t> place_;  ///< in the heap, by name
  std::vector<int32_t> heap_;
};

}  // namespace hocket::sim
