// SPDX-License-Identifier: Apache-2.0
// Parts of a list: what a member has of all operands, one behind the other, is cut into runs, so
// that most of what is sent at a time is one piece of memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "collectives/comm_op.h"

namespace hocket::comm {

/// Of what a member has of an operand, from `begin` up to `end`.
struct Piece {
  size_t operand = 0;
  int64_t begin = 0, end = 0;
};
/// From `begin` up to `end` of all operands, one behind the other, which are of these sizes.
std::vector<Piece> pieces_between(std::span<const int64_t> sizes, int64_t begin, int64_t end);
/// The part that is done (Together::part), of operands of which the member has so much; in whole
/// units, but for the end of the last part.
std::vector<Piece> pieces_of_part(const Together& all, std::span<const int64_t> sizes,
                                  int64_t unit = 1);

/// Calls `run` with the number of a row, and from where to where in it, for every row of so much
/// that the piece has some of.
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
