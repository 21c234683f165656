// SPDX-License-Identifier: Apache-2.0
// Integer arithmetic that sizes and block counts need.
#pragma once

#include <cstdint>

namespace hocket {

/// The least integer that is not below n / d; n >= 0, d > 0.
constexpr int64_t ceil_div(int64_t n, int64_t d) { return (n + d - 1) / d; }

/// The least multiple of `step` that is not below n; n >= 0, step > 0.
constexpr int64_t round_up(int64_t n, int64_t step) { return ceil_div(n, step) * step; }

}  // namespace hocket
