// SPDX-License-Identifier: Apache-2.0
// Frequencies of rotary embeddings against those of transformers 5.24 (modeling_rope_utils, f32).
#include "ops/rope_frequencies.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/error.h"

namespace hocket::ops {
namespace {

using graph::Attrs;

struct Case {
  std::string scaling;
  double theta;
  Attrs more;
  double factor;
  std::vector<double> frequencies;
};

Attrs attrs_of(const Case& c) {
  Attrs attrs = c.more;
  attrs.set("theta", c.theta);
  attrs.set("scaling", c.scaling);
  return attrs;
}

TEST(RopeFrequencies, EqualThoseOfTransformers) {
  const auto dynamic = [](int64_t seq) {
    return Attrs{{"factor", 2.0}, {"original_max_position", 4096.0}, {"seq", seq}};
  };
  const Attrs yarn{{"factor", 32.0}, {"original_max_position", 4096.0}};
  Attrs whole = yarn;
  whole.set("truncate", int64_t{0});
  whole.set("beta_fast", 32.0);
  whole.set("beta_slow", 1.0);
  const auto longrope = [](const char* factors) {
    return Attrs{
        {"factors", std::string(factors)}, {"factor", 32.0}, {"original_max_position", 4096.0}};
  };
  const std::vector<Case> cases = {
      {"default",
       10000,
       {},
       1,
       {1, 0.316227764, 0.100000001, 0.0316227786, 0.00999999978, 0.00316227786, 0.00100000005,
        0.000316227786}},
      {"linear",
       10000,
       {{"factor", 4.0}},
       1,
       {0.25, 0.079056941, 0.0250000004, 0.00790569466, 0.00249999994, 0.000790569466,
        0.000250000012, 7.90569466e-05}},
      {"llama3",
       500000,
       {{"factor", 8.0},
        {"low_freq_factor", 1.0},
        {"high_freq_factor", 4.0},
        {"original_max_position", 8192.0}},
       1,
       {1, 0.193922758, 0.0376060307, 0.00729266508, 0.000524846022, 3.42810235e-05, 6.64786967e-06,
        1.28917316e-06}},
      {"dynamic",
       10000,
       dynamic(100),
       1,
       {1, 0.316227764, 0.100000001, 0.0316227786, 0.00999999978, 0.00316227786, 0.00100000005,
        0.000316227786}},
      {"dynamic",
       10000,
       dynamic(10000),
       1,
       {1, 0.260517091, 0.0678691566, 0.0176810753, 0.00460622227, 0.00119999971, 0.000312620425,
        8.14429659e-05}},
      {"yarn",
       150000,
       yarn,
       1.3465735902799727,
       {1, 0.225418001, 0.0508132726, 0.00775546534, 0.000914454344, 1.8188337e-05, 4.09997847e-06,
        9.24208962e-07}},
      {"yarn",
       150000,
       whole,
       1.3465735902799727,
       {1, 0.225418001, 0.0508132726, 0.00679495931, 0.000456483918, 1.8188337e-05, 4.09997847e-06,
        9.24208962e-07}},
      {"yarn",
       10000,
       {{"factor", 40.0},
        {"mscale", 0.8},
        {"mscale_all_dim", 1.2},
        {"original_max_position", 4096.0}},
       0.897720452428813,
       {1, 0.316227764, 0.100000001, 0.0239147246, 0.00512499968, 0.000849862176, 2.49999994e-05,
        7.90569447e-06}},
      {"yarn",
       10000,
       {{"factor", 4.0}, {"attention_factor", 0.75}, {"original_max_position", 2048.0}},
       0.75,
       {1, 0.215443447, 0.0348119102, 0.00499999989, 0.000538608583, 0.000116039737}},
      {"longrope",
       10000,
       longrope("1 1.02 1.05 1.1 1.2 1.3 1.5 2"),
       1.1902380714238083,
       {1, 0.310027212, 0.095238097, 0.0287479796, 0.00833333284, 0.00243252143, 0.00066666666,
        0.000158113893}},
      {"longrope",
       10000,
       longrope("1.08 1.5 2.25 3 9 20.5 40 64.25"),
       1.1902380714238083,
       {0.92592591, 0.210818499, 0.0444444455, 0.010540925, 0.00111111114, 0.000154257446,
        2.49999994e-05, 4.92183335e-06}}};
  for (const Case& c : cases) {
    const Attrs attrs = attrs_of(c);
    SCOPED_TRACE(graph::to_string(attrs));
    std::vector<double> got(c.frequencies.size());
    EXPECT_NEAR(rope_frequencies(attrs, got), c.factor, 1e-12);
    for (size_t i = 0; i < got.size(); ++i) {
      EXPECT_NEAR(got[i] / c.frequencies[i], 1, 1e-6) << "pair " << i;
    }
  }
}

TEST(RopeFrequencies, RefuseInvalidScalings) {
  std::vector<double> frequencies(2);
  const auto refused = [&](const Case& c, const std::string& why) {
    try {
      rope_frequencies(attrs_of(c), frequencies);
      ADD_FAILURE() << "took " << graph::to_string(attrs_of(c));
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find(why), std::string::npos) << e.what();
    }
  };
  refused({"ntk", 10000, {}, 1, {}}, "expected default, linear, llama3, dynamic, yarn or longrope");
  refused({"yarn", 10000, {{"factor", 0.0}, {"original_max_position", 64.0}}, 1, {}},
          "factor is 0; expected a positive number");
  refused({"longrope", 10000, {{"factors", std::string("1 2 3")}}, 1, {}},
          "got 3 factors of longrope; expected 2");
  refused({"longrope", 10000, {{"factors", std::string("1 -2")}}, 1, {}}, "expected a positive");
  refused({"dynamic", 10000, {{"factor", 2.0}}, 1, {}}, "original_max_position");
  frequencies.resize(1);
  refused({"dynamic",
           10000,
           {{"factor", 2.0}, {"original_max_position", 64.0}, {"seq", int64_t{128}}},
           1,
           {}},
          "expected at least 4");
}

}  // namespace
}  // namespace hocket::ops
