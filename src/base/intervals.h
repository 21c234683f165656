// SPDX-License-Identifier: Apache-2.0
// A set of whole numbers as disjoint ranges: which elements of a tensor, or bytes of a file, there
// are.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>

namespace hocket {

class Intervals {
 public:
  /// Adds the range; calls `take(begin, count)`, in ascending order, for its new parts.
  template <class Take>
  void add(int64_t begin, int64_t count, const Take& take) {
    missing(begin, count, take);
    if (count <= 0) return;
    int64_t first = begin, last = begin + count;
    auto range = first_after(begin);
    while (range != ranges_.end() && range->first <= begin + count) {
      first = std::min(first, range->first);
      last = std::max(last, range->second);
      range = ranges_.erase(range);
    }
    ranges_[first] = last;
  }
  void add(int64_t begin, int64_t count) {
    add(begin, count, [](int64_t, int64_t) {});
  }

  /// Calls `miss(begin, count)`, in ascending order, for the absent parts of the range.
  template <class Miss>
  void missing(int64_t begin, int64_t count, const Miss& miss) const {
    const int64_t end = begin + count;
    int64_t at = begin;
    for (auto range = first_after(begin); range != ranges_.end() && range->first < end; ++range) {
      if (range->first > at) {
        miss(at, range->first - at);
      }
      at = std::max(at, range->second);
    }
    if (at < end) {
      miss(at, end - at);
    }
  }

 private:
  /// The first range that reaches up to `begin`, or lies behind it.
  std::map<int64_t, int64_t>::const_iterator first_after(int64_t begin) const {
    auto range = ranges_.upper_bound(begin);
    if (range != ranges_.begin() && std::prev(range)->second >= begin) {
      --range;
    }
    return range;
  }

  std::map<int64_t, int64_t> ranges_;  ///< end by begin
};

}  // namespace hocket
