// SPDX-License-Identifier: Apache-2.0
// ctest: slow
// Many samples on many threads: sums, failures, tries, and ends.
#include <cmath>
#include <deque>
#include <thread>

#include "base/clock.h"
#include "base/file.h"
#include "rl/experience.h"
#include "tests/rl/reward_util.h"

namespace hocket::rl {
namespace {

engine::RewardSection section_of(const std::string& type, const std::string& name = "",
                                 double weight = 1) {
  engine::RewardSection section;
  section.type = type;
  section.name = name;
  section.weight = weight;
  return section;
}

engine::RewardSection command_of(const std::string& body) {
  engine::RewardSection section = section_of("exec");
  section.command = "while read -r line; do " + body + "; done";
  section.timeout_s = 20;
  return section;
}

engine::RlSection rl_of(std::vector<engine::RewardSection> rewards, int64_t workers = 4) {
  engine::RlSection section;
  section.rewards = std::move(rewards);
  section.reward_workers = workers;
  return section;
}

TEST(RewardPool, SumsManySamples) {
  engine::RewardSection length = section_of("length", "short", -0.5);
  length.target_length = 4;
  RewardPool pool(rl_of({section_of("exact", "", 2), length, section_of("digits")}), "rl");
  EXPECT_EQ(pool.names(), (std::vector<std::string>{"exact", "short", "digits"}));
  const Prompt prompt = task_of("12");
  for (int step = 0; step < 3; ++step) {  // the pool is used again and again
    std::deque<Sample> samples;
    for (int i = 0; i < 500; ++i) {
      samples.push_back(answer_of(i % 2 == 0 ? "12" : "1", std::vector<int32_t>(i % 3)));
      pool.add(prompt, samples.back());
    }
    pool.wait();
    for (int i = 0; i < 500; ++i) {
      const Sample& sample = samples[static_cast<size_t>(i)];
      const double exact = i % 2 == 0 ? 1 : 0, digits = i % 2 == 0 ? 2 : 0.5;
      const double near = 0.25 * (i % 3);
      EXPECT_EQ(sample.reward, 2 * exact - 0.5 * near + digits);
      EXPECT_EQ(sample.shaped_reward, sample.reward);
      EXPECT_FALSE(sample.reward_failed);
      ASSERT_EQ(sample.rewards.size(), 3U);
      EXPECT_EQ(sample.rewards.at("exact").score, exact);
      EXPECT_EQ(sample.rewards.at("short").score, near);
      EXPECT_EQ(sample.rewards.at("digits").score, digits);
      EXPECT_EQ(sample.rewards.at("digits").tries, 1);
    }
  }
  EXPECT_GT(pool.busy_s(), 0);
  EXPECT_LT(pool.busy_s(), 60);
  pool.wait();  // nothing is open
}

TEST(RewardPool, FailuresArePrintable) {
  engine::RewardSection hostile = command_of("printf '{\"\\033[2J\\n'");
  RewardPool pool(rl_of({hostile}), "rl");
  const Prompt prompt = task_of("1");
  Sample sample = answer_of("1");
  pool.add(prompt, sample);
  pool.wait();
  ASSERT_TRUE(sample.reward_failed);
  EXPECT_EQ(sample.rewards.at("exec").error.find('\033'), std::string::npos);
}

TEST(RewardPool, FailuresMayBeTrained) {
  engine::RewardSection broken = command_of("echo NaN");
  broken.failed_score = 0.5;
  engine::RlSection section = rl_of({broken});
  section.failed_samples = "score";
  RewardPool pool(section, "rl");
  const Prompt prompt = task_of("1");
  Sample sample = answer_of("1");
  pool.add(prompt, sample);
  pool.wait();
  EXPECT_TRUE(sample.reward_failed);
  EXPECT_FALSE(sample.left_out);
  EXPECT_EQ(sample.reward, 0.5);
}

TEST(RewardPool, SamplesWithoutAnyScoreAreLeftOutAsInTrl) {
  // The lengths of answers, and None for those that begin with 1, as tools/reward_shim.py has it.
  const engine::RewardSection lengths = command_of(
      R"(case "$line" in *'"solution_str":"1'*) echo '{"score": 0, "not_applicable": 1}';; )"
      R"(*'"solution_str":"ab"'*) echo 2;; *) echo 4;; esac)");
  const Prompt prompt = task_of("1");
  std::vector<Sample> group = {answer_of("1a", {1}), answer_of("ab", {1}), answer_of("abcd", {1}),
                               answer_of("12", {1})};
  for (Sample& sample : group) {
    sample.logprobs = sample.sampled_logprobs = {-1};
  }
  engine::RlSection section = rl_of({lengths});
  section.advantage = "grpo";
  section.failed_samples = "score";  // nothing failed
  RewardPool alone(section, "rl");
  for (Sample& sample : group) {
    alone.add(prompt, sample);
  }
  alone.wait();
  EXPECT_FALSE(group[0].reward_failed);
  std::vector<LossInputs> inputs = loss_inputs_of(section, group);
  set_advantages(section, inputs);
  const double step = 1 / (std::sqrt(2.0) + 1e-6);  // of 2 and 4: mean 3, deviation sqrt(2)
  const std::vector<double> advantages = {0, -step, step, 0};
  for (size_t i = 0; i < group.size(); ++i) {
    EXPECT_EQ(group[i].left_out, i == 0 || i == 3) << i;
    EXPECT_EQ(inputs[i].counts, !group[i].left_out) << i;
    EXPECT_NEAR(inputs[i].advantages.at(0), advantages[i], 1e-12) << i;
  }
  EXPECT_FALSE(is_even(group));
  EXPECT_TRUE(is_even(std::span(group).first(2)));  // one is scored
  // With a score beside it None is 0 in the sum.
  RewardPool beside(rl_of({lengths, section_of("exact")}), "rl");
  beside.add(prompt, group[0]);
  beside.wait();
  EXPECT_FALSE(group[0].left_out);
  EXPECT_EQ(group[0].reward, 0);
}

TEST(RewardPool, GivesUpWithoutWaitingForPendingRewards) {
  RewardPool pool(rl_of({command_of("sleep 60; echo 1"), section_of("exact")}, 2), "rl");
  const Prompt prompt = task_of("1");
  std::deque<Sample> samples;
  for (int i = 0; i < 20; ++i) {
    samples.push_back(answer_of("1"));
    pool.add(prompt, samples.back());
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  const int64_t begin = now_ns();
  pool.give_up();
  EXPECT_LT(seconds_since(begin), 10);
  for (const Sample& sample : samples) {
    EXPECT_TRUE(sample.rewards.empty());
  }
  pool.wait();  // nothing is open
}

TEST(RewardPool, ScoresAfterItGaveUp) {
  RewardPool pool(rl_of({command_of("echo 3"), section_of("exact")}), "rl");
  const Prompt prompt = task_of("1");
  for (int round = 0; round < 3; ++round) {
    std::deque<Sample> dropped(10, answer_of("1"));
    for (Sample& sample : dropped) {
      pool.add(prompt, sample);
    }
    pool.give_up();
    Sample kept = answer_of("1");
    pool.add(prompt, kept);
    pool.wait();
    EXPECT_EQ(kept.reward, 4);
    EXPECT_FALSE(kept.reward_failed);
  }
}

TEST(RewardPool, RecordsFailures) {
  engine::RewardSection broken = command_of("echo NaN");
  broken.name = "broken";
  broken.retries = 2;
  broken.failed_score = -1;
  broken.weight = 3;
  // Commands and judges alone are tried again.
  RewardPool pool(rl_of({broken, section_of("exact"), section_of("exact", "right")}), "rl");
  const Prompt with = task_of("1"), without = task_of(nullptr);
  Sample first = answer_of("1"), second = answer_of("1");
  pool.add(with, first);
  pool.add(without, second);
  pool.wait();
  EXPECT_TRUE(first.reward_failed && first.left_out);
  EXPECT_EQ(first.reward, 3 * -1 + 1 + 1);
  const RewardPart& part = first.rewards.at("broken");
  EXPECT_TRUE(part.failed);
  EXPECT_EQ(part.score, -1);
  EXPECT_EQ(part.tries, 3);
  EXPECT_EQ(part.error, "[rl.rewards[0]] the command answered 'NaN', which is no JSON");
  EXPECT_FALSE(first.rewards.at("exact").failed);
  EXPECT_TRUE(second.rewards.at("exact").failed);
  EXPECT_EQ(second.rewards.at("exact").tries, 1);
  EXPECT_TRUE(holds(second.rewards.at("exact").error, "the ground truth of prompt 7 is none"));
  EXPECT_EQ(second.reward, -3);
  // A sample that is scored again forgets its failure.
  pool.add(with, second);
  pool.wait();
  EXPECT_FALSE(second.rewards.at("exact").failed);
}

TEST(RewardPool, RetriesAFailedReward) {
  const std::string path = ::testing::TempDir() + fmt::format("reward_pool_{}", now_ns());
  // The first sample that comes is answered wrongly, the next ones are right.
  engine::RewardSection flaky = command_of("[ -e " + path +
                                           " ] && echo '{\"score\": 1, \"style\": 0.5}' || "
                                           "{ echo >" +
                                           path + "; exit 1; }");
  flaky.retries = 1;
  flaky.processes = 1;
  RewardPool pool(rl_of({flaky}, 1), "rl");
  const Prompt prompt = task_of(nullptr);
  Sample first = answer_of("a"), second = answer_of("b");
  pool.add(prompt, first);
  pool.add(prompt, second);
  pool.wait();
  remove_file(path);
  EXPECT_FALSE(first.reward_failed);
  EXPECT_EQ(first.rewards.at("exec").tries, 2);
  EXPECT_EQ(first.rewards.at("exec").error, "");
  EXPECT_EQ(first.rewards.at("exec").details, (std::map<std::string, double>{{"style", 0.5}}));
  EXPECT_EQ(second.rewards.at("exec").tries, 1);
  EXPECT_EQ(first.reward, 1);
}

TEST(RewardPool, ScoresThatOverflowFail) {
  engine::RewardSection large = command_of("echo 1e300");
  large.weight = 1e300;
  RewardPool pool(rl_of({large}), "rl");
  const Prompt prompt = task_of(nullptr);
  Sample sample = answer_of("a");
  pool.add(prompt, sample);
  pool.wait();
  EXPECT_TRUE(sample.reward_failed);
  EXPECT_EQ(sample.reward, 0);
  EXPECT_EQ(sample.rewards.at("exec").tries, 2);
}

TEST(RewardPool, EndsWhileRewardsHang) {
  engine::RewardSection hangs = command_of("sleep 600");
  hangs.timeout_s = 600;
  const Prompt prompt = task_of(nullptr);
  std::deque<Sample> samples;
  const int64_t start = now_ns();
  {
    RewardPool pool(rl_of({hangs}), "rl");
    for (int i = 0; i < 20; ++i) {
      samples.push_back(answer_of("a"));
      pool.add(prompt, samples.back());
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  EXPECT_LT(seconds_since(start), 30);
}

TEST(RewardPool, SlowRewardsRunBesideOthers) {
  engine::RewardSection slow = command_of("sleep 0.1; echo 1");
  slow.processes = 4;
  RewardPool pool(rl_of({slow}, 4), "rl");
  const Prompt prompt = task_of(nullptr);
  std::deque<Sample> samples;
  const int64_t start = now_ns();
  for (int i = 0; i < 8; ++i) {
    samples.push_back(answer_of("a"));
    pool.add(prompt, samples.back());
  }
  pool.wait();
  const double wall_s = seconds_since(start);
  EXPECT_GE(pool.busy_s(), 0.8);
  EXPECT_LT(wall_s, pool.busy_s() * 0.75);  // alone it takes a quarter
}

TEST(RewardPool, SectionsAreChecked) {
  const auto error = [](std::vector<engine::RewardSection> rewards) {
    return error_in([&] { RewardPool(rl_of(std::move(rewards)), "rl"); });
  };
  EXPECT_EQ(error({}), "[rl] rewards is empty; expected at least one reward");
  EXPECT_EQ(error({section_of("exact"), section_of("digits", "exact")}),
            "[rl.rewards[1]] two rewards are named 'exact'; try name");
  EXPECT_TRUE(holds(error({section_of("exact"), section_of("length")}), "[rl.rewards[1]] length"));
}

}  // namespace
}  // namespace hocket::rl
