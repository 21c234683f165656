// SPDX-License-Identifier: Apache-2.0
// size_exchange(counts[E]) -> sizes[n, E], counts[E/n]: gathers every rank's row counts per expert,
// and sums the counts of the rank's own experts. An exchange of rows needs these sizes first.
// outer=n as in all_to_all.
#include <algorithm>

#include "collectives/parts.h"

namespace hocket::comm {

namespace {

void run_size_exchange(const CollectiveArgs& all, size_t me, int) {
  const int64_t experts = all.in[0].dims[0];
  const int64_t members = static_cast<int64_t>(all.members.size());
  auto* sizes = static_cast<int64_t*>(all.members[me].out[0]);
  auto* counts = static_cast<int64_t*>(all.members[me].out[1]);
  const Rows rows(sizes, members, experts, outer_of(*all.attrs));
  for (const Operands& operands : all.members) {
    const auto* from = static_cast<const int64_t*>(operands.in[0]);
    sizes = std::copy(from, from + experts, sizes);
  }
  for (int64_t e = 0; e < experts; ++e) {
    if (rows.owner(e) == static_cast<int64_t>(me)) {
      *counts++ = rows.of_all(e);
    }
  }
}

}  // namespace

Op describe_size_exchange() {
  Op op;
  op.doc =
      "size_exchange(counts) -> sizes, counts: gathers every rank's row counts per expert, and "
      "sums those of the rank's own experts";
  op.takes = Takes::counts;
  op.move = {.part = Move::Part::block, .placed = Move::Placed::sum, .in_parts = true};
  op.makes_sizes = true;
  op.payload = [](const Attrs&, std::span<const TensorType> in, std::span<const TensorType>) {
    return in[0].bytes();
  };
  op.algorithms = [](double n, double payload) {
    return std::vector<Algorithm>{{.name = "all to all", .rounds = 1, .bytes = (n - 1) * payload}};
  };
  op.run = run_size_exchange;
  op.reads = [](const CollectiveArgs& all, size_t, size_t, int) {
    return std::vector<Slice>{{false, 0, 0, all.in[0].bytes()}};
  };
  op.samples = [](int64_t n) {
    return std::vector<Sample>{{{}, {{graph::DType::i64, {3 * n}}}},
                               {{}, {{graph::DType::i64, {n}}}},
                               {{{"outer", int64_t{3}}}, {{graph::DType::i64, {3 * n}}}}};
  };
  return op;
}

}  // namespace hocket::comm
