// SPDX-License-Identifier: Apache-2.0
// Generation of text: a program with a KV cache, sampling on the host.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "data/prepare.h"
#include "diagnose/report.h"
#include "engine/programs.h"
#include "program/memory.h"

namespace hocket::train {

struct GenerateOptions {
  std::string prompt;
  int64_t max_new_tokens = 200;
  double temperature = 0.8;  ///< 0: the most likely token
  int64_t top_k = 0;         ///< 0: all
  double top_p = 0.95;
  uint64_t seed = 1;
  bool split_special_tokens = false;  ///< those in the prompt are text: data::EncodeOptions
  /// Called with the bytes of every new token (streaming).
  std::function<void(const std::string&)> on_text;
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

/// Continues the prompt with a session of the generating program, whose ranks have the parameters,
/// and returns the text after the prompt. With ranks as processes all call it, and draw the same.
/// Throws Error (exit code 1) for logits that are not finite.
std::string generate(const engine::Run& run, const data::Tokenizer& tokenizer,
                     engine::Session& session, const GenerateOptions& options);

/// Returns the beginning of a text to continue: whole lines, up to 32 tokens, of the first held-out
/// document that is long enough (of the training data if nothing is held out).
std::string prompt_from(const data::Dataset& dataset);

/// Draws a sample from the parameters in the memory of a training's ranks, after
/// output.sample_prompt or prompt_from(). Other memory of sessions and optimizer state is released
/// first: the training can run no further step. With ranks as processes all call it.
diagnose::Sample sample_text(const engine::Run& run, engine::Programs& training,
                             const data::Dataset& dataset);

/// Most bytes in the memory of each rank while sample_text draws: parameters, KV cache and buffers,
/// and where the program that generates holds the parameters otherwise, as it does where
/// plan.shard.params splits them, those of the training, too, and messages. Error: the plan cannot
/// generate.
std::vector<int64_t> sample_memory(const engine::Run& run, const engine::Compiled& training,
                                   const data::Dataset& dataset);

}  // namespace hocket::train
