// SPDX-License-Identifier: Apache-2.0
// reduce_scatter(x...) dim -> y...: summed over the group, every rank gets its block along `dim` of
// each operand, the list as one transfer. The first half of a ring all_reduce. Of a dim that they
// do not divide the first ranks get one more.
#include "comm/ops/parts.h"

namespace hocket::comm {

namespace {

void run_reduce_scatter(const Together& all, size_t me, int) {
  for (size_t operand = 0; operand < all.out.size(); ++operand) {
    const TensorType& type = all.in[operand];
    const MemberBlocks b = member_blocks(type, dim_of(*all.attrs, "dim"), all.members.size(), me);
    const Range range = part_of(all, b.inner);
    std::vector<const void*> from;
    for (const Operands& operands : all.members) {
      from.push_back(operands.in[operand]);
    }
    auto* to = static_cast<std::byte*>(all.members[me].out[operand]);
    for (int64_t o = 0; o < b.outer; ++o) {
      const int64_t begin = o * b.stride + b.begin + range.begin;
      reduce(monoid_of(*all.attrs), type.dtype, from, begin, range.length(),
             to + (o * b.inner + range.begin) * size_of(type.dtype));
    }
  }
}

std::vector<Slice> reads_reduce_scatter(const Together& all, size_t, size_t to, int) {
  std::vector<Slice> slices;
  for (size_t operand = 0; operand < all.out.size(); ++operand) {
    const TensorType& type = all.in[operand];
    const MemberBlocks b = member_blocks(type, dim_of(*all.attrs, "dim"), all.members.size(), to);
    const Range range = part_of(all, b.inner);
    const int64_t size = size_of(type.dtype);
    for (int64_t o = 0; o < b.outer && range.length() > 0; ++o) {
      const int64_t begin = o * b.stride + b.begin + range.begin;
      slices.push_back({false, operand, begin * size, range.length() * size});
    }
  }
  return slices;
}

}  // namespace

Op describe_reduce_scatter() {
  Op op;
  op.doc =
      "reduce_scatter(x...) dim -> y...: summed over the group, every rank gets its block along "
      "`dim` of each; a list is one transfer";
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
        {{{"dim", int64_t{2}}}, {{DType::i32, {2, 3, n}}}}};
  };
  return op;
}

}  // namespace hocket::comm
