// SPDX-License-Identifier: Apache-2.0
#include "comm/ops/pieces.h"

#include <algorithm>
#include <numeric>

#include "comm/ops/parts.h"

namespace hocket::comm {

std::vector<Piece> pieces_of_part(const Together& all, std::span<const int64_t> sizes,
                                  int64_t unit) {
  const int64_t size = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
  const Range units = part_of(all, size / unit);
  const int64_t part_begin = units.begin * unit;
  const int64_t part_end = all.part + 1 == all.parts ? size : units.end * unit;
  std::vector<Piece> pieces;
  int64_t first = 0;  // of the operand, among all
  for (size_t operand = 0; operand < sizes.size(); ++operand) {
    const int64_t begin = std::max(part_begin - first, int64_t{0});
    const int64_t end = std::min(part_end - first, sizes[operand]);
    if (begin < end) {
      pieces.push_back({operand, begin, end});
    }
    first += sizes[operand];
  }
  return pieces;
}

}  // namespace hocket::comm
