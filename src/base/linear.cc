// SPDX-License-Identifier: Apache-2.0
#include "base/linear.h"

#include <cmath>
#include <cstddef>
#include <utility>

namespace hocket {

std::vector<double> solve_normal(std::vector<std::vector<double>> rows) {
  // Scales the diagonal to 1, so a small pivot shows dependent equations. Then Gauss-Jordan
  // elimination with row pivoting.
  constexpr double kSingular = 1e-10;
  const size_t n = rows.size();
  std::vector<double> scale(n);
  for (size_t i = 0; i < n; ++i) {
    if (!(rows[i][i] > 0)) return {};
    scale[i] = 1 / std::sqrt(rows[i][i]);
  }
  for (size_t i = 0; i < n; ++i) {
    for (size_t j = 0; j < n; ++j) {
      rows[i][j] = rows[i][j] * scale[i] * scale[j];
    }
    rows[i][n] *= scale[i];
  }
  for (size_t i = 0; i < n; ++i) {
    size_t pivot = i;
    for (size_t j = i + 1; j < n; ++j) {
      if (std::abs(rows[j][i]) > std::abs(rows[pivot][i])) {
        pivot = j;
      }
    }
    std::swap(rows[i], rows[pivot]);
    if (!(std::abs(rows[i][i]) > kSingular)) return {};
    for (size_t j = 0; j < n; ++j) {
      if (j == i) continue;
      const double factor = rows[j][i] / rows[i][i];
      for (size_t c = i; c <= n; ++c) {
        rows[j][c] -= factor * rows[i][c];
      }
    }
  }
  std::vector<double> x(n);
  for (size_t i = 0; i < n; ++i) {
    x[i] = rows[i][n] / rows[i][i] * scale[i];
  }
  return x;
}

}  // namespace hocket
