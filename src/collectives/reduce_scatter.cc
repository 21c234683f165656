// SPDX-License-Identifier: Apache-2.0
// reduce_scatter(x...) dim -> y...: reduces over the group and gives every rank its block along
// `dim` of each operand; a list is one transfer. First half of a ring all-reduce. Where the ranks
// do not divide the dim, the first ranks get one more; `blocks` states other lengths.
#include "collectives/parts.h"
#include "collectives/pieces.h"

namespace hocket::comm {

namespace {

MemberBlocks block_of(const CollectiveArgs& all, size_t operand, size_t member) {
  return member_blocks(all.in[operand], dim_of(*all.attrs, "dim"), all.members.size(), member,
                       lengths_of(*all.attrs, kBlocks));
}

/// Returns the pieces of a member's block of each operand, in elements.
std::vector<Piece> pieces_of(const CollectiveArgs& all, size_t member) {
  std::vector<int64_t> sizes;
  for (size_t operand = 0; operand < all.in.size(); ++operand) {
    const MemberBlocks b = block_of(all, operand, member);
    sizes.push_back(b.outer * b.inner);
  }
  return pieces_of_part(all, sizes);
}

void run_reduce_scatter(const CollectiveArgs& all, size_t me, int) {
  for (const Piece& piece : pieces_of(all, me)) {
    const graph::DType dtype = all.in[piece.operand].dtype;
    const MemberBlocks b = block_of(all, piece.operand, me);
    std::vector<const void*> from;
    for (const Operands& operands : all.members) {
      from.push_back(operands.in[piece.operand]);
    }
    auto* to = static_cast<std::byte*>(all.members[me].out[piece.operand]);
    for_each_row(piece, b.inner, [&](int64_t o, int64_t begin, int64_t end) {
      reduce(monoid_of(*all.attrs), dtype, from, o * b.stride + b.begin + begin, end - begin,
             to + (o * b.inner + begin) * size_of(dtype));
    });
  }
}

std::vector<Slice> reads_reduce_scatter(const CollectiveArgs& all, size_t, size_t to, int) {
  std::vector<Slice> slices;
  for (const Piece& piece : pieces_of(all, to)) {
    const MemberBlocks b = block_of(all, piece.operand, to);
    const int64_t size = size_of(all.in[piece.operand].dtype);
    for_each_row(piece, b.inner, [&](int64_t o, int64_t begin, int64_t end) {
      slices.push_back(
          {false, piece.operand, (o * b.stride + b.begin + begin) * size, (end - begin) * size});
    });
  }
  return slices;
}

}  // namespace

Op describe_reduce_scatter() {
  Op op;
  op.doc =
      "reduce_scatter(x...) dim -> y...: sums over the group and gives every rank its block along "
      "`dim` of each operand; a list is one transfer; blocks=\"3,2,2\": uneven lengths, by rank";
  op.takes = Takes::dense;
  op.list = true;
  op.move = {.part = Move::Part::block, .placed = Move::Placed::sum, .part_dim = "dim"};
  op.payload = [](const Attrs&, std::span<const TensorType> in, std::span<const TensorType>) {
    return total_bytes(in);
  };
  op.algorithms = [](double n, double payload) {
    return std::vector<Algorithm>{
        {.name = "ring", .rounds = n - 1, .bytes = (n - 1) / n * payload}};
  };
  op.run = run_reduce_scatter;
  op.reads = reads_reduce_scatter;
  op.divides = true;
  op.samples = [](int64_t n) {
    using graph::DType;
    return std::vector<Sample>{
        {{{"dim", int64_t{0}}}, {{DType::f32, {2 * n, 3}}}},
        {{{"dim", int64_t{1}}}, {{DType::f64, {4, 3 * n, 2}}}},
        {{{"dim", int64_t{1}}}, {{DType::f32, {3, n}}, {DType::f64, {2, 2 * n, 3}}}},
        {{{"dim", int64_t{0}}}, {{DType::bf16, {3 * n, 2}}}},
        {{{"dim", int64_t{2}}}, {{DType::i32, {2, 3, n}}}}};
  };
  return op;
}

}  // namespace hocket::comm
