// SPDX-License-Identifier: Apache-2.0
// all_gather(x...) dim -> y...: concatenates the parts of all ranks along `dim`; a list is one
// transfer. Second half of a ring all-reduce. Where the ranks do not divide the dim's `size`, the
// first ranks have one more; `slots` states other lengths.
#include "base/bytes.h"
#include "collectives/parts.h"
#include "collectives/pieces.h"

namespace hocket::comm {

namespace {

/// Returns the blocks that a member contributes to an operand.
MemberBlocks part_of(const CollectiveArgs& all, const TensorType& type, size_t member) {
  return member_blocks(type, dim_of(*all.attrs, "dim"), all.members.size(), member,
                       lengths_of(*all.attrs, kSlots));
}

/// Granularity in bytes of a divided transfer. Parts begin at multiples of it, where elements of
/// any type may begin.
constexpr int64_t kUnit = 8;
std::vector<Piece> pieces_of(const CollectiveArgs& all, size_t member) {
  std::vector<int64_t> sizes;
  for (const TensorType& type : all.out) {
    const MemberBlocks b = part_of(all, type, member);
    sizes.push_back(b.outer * type.bytes_of(b.inner));
  }
  return pieces_of_part(all, sizes, kUnit);
}

void run_all_gather(const CollectiveArgs& all, size_t me, int) {
  for (size_t member = 0; member < all.members.size(); ++member) {
    for (const Piece& piece : pieces_of(all, member)) {
      const TensorType& type = all.out[piece.operand];
      const MemberBlocks b = part_of(all, type, member);
      const int64_t row = type.bytes_of(b.inner);
      auto* const to = static_cast<std::byte*>(all.members[me].out[piece.operand]);
      const auto* from = static_cast<const std::byte*>(all.members[member].in[piece.operand]);
      for_each_row(piece, row, [&](int64_t o, int64_t begin, int64_t end) {
        copy_bytes(to + type.bytes_of(o * b.stride + b.begin) + begin, from + o * row + begin,
                   end - begin);
      });
    }
  }
}

std::vector<Slice> reads_all_gather(const CollectiveArgs& all, size_t from, size_t, int) {
  std::vector<Slice> slices;
  for (const Piece& piece : pieces_of(all, from)) {
    slices.push_back({false, piece.operand, piece.begin, piece.end - piece.begin});
  }
  return slices;
}

}  // namespace

Op describe_all_gather() {
  Op op;
  op.doc =
      "all_gather(x...) dim -> y...: concatenates the parts of all ranks along `dim`; a list is "
      "one transfer; `size`: total length where the first ranks have one more, sizes=\"9,7\": by "
      "operand; slots=\"3,2,2\": other lengths, by rank";
  op.takes = Takes::dense;
  op.list = true;
  op.move = {.placed = Move::Placed::slot, .slot_dim = "dim"};
  op.payload = [](const Attrs&, std::span<const TensorType>, std::span<const TensorType> out) {
    return total_bytes(out);
  };
  op.algorithms = [](double n, double payload) {
    return std::vector<Algorithm>{
        {.name = "ring", .rounds = n - 1, .bytes = (n - 1) / n * payload}};
  };
  op.run = run_all_gather;
  op.reads = reads_all_gather;
  op.divides = true;
  op.samples = [](int64_t) {
    using graph::DType;
    return std::vector<Sample>{{{{"dim", int64_t{0}}}, {{DType::f32, {2, 3}}}},
                               {{{"dim", int64_t{1}}}, {{DType::f64, {4, 3, 2}}}},
                               {{{"dim", int64_t{0}}}, {{DType::f32, {5}}, {DType::i64, {2, 3}}}},
                               {{{"dim", int64_t{2}}}, {{DType::i64, {2, 3, 1}}}}};
  };
  return op;
}

}  // namespace hocket::comm
