// SPDX-License-Identifier: Apache-2.0
// Mean, extremes and deviation of numbers, for metrics.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

namespace hocket::rl {

/// A metric of nothing: null in metrics.jsonl.
constexpr double kNothing = std::numeric_limits<double>::quiet_NaN();

/// Numbers so far. Deviations are with n - 1, by Welford's sums: that of equal numbers is 0
/// exactly.
struct Moments {
  int64_t n = 0;
  double sum = 0, least = 0, most = 0;
  double centre = 0, squares = 0;  ///< running mean, and squared distances from it

  void add(double value) {
    least = n == 0 ? value : std::min(least, value);
    most = n == 0 ? value : std::max(most, value);
    sum += value;
    ++n;
    const double distance = value - centre;
    centre += distance / static_cast<double>(n);
    squares += distance * (value - centre);
  }
  double mean() const { return n > 0 ? sum / static_cast<double>(n) : kNothing; }
  /// 0 of one number.
  double variance() const {
    if (n < 2) return n > 0 ? 0 : kNothing;
    return squares / static_cast<double>(n - 1);
  }
  double deviation() const { return std::sqrt(variance()); }
};

}  // namespace hocket::rl
