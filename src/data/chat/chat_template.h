// SPDX-License-Identifier: Apache-2.0
// Chat templates of Hugging Face models: messages to the text that the model reads, and the parts
// of that text which the assistant wrote. Templates are Jinja, run with limits, as transformers
// does (docs/chat-templates.md).
#pragma once

#include <cstdint>
#include <ctime>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "data/chat/chat_span.h"

namespace hocket::data {

struct ChatOptions {
  const nlohmann::ordered_json* tools = nullptr;      ///< list of JSON schemas
  const nlohmann::ordered_json* documents = nullptr;  ///< list of objects
  /// Ends the text where the assistant's next message begins.
  bool add_generation_prompt = false;
  /// Field of the last message ("content") that the model is to continue: the text ends with it.
  std::string continue_final_message;
  /// More variables of the template, an object; they win over special tokens.
  const nlohmann::ordered_json* variables = nullptr;
  std::function<std::tm()> local_time;  ///< clock of strftime_now; empty: this machine's
  int64_t max_steps = 50'000'000;       ///< work of one rendering, about 100 ns each
};

struct RenderedChat {
  std::string text;
  /// Outputs of {% generation %} blocks, in order. A template without these blocks has none.
  std::vector<ChatSpan> generation;
};

/// Safe to share between threads, but for set_special_tokens().
class ChatTemplate {
 public:
  /// Reads a model's folder: chat_template.jinja and additional_chat_templates/*.jinja, else
  /// chat_template of tokenizer_config.json; special tokens as of read_tokenizer_config
  /// (tokenizer_config.h). A path of a file is a template without special tokens. Throws Error
  /// for no template, or one with syntax that is not supported, with its line.
  static ChatTemplate load(const std::string& path);
  /// The same of a model's folder, or nothing for one without a template. `file`, unless empty, has
  /// the template in place of the folder's.
  static std::optional<ChatTemplate> find(const std::string& folder, const std::string& file = "");
  /// The same from text, as in GGUF; `where` names it in errors. `others`: further templates by
  /// name, of which "tool_use" is that of chats with tools.
  static ChatTemplate parse(std::string_view text, const std::string& where,
                            std::map<std::string, std::string> special_tokens = {},
                            const std::map<std::string, std::string>& others = {});
  ~ChatTemplate();
  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;

  /// Renders a list of messages, objects with a role. Content that is a list of text parts becomes
  /// one string, joined by newlines, where the template does not read parts in messages of its role
  /// (content_parts.h). Throws Error, with the line, for anything
  /// that the template or Python refuses, and with the index of the message if that is known.
  RenderedChat render(const nlohmann::ordered_json& messages,
                      const ChatOptions& options = {}) const;
  /// Returns the bytes of the rendered text (without a generation prompt) that the assistant wrote:
  /// its {% generation %} blocks. In a template without them, an assistant's message is the text
  /// that it adds to the messages before it with their generation prompt. Throws Error, with the
  /// index of the message, where the text before or after a message depends on it.
  std::vector<ChatSpan> assistant_spans(const nlohmann::ordered_json& messages,
                                        const ChatOptions& options = {}) const;

  /// Returns whether the template marks the assistant's text with {% generation %} blocks.
  bool has_generation_blocks(bool with_tools = false) const;
  const std::map<std::string, std::string>& special_tokens() const;
  /// Replaces the special tokens.
  void set_special_tokens(std::map<std::string, std::string> tokens);

 private:
  struct Impl;
  explicit ChatTemplate(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/// Returns the special tokens of a tokenizer_config.json by their keys ("bos_token"). Throws Error
/// if it is no object.
std::map<std::string, std::string> special_tokens_of(const JsonView& config);

}  // namespace hocket::data
