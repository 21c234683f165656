// SPDX-License-Identifier: Apache-2.0
// Pieces of a list of operands: a member's operands are treated as one concatenation that is cut
// into runs, so that most messages are one contiguous piece of memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "collectives/comm_op.h"

namespace hocket::comm {

/// Interval [begin, end) of one operand.
struct Piece {
  size_t operand = 0;
  int64_t begin = 0, end = 0;
};
/// Returns the pieces of [begin, end) of the concatenation of operands with these sizes.
std::vector<Piece> pieces_between(std::span<const int64_t> sizes, int64_t begin, int64_t end);
/// Returns the pieces of the current part (CollectiveArgs::part) of operands with these sizes.
/// Parts are whole units, except for the end of the last.
std::vector<Piece> pieces_of_part(const CollectiveArgs& all, std::span<const int64_t> sizes,
                                  int64_t unit = 1);

/// Calls `run(row, begin, end)` for every row of length `row` that the piece intersects.
template <class Run>
void for_each_row(const Piece& piece, int64_t row, const Run& run) {
  for (int64_t at = piece.begin; at < piece.end;) {
    const int64_t in_row = at % row;
    const int64_t length = row - in_row < piece.end - at ? row - in_row : piece.end - at;
    run(at / row, in_row, in_row + length);
    at += length;
  }
}

}  // namespace hocket::comm
