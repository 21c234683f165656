// SPDX-License-Identifier: Apache-2.0
// Values derived from given keys, and values that no training can work with.
#include "run/config.h"

#include <gtest/gtest.h>

#include "tests/data/data_util.h"

namespace hocket::engine {
namespace {

Run run_of(const std::vector<std::string>& overrides) {
  return parse_run(
      "model: {config: {model_type: llama, vocab_size: 32, hidden_size: 8, num_hidden_layers: 8, "
      "num_attention_heads: 2, num_key_value_heads: 1, head_dim: 4, intermediate_size: 8}}\n"
      "train: {global_batch: 8, seq_len: 8}\n"
      "plan: {micro_batch: 1}\n",
      "test", overrides);
}

TEST(RunConfig, StagesFollowFromTheSchedule) {
  for (const char* schedule : {"zb-v", "dualpipev"}) {
    const engine::Run run = run_of({"plan.pp=2", fmt::format("plan.pp_schedule={}", schedule)});
    EXPECT_EQ(run.plan.pp_chunks, 2) << schedule;
    EXPECT_EQ(run.resolved.origin("plan.pp_chunks"), "plan.pp_schedule");
    // The stored configuration is a whole plan of its own.
    const engine::Run stored = parse_run(run.resolved.to_json_text(), "stored", {});
    EXPECT_EQ(stored.plan.pp_chunks, 2);
    // Given keys take precedence, and conflicts are reported.
    EXPECT_EQ(
        run_of({"plan.pp=2", "plan.pp_schedule=interleaved", "plan.pp_chunks=4"}).plan.pp_chunks,
        4);
  }
  EXPECT_EQ(run_of({"plan.pp=2"}).plan.pp_chunks, 1);
  EXPECT_TRUE(run_of({"plan.pp=2"}).resolved.is_default("plan.pp_chunks"));
}

TEST(RunConfig, RanksAndStagesFollowFromAScheduleFile) {
  const data::TempFolder folder;
  const std::string key =
      "plan.pp_schedule=" + folder.add("two.csv", "0F0,2F0,2B0,0B0\n1F0,3F0,3B0,1B0\n");
  const engine::Run run = run_of({key});
  EXPECT_EQ(run.plan.pp, 2);
  EXPECT_EQ(run.plan.pp_chunks, 2);
  EXPECT_EQ(run_of({key, "plan.pp=4"}).plan.pp_chunks, 1);
  EXPECT_EQ(run_of({key, "plan.pp=2", "plan.pp_chunks=1"}).plan.pp_chunks, 1);
}

TEST(RunConfig, RefusesAnEpsThatDividesByZero) {
  for (const char* eps : {"0", "1e-46", "-1"}) {
    EXPECT_ERROR(run_of({fmt::format("train.eps={}", eps)}), "train.eps");
  }
  EXPECT_EQ(run_of({"train.eps=1e-20"}).config.train.eps, 1e-20);
}

}  // namespace
}  // namespace hocket::engine
