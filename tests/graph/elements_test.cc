// SPDX-License-Identifier: Apache-2.0
#include "graph/elements.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "tests/number_util.h"

namespace hocket::graph {
namespace {

TEST(Elements, AreTheNumbersOfTheirCodes) {
  for (const DType dtype : {DType::bf16, DType::f16}) {
    std::vector<uint16_t> codes(1 << 16);
    for (size_t i = 0; i < codes.size(); ++i) {
      codes[i] = static_cast<uint16_t>(i);
    }
    std::vector<float> floats(codes.size());
    std::vector<double> doubles(codes.size());
    read_numbers(dtype, codes.data(), std::span(floats));
    read_numbers(dtype, codes.data(), std::span(doubles));
    for (size_t i = 0; i < codes.size(); ++i) {
      const double want = test::value_of(dtype, codes[i]);
      EXPECT_TRUE(doubles[i] == want || (std::isnan(doubles[i]) && std::isnan(want))) << i;
      EXPECT_TRUE(floats[i] == doubles[i] || std::isnan(doubles[i])) << i;
    }
  }
  const double wide[] = {1.0 / 3, -2};
  float narrow[2];
  read_numbers(DType::f64, wide, std::span(narrow));
  EXPECT_EQ(narrow[0], 1.0f / 3);
  EXPECT_EQ(narrow[1], -2);
}

}  // namespace
}  // namespace hocket::graph
