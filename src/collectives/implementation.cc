// SPDX-License-Identifier: Apache-2.0
#include "collectives/implementation.h"

#include <algorithm>
#include <iterator>
#include <map>

#include "base/error.h"
#include "base/math.h"
#include "collectives/exchange.h"
#include "collectives/parts.h"

namespace hocket::comm {

namespace {

bool adds(graph::DType dtype) {
  using graph::DType;
  constexpr DType kAdded[] = {DType::f32, DType::f64, DType::bf16,
                              DType::f16, DType::i32, DType::i64};
  return std::find(std::begin(kAdded), std::end(kAdded), dtype) != std::end(kAdded);
}

int64_t aligned(int64_t bytes) { return round_up(bytes, kScratchAlign); }

/// Returns the bytes of one buffer per type, each aligned.
int64_t bytes_by_type(std::span<const TensorType> types) {
  std::map<graph::DType, int64_t> bytes;
  for (const TensorType& type : types) {
    bytes[type.dtype] += type.bytes();
  }
  int64_t sum = 0;
  for (const auto& [dtype, size] : bytes) {
    sum += aligned(size);
  }
  return sum;
}

/// Returns whether some member of the op can have these types.
bool fits(const Op& op, const Attrs& attrs, std::span<const TensorType> in,
          std::span<const TensorType> out, int64_t members) {
  if (op.role == Role::between) return true;
  for (int64_t me = 0; me < members && op.role == Role::collective; ++me) {
    try {
      const std::vector<TensorType> made = infer(op, attrs, in, members, me);
      if (std::equal(made.begin(), made.end(), out.begin(), out.end())) return true;
    } catch (const Error&) {
      continue;  // the types may be those of another member's share
    }
  }
  return false;
}

}  // namespace

ByTransport by_transport(const Op& op, const Attrs& attrs, std::span<const TensorType> in) {
  if (op.role != Role::collective) return ByTransport::none;
  const bool whole = op.move.part == Move::Part::whole;
  if (op.move.placed == Move::Placed::sum && !op.makes_sizes) {
    const bool added =
        std::all_of(in.begin(), in.end(), [](const TensorType& type) { return adds(type.dtype); });
    const graph::Monoid monoid = monoid_of(attrs);
    if (!added || monoid == graph::Monoid::softmax || monoid == graph::Monoid::none) {
      return ByTransport::none;
    }
    return whole ? ByTransport::all_reduce : ByTransport::reduce_scatter;
  }
  if (op.move.placed == Move::Placed::slot && whole) return ByTransport::all_gather;
  return op.phases == 1 ? ByTransport::all_to_all : ByTransport::none;
}

ByTransport by_transport_among(const Op& op, const Attrs& attrs, std::span<const TensorType> in,
                               int64_t members) {
  const ByTransport found = by_transport(op, attrs, in);
  const bool uneven = has_sizes(attrs) || has_lengths(attrs);
  if (found == ByTransport::all_gather && uneven) return ByTransport::none;
  if (found != ByTransport::reduce_scatter) return found;
  const auto dim = static_cast<size_t>(movement(op, attrs).part_dim);
  const bool alike = std::all_of(in.begin(), in.end(), [&](const TensorType& type) {
    return type.dims[dim].divides_into(members);
  });
  return alike && !uneven ? found : ByTransport::none;
}

int64_t transport_bytes(Collectives collectives, const Op& op, const Attrs& attrs,
                        std::span<const TensorType> in, std::span<const TensorType> out,
                        int64_t members) {
  if (!fits(op, attrs, in, out, members)) return 0;
  if (collectives == Collectives::own) return exchange_bytes(op, attrs, in, out, members);
  switch (by_transport_among(op, attrs, in, members)) {
    case ByTransport::all_reduce:
      return bytes_by_type(in);
    case ByTransport::reduce_scatter:
      return bytes_by_type(in) + bytes_by_type(out);
    case ByTransport::all_gather:
      return aligned(total_bytes(in)) + aligned(total_bytes(out));
    case ByTransport::all_to_all:
      // Bytes sent to and received from others; an upper bound, since the member's own part stays.
      return 2 * aligned(op.makes_sizes ? out[0].bytes() : op.payload(attrs, in, out));
    case ByTransport::none:
      break;
  }
  return exchange_bytes(op, attrs, in, out, members);
}

}  // namespace hocket::comm
