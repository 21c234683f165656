// SPDX-License-Identifier: Apache-2.0
#include "comm/members.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/error.h"

namespace hocket::comm {

void* address_of(const Operands& operands, const Slice& slice) {
  void* const base = (slice.out ? operands.out : operands.in)[slice.operand];
  return static_cast<std::byte*>(base) + slice.begin;
}

void Copies::allocate(const std::vector<Slice>& slices) {
  std::map<std::pair<bool, size_t>, std::pair<int64_t, int64_t>> spans;
  for (const Slice& slice : slices) {
    const int64_t end = slice.begin + slice.bytes;
    const auto [span, fresh] = spans.try_emplace({slice.out, slice.operand}, slice.begin, end);
    span->second = {std::min(span->second.first, slice.begin), std::max(span->second.second, end)};
  }
  for (const auto& [operand, span] : spans) {
    memory_.emplace_back(span.second - span.first);
    set({operand.first, operand.second, span.first, 0}, memory_.back().data.get());
  }
}

void Copies::set(const Slice& first, std::byte* data) {
  const auto address = reinterpret_cast<uintptr_t>(data);
  (first.out ? out_ : in_)[first.operand] =
      reinterpret_cast<void*>(address - static_cast<uintptr_t>(first.begin));
}

Members::Members(const Call& call, const Op& op, int32_t rank, int64_t part, int64_t parts)
    : call_(call),
      part_(part),
      parts_(parts),
      me_(static_cast<size_t>(std::find(call.members.begin(), call.members.end(), rank) -
                              call.members.begin())) {
  const size_t n = call.members.size();
  HOCKET_CHECK(me_ < n, "rank {} is not in its group", rank);
  // The sender of a transfer has an input, a receiver has none.
  copies_.reserve(n);
  for (size_t i = 0; i < n; ++i) {
    copies_.emplace_back(std::max<size_t>(call.in.size(), 1), call.out.size());
    if (op.needs_sizes) {
      copies_[i].set_in(1, call.in[1]);
    }
    operands_.push_back(i == me_ ? Operands{call.in, call.out} : copies_[i].operands());
  }
}

CollectiveArgs Members::args() const {
  const program::Kind& kind = *call_.kind;
  return {&kind.attrs, kind.in, kind.out, operands_, call_.copies, call_.given, part_, parts_};
}

}  // namespace hocket::comm
