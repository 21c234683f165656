// SPDX-License-Identifier: Apache-2.0
// A fine-tuning set: the examples of its sources as token ids, in memory, and those held out.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "data/examples/render.h"
#include "data/examples/source.h"

namespace hocket::data {

/// Losses that a set is for; see Example::Kind.
enum class SetKind : uint8_t {
  tokens,  ///< of texts, chats, completions: the loss of their trained tokens
  pairs,   ///< of preferences
  unpaired
};
const char* to_string(SetKind kind);

/// Tokenised examples, one after the other.
class TokenExamples {
 public:
  struct Sequence {
    std::span<const int32_t> ids;
    std::span<const uint8_t> trained;  ///< 1: the id is one that the model is to predict
  };
  int64_t size() const { return std::ssize(examples_); }
  /// Returns 1, of pairs 2: the chosen and the rejected answer behind the prompt.
  int sequences() const { return kind_ == SetKind::pairs ? 2 : 1; }
  SetKind kind() const { return kind_; }
  Sequence sequence(int64_t example, int which = 0) const;
  int64_t prompt(int64_t example) const { return examples_[example].prompt; }
  bool label(int64_t example) const { return examples_[example].label; }
  int64_t source(int64_t example) const { return examples_[example].source; }
  /// Returns whether it is a text, all of which is trained, and no chat or answer.
  bool is_text(int64_t example) const { return examples_[example].is_text; }
  /// Returns the place in its file, "chat.jsonl:17".
  std::string place(int64_t example) const;

  explicit TokenExamples(SetKind kind) : kind_(kind) {}
  void add(const RenderedExample& rendered, int64_t source, const std::string& place);
  /// Returns the identity of all that a training sees.
  Hash128 hash() const;

 private:
  struct Of {
    int64_t begin[2] = {0, 0}, end[2] = {0, 0};  ///< of its sequences in ids_
    int64_t prompt = 0;
    int32_t source = 0;
    bool label = false, is_text = false;
    std::string place;
  };
  SetKind kind_;
  std::vector<Of> examples_;
  std::vector<int32_t> ids_;
  std::vector<uint8_t> trained_;
};

struct ExampleSetOptions {
  std::vector<SourceOptions> sources;
  double valid_fraction = 0;  ///< share that is held out of sources with split: auto
  uint64_t split_seed = 0;
  RenderOptions render;
  bool unpair = false;  ///< a preference becomes two examples: one desirable, one not
  int64_t limit = 0;    ///< examples of each source; 0: all
  std::function<void(const std::string&)> progress;  ///< receives a sentence now and then
};

struct SourceReport {
  /// Examples of which the template leaves something out.
  struct LeftOut {
    int64_t examples = 0;
    std::string first;  ///< place of the first one
  };

  std::string name;
  ReadReport read;
  int64_t refused = 0;                                  ///< examples that could not be rendered
  std::vector<std::string> first_refused;               ///< with their places and reasons
  int64_t joined = 0;                                   ///< RenderedExample::joined
  int64_t with_special_tokens = 0;                      ///< Renderer::with_special_tokens
  std::map<std::string, LeftOut> left_out_by_template;  ///< by name (left_out.h)

  /// Returns a sentence for each entry of left_out_by_template.
  std::vector<std::string> left_out_texts() const;
};

struct ExampleSet {
  TokenExamples train{SetKind::tokens}, valid{SetKind::tokens};
  std::vector<SourceReport> sources;
};

/// Reads and tokenises the sources. Throws Error as read_source does; for more examples of a source
/// than its max_unreadable that cannot be rendered, with the first reason; and for preferences or
/// unpaired examples beside others.
ExampleSet read_examples(const Tokenizer& tokenizer, const ChatTemplate* chat_template,
                         const ExampleSetOptions& options);

}  // namespace hocket::data
