// SPDX-License-Identifier: Apache-2.0
// Order statistics of measured values.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

namespace hocket {

/// The value below which a share `q` (0 to 1) of the values lies, linear between two neighbours in
/// order; NaN and infinities do not count. NaN if no value is left.
inline double quantile(std::vector<double> values, double q) {
  std::erase_if(values, [](double x) { return !std::isfinite(x); });
  if (values.empty()) return std::numeric_limits<double>::quiet_NaN();
  const double place = q * static_cast<double>(values.size() - 1);
  const auto below = values.begin() + static_cast<int64_t>(place);
  std::nth_element(values.begin(), below, values.end());
  const double rest = place - std::floor(place);
  const double above = rest > 0 ? *std::min_element(below + 1, values.end()) : *below;
  return *below + rest * (above - *below);
}

/// The middle value, or the mean of the two in the middle; as quantile() otherwise.
inline double median(std::vector<double> values) { return quantile(std::move(values), 0.5); }

}  // namespace hocket
