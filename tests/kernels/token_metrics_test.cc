// SPDX-License-Identifier: Apache-2.0
// Metrics of tokens beside their losses, by token_logprobs and linear_cross_entropy in every type,
// against plain loops. Logits are integers, so many are equal: the first of the greatest counts.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/kernels/kernel_util.h"

namespace hocket::test {
namespace {

struct MetricsCase {
  int64_t tokens, width, vocab;
  double softcap = 0, temperature = 1;  ///< softcap 0: none
};

/// Integers of -most to most.
Values small_integers(Random& random, graph::Dims dims, int64_t most) {
  Values made = zeros(std::move(dims));
  for (double& x : made.v) {
    x = static_cast<double>(random.below(2 * most + 1) - most);
  }
  return made;
}

/// Inputs of a head. Targets are in turn ignored, the first of a token's greatest logits, the last
/// of them, and any.
struct MetricsHead {
  Values h, w, targets;
  std::vector<std::vector<double>> logits;  ///< the products, by token
};

MetricsHead metrics_head(const MetricsCase& c, uint64_t seed) {
  Random random(seed);
  MetricsHead head{small_integers(random, {c.tokens, c.width}, 2),
                   small_integers(random, {c.vocab, c.width}, 3),
                   zeros({c.tokens}, DType::i32),
                   {}};
  for (int64_t t = 0; t < c.tokens; ++t) {
    std::vector<double>& z = head.logits.emplace_back(static_cast<size_t>(c.vocab));
    for (int64_t j = 0; j < c.vocab; ++j) {
      for (int64_t i = 0; i < c.width; ++i) {
        z[static_cast<size_t>(j)] += head.h[t * c.width + i] * head.w[j * c.width + i];
      }
    }
    const auto first = std::max_element(z.begin(), z.end());
    const auto last = std::max_element(z.rbegin(), z.rend());
    const double ways[] = {static_cast<double>(first - z.begin()),
                           static_cast<double>(z.rend() - last - 1), -100.0,
                           static_cast<double>(random.below(c.vocab))};
    head.targets[t] = ways[t % 4];
  }
  return head;
}

struct WantedMetrics {
  std::vector<double> logprobs, entropies, means, misses;
};

WantedMetrics wanted_metrics(const MetricsCase& c, const MetricsHead& head, double temperature) {
  WantedMetrics want;
  for (int64_t t = 0; t < c.tokens; ++t) {
    const int64_t target = static_cast<int64_t>(head.targets[t]);
    for (auto* list : {&want.logprobs, &want.entropies, &want.means, &want.misses}) {
      list->push_back(0);
    }
    if (target < 0) continue;
    std::vector<double> z = head.logits[static_cast<size_t>(t)];
    const auto first = std::max_element(z.begin(), z.end()) - z.begin();
    want.misses.back() = first == target ? 0 : 1;
    double sum = 0;
    for (double& x : z) {
      x = (c.softcap > 0 ? c.softcap * std::tanh(x / c.softcap) : x) / temperature;
      sum += std::exp(x);
      want.means.back() += x / static_cast<double>(c.vocab);
    }
    for (const double x : z) {
      want.entropies.back() -= std::exp(x) / sum * (x - std::log(sum));
    }
    want.logprobs.back() = z[static_cast<size_t>(target)] - std::log(sum);
  }
  return want;
}

const MetricsCase kMetricsCases[] = {{1, 1, 2},          {8, 3, 2},         {70, 8, 37},
                                     {70, 8, 1500},      {40, 8, 2049},     {70, 8, 1500, 30},
                                     {40, 5, 37, 30, 2}, {8, 3, 37, 0, 0.5}};

/// Calls check(dtype, tolerance) for every type, on the kernels of every instruction set.
void for_every_type(const std::function<void(DType, double)>& check) {
  for_both([&](DType dtype, double tolerance) {
    check(dtype, tolerance);
    if (dtype != DType::f32) return;
    check(DType::bf16, tolerance);
    check(DType::f16, tolerance);
  });
}

TEST(TokenMetrics, OfLogprobsEqualTheirFormulas) {
  uint64_t seed = 0;
  for (const MetricsCase& c : kMetricsCases) {
    const MetricsHead head = metrics_head(c, ++seed);
    const WantedMetrics want = wanted_metrics(c, head, c.temperature);
    Attrs attrs{{"metrics", int64_t{1}}};
    if (c.softcap > 0) {
      attrs.set("softcap", c.softcap);
    }
    if (c.temperature != 1) {
      attrs.set("temperature", c.temperature);
    }
    const Values each = fixed(std::vector<double>(static_cast<size_t>(c.tokens)));
    for_every_type([&](DType dtype, double tolerance) {
      SCOPED_TRACE(testing::Message() << c.tokens << " tokens, vocabulary " << c.vocab
                                      << ", softcap " << c.softcap << ", " << to_string(dtype));
      const std::vector<Values> in{head.h, head.w, head.targets};
      const auto made = run({"token_logprobs", attrs, in, {each, each, each, each, each}}, dtype);
      expect_close(made[0], want.logprobs, tolerance, "log-probabilities");
      expect_close(made[1], want.entropies, 10 * tolerance, "entropies");
      expect_close(made[3], want.means, tolerance, "means");
      EXPECT_EQ(made[4].v, want.misses);
    });
  }
}

TEST(TokenMetrics, OfTheFusedLossEqualTheirFormulasAndChangeNoBitOfIt) {
  uint64_t seed = 0;
  for (const MetricsCase& c : kMetricsCases) {
    const MetricsHead head = metrics_head(c, ++seed);
    const WantedMetrics want = wanted_metrics(c, head, 1);
    const Values each = fixed(std::vector<double>(static_cast<size_t>(c.tokens)));
    const std::vector<Values> in{head.h, head.w, head.targets, fixed({0.125})};
    for (const auto& [grad, frozen] : {std::pair{0, 0}, {1, 0}, {1, 1}}) {
      Attrs plain{{"grad", int64_t{grad}}, {"frozen", int64_t{frozen}}};
      if (c.softcap > 0) {
        plain.set("softcap", c.softcap);
      }
      Attrs attrs = plain;
      attrs.set("metrics", int64_t{1});
      std::vector<Values> out{fixed({0})};
      if (grad == 1) {
        out.push_back(head.h);
      }
      if (grad == 1 && frozen == 0) {
        out.push_back(head.w);
      }
      std::vector<Values> longer = out;
      longer.insert(longer.end(), {each, each});
      for_every_type([&](DType dtype, double tolerance) {
        SCOPED_TRACE(testing::Message()
                     << c.tokens << " tokens, vocabulary " << c.vocab << ", softcap " << c.softcap
                     << ", grad " << grad << ", frozen " << frozen << ", " << to_string(dtype));
        const auto without = run({"linear_cross_entropy", plain, in, out}, dtype);
        const auto made = run({"linear_cross_entropy", attrs, in, longer}, dtype);
        for (size_t i = 0; i < without.size(); ++i) {
          EXPECT_EQ(made[i].v, without[i].v) << "output " << i;
        }
        expect_close(made[out.size()], want.entropies, 10 * tolerance, "entropies");
        EXPECT_EQ(made[out.size() + 1].v, want.misses);
      });
    }
  }
}

/// Parts of the vocabulary, also empty ones, find the same: the greatest of their results.
TEST(TokenMetrics, OfRunsOfTheVocabularyGiveTheWhole) {
  const MetricsCase c{70, 8, 37};
  const MetricsHead head = metrics_head(c, 9);
  const WantedMetrics want = wanted_metrics(c, head, 1);
  const Attrs attrs{{"vocab", c.vocab}};
  Values x = zeros({c.tokens});
  for (int64_t t = 0; t < c.tokens; ++t) {
    const int64_t target = static_cast<int64_t>(head.targets[t]);
    x[t] = target < 0 ? 0 : head.logits[static_cast<size_t>(t)][static_cast<size_t>(target)];
  }
  const Values each = fixed(std::vector<double>(static_cast<size_t>(c.tokens)));
  const std::vector<int64_t> begins{0, 0, 1, 20, 20, 36, 37};
  for_every_type([&](DType dtype, double) {
    std::vector<double> misses(want.misses.size());
    for (size_t i = 0; i + 1 < begins.size(); ++i) {
      Values part = zeros({c.tokens, begins[i + 1] - begins[i]});
      part.v.clear();
      for (const std::vector<double>& z : head.logits) {
        part.v.insert(part.v.end(), z.begin() + begins[i], z.begin() + begins[i + 1]);
      }
      const auto made = run({.op = "token_misses",
                             .attrs = attrs,
                             .in = {part, x, head.targets},
                             .out = {each},
                             .piece_offsets = {{'v', begins[i]}}},
                            dtype)[0];
      for (size_t t = 0; t < misses.size(); ++t) {
        misses[t] = std::max(misses[t], made.v[t]);
      }
    }
    EXPECT_EQ(misses, want.misses) << to_string(dtype);
  });
}

}  // namespace
}  // namespace hocket::test
