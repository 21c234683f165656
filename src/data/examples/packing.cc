// SPDX-License-Identifier: Apache-2.0
#include "data/examples/packing.h"

#include <algorithm>
#include <deque>
#include <map>
#include <numeric>

#include "base/error.h"

namespace hocket::data {

Packing pack_best_fit(const std::vector<int64_t>& lengths, int64_t capacity, int64_t most) {
  std::vector<int64_t> order(lengths.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return lengths[a] > lengths[b]; });
  std::vector<std::vector<int64_t>> rows;
  std::map<int64_t, std::deque<int64_t>> by_room;  // rows with this much room, oldest first
  for (const int64_t item : order) {
    const int64_t length = lengths[item];
    HOCKET_CHECK(length > 0 && length <= capacity, "an item of {} into rows of {}", length,
                 capacity);
    int64_t row = std::ssize(rows), room = capacity;
    if (const auto fit = by_room.lower_bound(length); fit != by_room.end()) {
      room = fit->first;
      row = fit->second.front();
      fit->second.pop_front();
      if (fit->second.empty()) {
        by_room.erase(fit);
      }
    } else {
      rows.emplace_back();
    }
    rows[row].push_back(item);
    if (room > length && (most == 0 || std::ssize(rows[row]) < most)) {
      by_room[room - length].push_back(row);
    }
  }
  Packing out;
  out.items.reserve(lengths.size());
  for (const std::vector<int64_t>& row : rows) {
    out.items.insert(out.items.end(), row.begin(), row.end());
    out.begin.push_back(std::ssize(out.items));
  }
  return out;
}

Packing pack_single(int64_t items) {
  Packing out;
  out.items.resize(items);
  std::iota(out.items.begin(), out.items.end(), 0);
  out.begin.resize(items + 1);
  std::iota(out.begin.begin(), out.begin.end(), 0);
  return out;
}

}  // namespace hocket::data
