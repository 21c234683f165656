// SPDX-License-Identifier: Apache-2.0
// Finite values, by the bits of every element type.
#include "graph/finite.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

namespace hocket::graph {
namespace {

/// Expects that these bits are found among zeros, at their place.
template <class Bits>
int64_t found(DType dtype, Bits bits) {
  const std::vector<Bits> data{0, 0, bits, 0};
  return first_not_finite(dtype, data.data(), std::ssize(data));
}

TEST(Finite, FindsInfinitiesAndNansOfEveryType) {
  const struct {
    DType dtype;
    std::vector<uint16_t> finite, other;  ///< largest, least; infinities and no numbers
  } rows[] = {
      {DType::bf16, {0x7f7f, 0xff7f, 0x0001, 0x8000}, {0x7f80, 0xff80, 0x7fc0, 0x7f81, 0xffff}},
      {DType::f16, {0x7bff, 0xfbff, 0x0001, 0x8000}, {0x7c00, 0xfc00, 0x7e00, 0x7c01, 0xffff}},
      {DType::f8_e5m2, {0x7b, 0xfb, 0x01, 0x80}, {0x7c, 0xfc, 0x7d, 0x7f, 0xff}},
      {DType::f8_e4m3, {0x7e, 0xfe, 0x01, 0x80}, {0x7f, 0xff}},
      {DType::f8_e8m0, {0xfe, 0x00, 0x7f}, {0xff}},
  };
  for (const auto& row : rows) {
    const auto at = [&](uint16_t bits) {
      return size_of(row.dtype) == 2 ? found(row.dtype, bits)
                                     : found(row.dtype, static_cast<uint8_t>(bits));
    };
    for (const uint16_t bits : row.finite) {
      EXPECT_EQ(at(bits), -1) << to_string(row.dtype) << " " << bits;
    }
    for (const uint16_t bits : row.other) {
      EXPECT_EQ(at(bits), 2) << to_string(row.dtype) << " " << bits;
    }
  }
}

template <class Number>
void expect_as_standard(DType dtype) {
  using Limits = std::numeric_limits<Number>;
  for (const Number value : {Limits::max(), Limits::lowest(), Limits::denorm_min(), Number{0},
                             Limits::infinity(), -Limits::infinity(), Limits::quiet_NaN()}) {
    const std::vector<Number> data{1, value};
    EXPECT_EQ(first_not_finite(dtype, data.data(), 2), std::isfinite(value) ? -1 : 1) << value;
  }
}

TEST(Finite, EqualsIsfiniteOfTheStandardLibrary) {
  expect_as_standard<float>(DType::f32);
  expect_as_standard<double>(DType::f64);
}

TEST(Finite, IntegersAreAlwaysFinite) {
  const std::vector<uint8_t> ones(64, 0xff);
  for (const DType dtype :
       {DType::i64, DType::i32, DType::i8, DType::u8, DType::i4, DType::f4_e2m1}) {
    EXPECT_TRUE(all_finite(dtype, ones.data(), 8)) << to_string(dtype);
  }
}

}  // namespace
}  // namespace hocket::graph
