// SPDX-License-Identifier: Apache-2.0
#include "rl/uneven_groups.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "base/text.h"

namespace hocket::rl {

namespace {

constexpr int64_t kMostStepsOfRound = 2;     // what a round has too much is as old as the next step
constexpr int64_t kStepsWithoutUneven = 16;  // groups in succession after which the run ends: of
constexpr int64_t kGroupsWithoutUneven = 512;  // these steps, and at least these
constexpr double kSolvedShare = 0.9;           // of samples that are right in a solved task

}  // namespace

int64_t UnevenGroups::next_round() const {
  const int64_t missing = std::max<int64_t>(rl_.prompts_per_step - groups(), 0);
  if (!rl_.dynamic_sampling.on || missing == 0) return missing;
  const double share =
      prompts_ > 0 ? static_cast<double>(prompts_ - left_out_) / static_cast<double>(prompts_)
                   : share_;
  const int64_t most = kMostStepsOfRound * rl_.prompts_per_step;
  if (share * static_cast<double>(most) <= static_cast<double>(missing)) return most;
  return static_cast<int64_t>(std::ceil(static_cast<double>(missing) / share));
}

void UnevenGroups::add(std::vector<Sample> round) {
  const auto n = static_cast<size_t>(rl_.samples_per_prompt);
  ++rounds_;
  for (size_t i = 0; i + n <= round.size(); i += n) {
    const std::span<Sample> group = std::span(round).subspan(i, n);
    ++prompts_;
    if (rl_.dynamic_sampling.on && is_even(group)) {
      ++left_out_;
      ++even_in_a_row_;
      right_in_a_row_ += std::count_if(group.begin(), group.end(), [&](const Sample& sample) {
        return is_right_in_all(sample, rl_);
      });
      continue;
    }
    even_in_a_row_ = right_in_a_row_ = 0;
    std::move(group.begin(), group.end(), std::back_inserter(samples_));
  }
}

void UnevenGroups::fill(Experience* experience) const {
  HOCKET_CHECK(next_round() == 0, "{} of {} groups", groups(), rl_.prompts_per_step);
  const auto end = samples_.begin() + rl_.prompts_per_step * rl_.samples_per_prompt;
  experience->samples.assign(samples_.begin(), end);
  experience->prompts = prompts_;
  experience->groups_left_out = left_out_;
  experience->rounds = rounds_;
}

void UnevenGroups::end_step() {
  samples_.erase(samples_.begin(),
                 samples_.begin() + rl_.prompts_per_step * rl_.samples_per_prompt);
  if (prompts_ > 0) {
    share_ = static_cast<double>(prompts_ - left_out_) / static_cast<double>(prompts_);
  }
  prompts_ = left_out_ = rounds_ = 0;
}

bool UnevenGroups::is_exhausted() const {
  if (!rl_.dynamic_sampling.on) return false;
  const int64_t most = rl_.dynamic_sampling.max_rounds;
  return (most > 0 && rounds_ >= most) || has_long_row();
}

/// Returns whether so many groups in succession had equal rewards that no other is to be expected.
bool UnevenGroups::has_long_row() const {
  return even_in_a_row_ >=
         std::max(kStepsWithoutUneven * rl_.prompts_per_step, kGroupsWithoutUneven);
}

bool UnevenGroups::is_solved() const {
  const auto samples = static_cast<double>(even_in_a_row_ * rl_.samples_per_prompt);
  return has_long_row() && static_cast<double>(right_in_a_row_) >= kSolvedShare * samples;
}

std::string UnevenGroups::text() const {
  const auto samples = static_cast<double>(even_in_a_row_ * rl_.samples_per_prompt);
  return fmt::format(
      "after {} of generation {} of {} prompts have samples of different rewards "
      "(rl.dynamic_sampling); the last {} had equal ones, with {:.1f} % of the samples right{}",
      counted(rounds_, "round"), groups(), rl_.prompts_per_step, counted(even_in_a_row_, "group"),
      samples > 0 ? 100 * static_cast<double>(right_in_a_row_) / samples : 0.0,
      rl_.rewards.size() > 1 ? " in all rewards" : "");
}

std::string UnevenGroups::to_bytes() const {
  if (samples_.empty() && rounds_ == 0 && share_ == 1) return "";
  const std::string samples = rl::to_bytes(samples_);
  const nlohmann::json all = {{"samples", nlohmann::json::binary({samples.begin(), samples.end()})},
                              {"prompts", prompts_},
                              {"left_out", left_out_},
                              {"rounds", rounds_},
                              {"share", share_},
                              {"even_in_a_row", even_in_a_row_},
                              {"right_in_a_row", right_in_a_row_}};
  const std::vector<uint8_t> bytes = nlohmann::json::to_cbor(all);
  return {bytes.begin(), bytes.end()};
}

void UnevenGroups::restore(std::string_view bytes) {
  if (bytes.empty()) return;
  try {
    const nlohmann::json all = nlohmann::json::from_cbor(bytes);
    const std::vector<uint8_t>& samples = all.at("samples").get_binary();
    samples_ = samples_of(std::string(samples.begin(), samples.end()));
    all.at("prompts").get_to(prompts_);
    all.at("left_out").get_to(left_out_);
    all.at("rounds").get_to(rounds_);
    all.at("share").get_to(share_);
    all.at("even_in_a_row").get_to(even_in_a_row_);
    all.at("right_in_a_row").get_to(right_in_a_row_);
  } catch (const nlohmann::json::exception& error) {
    fail("rl", "the checkpoint's samples.cbor cannot be read ({}); try an older checkpoint",
         error.what());
  }
}

}  // namespace hocket::rl
