// SPDX-License-Identifier: Apache-2.0
// Samples of the policy: the generation engine's scheduler on the ranks, and in the parameters, of
// the training.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "engine/programs.h"
#include "rl/prompts.h"
#include "rl/sample.h"
#include "serve/request.h"
#include "serve/session_stepper.h"
#include "train/frozen_model.h"

namespace hocket::rl {

/// Request for samples of several prompts.
struct RolloutRequest {
  struct Group {
    int64_t number = 0;  ///< Sample::group
    const Prompt* prompt = nullptr;
  };
  std::vector<Group> groups;
  int64_t samples = 1;     ///< of a prompt
  double temperature = 1;  ///< 0: the most likely tokens
  bool limited = true;     ///< by top_k, top_p and min_p of the run
  uint64_t seed = 0;       ///< a sample is a function of it, its prompt's number and its index
  int64_t version = 0;     ///< of the policy
};

struct RolloutStats {
  double seconds = 0;
  int64_t tokens = 0;         ///< sampled
  int64_t prompt_tokens = 0;  ///< read, cached ones not among them
  int64_t cached_tokens = 0;
  int64_t preemptions = 0;
};

class Rollout {
 public:
  /// `head_parts`: of the program that trains (models::Generation). Requires: run, readers and data
  /// outlive it.
  Rollout(const engine::Run& run, train::TrainedReaders& readers, const PromptData& data,
          int64_t head_parts);

  /// Returns the program that samples.
  engine::ProgramSpec spec() const { return serve::generation_spec(run_, limits_); }
  const serve::StepLimits& limits() const { return limits_; }

  /// Returns the signal that a process got; 0: none.
  using Signal = std::function<int()>;
  /// Draws samples with the parameters as they are now, by group and index. All processes call.
  /// Process 0 receives the samples; pointers to them stay valid. `finished` is called there for
  /// each as soon as it ends. Once `signal` returns one in some process, the rest is aborted.
  /// Returns that signal in process 0.
  int run(const RolloutRequest& request,
          const std::function<void(const Prompt&, Sample&)>& finished, const Signal& signal,
          std::vector<Sample>* samples);
  /// Returns the counts of the last run().
  const RolloutStats& stats() const { return stats_; }

 private:
  serve::Request request_of(const RolloutRequest& request, const RolloutRequest::Group& group,
                            int64_t index) const;
  void take(const serve::Update& update, Sample* sample) const;

  const engine::Run& run_;
  train::TrainedReaders& readers_;
  const PromptData& data_;
  const serve::StepLimits limits_;
  RolloutStats stats_;
};

/// The longest text of a run: its longest prompt, and max_new_tokens. Throws Error if the model has
/// fewer positions, or if a row of train.seq_len has no room for it.
int64_t longest_text(const engine::Run& run, const PromptData& data);

/// Tokens that a prompt may have: rl.max_prompt_tokens, or as many as leave room for an answer.
int64_t most_prompt_tokens(const engine::Run& run);

}  // namespace hocket::rl
