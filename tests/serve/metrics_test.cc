// SPDX-License-Identifier: Apache-2.0
#include "serve/metrics.h"

#include <gtest/gtest.h>

#include <set>

#include "base/text.h"

namespace hocket::serve {
namespace {

bool has_line(const std::string& page, const std::string& line) {
  return ("\n" + page).find("\n" + line + "\n") != std::string::npos;
}

TEST(Histogram, CountsUpToEachBound) {
  Histogram histogram({1, 2.5});
  histogram.add(1);  // a bound is inclusive
  histogram.add(1.5);
  histogram.add(9);
  std::string out;
  histogram.print("h", "a=\"b\"", &out);
  EXPECT_EQ(out,
            "h_bucket{a=\"b\",le=\"1.0\"} 1\nh_bucket{a=\"b\",le=\"2.5\"} 2\n"
            "h_bucket{a=\"b\",le=\"+Inf\"} 3\nh_count{a=\"b\"} 3\nh_sum{a=\"b\"} 11.5\n");
}

TEST(Metrics, BucketsEqualThoseOfVllm) {
  EXPECT_EQ(one_two_five(100), (std::vector<double>{1, 2, 5, 10, 20, 50, 100}));
  EXPECT_EQ(one_two_five(0), std::vector<double>{});
  const std::string page = Metrics("m", 4096).page({}, 0);
  const auto bounds = [&](const std::string& name) {
    int64_t count = 0;
    for (size_t at = 0; (at = page.find(name + "_bucket{", at)) != page.npos; ++at) {
      ++count;
    }
    return count;
  };
  EXPECT_EQ(bounds("vllm:time_to_first_token_seconds"), 22 + 1);
  EXPECT_EQ(bounds("vllm:inter_token_latency_seconds"), 19 + 1);
  EXPECT_EQ(bounds("vllm:e2e_request_latency_seconds"), 21 + 1);
  EXPECT_EQ(bounds("vllm:iteration_tokens_total"), 13 + 1);
  EXPECT_NE(
      page.find("time_to_first_token_seconds_bucket{engine=\"0\",model_name=\"m\",le=\"2560.0\"}"),
      page.npos);
  EXPECT_NE(
      page.find("inter_token_latency_seconds_bucket{engine=\"0\",model_name=\"m\",le=\"0.025\"}"),
      page.npos);
  EXPECT_NE(
      page.find("e2e_request_latency_seconds_bucket{engine=\"0\",model_name=\"m\",le=\"7680.0\"}"),
      page.npos);
}

TEST(Metrics, PageHasTheEnginesCountsAndTheTexts) {
  Metrics metrics("a\"b\\c\n", 100);
  metrics.first_token(0.003);
  metrics.inter_token(0.06, 2);
  metrics.finished({.finish = Finish::length,
                    .prompt_tokens = 7,
                    .tokens = 3,
                    .max_tokens = 3,
                    .n = 1,
                    .latency_s = 1.2,
                    .started_s = 0.125,
                    .first_token_s = 0.2,
                    .last_token_s = 1.2});
  metrics.finished({.finish = Finish::cancelled, .prompt_tokens = 7});
  metrics.answered("POST", "/v1/completions", 200);
  metrics.answered("POST", "/v1/completions", 204);
  const Stats stats{.running = 2,
                    .waiting = 3,
                    .pages = 8,
                    .pages_in_use = 2,
                    .prefix_queries = 70,
                    .prefix_hits = 40,
                    .prompt_tokens = 90,
                    .generated_tokens = 5,
                    .preemptions = 1,
                    .steps = 11,
                    .steps_by_tokens = {1, 10},
                    .step_tokens = 51,
                    .planned_bytes = 8192,
                    .resident_bytes = 4096,
                    .prefix_caching = true};
  const std::string page = metrics.page(stats, 4);
  const std::string labels = "engine=\"0\",model_name=\"a\\\"b\\\\c\\n\"";
  for (const auto& [name, value] : std::vector<std::pair<std::string, std::string>>{
           {"vllm:num_requests_running", "2.0"},
           {"vllm:num_requests_waiting", "3.0"},
           {"vllm:kv_cache_usage_perc", "0.25"},
           {"vllm:prefix_cache_queries_total", "70.0"},
           {"vllm:prefix_cache_hits_total", "40.0"},
           {"vllm:num_preemptions_total", "1.0"},
           {"vllm:prompt_tokens_total", "90.0"},
           {"vllm:generation_tokens_total", "5.0"},
           {"vllm:e2e_request_latency_seconds_count", "2"},
           {"vllm:request_queue_time_seconds_count", "1"},
           {"vllm:request_queue_time_seconds_sum", "0.125"},
           {"vllm:request_prefill_time_seconds_count", "1"},
           {"vllm:request_inference_time_seconds_count", "1"},
           {"vllm:request_time_per_output_token_seconds_sum", "0.5"},
           {"vllm:inter_token_latency_seconds_count", "2"},
           {"vllm:inter_token_latency_seconds_sum", "0.06"},
           {"vllm:iteration_tokens_total_count", "11"},
           {"vllm:iteration_tokens_total_sum", "51.0"},
           {"hocket:memory_planned_bytes", "8192.0"},
           {"hocket:memory_resident_bytes", "4096.0"},
           {"hocket:http_streams", "4.0"}}) {
    EXPECT_TRUE(has_line(page, name + "{" + labels + "} " + value)) << name << "\n" << page;
  }
  EXPECT_TRUE(
      has_line(page, "vllm:request_success_total{" + labels + ",finished_reason=\"length\"} 1.0"));
  EXPECT_TRUE(
      has_line(page, "vllm:request_success_total{" + labels + ",finished_reason=\"abort\"} 1.0"));
  EXPECT_TRUE(
      has_line(page, "vllm:request_success_total{" + labels + ",finished_reason=\"stop\"} 0.0"));
  EXPECT_TRUE(has_line(page, "vllm:iteration_tokens_total_bucket{" + labels + ",le=\"8.0\"} 11"));
  EXPECT_TRUE(has_line(page, "vllm:cache_config_info{" + labels +
                                 ",block_size=\"32\",num_gpu_blocks=\"8\","
                                 "enable_prefix_caching=\"True\"} 1.0"));
  EXPECT_TRUE(has_line(
      page, "http_requests_total{handler=\"/v1/completions\",method=\"POST\",status=\"2xx\"} 2.0"));
}

TEST(Metrics, PageIsPrometheusText) {
  const std::string page = Metrics("m", 100).page({}, 0);
  std::set<std::string> typed;
  for (const std::string& line : split(page, '\n')) {
    if (line.empty()) continue;
    if (line.starts_with("# TYPE ")) {
      EXPECT_TRUE(typed.insert(split(line, ' ')[2]).second) << line;
    } else if (!line.starts_with("# HELP ")) {
      const std::string name = line.substr(0, line.find('{'));
      bool known = typed.contains(name);
      for (const char* part : {"_bucket", "_count", "_sum"}) {
        known = known || (name.ends_with(part) &&
                          typed.contains(name.substr(0, name.size() - std::string(part).size())));
      }
      EXPECT_TRUE(known) << line;
    }
  }
}

}  // namespace
}  // namespace hocket::serve
