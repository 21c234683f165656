// SPDX-License-Identifier: Apache-2.0
// resplit(x) from, to -> y: changes a split along one dim to a split along another (the all-to-all
// of sequence parallelism, DeepSpeed-Ulysses, arXiv 2309.14509). Each member takes its block along
// `to` of every member's data. Where members do not divide a dim, the first have one more; `size`
// is the total of the first dim. `slots` and `blocks` state other lengths of the first and second
// dim.

#include "base/bytes.h"
#include "base/error.h"
#include "collectives/parts.h"

namespace hocket::comm {

namespace {

/// Returns the copies that a member makes from all members.
std::vector<Copy> copies_of(const CollectiveArgs& all, size_t me) {
  const TensorType& had = all.in[0];
  const TensorType& gets = all.out[0];
  const auto from = static_cast<size_t>(dim_of(*all.attrs, "from"));
  const auto to = static_cast<size_t>(dim_of(*all.attrs, "to"));
  Region whole;
  for (const graph::Dim& size : had.dims) {
    whole.push_back({0, size});
  }
  const size_t members = all.members.size();
  std::vector<Region> held(members, whole);
  for (size_t member = 0; member < held.size(); ++member) {
    held[member][from] =
        run_of_member(gets.dims[from], members, member, lengths_of(*all.attrs, kSlots));
  }
  Region wanted = whole;
  wanted[from] = {0, gets.dims[from]};
  wanted[to] = run_of_member(had.dims[to], members, me, lengths_of(*all.attrs, kBlocks));
  const std::optional<std::vector<Copy>> copies = plan_copies(held, wanted, 0);
  HOCKET_CHECK(copies, "the members have all of the tensor");
  return *copies;
}

void run_resplit(const CollectiveArgs& all, size_t me, int) {
  const TensorType& had = all.in[0];
  auto* into = static_cast<std::byte*>(all.members[me].out[0]);
  const std::vector<const std::byte*> sources = inputs(all, 0);
  for (const Copy& copy : copies_of(all, me)) {
    copy_bytes(into + had.bytes_of(copy.to),
               sources[static_cast<size_t>(copy.source)] + had.bytes_of(copy.from),
               had.bytes_of(copy.count));
  }
}

std::vector<Slice> reads_resplit(const CollectiveArgs& all, size_t from, size_t to, int) {
  std::vector<Slice> slices;
  for (const Copy& copy : copies_of(all, to)) {
    if (copy.source != static_cast<int32_t>(from)) continue;
    slices.push_back({false, 0, all.in[0].bytes_of(copy.from), all.in[0].bytes_of(copy.count)});
  }
  return slices;
}

}  // namespace

Op describe_resplit() {
  Op op;
  op.doc =
      "resplit(x) from, to -> y: changes a split along one dim to a split along another; not for "
      "routed tensors";
  op.takes = Takes::dense;
  op.move = {.part = Move::Part::block,
             .placed = Move::Placed::slot,
             .part_dim = "to",
             .slot_dim = "from"};
  op.payload = [](const Attrs&, std::span<const TensorType> in, std::span<const TensorType>) {
    return in[0].bytes();
  };
  op.algorithms = [](double n, double payload) {
    return std::vector<Algorithm>{
        {.name = "direct", .rounds = 1, .bytes = (n - 1) / n * payload, .direct = true}};
  };
  op.run = run_resplit;
  op.reads = reads_resplit;
  op.samples = [](int64_t n) {
    using graph::DType;
    return std::vector<Sample>{
        {{{"from", int64_t{0}}, {"to", int64_t{1}}}, {{DType::f32, {2, 3 * n}}}},
        {{{"from", int64_t{1}}, {"to", int64_t{0}}}, {{DType::f64, {2 * n, 3, 2}}}},
        {{{"from", int64_t{0}}, {"to", int64_t{2}}}, {{DType::i32, {3, 2, n}}}},
        {{{"from", int64_t{2}}, {"to", int64_t{1}}}, {{DType::i64, {2, 3 * n, 2}}}}};
  };
  return op;
}

}  // namespace hocket::comm
