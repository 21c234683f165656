// SPDX-License-Identifier: Apache-2.0
#include "base/linear.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <vector>

namespace hocket {
namespace {

using Rows = std::vector<std::vector<double>>;

TEST(SolveNormal, RecoversTheCoefficients) {
  // X'X x = X'X known, with rows of very different sizes.
  for (const size_t n : {size_t{1}, size_t{2}, size_t{4}, size_t{7}}) {
    std::vector<double> known;
    Rows samples;
    for (size_t i = 0; i < n; ++i) {
      known.push_back(1.5 * static_cast<double>(i) - 2);
    }
    for (size_t s = 0; s < 4 * n; ++s) {
      std::vector<double> sample;
      for (size_t i = 0; i < n; ++i) {
        const double size = i % 2 == 0 ? 1e3 : 1e-2;
        sample.push_back(size * (static_cast<double>((s * 37 + i * 101 + s * s * i) % 97) - 48));
      }
      samples.push_back(sample);
    }
    Rows rows(n, std::vector<double>(n + 1));
    for (const std::vector<double>& sample : samples) {
      for (size_t i = 0; i < n; ++i) {
        for (size_t j = 0; j < n; ++j) {
          rows[i][j] += sample[i] * sample[j];
          rows[i][n] += sample[i] * sample[j] * known[j];
        }
      }
    }
    const std::vector<double> found = solve_normal(rows);
    ASSERT_EQ(found.size(), n);
    for (size_t i = 0; i < n; ++i) {
      EXPECT_NEAR(found[i], known[i], 1e-6) << i << " of " << n;
    }
  }
}

TEST(SolveNormal, EquationsThatDependOnEachOtherHaveNoAnswer) {
  EXPECT_TRUE(solve_normal({{1, 2, 3}, {2, 4, 6}}).empty());
  EXPECT_TRUE(solve_normal({{0, 1}}).empty());
  EXPECT_TRUE(solve_normal({{4, 0, 1}, {0, 0, 0}}).empty());
  EXPECT_TRUE(solve_normal({}).empty());
}

}  // namespace
}  // namespace hocket
