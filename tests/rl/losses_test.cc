// SPDX-License-Identifier: Apache-2.0
// Ops of losses against verl's and TRL's functions and autograd, on batches with different lengths,
// groups of one, masks and ratios beyond every limit; and on parts of a batch against the whole.
#include <gtest/gtest.h>

#include <limits>

#include "tests/kernels/kernel_util.h"
#include "tests/rl/loss_fixture.h"

namespace hocket::rl {
namespace {

using graph::Attrs;
using graph::DType;
using nlohmann::json;
using test::fixed;
using test::integers;
using test::Values;

/// A loss, and its gradients by log-probabilities and entropies.
struct Loss {
  double loss = 0;
  std::vector<double> of_logprobs, of_entropies;
};

/// Numbers per token of a batch, and its samples.
struct TokenBatch {
  std::vector<double> logprobs = {}, entropies = {}, old = {}, reference = {}, advantages = {},
                      weights = {};
  std::vector<double> samples = {}, sample_advantages = {};  ///< sample of every token; per sample
};

TokenBatch token_batch(const json& test) {
  const json& data = fixture::batch(test);
  engine::RlSection section;
  section.aggregation = fixture::text(test, "aggregation");
  section.horizon = fixture::all().at("horizon").get<int64_t>();
  section.samples_in_mean = fixture::text(test, "samples_in_mean");
  section.tokens_in_mean = test.value("tokens_in_mean", section.tokens_in_mean);
  std::vector<LossInputs> loss_inputs = fixture::loss_inputs(data, true);
  const size_t begin = test.value("begin", size_t{0}), end = test.value("end", loss_inputs.size());
  set_weights(section, loss_inputs, begin, end);
  for (size_t i = 0; i < loss_inputs.size(); ++i) {
    if (i < begin || i >= end) {  // of another update of the step
      loss_inputs[i].weights.assign(loss_inputs[i].old.size(), 0);
    }
  }
  const auto list = [&](const char* key) { return fixture::numbers(data.at(key)); };
  TokenBatch batch{.logprobs = list("logprob"),
                   .entropies = list("entropy"),
                   .old = list("old"),
                   .reference = list("reference"),
                   .advantages = list("token_advantage"),
                   .weights = fixture::joined(loss_inputs, &LossInputs::weights),
                   .sample_advantages = list("advantage")};
  if (test.contains("trl")) {  // an advantage per sample
    batch.advantages.clear();
  }
  for (size_t i = 0; i < loss_inputs.size(); ++i) {
    if (test.contains("trl")) {
      batch.advantages.insert(batch.advantages.end(), loss_inputs[i].old.size(),
                              batch.sample_advantages[i]);
    }
    batch.samples.insert(batch.samples.end(), loss_inputs[i].old.size(), static_cast<double>(i));
  }
  return batch;
}

Attrs token_attrs(const json& test, const std::string& kind) {
  return {{"kind", kind},
          {"clip_low", test.at("clip_low").get<double>()},
          {"clip_high", test.at("clip_high").get<double>()},
          {"dual_clip", test.at("dual_clip").get<double>()},
          {"kl", fixture::text(test, "kl")},
          {"kl_coef", test.at("kl_coef").get<double>()},
          {"entropy_coef", test.at("entropy_coef").get<double>()},
          {"grad", int64_t{1}}};
}

/// Applies policy_loss to tokens [begin, end), on top of `before`.
Loss token_loss(const Attrs& attrs, const TokenBatch& batch, size_t begin, size_t end,
                double before = 0) {
  const auto part = [&](const std::vector<double>& all) {
    return fixed(
        {all.begin() + static_cast<int64_t>(begin), all.begin() + static_cast<int64_t>(end)});
  };
  const Values each = part(batch.old);
  const auto out = test::run(
      {.op = "policy_loss",
       .attrs = attrs,
       .in = {part(batch.logprobs), part(batch.entropies), part(batch.old), part(batch.reference),
              part(batch.advantages), part(batch.weights), fixed({1})},
       .out = {fixed({before}), each, each},
       .accumulate = 1},
      DType::f64);
  return {out[0][0], out[1].v, out[2].v};
}

/// The loss of samples: sums of log-probabilities, sequence_policy_loss, and back to tokens.
Loss sample_loss(const json& test, const TokenBatch& batch) {
  const auto samples = std::ssize(batch.sample_advantages);
  std::vector<double> counted = batch.samples, lengths(static_cast<size_t>(samples)),
                      weights(static_cast<size_t>(samples));
  for (size_t t = 0; t < counted.size(); ++t) {
    const auto sample = static_cast<size_t>(batch.samples[t]);
    weights[sample] += batch.weights[t];
    lengths[sample] += batch.weights[t] != 0 ? 1 : 0;
    if (batch.weights[t] == 0) {
      counted[t] = -1;
    }
  }
  const Values segments = integers(counted), each = fixed(weights);
  const auto sum = [&](const std::vector<double>& tokens) {
    Values made = test::run(
        {"segment_sum", {{"segments", samples}}, {fixed(tokens), segments}, {each}}, DType::f64)[0];
    made.fixed = true;
    return made;
  };
  auto out = test::run({"sequence_policy_loss",
                        {{"clip_low", test.at("clip_low").get<double>()},
                         {"clip_high", test.at("clip_high").get<double>()},
                         {"grad", int64_t{1}}},
                        {sum(batch.logprobs), sum(batch.old), fixed(batch.sample_advantages), each,
                         fixed(lengths), fixed({1})},
                        {fixed({0}), each}},
                       DType::f64);
  out[1].fixed = true;
  const Values tokens = fixed(batch.old);
  return {out[0][0],
          test::run({"segment_gather", {}, {out[1], segments}, {tokens}}, DType::f64)[0].v,
          {}};
}

Loss loss_of(const json& test) {
  const TokenBatch batch = token_batch(test);
  const std::string kind = fixture::text(test, "loss");
  const bool of_samples = kind == "gspo";
  Loss made = token_loss(token_attrs(test, of_samples ? "none" : kind), batch, 0, batch.old.size());
  if (of_samples) {
    const Loss more = sample_loss(test, batch);
    made.loss += more.loss;
    for (size_t t = 0; t < made.of_logprobs.size(); ++t) {
      made.of_logprobs[t] += more.of_logprobs[t];
    }
  }
  return made;
}

void expect_losses_of(const char* package) {
  int cases = 0;
  for (const json& test : fixture::all().at(package).at("losses")) {
    const Loss got = loss_of(test);
    for (const fixture::Precision& precision : fixture::kPrecisions) {
      const json& want = test.at(precision.name);
      SCOPED_TRACE(fixture::text(test, "batch") + " " + fixture::text(test, "loss") + " kl " +
                   fixture::text(test, "kl") + " " + fixture::text(test, "aggregation") + " of " +
                   fixture::text(test, "samples_in_mean") + " " + precision.name);
      fixture::expect_near({got.loss}, {want.at("loss").get<double>()}, precision, "loss");
      fixture::expect_near(got.of_logprobs, fixture::numbers(want.at("dlogprob")), precision,
                           "gradient of log-probability");
      fixture::expect_near(got.of_entropies, fixture::numbers(want.at("dentropy")), precision,
                           "gradient of entropy");
      ++cases;
    }
    if (testing::Test::HasFailure()) return;
  }
  EXPECT_GT(cases, 20);
}

TEST(RlLosses, EqualThoseOfVerl) { expect_losses_of("verl"); }
TEST(RlLosses, EqualThoseOfTrl) { expect_losses_of("trl"); }

TEST(RlLosses, ValueLossIsThatOfVerl) {
  for (const json& test : fixture::all().at("verl").at("values")) {
    const json& data = fixture::batch(test);
    const std::vector<double> weights = token_batch(test).weights;
    for (const fixture::Precision& precision : fixture::kPrecisions) {
      SCOPED_TRACE(fixture::text(test, "batch") + " " + fixture::text(test, "aggregation") + " " +
                   precision.name);
      Values values{{DType::f64, {std::ssize(weights), 1}}, fixture::numbers(data.at("value"))};
      const auto got =
          test::run({"value_loss",
                     {{"clip", test.at("clip").get<double>()}, {"grad", int64_t{1}}},
                     {values, fixed(fixture::numbers(data.at("old_value"))),
                      fixed(fixture::numbers(data.at("return"))), fixed(weights), fixed({1})},
                     {fixed({0}), values}},
                    precision.name == std::string("f64") ? DType::f64 : DType::f32);
      const json& want = test.at(precision.name);
      fixture::expect_near(got[0].v, {want.at("loss").get<double>()}, precision, "loss");
      fixture::expect_near(got[1].v, fixture::numbers(want.at("dvalue")), precision,
                           "gradient of value");
    }
    if (testing::Test::HasFailure()) return;
  }
}

/// Weights are made of the counts of the whole update. So its loss is the sum of its parts' losses,
/// however ranks and micro-batches divide its samples.
TEST(RlLosses, PartsOfAnUpdateAddUpToTheWhole) {
  for (const json& test : fixture::all().at("verl").at("losses")) {
    const std::string kind = fixture::text(test, "loss");
    if (kind == "gspo") continue;
    const TokenBatch batch = token_batch(test);
    const Attrs attrs = token_attrs(test, kind);
    const size_t tokens = batch.old.size();
    const Loss whole = token_loss(attrs, batch, 0, tokens);
    for (const size_t ranks : {2, 3}) {
      for (const size_t micro_batches : {1, 2, 4}) {
        double sum = 0;
        std::vector<double> of_logprobs, of_entropies;
        for (size_t rank = 0; rank < ranks; ++rank) {
          double of_rank = 0;  // that the rank's micro-batches are added up in
          for (size_t m = 0; m < micro_batches; ++m) {
            const size_t part = rank * micro_batches + m, parts = ranks * micro_batches;
            const Loss made = token_loss(attrs, batch, tokens * part / parts,
                                         tokens * (part + 1) / parts, of_rank);
            of_rank = made.loss;
            of_logprobs.insert(of_logprobs.end(), made.of_logprobs.begin(), made.of_logprobs.end());
            of_entropies.insert(of_entropies.end(), made.of_entropies.begin(),
                                made.of_entropies.end());
          }
          sum += of_rank;
        }
        fixture::expect_near({sum}, {whole.loss}, {"", 1e-12, 1e-2}, "loss");
        EXPECT_EQ(of_logprobs, whole.of_logprobs);
        EXPECT_EQ(of_entropies, whole.of_entropies);
      }
    }
    if (testing::Test::HasFailure()) return;
  }
}

TEST(RlLosses, SamplesOfAnUpdateAddUpToTheWhole) {
  const json test{{"clip_low", 0.2}, {"clip_high", 0.28}};
  const TokenBatch batch{.logprobs = {-1, -2, -0.5, -3, -1, -0.1},
                         .old = {-1.5, -2, -0.25, -2, -1.25, -0.5},
                         .weights = {0.25, 0.25, 0, 0.5, 0.125, 0.125},
                         .samples = {0, 0, 0, 1, 2, 2},
                         .sample_advantages = {1.5, -1, 0.5}};
  const Loss whole = sample_loss(test, batch);
  double sum = 0;
  std::vector<double> gradients;
  for (const auto& [begin, end, sample] : {std::tuple{0, 3, 0}, {3, 4, 1}, {4, 6, 2}}) {
    const auto part = [b = begin, e = end](const std::vector<double>& all) {
      return std::vector<double>(all.begin() + b, all.begin() + e);
    };
    const Loss made = sample_loss(
        test, {.logprobs = part(batch.logprobs),
               .old = part(batch.old),
               .weights = part(batch.weights),
               .samples = std::vector<double>(static_cast<size_t>(end - begin), 0),
               .sample_advantages = {batch.sample_advantages[static_cast<size_t>(sample)]}});
    sum += made.loss;
    gradients.insert(gradients.end(), made.of_logprobs.begin(), made.of_logprobs.end());
  }
  EXPECT_NEAR(sum, whole.loss, 1e-14);
  EXPECT_EQ(gradients, whole.of_logprobs);
  EXPECT_EQ(whole.of_logprobs[2], 0);
}

TEST(RlLosses, TokensOfWeightZeroCountForNothing) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double inf = std::numeric_limits<double>::infinity();
  for (const char* kind : {"ppo", "cispo", "reinforce", "none"}) {
    for (const char* kl : {"none", "k1", "k2", "k3"}) {
      const Attrs attrs{{"kind", std::string(kind)}, {"clip_low", 0.2},       {"clip_high", 0.2},
                        {"dual_clip", 3.0},          {"kl", std::string(kl)}, {"kl_coef", 0.1},
                        {"entropy_coef", 0.1},       {"grad", int64_t{1}}};
      const TokenBatch one{{-1}, {1}, {-1.1}, {-0.9}, {2}, {0.5}, {}, {}};
      const TokenBatch more{{nan, -1, -inf},
                            {nan, 1, inf},
                            {inf, -1.1, nan},
                            {nan, -0.9, -inf},
                            {nan, 2, inf},
                            {0, 0.5, 0},
                            {},
                            {}};
      const Loss want = token_loss(attrs, one, 0, 1), got = token_loss(attrs, more, 0, 3);
      EXPECT_EQ(got.loss, want.loss) << kind << " " << kl;
      EXPECT_EQ(got.of_logprobs, (std::vector<double>{0, want.of_logprobs[0], 0}));
      EXPECT_EQ(got.of_entropies, (std::vector<double>{0, want.of_entropies[0], 0}));
      // One that counts is not hidden.
      TokenBatch counted = more;
      counted.weights[0] = 1;
      EXPECT_TRUE(std::isnan(token_loss(attrs, counted, 0, 3).loss)) << kind << " " << kl;
    }
  }
  const Values values{{DType::f64, {2, 1}}, {nan, 1}};
  const auto made =
      test::run({"value_loss",
                 {{"clip", 0.2}, {"grad", int64_t{1}}},
                 {values, fixed({nan, 0.5}), fixed({nan, 2}), fixed({0, 1}), fixed({1})},
                 {fixed({0}), values}},
                DType::f64);
  EXPECT_NEAR(made[0][0], 0.5 * 1.3 * 1.3, 1e-15);  // clipped at 0.7, farther from 2 than 1 is
  EXPECT_EQ(made[1].v, (std::vector<double>{0, 0}));
}

}  // namespace
}  // namespace hocket::rl
