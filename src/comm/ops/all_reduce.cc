// SPDX-License-Identifier: Apache-2.0
// all_reduce(x...) -> x...: every operand summed over the group (monoid="max": its greatest), the
// list as one transfer. A ring moves 2 (n-1)/n of the data through every link in 2 (n-1) rounds; a
// tree is better where rounds count.
#include <cmath>

#include "base/bytes.h"
#include "comm/ops/parts.h"

namespace hocket::comm {

namespace {

/// Elements of an operand that a member sums.
Range chunk_of(const Together& all, int64_t numel, size_t member) {
  const int64_t n = static_cast<int64_t>(all.members.size());
  const int64_t number = static_cast<int64_t>(member);
  const int64_t begin = numel * number / n;
  const Range part = part_of(all, numel * (number + 1) / n - begin);
  return {begin + part.begin, begin + part.end};
}

/// Sums in rank order, whatever the group does, so that bits do not depend on timing. Everybody
/// first sums one chunk over all inputs into its own output, then collects the chunks of the
/// others. An output may lie on its input: nobody reads the chunk that another one writes.
void run_all_reduce(const Together& all, size_t me, int phase) {
  for (size_t input = 0; input < all.in.size(); ++input) {
    const int64_t numel = all.in[input].numel();
    const int64_t size = size_of(all.in[input].dtype);
    auto* out = static_cast<std::byte*>(all.members[me].out[input]);
    if (phase == 0) {
      std::vector<const void*> from;
      for (const Operands& operands : all.members) {
        from.push_back(operands.in[input]);
      }
      const Range mine = chunk_of(all, numel, me);
      reduce(monoid_of(*all.attrs), all.in[input].dtype, from, mine.begin, mine.length(),
             out + mine.begin * size);
      continue;
    }
    for (size_t j = 0; j < all.members.size(); ++j) {
      if (j == me) continue;
      const Range theirs = chunk_of(all, numel, j);
      copy_bytes(out + theirs.begin * size,
                 static_cast<const std::byte*>(all.members[j].out[input]) + theirs.begin * size,
                 theirs.length() * size);
    }
  }
}

/// First the chunk that the other one sums, then the sums of this one's.
std::vector<Slice> reads_all_reduce(const Together& all, size_t from, size_t to, int phase) {
  std::vector<Slice> slices;
  for (size_t input = 0; input < all.in.size(); ++input) {
    const int64_t size = size_of(all.in[input].dtype);
    const Range chunk = chunk_of(all, all.in[input].numel(), phase == 0 ? to : from);
    if (chunk.length() > 0) {
      slices.push_back({phase == 1, input, chunk.begin * size, chunk.length() * size});
    }
  }
  return slices;
}

}  // namespace

Op describe_all_reduce() {
  Op op;
  op.doc =
      "all_reduce(x...) -> x...: summed over the group, or with monoid=\"max\" the greatest, in "
      "place or elsewhere; a list is one transfer";
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
  op.phases = 2;  // each sums its chunk, then collects those of the others
  op.samples = [](int64_t) {
    using graph::DType;
    return std::vector<Sample>{{{}, {{DType::f32, {37}}}},
                               {{}, {{DType::f64, {3, 5}}, {DType::i64, {4}}, {DType::i32, {1}}}},
                               {{}, {{DType::f32, {1}}}},
                               {{{"monoid", std::string("max")}}, {{DType::f64, {11}}}}};
  };
  return op;
}

}  // namespace hocket::comm
