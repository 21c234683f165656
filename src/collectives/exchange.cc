// SPDX-License-Identifier: Apache-2.0
#include "collectives/exchange.h"

#include <algorithm>
#include <deque>
#include <map>
#include <set>
#include <utility>
#include <vector>

namespace hocket::comm {

int64_t parts_among(const Op& op, int64_t payload, int64_t members) {
  return op.divides ? std::max<int64_t>(1, payload / (members * kPartBytes)) : 1;
}

int64_t most_parts_on_way(const Op& op) {
  // The next part of the second phase begins before the oldest has ended, hence one more.
  return op.phases == 2 ? 2 * kPartsAhead + 1 : kPartsAhead;
}

int64_t total(std::span<const Slice> slices) {
  int64_t bytes = 0;
  for (const Slice& slice : slices) {
    bytes += slice.bytes;
  }
  return bytes;
}

namespace {

/// Returns the sum over operands of the span from the first byte read to the last.
int64_t spans(std::span<const Slice> slices) {
  std::map<std::pair<bool, size_t>, std::pair<int64_t, int64_t>> spans;
  for (const Slice& slice : slices) {
    const int64_t end = slice.begin + slice.bytes;
    const auto [span, fresh] = spans.try_emplace({slice.out, slice.operand}, slice.begin, end);
    span->second = {std::min(span->second.first, slice.begin), std::max(span->second.second, end)};
  }
  int64_t bytes = 0;
  for (const auto& [operand, span] : spans) {
    bytes += span.second - span.first;
  }
  return bytes;
}

/// Returns the rows per member and expert, i64[members, experts], under even routing.
std::vector<int64_t> even_sizes(const Op& op, const Attrs& attrs, std::span<const TensorType> in,
                                std::span<const TensorType> out) {
  const int64_t row = std::max<int64_t>(in[0].bytes_of(in[0].row_size()), 1);
  const int64_t experts = in[1].dims[1];
  const bool to_experts = before(op, attrs) == Placement::split(1);
  const std::vector<int64_t> tokens = lengths_of(attrs, to_experts ? kSlots : kBlocks);
  std::vector<int64_t> sizes;
  for (int64_t member = 0; member < in[1].dims[0]; ++member) {
    const int64_t rows = tokens.empty() ? op.payload(attrs, in, out) / row
                                        : tokens[static_cast<size_t>(member)] * in[0].top_k;
    for (int64_t expert = 0; expert < experts; ++expert) {
      sizes.push_back(graph::share(rows, experts, expert).length);
    }
  }
  return sizes;
}

/// Returns the bytes that a member keeps of a message that it receives.
int64_t kept(const CollectiveArgs& all, std::span<const Slice> slices) {
  return total(slices) + (is_read_packed(slices, all.in, all.out) ? 0 : spans(slices));
}

/// Returns the most bytes of one part's messages that a member holds, over all phases. Sent data
/// counts twice: a second message may wait behind the first.
int64_t bytes_of_part(const Op& op, const CollectiveArgs& all, size_t member) {
  int64_t most = 0;
  for (int phase = 0; phase < op.phases; ++phase) {
    int64_t bytes = 0;
    for (size_t other = 0; other < all.members.size(); ++other) {
      if (other == member) continue;
      const std::vector<Slice> comes = op.reads(all, other, member, phase);
      const std::vector<Slice> goes = op.reads(all, member, other, phase);
      // Another member may send the bytes that this one receives, and the reverse.
      bytes +=
          2 * std::max(total(goes), total(comes)) + std::max(kept(all, comes), kept(all, goes));
    }
    most = std::max(most, bytes);
  }
  return most;
}

/// Returns members that bound all others: the first, and the ones with the largest kSlots and
/// kBlocks.
std::set<size_t> members_with_most(const Attrs& attrs) {
  std::set<size_t> members{0};
  for (const char* attribute : {kSlots, kBlocks}) {
    const std::vector<int64_t> lengths = lengths_of(attrs, attribute);
    const auto most = std::max_element(lengths.begin(), lengths.end());
    members.insert(lengths.empty() ? 0 : static_cast<size_t>(most - lengths.begin()));
  }
  return members;
}

}  // namespace

bool is_read_packed(std::span<const Slice> slices, std::span<const TensorType> in,
                    std::span<const TensorType> out) {
  std::set<std::pair<bool, size_t>> operands;
  int64_t at = 0;
  for (const Slice& slice : slices) {
    // The receiver of a transfer reads the inputs of others and has none of its own.
    const graph::DType dtype = (slice.out || in.empty() ? out : in)[slice.operand].dtype;
    const bool aligned = graph::bits_of(dtype) <= 8 || at % graph::size_of(dtype) == 0;
    if (!aligned || !operands.insert({slice.out, slice.operand}).second) return false;
    at += slice.bytes;
  }
  return true;
}

int64_t exchange_bytes(const Op& op, const Attrs& attrs, std::span<const TensorType> in,
                       std::span<const TensorType> out, int64_t members) {
  constexpr int64_t kMaxPartsExamined =
      4096;  // number of parts examined; later parts are like these
  if (members < 2) return 0;
  if (op.role == Role::between) return op.payload(attrs, in, out);
  std::vector<int64_t> sizes;
  std::vector<void*> operands(in.size());
  if (op.needs_sizes) {
    sizes = even_sizes(op, attrs, in, out);
    operands[1] = sizes.data();
  }
  const std::vector<Operands> all(static_cast<size_t>(members), Operands{operands, {}});
  const int64_t parts = parts_among(op, op.payload(attrs, in, out), members);
  const std::set<size_t> with_most = members_with_most(attrs);
  const int64_t at_a_time = std::min(parts, most_parts_on_way(op));
  std::deque<int64_t> on_way;
  int64_t bytes = 0, most = 0;
  for (int64_t part = 0; part < std::min(parts, kMaxPartsExamined); ++part) {
    on_way.push_back(0);
    for (const size_t member : with_most) {
      const CollectiveArgs args{&attrs, in, out, all, {}, {}, part, parts};
      on_way.back() = std::max(on_way.back(), bytes_of_part(op, args, member));
    }
    bytes += on_way.back();
    if (std::ssize(on_way) > at_a_time) {
      bytes -= on_way.front();
      on_way.pop_front();
    }
    most = std::max(most, bytes);
  }
  return most;
}

}  // namespace hocket::comm
