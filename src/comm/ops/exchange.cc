// SPDX-License-Identifier: Apache-2.0
#include "comm/ops/exchange.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "base/math.h"

namespace hocket::comm {

namespace {

/// Most bytes of one message that is sent, and of what is kept of one that comes.
struct Largest {
  int64_t sent = 0, kept = 0;
};

int64_t total(std::span<const Slice> slices) {
  int64_t bytes = 0;
  for (const Slice& slice : slices) {
    bytes += slice.bytes;
  }
  return bytes;
}

/// Of every operand, from the first byte that is read to the last.
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

/// Rows per member and expert, i64[members, experts], as even routing makes them.
std::vector<int64_t> even_sizes(const Op& op, const Attrs& attrs, std::span<const TensorType> in,
                                std::span<const TensorType> out) {
  const int64_t row = std::max<int64_t>(in[0].bytes_of(in[0].row_size()), 1);
  const int64_t rows = op.payload(attrs, in, out) / row;
  const int64_t experts = in[1].dims[1];
  std::vector<int64_t> sizes;
  for (int64_t member = 0; member < in[1].dims[0]; ++member) {
    for (int64_t expert = 0; expert < experts; ++expert) {
      sizes.push_back(graph::share(rows, experts, expert).length);
    }
  }
  return sizes;
}

/// Of the parts of `all` that are looked at, the largest messages between the first member and any
/// other one, either way.
Largest largest_message(const Op& op, Together all, int64_t stride) {
  Largest largest;
  for (all.part = 0; all.part < all.parts; all.part += stride) {
    for (int phase = 0; phase < op.phases; ++phase) {
      for (size_t other = 1; other < all.members.size(); ++other) {
        for (const bool comes : {false, true}) {
          const auto slices = op.reads(all, comes ? other : 0, comes ? 0 : other, phase);
          const int64_t bytes = total(slices);
          const bool packed = is_read_packed(slices, all.in, all.out);
          largest.sent = std::max(largest.sent, bytes);
          largest.kept = std::max(largest.kept, bytes + (packed ? 0 : spans(slices)));
        }
      }
    }
  }
  return largest;
}

}  // namespace

bool is_read_packed(std::span<const Slice> slices, std::span<const TensorType> in,
                    std::span<const TensorType> out) {
  std::set<std::pair<bool, size_t>> operands;
  int64_t at = 0;
  for (const Slice& slice : slices) {
    const graph::DType dtype = (slice.out ? out : in)[slice.operand].dtype;
    const bool aligned = graph::bits_of(dtype) <= 8 || at % graph::size_of(dtype) == 0;
    if (!aligned || !operands.insert({slice.out, slice.operand}).second) return false;
    at += slice.bytes;
  }
  return true;
}

int64_t exchange_bytes(const Op& op, const Attrs& attrs, std::span<const TensorType> in,
                       std::span<const TensorType> out, int64_t members) {
  constexpr int64_t kMostLooked = 64;  // at so many parts; others differ by elements that are left
  if (members < 2) return 0;
  if (op.role == Role::between) return op.payload(attrs, in, out);
  std::vector<int64_t> sizes;
  std::vector<void*> operands(in.size());
  if (op.needs_sizes) {
    sizes = even_sizes(op, attrs, in, out);
    operands[1] = sizes.data();
  }
  const std::vector<Operands> all(static_cast<size_t>(members), Operands{operands, {}});
  const int64_t payload = op.payload(attrs, in, out);
  const int64_t parts =
      op.divides ? std::max<int64_t>(1, payload / (members * kPartBytes)) : int64_t{1};
  const Largest largest =
      largest_message(op, {&attrs, in, out, all, {}, {}, 0, parts}, ceil_div(parts, kMostLooked));
  // While a part of the second phase begins, there are one more of them.
  const int64_t at_a_time = std::min(parts, op.phases == 2 ? 2 * kPartsAhead + 1 : kPartsAhead);
  return (members - 1) * at_a_time * (2 * largest.sent + largest.kept);
}

}  // namespace hocket::comm
