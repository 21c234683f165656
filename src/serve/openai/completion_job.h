// SPDX-License-Identifier: Apache-2.0
// Answers of /v1/completions.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "serve/openai/job.h"

namespace hocket::serve {

class CompletionJob final : public Job {
 public:
  /// `prompts`: the token ids of each prompt of the call, which the job keeps.
  CompletionJob(const JobContext& context, CompletionCall call, std::vector<SharedTokens> prompts);
  const CompletionCall& completion() const { return *own_; }

 private:
  CompletionJob(const JobContext& context, std::unique_ptr<const CompletionCall> call);
  bool take(size_t index, const Update& update, JsonWriter* part) override;
  void write_choices(JsonWriter* json) override;
  const char* part_object() const override { return "text_completion"; }

  struct Choice {
    explicit Choice(bool sampled) : logprobs(sampled) {}
    std::string text;  ///< that was not written yet
    std::vector<int32_t> tokens;
    CompletionLogprobs logprobs;
    std::vector<TokenLogprobs> prompt_logprobs;
    bool begun = false;
    Update last;
  };
  std::string decoded(const std::vector<int32_t>& ids) const;
  void begin(size_t index, const Update& update, Choice* choice);
  void write_choice(size_t index, Choice* choice, bool first, JsonWriter* json);
  const std::vector<int32_t>& prompt_of(size_t index) const {
    return prompts_[index / static_cast<size_t>(own_->n)].ids();
  }

  std::unique_ptr<const CompletionCall> own_;
  std::vector<Choice> choices_;
};

}  // namespace hocket::serve
