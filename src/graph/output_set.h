// SPDX-License-Identifier: Apache-2.0
// The set of accumulated outputs of a node or task.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <initializer_list>

#include "base/error.h"

namespace hocket::graph {

/// Outputs by position. Only the first `kMaxOutputs` can be members: no op accumulates into more
/// outputs, and a coalesced collective accumulates into none. Any position may be queried.
class OutputSet {
 public:
  static constexpr size_t kMaxOutputs = 32;

  constexpr OutputSet() = default;
  OutputSet(std::initializer_list<size_t> outputs) {
    for (const size_t output : outputs) {
      add(output);
    }
  }
  /// Bit i of `bits`: output i.
  static constexpr OutputSet of_bits(uint32_t bits) {
    OutputSet set;
    set.bits_ = bits;
    return set;
  }
  constexpr uint32_t bits() const { return bits_; }

  constexpr bool contains(size_t output) const {
    return output < kMaxOutputs && (bits_ >> output & 1) != 0;
  }
  constexpr bool empty() const { return bits_ == 0; }
  constexpr size_t size() const { return static_cast<size_t>(std::popcount(bits_)); }
  /// Returns whether every member of this set is one of `other`.
  constexpr bool within(OutputSet other) const { return (bits_ & ~other.bits_) == 0; }

  void add(size_t output) { bits_ |= bit(output); }
  /// Adds the output if it is no member, else takes it away.
  void flip(size_t output) { bits_ ^= bit(output); }

  bool operator==(const OutputSet&) const = default;

 private:
  static uint32_t bit(size_t output) {
    HOCKET_CHECK(output < kMaxOutputs, "output {} can't accumulate; only the first {} can", output,
                 kMaxOutputs);
    return uint32_t{1} << output;
  }
  uint32_t bits_ = 0;
};

}  // namespace hocket::graph
