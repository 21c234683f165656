// SPDX-License-Identifier: Apache-2.0
// Limits that several readers of input share.
#pragma once

#include <cstdint>

namespace hocket {

/// Maximum number of ranks of a mesh, a plan or a log of collectives.
inline constexpr int32_t kMaxRanks = 1 << 20;

/// A packed file may unpack to kMaxUnpacked bytes, or to kMaxCompression times its own where that
/// is more. One that goes beyond would take memory and time out of proportion. Texts are packed 3
/// to 20 times, traces 10 to 60 times.
inline constexpr int64_t kMaxUnpacked = int64_t{256} << 20;
inline constexpr int64_t kMaxCompression = 200;

/// Returns whether a file of `packed` bytes has unpacked to more than it may.
constexpr bool unpacks_too_far(int64_t packed, int64_t unpacked) {
  return unpacked > kMaxUnpacked && unpacked / kMaxCompression > packed;
}

}  // namespace hocket
