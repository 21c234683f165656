// SPDX-License-Identifier: Apache-2.0
#include "program/largest_first.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "base/stop.h"

namespace hocket::program {

namespace {

/// Returns, for every buffer, the events that every buffer from it on knows to have finished.
std::vector<Clock> known_from_on(std::span<const Lifetime> lifetimes) {
  std::vector<Clock> known(lifetimes.size());
  Clock least;
  least.fill(std::numeric_limits<int32_t>::max());
  for (size_t i = lifetimes.size(); i-- > 0;) {
    for (size_t lane = 0; lane < least.size(); ++lane) {
      least[lane] = std::min(least[lane], lifetimes[i].known[lane]);
    }
    known[i] = least;
  }
  return known;
}

/// Calls `meets(earlier, later)` for every pair of buffers that may be in use at once. Ends if one
/// returns false.
template <class Meets>
bool for_pairs(std::span<const Lifetime> lifetimes, const std::vector<Clock>& known,
               const Meets& meets) {
  std::vector<uint32_t> active;  // buffers that a later one may still meet
  for (size_t i = 0; i < lifetimes.size(); ++i) {
    stop_if_asked();
    size_t kept = 0;
    for (const uint32_t earlier : active) {
      const Clock& used = lifetimes[earlier].used;
      if (!happened(used, lifetimes[i].known)) {
        if (!meets(earlier, static_cast<uint32_t>(i))) return false;
      } else if (happened(used, known[i])) {
        continue;
      }
      active[kept++] = earlier;
    }
    active.resize(kept);
    active.push_back(static_cast<uint32_t>(i));
  }
  return true;
}

}  // namespace

bool happened(const Clock& needs, const Clock& now) {
  for (size_t lane = 0; lane < kNumLanes; ++lane) {
    if (needs[lane] > now[lane]) return false;
  }
  return true;
}

std::vector<int64_t> place_largest_first(std::span<const Lifetime> lifetimes, int64_t most_pairs) {
  // Lists of the buffers that each one meets, one after the other: counted, then filled.
  const std::vector<Clock> known = known_from_on(lifetimes);
  std::vector<size_t> begin(lifetimes.size() + 1, 0);
  int64_t pairs = 0;
  const bool few = for_pairs(lifetimes, known, [&](uint32_t earlier, uint32_t later) {
    ++begin[earlier + 1];
    ++begin[later + 1];
    return ++pairs <= most_pairs;
  });
  if (!few) return {};
  std::partial_sum(begin.begin(), begin.end(), begin.begin());
  std::vector<uint32_t> met(begin.back());
  std::vector<size_t> next(begin.begin(), begin.end() - 1);
  for_pairs(lifetimes, known, [&](uint32_t earlier, uint32_t later) {
    met[next[earlier]++] = later;
    met[next[later]++] = earlier;
    return true;
  });
  std::vector<uint32_t> order(lifetimes.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](uint32_t left, uint32_t right) {
    return lifetimes[left].bytes > lifetimes[right].bytes;
  });
  constexpr int64_t kNowhere = -1;
  std::vector<int64_t> at(lifetimes.size(), kNowhere);
  std::vector<std::pair<int64_t, int64_t>> taken;
  for (const uint32_t buffer : order) {
    stop_if_asked();
    taken.clear();
    for (size_t i = begin[buffer]; i < begin[buffer + 1]; ++i) {
      if (at[met[i]] == kNowhere) continue;
      taken.emplace_back(at[met[i]], at[met[i]] + lifetimes[met[i]].bytes);
    }
    std::sort(taken.begin(), taken.end());
    int64_t lowest = 0;
    for (const auto& [from, end] : taken) {
      if (from - lowest >= lifetimes[buffer].bytes) break;
      lowest = std::max(lowest, end);
    }
    at[buffer] = lowest;
  }
  return at;
}

}  // namespace hocket::program
