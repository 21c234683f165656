// SPDX-License-Identifier: Apache-2.0
// Log-probabilities at a temperature: those that `sample` reports have the bits of those that
// token_logprobs trains with, for all its ids and settings that leave out nothing.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "ops/sample.h"
#include "tests/kernels/kernel_util.h"

namespace hocket::test {
namespace {

using ops::Setting;

constexpr int64_t kTemperedRows = 9, kTemperedWidth = 24;

struct TemperedCase {
  int64_t vocab;
  double temperature, softcap;  ///< softcap 0: none
};

/// A head's inputs, and logits by the ops that the generation engine forms them with.
struct TemperedHead {
  Values h, w, logits;
};

TemperedHead tempered_head(const TemperedCase& c, DType dtype, uint64_t seed) {
  Random random(seed);
  TemperedHead head{random.normals({kTemperedRows, kTemperedWidth}),
                    random.normals({c.vocab, kTemperedWidth}, 0.7),
                    zeros({kTemperedRows, c.vocab})};
  head.logits = run({"linear", {}, {head.h, head.w}, {head.logits}}, dtype)[0];
  head.logits.type.dtype = DType::f64;  // the compute dtype
  if (c.softcap > 0) {
    head.logits = run({"softcap", {{"cap", c.softcap}}, {head.logits}, {head.logits}}, dtype)[0];
    head.logits.type.dtype = DType::f64;
  }
  return head;
}

/// Draws a token per row; returns ids, and log-probabilities of the first kind and the second.
std::vector<std::vector<double>> draw_tempered(const Values& logits, double temperature,
                                               bool tempered, double given, int64_t vocab,
                                               DType dtype) {
  const int64_t rows = logits.type.dims[0];
  Values settings = zeros({rows, ops::kNumSettings}), logprobs = zeros({rows, 2});
  Values draws = zeros({rows, ops::kNumDraws}, DType::i64), top = zeros({rows, 1});
  settings.fixed = logprobs.fixed = top.fixed = true;
  for (int64_t r = 0; r < rows; ++r) {
    const auto set = [&](Setting which, double value) {
      settings[r * ops::kNumSettings + static_cast<int64_t>(which)] = value;
    };
    set(Setting::temperature, temperature);
    set(Setting::top_p, 1);
    set(Setting::tempered, tempered ? 1 : 0);
    draws[r * ops::kNumDraws + static_cast<int64_t>(ops::Draw::position)] = static_cast<double>(r);
    draws[r * ops::kNumDraws + static_cast<int64_t>(ops::Draw::given)] = given;
  }
  const auto out =
      run({.op = "sample",
           .attrs = {{"top", int64_t{1}}, {"vocab", vocab}},
           .in = {logits, settings, draws, zeros({rows, (vocab + 31) / 32}, DType::i32),
                  zeros({rows, 2}, DType::i32), integers({0}), integers({-1}), fixed({0})},
           .out = {zeros({rows}, DType::i32), logprobs, zeros({rows, 1}, DType::i32), top}},
          dtype);
  std::vector<std::vector<double>> made{out[0].v, {}, {}};
  for (int64_t r = 0; r < rows; ++r) {
    made[1].push_back(out[1][2 * r]);
    made[2].push_back(out[1][2 * r + 1]);
  }
  return made;
}

std::vector<double> trained_logprobs(const TemperedHead& head, const TemperedCase& c,
                                     const std::vector<double>& ids, bool temperature,
                                     DType dtype) {
  Attrs attrs;
  if (temperature) {
    attrs.set("temperature", c.temperature);
  }
  if (c.softcap > 0) {
    attrs.set("softcap", c.softcap);
  }
  const Values each = fixed(std::vector<double>(ids.size()));
  return run({"token_logprobs", attrs, {head.h, head.w, integers(ids)}, {each, each, each}},
             dtype)[0]
      .v;
}

TEST(Temperature, SamplingAndTrainingHaveTheSameBits) {
  uint64_t seed = 0;
  for (const TemperedCase& c : {TemperedCase{2, 0.7, 0},
                                {7, 0.05, 0},
                                {7, 1.3, 3},
                                {64, 9, 0},
                                {64, 0.3, 3},
                                {1000, 0.7, 0},
                                {1000, 1, 3},
                                {1024, 1.3, 0},
                                {1024, 0.3, 3},
                                {4099, 0.6, 3},
                                {4099, 1, 0}}) {
    ++seed;
    for_both([&](DType dtype, double) {
      SCOPED_TRACE(testing::Message() << c.vocab << " ids, temperature " << c.temperature
                                      << ", softcap " << c.softcap);
      const TemperedHead head = tempered_head(c, dtype, seed);
      const auto draw = [&](bool tempered, double given) {
        return draw_tempered(head.logits, c.temperature, tempered, given, c.vocab, dtype);
      };
      const auto plain = draw(false, -1), drawn = draw(true, -1), given = draw(true, 1);
      EXPECT_EQ(plain[0], drawn[0]);  // the setting changes no draw
      const auto trained = trained_logprobs(head, c, drawn[0], true, dtype);
      EXPECT_EQ(drawn[2], trained);
      EXPECT_EQ(drawn[1], trained);
      EXPECT_EQ(plain[2], trained);
      EXPECT_EQ(plain[1], trained_logprobs(head, c, drawn[0], false, dtype));
      // A token that is given, as of a prompt.
      EXPECT_EQ(given[1], trained_logprobs(head, c, given[0], true, dtype));
      for (size_t row = 0; row < given[2].size(); ++row) {
        const auto begin = head.logits.v.begin() + static_cast<int64_t>(row) * c.vocab;
        const int64_t id = static_cast<int64_t>(given[0][row]);
        const auto above =
            std::count_if(begin, begin + c.vocab, [&](double logit) { return logit > begin[id]; });
        EXPECT_EQ(given[2][row], 1.0 + static_cast<double>(above));
      }
    });
    if (testing::Test::HasFailure()) return;
  }
}

TEST(Temperature, CountsAllIdsWhereSomeCannotBeDrawn) {
  const TemperedCase c{70, 0.7, 0};
  for_both([&](DType dtype, double) {
    const TemperedHead head = tempered_head(c, dtype, 3);
    const auto drawn = draw_tempered(head.logits, c.temperature, true, -1, 61, dtype);
    EXPECT_EQ(drawn[1], trained_logprobs(head, c, drawn[0], true, dtype));
    for (size_t r = 0; r < drawn[0].size(); ++r) {
      EXPECT_LT(drawn[0][r], 61);
      EXPECT_GT(drawn[2][r], drawn[1][r]);  // shares of fewer ids are larger
    }
  });
}

TEST(Temperature, TemperatureIsThatOfScaledLogits) {
  const TemperedCase c{50, 0.6, 0};
  for_both([&](DType dtype, double tolerance) {
    const TemperedHead head = tempered_head(c, dtype, 5);
    const std::vector<double> ids(kTemperedRows, 17);
    const auto got = trained_logprobs(head, c, ids, true, dtype);
    for (int64_t r = 0; r < kTemperedRows; ++r) {
      double sum = 0;
      for (int64_t i = 0; i < c.vocab; ++i) {
        sum += std::exp(head.logits[r * c.vocab + i] / c.temperature);
      }
      const double want = head.logits[r * c.vocab + 17] / c.temperature - std::log(sum);
      EXPECT_NEAR(got[static_cast<size_t>(r)], want, 20 * tolerance * (1 + std::abs(want)));
    }
  });
}

TEST(Temperature, TheSmallestOnesTakeTheMostLikely) {
  for_both([&](DType dtype, double) {
    const TemperedHead head = tempered_head({50, 1, 0}, dtype, 6);
    const auto most = draw_tempered(head.logits, 0, false, -1, 50, dtype);
    for (const double temperature : {1e-30, 1e-300, 5e-324}) {
      const auto drawn = draw_tempered(head.logits, temperature, false, -1, 50, dtype);
      EXPECT_EQ(drawn[0], most[0]) << temperature;
      EXPECT_EQ(drawn[2], most[2]) << temperature;
    }
  });
}

}  // namespace
}  // namespace hocket::test
