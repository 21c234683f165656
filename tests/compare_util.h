// SPDX-License-Identifier: Apache-2.0
// How far results are from what they should be.
#pragma once

#include <cmath>
#include <vector>

namespace hocket::test {

/// |a - b| / |b| (absolute if b is zero); infinite on NaN or other sizes.
inline double relative_l2(const std::vector<double>& a, const std::vector<double>& b) {
  if (a.size() != b.size()) return INFINITY;
  double diff = 0, norm = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    diff += (a[i] - b[i]) * (a[i] - b[i]);
    norm += b[i] * b[i];
  }
  if (std::isnan(diff)) return INFINITY;
  return norm > 0 ? std::sqrt(diff / norm) : std::sqrt(diff);
}

}  // namespace hocket::test
