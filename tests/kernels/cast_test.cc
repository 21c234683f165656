// SPDX-License-Identifier: Apache-2.0
// cast between all pairs of types, against numbers found by search (tests/number_util.h): every
// code of the small types, all ties between them, the ends of ranges.
// tests/checkpoint/cast_file_test.cc compares with PyTorch.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/rng.h"
#include "tests/kernels/cast_util.h"
#include "tests/number_util.h"

namespace hocket::test {
namespace {

using graph::DType;

constexpr DType kSmall[] = {DType::bf16, DType::f16, DType::f8_e4m3, DType::f8_e5m2};
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

TEST(Cast, DecodesEveryCodeOfASmallType) {
  for (DType small : kSmall) {
    std::vector<double> numbers;
    const uint32_t codes = 1u << graph::bits_of(small);
    std::vector<std::byte> data(codes * static_cast<size_t>(size_of(small)));
    for (uint32_t code = 0; code < codes; ++code) {
      std::memcpy(data.data() + code * static_cast<size_t>(size_of(small)), &code,
                  static_cast<size_t>(size_of(small)));
      numbers.push_back(value_of(small, code));
    }
    for (DType wide : {DType::f32, DType::f64}) {
      const std::vector<double> got = unpack(wide, cast(small, wide, data));
      for (uint32_t code = 0; code < codes; ++code) {
        ASSERT_TRUE(same(got[code], numbers[code]))
            << to_string(small) << " code " << code << " is " << numbers[code] << "; got "
            << got[code];
      }
      // And back again.
      const std::vector<std::byte> back = cast(wide, small, cast(small, wide, data));
      for (uint32_t code = 0; code < codes; ++code) {
        const size_t size = static_cast<size_t>(size_of(small));
        if (std::isfinite(numbers[code])) {
          ASSERT_EQ(std::memcmp(&back[code * size], &data[code * size], size), 0) << code;
        }
      }
    }
  }
}

TEST(Cast, RoundsToTheNearestAndTiesToEven) {
  for (DType small : kSmall) {
    for (DType wide : {DType::f32, DType::f64}) {
      SCOPED_TRACE(std::string(to_string(wide)) + " to " + to_string(small));
      const auto beside = [&](double x, double towards) {
        return wide == DType::f64 ? std::nextafter(x, towards)
                                  : static_cast<double>(std::nextafter(
                                        static_cast<float>(x), static_cast<float>(towards)));
      };
      std::vector<double> values{0.0, -0.0, kInfinity, -kInfinity, kNan, 1e-300, 1e30, -1e30};
      for (uint32_t code = 0; code < largest_code(small); ++code) {
        const double low = value_of(small, code), high = value_of(small, code + 1);
        const double middle = low + (high - low) / 2;
        for (double x : {low, middle, beside(middle, 0), beside(middle, kInfinity)}) {
          values.push_back(x);
          values.push_back(-x);
        }
      }
      const double most = value_of(small, largest_code(small));
      const double half = (most - value_of(small, largest_code(small) - 1)) / 2;
      for (double x :
           {most, most + half, beside(most + half, 0), beside(most + half, kInfinity), 2 * most}) {
        values.push_back(x);
        values.push_back(-x);
      }
      // The wide type may hold less than these doubles say.
      values = unpack(wide, pack(wide, values));
      const std::vector<double> got = cast(wide, small, values);
      for (size_t i = 0; i < values.size(); ++i) {
        const double want = value_of(small, code_of(small, values[i]));
        ASSERT_TRUE(same(got[i], want)) << values[i] << " is " << got[i] << "; expected " << want;
      }
    }
  }
}

TEST(Cast, EightBitFloatsSaturateAndTheOthersOverflow) {
  const std::vector<double> values{1e6, -1e6, kInfinity, -kInfinity};
  EXPECT_EQ(cast(DType::f32, DType::f8_e4m3, values), (std::vector<double>{448, -448, 448, -448}));
  EXPECT_EQ(cast(DType::f32, DType::f8_e5m2, values),
            (std::vector<double>{57344, -57344, 57344, -57344}));
  EXPECT_EQ(cast(DType::f32, DType::f16, values),
            (std::vector<double>{kInfinity, -kInfinity, kInfinity, -kInfinity}));
}

TEST(Cast, IntegersAreCutAndSaturate) {
  const std::vector<double> values{2.9, -2.9, 127.5, 128,  -128.9,    -129,       255.9,
                                   256, 1e30, -1e30, kNan, kInfinity, -kInfinity, -0.5};
  EXPECT_EQ(
      cast(DType::f32, DType::i8, values),
      (std::vector<double>{2, -2, 127, 127, -128, -128, 127, 127, 127, -128, 0, 127, -128, 0}));
  EXPECT_EQ(cast(DType::f64, DType::u8, values),
            (std::vector<double>{2, 0, 127, 128, 0, 0, 255, 255, 255, 0, 0, 255, 0, 0}));
  const double most = 2147483647, least = -2147483648.0;
  EXPECT_EQ(cast(DType::f64, DType::i32, {most, most + 1, least, least - 1, 1e300}),
            (std::vector<double>{most, most, least, least, most}));
  EXPECT_EQ(cast(DType::i64, DType::i8, {300, -300, 5}), (std::vector<double>{127, -128, 5}));
  EXPECT_EQ(cast(DType::i8, DType::u8, {-1, 100}), (std::vector<double>{0, 100}));
}

TEST(Cast, LargeIntegersAreRoundedOnce) {
  // Rounded to a double first, these would be ties of bf16, which go to the even side.
  const int64_t tie = (int64_t{1} << 62) + (int64_t{1} << 54);
  const std::vector<int64_t> integers{tie - 1,  tie,       tie + 1,  -tie - 1,
                                      -tie + 1, INT64_MAX, INT64_MIN};
  std::vector<std::byte> data(integers.size() * 8);
  std::memcpy(data.data(), integers.data(), data.size());
  const double low = std::ldexp(1.0, 62), high = low + std::ldexp(1.0, 55);
  EXPECT_EQ(unpack(DType::bf16, cast(DType::i64, DType::bf16, data)),
            (std::vector<double>{low, low, high, -high, -low, std::ldexp(1.0, 63),
                                 -std::ldexp(1.0, 63)}));
}

TEST(Cast, RandomNumbersAreConvertedBetweenAllTypes) {
  const uint64_t seed = 8;
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  Rng rng(seed);
  for (DType from : kElementTypes) {
    for (DType to : kElementTypes) {
      std::vector<double> values;
      for (int i = 0; i < 500; ++i) {
        // Positive where there are no negative numbers, and in the range of both.
        const double x = rng.normal() * std::ldexp(1.0, static_cast<int>(rng.below(6)) - 2);
        values.push_back(from == DType::u8 || to == DType::u8 ? std::abs(x) : x);
      }
      values = unpack(from, pack(from, values));
      const std::vector<double> got = cast(from, to, values);
      for (size_t i = 0; i < values.size(); ++i) {
        const double want = graph::is_floating(to) ? unpack(to, pack(to, {values[i]}))[0]
                                                   : std::trunc(values[i]) + 0.0;
        ASSERT_EQ(got[i], want) << to_string(from) << " to " << to_string(to) << " of "
                                << values[i];
      }
    }
  }
}

}  // namespace
}  // namespace hocket::test
