// SPDX-License-Identifier: Apache-2.0
// Bounds of keys that more than one file compares with. Internal to src/run.
#pragma once

namespace hocket::engine {

/// Rank of an adapter: far above any layer's width.
inline constexpr double kMaxRank = 1 << 20;

}  // namespace hocket::engine
