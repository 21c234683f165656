// SPDX-License-Identifier: Apache-2.0
// Addresses of buffers whose lifetimes are all known: the largest is placed first. Leaves smaller
// gaps than an allocator that sees one buffer after the other.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "program/finalize.h"

namespace hocket::program {

/// Dense buffer of the arena, and the events around its uses.
struct Lifetime {
  int64_t bytes = 0;
  Clock known;  ///< events before its first use, in any lane
  Clock used;   ///< its last uses
};

/// Returns whether everything in `needs` is known to have finished at `now`.
bool happened(const Clock& needs, const Clock& now);

/// Returns an address for each buffer, largest first, each the lowest that is free of all buffers
/// that it may meet. Empty if more than `most_pairs` pairs of buffers meet. Requires: in the order
/// of their first uses. Takes O(buffers x buffers in use at once).
std::vector<int64_t> place_largest_first(std::span<const Lifetime> lifetimes, int64_t most_pairs);

}  // namespace hocket::program
