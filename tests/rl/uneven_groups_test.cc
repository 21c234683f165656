// SPDX-License-Identifier: Apache-2.0
#include "rl/uneven_groups.h"

#include <gtest/gtest.h>

namespace hocket::rl {
namespace {

engine::RlSection section_of(int64_t prompts) {
  engine::RlSection section;
  section.prompts_per_step = prompts;
  section.samples_per_prompt = 2;
  section.dynamic_sampling.on = true;
  section.dynamic_sampling.max_rounds = 0;
  section.rewards.emplace_back().type = "exact";
  return section;
}

/// Samples of groups numbered from `first`, two of each: of `uneven` groups with rewards 1 and 0,
/// then of `even` ones with equal rewards.
std::vector<Sample> round_of(int64_t first, int64_t uneven, int64_t even, double reward = 1) {
  std::vector<Sample> samples;
  for (int64_t group = 0; group < uneven + even; ++group) {
    for (int64_t index = 0; index < 2; ++index) {
      Sample sample;
      sample.group = first + group;
      sample.index = index;
      sample.reward = group >= uneven ? reward : index == 0 ? 1 : 0;
      sample.rewards["exact"].score = sample.reward;
      samples.push_back(sample);
    }
  }
  return samples;
}

TEST(UnevenGroups, RoundsAreSizedByTheShareOfUnevenGroups) {
  const engine::RlSection section = section_of(8);
  UnevenGroups groups(section);
  EXPECT_EQ(groups.next_round(), 8);
  groups.add(round_of(0, 4, 4));
  EXPECT_EQ(groups.next_round(), 8);  // 4 are missing, and a half are uneven
  groups.add(round_of(8, 2, 6));
  EXPECT_EQ(groups.next_round(), 6);  // 2 are missing, and 6 of 16 are uneven
  groups.add(round_of(16, 3, 3));
  EXPECT_EQ(groups.next_round(), 0);
  Experience experience;
  groups.fill(&experience);
  EXPECT_EQ(std::ssize(experience.samples), 16);
  EXPECT_EQ(experience.samples.back().group, 17);
  EXPECT_EQ(experience.prompts, 22);
  EXPECT_EQ(experience.groups_left_out, 13);
  EXPECT_EQ(experience.rounds, 3);
}

TEST(UnevenGroups, SurplusGroupsAreOfTheNextStep) {
  const engine::RlSection section = section_of(4);
  UnevenGroups groups(section);
  groups.add(round_of(0, 7, 1));
  groups.end_step();
  EXPECT_EQ(groups.prompts(), 0);
  EXPECT_EQ(groups.next_round(), 2);  // 1 is missing, 7 of 8 were uneven
  groups.add(round_of(8, 1, 1));
  Experience experience;
  groups.fill(&experience);
  EXPECT_EQ(experience.samples.front().group, 4);
  EXPECT_EQ(experience.samples.back().group, 8);
  EXPECT_EQ(experience.prompts, 2);
}

TEST(UnevenGroups, ARoundHasAtMostTwoStepsPrompts) {
  const engine::RlSection section = section_of(8);
  UnevenGroups groups(section);
  groups.add(round_of(0, 0, 8));
  EXPECT_EQ(groups.next_round(), 16);
  groups.add(round_of(8, 1, 15));
  EXPECT_EQ(groups.next_round(), 16);
}

TEST(UnevenGroups, BytesHoldAllGroupsAndCounts) {
  const engine::RlSection section = section_of(4);
  UnevenGroups groups(section);
  EXPECT_EQ(groups.to_bytes(), "");
  groups.add(round_of(0, 3, 5));
  UnevenGroups resumed(section);
  resumed.restore(groups.to_bytes());
  EXPECT_EQ(resumed.to_bytes(), groups.to_bytes());
  EXPECT_EQ(resumed.next_round(), groups.next_round());
  EXPECT_EQ(resumed.rounds(), 1);
  EXPECT_EQ(resumed.text(), groups.text());
}

TEST(UnevenGroups, EndsAfterManyGroupsWithEqualRewards) {
  const engine::RlSection section = section_of(4);
  for (const double reward : {1.0, 0.0}) {
    UnevenGroups groups(section);
    for (int64_t first = 0; first < 504; first += 8) {
      groups.add(round_of(first, 0, 8, reward));
      EXPECT_FALSE(groups.is_exhausted());
    }
    groups.add(round_of(504, 0, 8, reward));
    EXPECT_TRUE(groups.is_exhausted());
    EXPECT_EQ(groups.is_solved(), reward == 1);
    groups.add(round_of(512, 1, 0));
    EXPECT_FALSE(groups.is_exhausted());
  }
}

TEST(UnevenGroups, ALimitOfRoundsEndsAStep) {
  engine::RlSection section = section_of(4);
  section.dynamic_sampling.max_rounds = 2;
  UnevenGroups groups(section);
  groups.add(round_of(0, 1, 3));
  EXPECT_FALSE(groups.is_exhausted());
  groups.add(round_of(4, 1, 3));
  EXPECT_TRUE(groups.is_exhausted());
  groups.add(round_of(8, 2, 0));
  groups.end_step();
  EXPECT_FALSE(groups.is_exhausted());
}

/// A few groups of right samples do not make a solved task where rounds are over.
TEST(UnevenGroups, ALimitOfRoundsSolvesNothing) {
  engine::RlSection section = section_of(4);
  section.dynamic_sampling.max_rounds = 1;
  UnevenGroups groups(section);
  groups.add(round_of(0, 1, 3));
  EXPECT_TRUE(groups.is_exhausted());
  EXPECT_FALSE(groups.is_solved());
}

/// A solved task is right in every reward that weighs, whichever is first.
TEST(UnevenGroups, ASolvedTaskIsRightInAllRewards) {
  const struct {
    double weight, score;
    bool is_solved;
  } kRows[] = {{2, 0, false}, {2, 1, true}, {0, 0, true}, {-1, 0, true}, {-1, 1, false}};
  for (const auto& row : kRows) {
    engine::RlSection section = section_of(4);
    engine::RewardSection& second = section.rewards.emplace_back();
    second.type = "regex";
    second.weight = row.weight;
    UnevenGroups groups(section);
    std::vector<Sample> samples = round_of(0, 0, 512);
    for (Sample& sample : samples) {
      sample.rewards["regex"].score = row.score;
    }
    groups.add(samples);
    EXPECT_EQ(groups.is_solved(), row.is_solved) << row.weight << " " << row.score;
    samples.front().rewards["regex"].failed = true;
    EXPECT_FALSE(is_right_in_all(samples.front(), section));
  }
}

TEST(UnevenGroups, WithoutDynamicSamplingEveryGroupIsTaken) {
  engine::RlSection section = section_of(4);
  section.dynamic_sampling.on = false;
  UnevenGroups groups(section);
  groups.add(round_of(0, 1, 3));
  EXPECT_EQ(groups.next_round(), 0);
  EXPECT_FALSE(groups.is_exhausted());
}

}  // namespace
}  // namespace hocket::rl
