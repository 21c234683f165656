// SPDX-License-Identifier: Apache-2.0
// transfer(x), transfer() -> y: sends a tensor from the ranks of one role to those of another, with
// any meshes. A task's `begins` gives the offset of the rank's part in the tensor: letter a is dim
// 0, b dim 1, and so on; the lengths are those of the part's type. Every receiver gets each element
// from one holder. Among several holders, the one with the receiver's index comes first, so that
// replicas share the work.

#include "base/bytes.h"
#include "collectives/parts.h"

namespace hocket::comm {

namespace {

void run_transfer(const CollectiveArgs& all, size_t me, int) {
  if (all.out.empty()) return;
  const int64_t size = size_of(all.out[0].dtype);
  auto* to = static_cast<std::byte*>(all.members[me].out[0]);
  for (const Copy& copy : all.copies) {
    const auto* from = static_cast<const std::byte*>(all.members[copy.source].in[0]);
    copy_bytes(to + copy.to * size, from + copy.from * size, copy.count * size);
  }
}

/// Slices that a member reads. It knows its own copies: those that others make of its data, and
/// those that it makes.
std::vector<Slice> reads_transfer(const CollectiveArgs& all, size_t from, size_t to, int) {
  const TensorType& type = all.out.empty() ? all.in[0] : all.out[0];
  const int64_t size = size_of(type.dtype);
  std::vector<Slice> slices;
  for (const Copy& copy : all.out.empty() ? all.given : all.copies) {
    const size_t other = static_cast<size_t>(copy.source);
    if (other != (all.out.empty() ? to : from)) continue;
    slices.push_back({false, 0, copy.from * size, copy.count * size});
  }
  return slices;
}

}  // namespace

Op describe_transfer() {
  Op op;
  op.doc =
      "transfer(x), transfer() -> y: sends a tensor from the ranks of one role to those of "
      "another, whatever their meshes";
  op.role = Role::between;
  op.takes = Takes::dense;
  op.payload = [](const Attrs&, std::span<const TensorType> in, std::span<const TensorType> out) {
    return total_bytes(in) + total_bytes(out);
  };
  op.algorithms = [](double, double payload) {
    return std::vector<Algorithm>{
        {.name = "direct", .rounds = 1, .bytes = payload, .direct = true}};
  };
  op.run = run_transfer;
  op.reads = reads_transfer;
  return op;
}

}  // namespace hocket::comm
