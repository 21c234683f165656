// SPDX-License-Identifier: Apache-2.0
// all_gather(x...) dim -> y...: the parts of all ranks side by side along `dim`, the list as one
// transfer. The second half of a ring all_reduce. Of a dim whose `size` they do not divide the
// first ranks have one more.
#include "base/bytes.h"
#include "comm/ops/parts.h"

namespace hocket::comm {

namespace {

void run_all_gather(const Together& all, size_t me, int) {
  for (size_t operand = 0; operand < all.out.size(); ++operand) {
    const TensorType& type = all.out[operand];
    auto* const to = static_cast<std::byte*>(all.members[me].out[operand]);
    const std::vector<const std::byte*> sources = inputs(all, operand);
    for (size_t member = 0; member < sources.size(); ++member) {
      const MemberBlocks b = member_blocks(type, dim_of(*all.attrs, "dim"), sources.size(), member);
      const int64_t row = type.bytes_of(b.inner);
      const Range range = part_of(all, row);
      for (int64_t o = 0; o < b.outer; ++o) {
        copy_bytes(to + type.bytes_of(o * b.stride + b.begin) + range.begin,
                   sources[member] + o * row + range.begin, range.length());
      }
    }
  }
}

std::vector<Slice> reads_all_gather(const Together& all, size_t from, size_t, int) {
  std::vector<Slice> slices;
  for (size_t operand = 0; operand < all.out.size(); ++operand) {
    const TensorType& type = all.out[operand];
    const MemberBlocks b = member_blocks(type, dim_of(*all.attrs, "dim"), all.members.size(), from);
    const int64_t row = type.bytes_of(b.inner);
    const Range range = part_of(all, row);
    for (int64_t o = 0; o < b.outer && range.length() > 0; ++o) {
      slices.push_back({false, operand, o * row + range.begin, range.length()});
    }
  }
  return slices;
}

}  // namespace

Op describe_all_gather() {
  Op op;
  op.doc =
      "all_gather(x...) dim -> y...: the parts of all ranks side by side along `dim`; a list is "
      "one transfer; `size`: of all together, where the first ranks have one more";
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
