// SPDX-License-Identifier: Apache-2.0
// What an exchange among ranks that already have only some of the experts moves.
#pragma once

#include <algorithm>
#include <vector>

#include "parallel/stage.h"

namespace hocket::parallel {

/// Rows that an expert-parallel rank is planned to receive, relative to even routing. More is legal
/// (addresses are reserved for the worst case) and reported.
inline constexpr double kExpectedFactor = 1.25;

/// `kind`, an exchange of these values, with the bytes of the rows that even routing brings: where
/// all of them have some of the experts only (the second step of an exchange over two axes), those
/// that their plans count on, without the headroom, in place of all rows that tokens chose.
inline program::Kind with_expected_rows(program::Kind kind, const std::vector<Value>& values,
                                        const std::vector<ValueId>& in,
                                        const std::vector<ValueId>& out) {
  int64_t most = 0;
  for (const std::vector<ValueId>* ids : {&in, &out}) {
    for (const ValueId id : *ids) {
      const Value& value = values[id];
      if (!value.type.routed()) continue;
      if (value.expected_bytes == program::kNone) return kind;
      most = std::max(most, value.expected_bytes);
    }
  }
  if (most > 0) {
    kind.bytes =
        std::min(kind.bytes, static_cast<int64_t>(static_cast<double>(most) / kExpectedFactor));
  }
  return kind;
}

}  // namespace hocket::parallel
