// SPDX-License-Identifier: Apache-2.0
// Prompts of a run, as the model reads them: data.sources, and the sets of data.evaluation
// (docs/rl.md, "Data").
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "data/chat/chat_template.h"
#include "data/examples/options.h"
#include "data/tokenizer/tokenizer.h"
#include "rl/sample.h"
#include "run/config.h"
#include "train/training_data.h"

namespace hocket::rl {

/// Prompts with a name.
struct PromptSet {
  std::string name;
  std::vector<Prompt> prompts;
  int64_t too_long = 0;  ///< left out
};

class PromptData : public train::RunData {
 public:
  /// Reads and tokenises all prompts. `longest`: tokens of a prompt. Throws Error for none, columns
  /// without a prompt, and messages without a chat template.
  PromptData(const engine::Run& run, int64_t longest);

  const std::string& name() const override { return name_; }
  const data::Tokenizer& tokenizer() const override { return *tokenizer_; }
  const std::string& tokenizer_path() const override { return model_; }
  const std::string& fingerprint() const override { return fingerprint_; }

  /// Returns the prompts to train on.
  const std::vector<Prompt>& train() const { return train_.prompts; }
  const std::vector<PromptSet>& held_out() const { return held_out_; }
  /// Returns the prompt of number 0, 1, ... of a training: each once an epoch, in an order that
  /// depends on the seed and the epoch alone.
  const Prompt& at(int64_t number) const;
  /// Tokens that end an answer.
  const std::vector<int32_t>& stop_tokens() const { return stop_tokens_; }
  int64_t longest() const { return longest_; }  ///< tokens of the longest prompt
  /// Returns notes for the beginning of a run, a line each.
  std::vector<std::string> notes() const;

 private:
  PromptSet read(const std::string& name, const std::vector<data::SourceOptions>& sources,
                 const std::string& split);
  Prompt prompt_of(const data::SourceOptions& source, nlohmann::ordered_json&& columns);
  void set_text(const nlohmann::ordered_json& text, Prompt* prompt);
  void set_chat(const data::SourceOptions& source, const nlohmann::ordered_json& columns,
                const nlohmann::ordered_json& list, Prompt* prompt);
  void hold_out();

  const engine::Run& run_;
  const int64_t most_;
  std::string name_, model_, fingerprint_;
  std::unique_ptr<data::Tokenizer> tokenizer_;
  std::optional<data::ChatTemplate> template_;
  std::vector<int32_t> stop_tokens_, beginning_;
  PromptSet train_;
  std::vector<PromptSet> held_out_;
  std::vector<std::string> notes_;
  int64_t longest_ = 0, chats_ = 0, texts_ = 0, without_truth_ = 0;
  /// Prompts whose ground truth is of one column while another says something else, by both.
  std::map<std::pair<std::string, std::string>, int64_t> disagreements_;
};

}  // namespace hocket::rl
