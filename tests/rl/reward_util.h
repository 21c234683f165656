// SPDX-License-Identifier: Apache-2.0
// Prompts, samples and errors for tests of rewards.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "base/error.h"
#include "rl/reward.h"

namespace hocket::rl {

inline Prompt task_of(nlohmann::ordered_json ground_truth,
                      nlohmann::ordered_json columns = nlohmann::ordered_json::object()) {
  Prompt prompt;
  prompt.index = 7;
  prompt.text = "Q";
  prompt.columns = std::move(columns);
  prompt.ground_truth = std::move(ground_truth);
  return prompt;
}

inline Sample answer_of(std::string text, std::vector<int32_t> tokens = {}) {
  Sample sample;
  sample.text = std::move(text);
  sample.tokens = std::move(tokens);
  return sample;
}

/// Returns the part of an answer under a reward.
inline RewardPart part_under(Reward* reward, const Prompt& prompt, const Sample& sample) {
  return reward->score({prompt, sample});
}
inline double score_under(Reward* reward, const nlohmann::ordered_json& truth,
                          const std::string& answer) {
  return part_under(reward, task_of(truth), answer_of(answer)).score;
}

/// Returns the text of the Error that a call ends with; "" without one.
inline std::string error_in(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

inline bool holds(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace hocket::rl
