// SPDX-License-Identifier: Apache-2.0
// Whole examples into rows of a fixed length.
#pragma once

#include <cstdint>
#include <vector>

namespace hocket::data {

/// Items by row: row r has items[begin[r]] to items[begin[r + 1] - 1], in this order.
struct Packing {
  std::vector<int64_t> items, begin{0};
  int64_t rows() const { return std::ssize(begin) - 1; }
};

/// Packs items of these lengths, each above 0 and at most `capacity`: the longest first, each into
/// the row with the least room that it fits into (best fit decreasing); of equals the first.
/// `most`: items in a row; 0: any number.
Packing pack_best_fit(const std::vector<int64_t>& lengths, int64_t capacity, int64_t most = 0);

/// One item a row.
Packing pack_single(int64_t items);

}  // namespace hocket::data
