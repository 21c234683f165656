// SPDX-License-Identifier: Apache-2.0
// all_reduce(x...) -> x...: sums every operand over the group (monoid="max": maximum); a list is
// one transfer. A ring moves 2 (n-1)/n of the data through every link in 2 (n-1) rounds; a tree is
// better where the number of rounds dominates.
#include <cmath>
#include <numeric>

#include "base/bytes.h"
#include "collectives/parts.h"
#include "collectives/pieces.h"

namespace hocket::comm {

namespace {

/// Returns the chunk that a member reduces, in elements. A chunk is a run of the concatenated
/// operands, so that most messages are one contiguous piece of memory.
std::vector<Piece> chunk_of(const CollectiveArgs& all, size_t member) {
  const int64_t n = static_cast<int64_t>(all.members.size());
  const int64_t number = static_cast<int64_t>(member);
  std::vector<int64_t> sizes;
  for (const TensorType& operand : all.in) {
    sizes.push_back(operand.numel());
  }
  const int64_t elements = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
  const int64_t begin = elements * number / n;
  const Range part = part_of(all, elements * (number + 1) / n - begin);
  return pieces_between(sizes, begin + part.begin, begin + part.end);
}

/// Reduces in rank order, so that the bits of the result do not depend on timing. Phase 0 is a
/// reduce-scatter: each member reduces one chunk into its own output. Phase 1 is an all-gather of
/// the chunks. An output may alias its input: no other member reads the chunk that a member writes.
void run_all_reduce(const CollectiveArgs& all, size_t me, int phase) {
  if (phase == 0) {
    for (const Piece& mine : chunk_of(all, me)) {
      std::vector<const void*> from;
      for (const Operands& operands : all.members) {
        from.push_back(operands.in[mine.operand]);
      }
      const graph::DType dtype = all.in[mine.operand].dtype;
      auto* out = static_cast<std::byte*>(all.members[me].out[mine.operand]);
      reduce(monoid_of(*all.attrs), dtype, from, mine.begin, mine.end - mine.begin,
             out + mine.begin * size_of(dtype));
    }
    return;
  }
  for (size_t j = 0; j < all.members.size(); ++j) {
    if (j == me) continue;
    for (const Piece& theirs : chunk_of(all, j)) {
      const int64_t size = size_of(all.in[theirs.operand].dtype);
      const auto at = [&](size_t member) {
        return static_cast<std::byte*>(all.members[member].out[theirs.operand]) +
               theirs.begin * size;
      };
      copy_bytes(at(me), at(j), (theirs.end - theirs.begin) * size);
    }
  }
}

/// Phase 0 reads the input chunk that the other member reduces; phase 1 reads this member's reduced
/// chunk.
std::vector<Slice> reads_all_reduce(const CollectiveArgs& all, size_t from, size_t to, int phase) {
  std::vector<Slice> slices;
  for (const Piece& piece : chunk_of(all, phase == 0 ? to : from)) {
    const int64_t size = size_of(all.in[piece.operand].dtype);
    slices.push_back(
        {phase == 1, piece.operand, piece.begin * size, (piece.end - piece.begin) * size});
  }
  return slices;
}

}  // namespace

Op describe_all_reduce() {
  Op op;
  op.doc =
      "all_reduce(x...) -> x...: sums over the group, or with monoid=\"max\" takes the maximum, in "
      "place or not; a list is one transfer";
  op.move = {.placed = Move::Placed::sum};
  op.list = true;
  op.in_place = true;
  op.payload = [](const Attrs&, std::span<const TensorType> in, std::span<const TensorType>) {
    return total_bytes(in);
  };
  op.algorithms = [](double n, double payload) {
    return std::vector<Algorithm>{
        {.name = "ring", .rounds = 2 * (n - 1), .bytes = 2 * (n - 1) / n * payload},
        {.name = "tree", .rounds = 2 * std::ceil(std::log2(n)), .bytes = 2 * payload}};
  };
  op.run = run_all_reduce;
  op.reads = reads_all_reduce;
  op.divides = true;
  op.phases = 2;  // reduce-scatter, then all-gather
  op.samples = [](int64_t) {
    using graph::DType;
    return std::vector<Sample>{{{}, {{DType::f32, {37}}}},
                               {{}, {{DType::f64, {3, 5}}, {DType::i64, {4}}, {DType::i32, {1}}}},
                               {{}, {{DType::f32, {1}}}},
                               {{}, {{DType::bf16, {300}}, {DType::f16, {3, 5}}}},
                               {{{"monoid", std::string("max")}}, {{DType::f64, {11}}}}};
  };
  return op;
}

}  // namespace hocket::comm
