// SPDX-License-Identifier: Apache-2.0
// A prompt, and a sampled answer with all that training needs to know of it.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace hocket::rl {

/// A task of the data.
struct Prompt {
  int64_t index = 0;  ///< in the data, from 0
  std::string text;   ///< as the model reads it
  std::vector<int32_t> ids;
  nlohmann::ordered_json columns;  ///< the data's line as it is
  std::string column = "prompt";   ///< of these, the one that the prompt was read of
  std::string data_source;
  nlohmann::ordered_json ground_truth;  ///< null: none
  nlohmann::ordered_json extra_info;    ///< null: none
};

/// One reward of a sample.
struct RewardPart {
  double score = 0;
  bool failed = false;
  std::string error;                      ///< of the last try, if it failed
  int64_t tries = 1;                      ///< made
  std::map<std::string, double> details;  ///< further numbers of a reward that answers with several

  /// Returns whether it is None of a reward of TRL's, which counts in no mean.
  bool is_not_applicable() const {
    const auto found = details.find("not_applicable");
    return found != details.end() && found->second != 0;
  }
};

enum class SampleStatus : uint8_t {
  pending,
  completed,  ///< ended by a stop token or string
  truncated,  ///< cut off at the longest length
  aborted,    ///< cancelled
  failed,     ///< the engine gave an error
};

/// A trajectory: an answer to a prompt, a member of its group. Field names in files are slime's.
struct Sample {
  int64_t group = 0;            ///< number of the prompt's group in the training: order of batches
  int64_t index = 0;            ///< in its group
  int64_t prompt = 0;           ///< Prompt::index
  std::vector<int32_t> tokens;  ///< of the answer; with the stop token, if one ended it
  std::string text;             ///< of the answer, without stop token
  /// Natural logarithms, of every token of `tokens`: of the distribution at the run's temperature,
  /// which training computes, and of the one that was drawn from (top-k, top-p, min-p).
  std::vector<double> logprobs, sampled_logprobs;
  /// The tokens that every token of `tokens` was drawn from, by id; none: too many to record. Kept
  /// for trajectories, if top_k, top_p or min_p may leave tokens out.
  std::vector<std::vector<int32_t>> nuclei;
  /// Experts of every token of prompt and answer but the last, [tokens, experts of all layers].
  /// Kept for trajectories, and where updates take them again.
  std::vector<int32_t> routes;
  SampleStatus status = SampleStatus::pending;
  int64_t version = 0;                        ///< updates of the policy that sampled it
  std::map<std::string, RewardPart> rewards;  ///< by name
  double reward = 0;                          ///< their weighted sum
  double shaped_reward = 0;                   ///< with the penalty of its length
  bool reward_failed = false;                 ///< of one of them
  /// Left out of its group and the loss: a reward failed (rl.failed_samples), or all are None.
  bool left_out = false;
};

/// Returns "completed", ....
const char* to_string(SampleStatus status);

}  // namespace hocket::rl
