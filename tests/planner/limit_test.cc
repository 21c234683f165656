// SPDX-License-Identifier: Apache-2.0
// ctest: slow
// The time limit of a search, by a clock that stands while this process does: others on the machine
// change nothing.
#include <gtest/gtest.h>

#include <ctime>
#include <fstream>

#include "planner/search.h"
#include "run/config.h"
#include "tests/compare_util.h"

namespace hocket::planner {
namespace {

/// Seconds of processor time of this process.
double processor_s() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

/// A model of 9 G parameters on 16 devices: simulating a plan takes about a second.
Trial large() {
  const std::string path = ::testing::TempDir() + "plan_limit.yaml";
  std::ofstream(path)
      << "name: test\nnodes: 2\ndevices_per_node: 8\ndevice:\n  name: test\n  "
         "memory: {value: 80GB}\n"
         "  memory_bandwidth: {value: 2TB/s}\n  launch: {value: 2us}\n"
         "  peak: {f32: {value: 100TFLOP/s}, bf16: {value: 300TFLOP/s}}\n"
         "  efficiency: {matmul: {value: 1}, attention: {value: 1}, memory: {value: 1}}\nlinks:\n"
         "  intra: {latency: {value: 2us}, bandwidth: {value: 300GB/s}}\n"
         "  inter: {latency: {value: 10us}, bandwidth: {value: 25GB/s}}\n";
  const engine::Run run = engine::parse_run(
      R"({model: {dtype: bf16, config: {"model_type": "llama", "vocab_size": 32000, "hidden_size": 4096,
          "num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 8,
          "head_dim": 128, "intermediate_size": 11008, "max_position_embeddings": 8192,
          "rms_norm_eps": 1e-6, "tie_word_embeddings": false}},
          train: {global_batch: 512, seq_len: 4096}})",
      "test", {});
  return {run, path, std::nullopt, 16};
}

TEST(PlanLimit, KeepsItsTimeLimitToFivePercent) {
  if (test::is_sanitized()) {
    GTEST_SKIP() << "a thread looks at the clock ten times later under sanitizers";
  }
  const Trial trial = large();
  const SearchSpace space = trial.space({});
  constexpr double kLimitS = 6;  // of the processor
  const double begun_s = processor_s();
  SearchOptions options;
  options.threads = 1;
  options.time_limit_s = kLimitS;
  options.clock = processor_s;
  const SearchResult found = search(trial, space, options);
  const double spent_s = processor_s() - begun_s;
  EXPECT_FALSE(found.best.empty());
  EXPECT_FALSE(found.complete);
  EXPECT_EQ(found.ended, "its time is up");
  EXPECT_LE(spent_s, 1.05 * kLimitS);
  EXPECT_GE(spent_s, 0.4 * kLimitS);
}

TEST(PlanLimit, CountsWhatTheCallerHasSpent) {
  const Trial trial = large();
  SearchOptions options;
  options.threads = 1;
  options.time_limit_s = 1000;
  options.spent_s = 999.9;
  const SearchResult found = search(trial, trial.space({}), options);
  EXPECT_EQ(found.ended, "its time is up");
  EXPECT_GE(found.seconds, 999.9);
  EXPECT_LE(found.counts.simulated, kFamilies * 9);  // it goes on to the first plan that fits
}

TEST(PlanLimit, TimelinesAreWithinIt) {
  const Trial trial = large();
  const SearchSpace space = trial.space({{"plan.tp", "8"}});
  const auto left_s = [&](bool draws) {
    SearchOptions options;
    options.threads = 1;
    options.time_limit_s = 5;
    options.draws_families = draws;
    options.clock = processor_s;
    return options.time_limit_s - search(trial, space, options).seconds;
  };
  EXPECT_GT(left_s(true), left_s(false));
}

}  // namespace
}  // namespace hocket::planner
