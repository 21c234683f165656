// SPDX-License-Identifier: Apache-2.0
// Multiple choice by log-likelihood, as lm-evaluation-harness scores it: the answer is the choice
// that the model finds most probable behind the question.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "data/tokenizer/tokenizer.h"
#include "engine/programs.h"

namespace hocket::train {

struct ChoiceQuestion {
  std::string question;
  std::vector<std::string> choices;
  size_t answer = 0;  ///< index of the right choice
  std::string place;  ///< "file.jsonl:3"
};

/// Reads questions, an object a line: the question (`question`, `query`, `prompt`, `ctx` or
/// `goal`), the choices (`choices`, `endings` or `options`, a list of strings, or as ARC has them
/// {"text": [...], "label": [...]}), and the right one (`answer`, `label`, `gold` or `answerKey`:
/// its index from 0, its letter, or its label). A name that ends with .gz, .zst or .zstd is
/// unpacked. Throws Error with file and line for anything else.
std::vector<ChoiceQuestion> read_questions(const std::string& path);

/// A question's choices as the model reads them.
struct ChoiceTokens {
  std::vector<std::vector<int32_t>> ids;  ///< of question and choice, for every choice
  std::vector<size_t> begin;              ///< first id of the choice
};

/// Returns the ids of question, blank and choice together; those behind the question's own number
/// of ids are the choice's. Blanks at the question's end count to the choice. `beginning`: ids
/// before a text. Throws Error for a choice without an id.
ChoiceTokens tokens_of(const ChoiceQuestion& question, const data::Tokenizer& tokenizer,
                       const std::vector<int32_t>& beginning);

struct ChoiceScores {
  int64_t questions = 0;
  int64_t right = 0;         ///< by the sum of log-probabilities
  int64_t right_normed = 0;  ///< by that sum per character of the choice
  double accuracy() const { return share(right); }
  double accuracy_normed() const { return share(right_normed); }
  /// Standard error of the accuracy.
  double error() const;

  double share(int64_t count) const {
    return questions > 0 ? static_cast<double>(count) / static_cast<double>(questions) : 0;
  }
};

/// The log-likelihood of a question's choices, and its answers.
struct ChoiceResult {
  std::vector<double> logprobs;  ///< of every choice
  size_t chosen = 0, chosen_normed = 0;
};

/// Scores questions under the run's plan; `take` gets every result in order. All processes call it.
ChoiceScores score(const engine::Run& run, const std::vector<ChoiceQuestion>& questions,
                   const std::vector<ChoiceTokens>& tokens, engine::Programs& programs,
                   const std::function<void(size_t question, const ChoiceResult& result)>& take);

}  // namespace hocket::train
