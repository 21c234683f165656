// SPDX-License-Identifier: Apache-2.0
// Limits that several readers of input share.
#pragma once

#include <cstdint>

namespace hocket {

/// Maximum number of ranks of a mesh, a plan or a log of collectives.
inline constexpr int32_t kMaxRanks = 1 << 20;

}  // namespace hocket
