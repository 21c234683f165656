// SPDX-License-Identifier: Apache-2.0
// Order statistics of measured values.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace hocket {

/// The value below which a share `q` (0 to 1) of the values lies, linear between two neighbours in
/// order; NaN and infinities do not count. NaN if no value is left.
inline double quantile(std::vector<double> values, double q) {
  std::erase_if(values, [](double x) { return !std::isfinite(x); });
  if (values.empty()) return std::numeric_limits<double>::quiet_NaN();
  std::sort(values.begin(), values.end());
  const double place = q * static_cast<double>(values.size() - 1);
  const size_t below = static_cast<size_t>(place);
  const size_t above = std::min(below + 1, values.size() - 1);
  return values[below] + (place - static_cast<double>(below)) * (values[above] - values[below]);
}

/// The middle value, or the mean of the two in the middle; as quantile() otherwise.
inline double median(std::vector<double> values) { return quantile(std::move(values), 0.5); }

}  // namespace hocket
