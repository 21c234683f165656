// SPDX-License-Identifier: Apache-2.0
#include "collectives/pieces.h"

#include <algorithm>
#include <numeric>

#include "collectives/parts.h"

namespace hocket::comm {

std::vector<Piece> pieces_between(std::span<const int64_t> sizes, int64_t begin, int64_t end) {
  std::vector<Piece> pieces;
  int64_t first = 0;  // begin of the operand in the concatenation
  for (size_t operand = 0; operand < sizes.size(); ++operand) {
    const int64_t from = std::max(begin - first, int64_t{0});
    const int64_t to = std::min(end - first, sizes[operand]);
    if (from < to) {
      pieces.push_back({operand, from, to});
    }
    first += sizes[operand];
  }
  return pieces;
}

std::vector<Piece> pieces_of_part(const CollectiveArgs& all, std::span<const int64_t> sizes,
                                  int64_t unit) {
  const int64_t size = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
  const Range units = part_of(all, size / unit);
  const bool last = all.part + 1 == all.parts;
  return pieces_between(sizes, units.begin * unit, last ? size : units.end * unit);
}

}  // namespace hocket::comm
