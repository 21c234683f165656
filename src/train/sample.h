// SPDX-License-Identifier: Apache-2.0
// Generation of text: a program with a KV cache, sampling on the host.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "data/prepare.h"
#include "diagnose/report.h"
#include "engine/programs.h"
#include "program/memory.h"
#include "train/training_data.h"

namespace hocket::train {

struct GenerateOptions {
  std::vector<int32_t> prompt;  ///< at least one token
  /// The text is an answer of its own, without special tokens; else it continues the prompt's.
  bool answer = false;
  int64_t max_new_tokens = 200;
  double temperature = 0.8;  ///< 0: the most likely token
  int64_t top_k = 0;         ///< 0: all
  double top_p = 0.95;
  uint64_t seed = 1;
  int64_t sample = 0;  ///< number of the text: others of the same seed are drawn apart
  std::vector<int32_t> stop_tokens;  ///< each ends the text, and is no part of it
  std::vector<std::string> stops;    ///< likewise, wherever tokens meet
  /// Called with new text (streaming), in whole characters where the model makes such. Text that
  /// may become a stop string comes late.
  std::function<void(std::string_view)> on_text;
};

/// A text that a model continued.
struct Generated {
  std::string text;          ///< behind the prompt; bytes, not necessarily UTF-8
  std::vector<int32_t> ids;  ///< its tokens, the stop token not among them
  bool stopped = false;      ///< by a stop token or string; else by the number of tokens
  std::optional<int32_t> stop_token;
  std::string stop;  ///< the string that ended it
};

/// Text of a stream of tokens up to a stop string.
class StoppedText {
 public:
  /// `on_text` (may be empty) gets every byte of the text once, in order.
  StoppedText(std::vector<std::string> stops, std::function<void(std::string_view)> on_text)
      : stops_(std::move(stops)), on_text_(std::move(on_text)) {}
  /// Appends; false once a stop string is complete, which is cut off with all that follows it. If
  /// several end at the same byte, the longest counts.
  bool append(std::string_view bytes);
  /// Passes on what was held back.
  void finish() { pass_on(text_.size()); }
  const std::string& text() const { return text_; }
  const std::string& stop() const { return stop_; }  ///< empty: none was met

 private:
  /// Returns the end of the text that no stop string can begin in, whole characters only.
  size_t settled() const;
  void pass_on(size_t end);

  std::vector<std::string> stops_;
  std::function<void(std::string_view)> on_text_;
  std::string text_, stop_;
  size_t passed_ = 0;
};

/// Draws a token: temperature, top-k, top-p (Holtzman et al., arXiv 1904.09751: the most likely
/// ones up to the one that reaches `top_p`). A counter-based uniform number, from the seed and
/// `position`, decides, so a seed gives the same text everywhere. Equal logits go to the lowest
/// token.
int32_t draw(const std::vector<double>& logits, const GenerateOptions& options, uint64_t position);

/// The program that generates: see engine::generation. Checked. Error: the plan cannot
/// (experts on ranks of their own), or it is refused.
engine::Compiled compile_generation(const engine::Run& run, int64_t longest_text);
/// Memory that a rank of each class takes of it for a prompt of `prompt` tokens and a text, with
/// the prompt, of `longest`.
std::vector<program::Memory> generation_memory(const engine::Compiled& generation, int64_t prompt,
                                               int64_t longest);

/// Continues prompts with a session of the generating program, whose ranks have the parameters.
class Generator {
 public:
  Generator(const engine::Run& run, const data::Tokenizer& tokenizer, engine::Session& session);
  /// Continues a prompt. One that begins like the last one keeps those tokens in the cache. With
  /// ranks as processes all call it, and draw the same. Throws Error (exit code 1) for logits that
  /// are not finite.
  Generated run(const GenerateOptions& options);

 private:
  const engine::Run& run_;
  const data::Tokenizer& tokenizer_;
  engine::Session& session_;
  std::vector<int32_t> cached_;  ///< tokens whose keys and values are in the cache
};

/// Draws a sample from the parameters in the memory of a training's ranks, after
/// output.sample_prompt or a prompt of the data. Other memory of sessions and optimizer state is
/// released first: the training can run no further step. With ranks as processes all call it.
diagnose::Sample sample_text(const engine::Run& run, engine::Programs& training,
                             const TrainingData& data);

/// Most bytes in the memory of each rank while sample_text draws: parameters, KV cache and buffers,
/// and where the program that generates holds the parameters otherwise, as it does where
/// plan.shard.params splits them, those of the training, too, and messages. Error: the plan cannot
/// generate.
std::vector<int64_t> sample_memory(const engine::Run& run, const engine::Compiled& training,
                                   const TrainingData& data);

}  // namespace hocket::train
