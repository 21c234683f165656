// SPDX-License-Identifier: Apache-2.0
// Event queue against an ordered set.
#include "sim/event_queue.h"

#include <gtest/gtest.h>

#include <random>
#include <set>
#include <stdexcept>

namespace hocket::sim {
namespace {

/// Adds and takes events at random, first more additions, then more removals. `bits`: maximum bits
/// of the time until an event; with few bits, many events are simultaneous.
void expect_as_ordered_set(int bits) {
  EventQueue queue;
  std::set<Event> expected;
  std::mt19937_64 random(static_cast<uint64_t>(bits));
  int64_t now = 0;
  for (int32_t k = 0; k < 20000 && now < int64_t{1} << 61; ++k) {
    const bool adds = random() % 100 < (k < 10000 ? 60 : 40);
    if (adds || expected.empty()) {
      const uint64_t away = random() >> (64 - bits) >> random() % static_cast<uint64_t>(bits);
      const Event event{now + static_cast<int64_t>(away), static_cast<int32_t>(random() % 99), k};
      queue.push(event);
      expected.insert(event);
    } else {
      ASSERT_FALSE(queue.empty());
      const Event event = queue.top();
      ASSERT_EQ(event.ns, expected.begin()->ns) << bits << " bits, event " << k;
      ASSERT_EQ(event.key(), expected.begin()->key()) << bits << " bits, event " << k;
      queue.pop();
      expected.erase(expected.begin());
      now = event.ns;
    }
    ASSERT_EQ(queue.empty(), expected.empty());
  }
}

TEST(EventQueue, MatchesAnOrderedSet) {
  for (const int bits : {2, 5, 12, 31, 60}) {
    expect_as_ordered_set(bits);
  }
}

TEST(EventQueue, RefusesEventsInThePast) {
  EventQueue queue;
  queue.push({100, 0, 0});
  queue.pop();
  queue.push({100, 1, 0});
  EXPECT_THROW(queue.push({99, 0, 0}), std::logic_error);
}

}  // namespace
}  // namespace hocket::sim
