// SPDX-License-Identifier: Apache-2.0
#include "comm/solo.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"

namespace hocket::comm {

namespace {

/// Both directions of the routed exchange when all n sources have the same counts: rows are
/// repeated n times on the way to the experts, and taken once on the way back.
void exchange_rows(const Call& call, int64_t me) {
  const auto& rows = call.kind->in[0];
  const auto& sizes_type = call.kind->in[1];
  const int64_t n = sizes_type.dims[0], experts = sizes_type.dims[1], local = experts / n;
  const auto* sizes = static_cast<const int64_t*>(call.in[1]);
  const int64_t row = rows.row_size() * size_of(rows.dtype);
  const auto* from = static_cast<const std::byte*>(call.in[0]);
  auto* to = static_cast<std::byte*>(call.out[0]);
  auto copy = [&](int64_t at, int64_t count) {
    std::memcpy(to, from + at * row, static_cast<size_t>(count * row));
    to += count * row;
  };
  if (call.kind->attrs.i("from") == 1) {
    int64_t at = 0;
    for (int64_t e = 0; e < experts; at += sizes[e++])
      if (e / local == me)
        for (int64_t s = 0; s < n; ++s) copy(at, sizes[e]);
    return;
  }
  int64_t at = 0;
  std::vector<int64_t> begin(static_cast<size_t>(local));
  for (int64_t e = 0; e < local; ++e) {
    begin[static_cast<size_t>(e)] = at;
    at += n * sizes[me * local + e];
  }
  // Rows of other ranks' experts are not here: take as many of ours.
  for (int64_t e = 0; e < experts; ++e) {
    const int64_t mine = sizes[me * local + e % local], want = sizes[e];
    const int64_t start = begin[static_cast<size_t>(e % local)];
    for (int64_t done = 0; done < want;) {
      const int64_t count = std::min(want - done, std::max<int64_t>(mine, 1));
      copy(std::min(start, std::max<int64_t>(at - count, 0)), count);
      done += count;
    }
  }
}

}  // namespace

void SoloCommunicator::run(const Call& call) {
  const program::Kind& kind = *call.kind;
  const int64_t n = static_cast<int64_t>(call.members.size());
  const int64_t me =
      std::find(call.members.begin(), call.members.end(), rank_) - call.members.begin();
  if (kind.op == "send") return;
  if (kind.op == "recv") {
    std::memset(call.out[0], 0, static_cast<size_t>(kind.out[0].bytes()));
  } else if (kind.op == "all_reduce") {
    for (size_t i = 0; i < call.in.size(); ++i)
      if (call.in[i] != call.out[i])
        std::memcpy(call.out[i], call.in[i], static_cast<size_t>(kind.in[i].bytes()));
  } else if (kind.op == "size_exchange") {
    const int64_t experts = kind.in[0].dims[0], local = experts / n;
    const auto* counts = static_cast<const int64_t*>(call.in[0]);
    for (int64_t s = 0; s < n; ++s)
      std::copy(counts, counts + experts, static_cast<int64_t*>(call.out[0]) + s * experts);
    for (int64_t e = 0; e < local; ++e)
      static_cast<int64_t*>(call.out[1])[e] = n * counts[me * local + e];
  } else if (kind.op == "all_to_all") {
    exchange_rows(call, me);
  } else {
    // all_gather and reduce_scatter move whole floating-point blocks: any values will do.
    const size_t in = static_cast<size_t>(kind.in[0].bytes());
    const size_t out = static_cast<size_t>(kind.out[0].bytes());
    for (size_t at = 0; at < out; at += in)
      std::memcpy(static_cast<std::byte*>(call.out[0]) + at, call.in[0], std::min(in, out - at));
  }
}

}  // namespace hocket::comm
