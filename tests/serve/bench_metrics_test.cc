// SPDX-License-Identifier: Apache-2.0
#include "serve/bench/bench_metrics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

namespace hocket::serve {
namespace {

MeasuredRequest measured(double start, double ttft, std::vector<double> itl, int64_t prompt) {
  MeasuredRequest request;
  request.success = true;
  request.start = start;
  request.ttft = request.latency = ttft;
  for (const double gap : itl) {
    request.latency += gap;
  }
  request.output_tokens = std::ssize(itl) + 1;
  request.itl = std::move(itl);
  request.prompt_tokens = prompt;
  return request;
}

/// Values of numpy.percentile([15, 20, 35, 40, 50], q).
TEST(BenchMetrics, PercentilesEqualThoseOfNumpy) {
  const std::vector<double> values = {40, 15, 50, 20, 35};
  EXPECT_DOUBLE_EQ(percentile(values, 0), 15);
  EXPECT_DOUBLE_EQ(percentile(values, 5), 16);
  EXPECT_DOUBLE_EQ(percentile(values, 30), 23);
  EXPECT_DOUBLE_EQ(percentile(values, 40), 29);
  EXPECT_DOUBLE_EQ(percentile(values, 50), 35);
  EXPECT_DOUBLE_EQ(percentile(values, 99), 49.6);
  EXPECT_DOUBLE_EQ(percentile(values, 100), 50);
  EXPECT_DOUBLE_EQ(percentile({7}, 99.9), 7);
  EXPECT_EQ(percentile_word(99), "99");
  EXPECT_EQ(percentile_word(99.9), "99.9");
}

/// Three requests by hand, one of them failed, one of a single token.
TEST(BenchMetrics, FollowsTheDefinitions) {
  std::vector<MeasuredRequest> requests = {measured(0, 0.5, {0.1, 0.3}, 10),
                                           measured(0.5, 0.25, {}, 20), MeasuredRequest()};
  requests[2].error = "gone";
  requests[2].prompt_tokens = 1000;
  const BenchMetrics m = bench_metrics(requests, 2, {50, 99}, {{"ttft", 300.0}, {"tpot", 150.0}});
  EXPECT_EQ(m.completed, 2);
  EXPECT_EQ(m.failed, 1);
  EXPECT_EQ(m.total_input_tokens, 30);
  EXPECT_EQ(m.total_output_tokens, 4);
  EXPECT_DOUBLE_EQ(m.request_throughput, 1);
  EXPECT_DOUBLE_EQ(m.output_throughput, 2);
  EXPECT_DOUBLE_EQ(m.total_token_throughput, 17);
  EXPECT_DOUBLE_EQ(*m.request_goodput, 0.5);  // the first one's first token is late
  const BenchSeries& ttft = m.series.at("ttft");
  EXPECT_DOUBLE_EQ(ttft.mean, 375);
  EXPECT_DOUBLE_EQ(ttft.median, 375);
  EXPECT_DOUBLE_EQ(ttft.std, 125);  // of the population, as numpy.std
  EXPECT_DOUBLE_EQ(ttft.percentiles[1].second, 497.5);
  // (0.9 - 0.5) / 2; a single token has no time per token.
  EXPECT_NEAR(m.series.at("tpot").mean, 200, 1e-9);
  EXPECT_NEAR(m.series.at("tpot").std, 0, 1e-9);
  EXPECT_NEAR(m.series.at("itl").mean, 200, 1e-9);
  EXPECT_NEAR(m.series.at("itl").std, 100, 1e-9);
  EXPECT_NEAR(m.series.at("e2el").mean, 575, 1e-9);
  EXPECT_EQ(m.max_concurrent_requests, 2);
  EXPECT_EQ(m.max_output_tokens_per_s, 4);
}

TEST(BenchMetrics, SecondsAreCounted) {
  std::vector<MeasuredRequest> requests;
  for (int i = 0; i < 3; ++i) {
    requests.push_back(measured(10 + i, 0.25, {0.25, 0.25, 2}, 1));  // the last token 2 s later
  }
  const BenchMetrics m = bench_metrics(requests, 5, {99}, {});
  // Seconds from the first start: 3 tokens in each of the first three, one late in each of 2 to 4.
  EXPECT_EQ(m.max_output_tokens_per_s, 4);
  EXPECT_EQ(m.max_concurrent_requests, 3);
  EXPECT_FALSE(m.request_goodput);
}

TEST(BenchMetrics, AreZeroIfNoRequestCompleted) {
  const BenchMetrics m = bench_metrics({MeasuredRequest()}, 1, {99}, {});
  EXPECT_EQ(m.failed, 1);
  EXPECT_EQ(m.series.at("itl").mean, 0);
  EXPECT_EQ(m.max_concurrent_requests, 0);
}

TEST(BenchMetrics, ResultHasTheFieldsOfVllm) {
  const std::vector<MeasuredRequest> requests = {measured(0, 0.5, {0.1, 0.3}, 10)};
  const BenchMetrics m = bench_metrics(requests, 2, {99, 99.9}, {});
  BenchLabels labels;
  labels.backend = "openai";
  labels.metadata = {{"version", "1"}};
  const auto json = nlohmann::json::parse(bench_json(labels, m, requests, {"ttft", "itl"}, false));
  for (const char* name : {"date",
                           "backend",
                           "model_id",
                           "tokenizer_id",
                           "num_prompts",
                           "request_rate",
                           "burstiness",
                           "max_concurrency",
                           "duration",
                           "completed",
                           "failed",
                           "total_input_tokens",
                           "total_output_tokens",
                           "request_throughput",
                           "request_goodput",
                           "output_throughput",
                           "total_token_throughput",
                           "max_output_tokens_per_s",
                           "max_concurrent_requests",
                           "mean_ttft_ms",
                           "median_ttft_ms",
                           "std_ttft_ms",
                           "p99_ttft_ms",
                           "p99.9_ttft_ms",
                           "mean_itl_ms",
                           "version"}) {
    EXPECT_TRUE(json.contains(name)) << name;
  }
  EXPECT_EQ(json["request_rate"], "inf");
  EXPECT_FALSE(json.contains("mean_tpot_ms"));
  EXPECT_FALSE(json.contains("itls"));
  const auto detailed = nlohmann::json::parse(bench_json(labels, m, requests, {"ttft"}, true));
  EXPECT_EQ(detailed["itls"][0].size(), 2u);
  EXPECT_EQ(detailed["input_lens"][0], 10);
  const std::string table = bench_table(m, {"ttft", "e2el"});
  EXPECT_NE(table.find("P99.9 E2EL (ms):"), std::string::npos) << table;
}

}  // namespace
}  // namespace hocket::serve
