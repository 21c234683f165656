// SPDX-License-Identifier: Apache-2.0
// Quantities with units: values, refused texts, and that printing parses back exactly.
#include "base/units.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "base/rng.h"

namespace hocket {
namespace {

double parse(const char* text, Unit unit) { return parse_quantity(text, unit, "test"); }

TEST(Units, EveryUnitIsParsed) {
  EXPECT_EQ(parse("400Gbit/s", Unit::bytes_s), 50e9);
  EXPECT_EQ(parse("3.35TB/s", Unit::bytes_s), 3.35e12);
  EXPECT_EQ(parse("80GiB", Unit::bytes), 80.0 * (1LL << 30));
  EXPECT_EQ(parse("80 GB", Unit::bytes), 80e9);
  EXPECT_EQ(parse("12345", Unit::bytes), 12345);
  EXPECT_EQ(parse("5us", Unit::seconds), 5e-6);
  EXPECT_EQ(parse("5\xc2\xb5s", Unit::seconds), 5e-6);
  EXPECT_EQ(parse("250ns", Unit::seconds), 250e-9);
  EXPECT_EQ(parse("1.5ms", Unit::seconds), 1.5e-3);
  EXPECT_EQ(parse("15min", Unit::seconds), 900);
  EXPECT_EQ(parse("2h", Unit::seconds), 7200);
  EXPECT_EQ(parse("989TFLOP/s", Unit::flops_s), 989e12);
  EXPECT_EQ(parse("30.5B", Unit::count), 30.5e9);
  EXPECT_EQ(parse("1e-3", Unit::none), 1e-3);
}

TEST(Units, OtherUnitsAndMalformedNumbersAreRefused) {
  for (const auto& [text, unit] :
       std::initializer_list<std::pair<const char*, Unit>>{{"400Gbit/s", Unit::bytes},
                                                           {"80GiB", Unit::bytes_s},
                                                           {"80gib", Unit::bytes},
                                                           {"5 u s", Unit::seconds},
                                                           {"us", Unit::seconds},
                                                           {"", Unit::seconds},
                                                           {"5usus", Unit::seconds},
                                                           {"1.5.2ms", Unit::seconds},
                                                           {"3TB", Unit::none},
                                                           {"1e308TB", Unit::bytes},
                                                           {"989TFLOP", Unit::flops_s}}) {
    double value = 0;
    EXPECT_FALSE(parse_quantity(text, unit, &value)) << text;
  }
  try {
    parse_quantity("80GiB", Unit::bytes_s, "cluster.yaml:3");
    FAIL();
  } catch (const Error& e) {
    const std::string text = e.what();
    EXPECT_NE(text.find("[cluster.yaml:3] got '80GiB'; expected"), std::string::npos) << text;
    EXPECT_NE(text.find("400Gbit/s"), std::string::npos) << text;
  }
}

TEST(Units, FormatIsShortAndExact) {
  EXPECT_EQ(format_quantity(50e9, Unit::bytes_s), "50GB/s");
  EXPECT_EQ(format_quantity(80.0 * (1LL << 30), Unit::bytes), "80GiB");
  EXPECT_EQ(format_quantity(5e-6, Unit::seconds), "5us");
  EXPECT_EQ(format_quantity(989.4e12, Unit::flops_s), "989.4TFLOP/s");
  EXPECT_EQ(format_quantity(0.25, Unit::none), "0.25");
  EXPECT_EQ(format_quantity(0, Unit::bytes), "0");
  Rng rng(20);
  for (int i = 0; i < 20000; ++i) {
    const auto unit = static_cast<Unit>(rng.below(7));
    const double value = std::exp(rng.uniform() * 80 - 30);
    const std::string text = format_quantity(value, unit);
    double back = 0;
    ASSERT_TRUE(parse_quantity(text, unit, &back)) << text;
    ASSERT_EQ(back, value) << text;
  }
}

}  // namespace
}  // namespace hocket
