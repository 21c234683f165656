// SPDX-License-Identifier: Apache-2.0
#include "comm/solo.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/math.h"
#include "collectives/parts.h"

namespace hocket::comm {

namespace {

/// Returns row counts of a member with other tokens: this rank's counts in proportion, so that no
/// buffer planned for these tokens overflows.
std::vector<int64_t> counts_in_proportion(const Call& call, int64_t mine, int64_t theirs) {
  const auto* const own = static_cast<const int64_t*>(call.in[0]);
  std::vector<int64_t> counts;
  int64_t rows = 0, dealt = 0;
  for (int64_t expert = 0; expert < call.kind->in[0].dims[0]; ++expert) {
    rows += own[expert];
    const int64_t all = mine > 0 ? rows * theirs / mine : 0;
    counts.push_back(all - std::exchange(dealt, all));
  }
  return counts;
}

}  // namespace

void SoloCommunicator::run(const Call& call, const NextCall& /*next*/) {
  emulate_peers(call);
  if (known_) {
    known_(rank_, call);
  }
}

void SoloCommunicator::emulate_peers(const Call& call) {
  // Every peer is assumed to hold the same data. The op itself computes a value that the peers
  // would hold too: a sum, or the same rows in every part. It runs on `n` members, all with this
  // rank's memory. Exceptions: A sum of whole values would only be a multiple, so this rank alone
  // stands for the group and the value is unchanged. A peer may hold more rows of a routed tensor
  // than this rank: it gets this rank's rows repeated, so that no row is uninitialised. A peer with
  // other tokens has rows in proportion.
  const program::Kind& kind = *call.kind;
  const Op& op = comm::op(kind.communication);
  if (op.role == Role::send) return;
  if (op.role == Role::between && call.out.empty()) return;
  if (op.role == Role::receive || op.role == Role::between) {
    std::memset(call.out[0], 0, static_cast<size_t>(kind.out[0].bytes()));
    return;
  }
  const size_t n = call.members.size();
  const size_t me = static_cast<size_t>(std::find(call.members.begin(), call.members.end(), rank_) -
                                        call.members.begin());
  HOCKET_CHECK(me < n, "rank {} is not in its group", rank_);
  const bool alone = op.move.placed == Move::Placed::sum && op.move.part == Move::Part::whole;
  std::vector<Operands> members(alone ? 1 : n, Operands{call.in, call.out});
  std::vector<std::vector<std::byte>> rows;  // of the peers with more rows
  std::vector<std::vector<void*>> pointers;
  std::vector<std::vector<int64_t>> counts(call.tokens.empty() ? 0 : n);
  if (op.makes_sizes && !call.tokens.empty()) {
    HOCKET_CHECK(call.tokens.size() == n, "tokens of {} members of {}", call.tokens.size(), n);
    pointers.resize(n);
    for (size_t i = 0; i < n; ++i) {
      counts[i] = counts_in_proportion(call, call.tokens[me], call.tokens[i]);
      pointers[i] = {counts[i].data()};
      members[i].in = pointers[i];
    }
  }
  if (op.needs_sizes) {
    rows.resize(n);
    pointers.resize(n);
    const Rows sizes(call.in[1], kind.in[1].dims[0], kind.in[1].dims[1], outer_of(kind.attrs));
    const int dim = before(op, kind.attrs).dim();
    const size_t row = static_cast<size_t>(kind.in[0].bytes_of(kind.in[0].row_size()));
    const size_t mine = static_cast<size_t>(sizes.held(static_cast<int64_t>(me), dim));
    for (size_t i = 0; i < n; ++i) {
      const size_t held = static_cast<size_t>(sizes.held(static_cast<int64_t>(i), dim));
      if (held <= mine) continue;
      rows[i].resize(held * row);
      for (size_t at = 0; at < held && mine > 0; at += mine) {
        std::memcpy(rows[i].data() + at * row, call.in[0], std::min(mine, held - at) * row);
      }
      pointers[i].assign(call.in.begin(), call.in.end());
      pointers[i][0] = rows[i].data();
      members[i].in = pointers[i];
    }
  }
  const std::vector<int64_t> lengths = lengths_of(kind.attrs, kSlots);
  if (has_sizes(kind.attrs) || (!op.needs_sizes && !lengths.empty())) {
    // A peer may have one index more, or many: it gets this rank's repeated. They are as valid as
    // the originals where they state the chosen experts of tokens.
    const int64_t most = lengths.empty() ? 2 : *std::max_element(lengths.begin(), lengths.end());
    const auto times = static_cast<size_t>(lengths.empty() ? 2 : ceil_div(most, lengths[me]));
    std::vector<void*>& longer = pointers.emplace_back();
    for (size_t operand = 0; operand < call.in.size(); ++operand) {
      const auto bytes = static_cast<size_t>(kind.in[operand].bytes());
      std::vector<std::byte>& more = rows.emplace_back(times * bytes);
      for (size_t at = 0; at < more.size(); at += bytes) {
        std::memcpy(more.data() + at, call.in[operand], bytes);
      }
      longer.push_back(rows.back().data());
    }
    for (size_t i = 0; i < n; ++i) {
      members[i].in = i == me ? call.in : std::span<void* const>(longer);
    }
  }
  const CollectiveArgs all{&kind.attrs, kind.in, kind.out, members};
  for (int phase = 0; phase < op.phases; ++phase) {
    op.run(all, alone ? 0 : me, phase);
  }
}

}  // namespace hocket::comm
