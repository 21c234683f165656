// SPDX-License-Identifier: Apache-2.0
// An example as the model reads it: token ids, and the ones that it is trained to predict
// (docs/fine-tuning-data.md).
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "data/chat/chat_template.h"
#include "data/examples/example.h"
#include "data/examples/options.h"
#include "data/tokenizer/tokenizer.h"

namespace hocket::data {

struct RenderOptions {
  TrainOn train_on = TrainOn::assistant;
  /// Special tokens that stand in the example's texts are text; those of the template are not.
  bool split_special_tokens = false;
  std::vector<int32_t> beginning;  ///< ids before a text that no template begins
};

/// One sequence for the model.
struct TokenSequence {
  std::vector<int32_t> ids;
  std::vector<uint8_t> trained;  ///< 1: the id is one that the model is to predict

  /// Returns the number of targets: trained ids except the first, which has no context.
  int64_t targets() const;
};

struct RenderedExample {
  Example::Kind kind = Example::Kind::text;
  std::vector<TokenSequence> sequences;  ///< one; of a preference the chosen and the rejected one
  size_t prompt = 0;   ///< ids at the beginning of every sequence that are of the prompt
  bool label = false;  ///< unpaired: the completion is desirable
  /// The prompt alone has other ids at its end: a token holds its end and the answer's beginning.
  bool joined = false;
  std::set<std::string> left_out;  ///< by the template (left_out.h)
};

/// Renders examples. One per thread; tokenizer and template must outlive it.
class Renderer {
 public:
  /// Refuses messages later if there is no template.
  Renderer(const Tokenizer& tokenizer, const ChatTemplate* chat_template, RenderOptions options);
  ~Renderer();
  Renderer(const Renderer&) = delete;
  Renderer& operator=(const Renderer&) = delete;

  /// Renders an example. Throws Error, with its file and line, for messages that the template
  /// refuses, and for an answer without a token. Also throws for an assistant's part that cannot be
  /// told from the rest.
  RenderedExample render(const Example& example);

  /// Returns the number of examples so far with special tokens in their texts.
  int64_t with_special_tokens() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace hocket::data
