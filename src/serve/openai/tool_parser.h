// SPDX-License-Identifier: Apache-2.0
// Calls of tools, and reasoning, in the text of a model, found while the text comes in. Results do
// not depend on where the text is split.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace hocket::serve {

/// A part of a call. The first one has its name, and only that one.
struct ToolCallPart {
  int64_t index = 0;
  std::string name;
  std::string arguments;  ///< the next part of their JSON text, as the model wrote it
};

struct ToolText {
  std::string content;  ///< text outside of calls
  std::vector<ToolCallPart> calls;
};

/// Text in which a call begins but cannot be read is content, unless its name and some of its
/// arguments are out already. White space around calls is dropped.
class ToolParser {
 public:
  virtual ~ToolParser() = default;
  /// Appends what `text`, the next bytes, adds.
  virtual void feed(std::string_view text, ToolText* out) = 0;
  /// Appends what was held back, at the end of the text.
  virtual void finish(ToolText* out) = 0;
};

/// Names of the parsers, those of vLLM's --tool-call-parser:
///   hermes       <tool_call>{"name": ..., "arguments": {...}}</tool_call>, any number, or a list
///                of such objects between the marks
///   llama3_json  {"name": ..., "parameters": {...}}; ..., with or without <|python_tag|> before
///   mistral      [TOOL_CALLS][{"name": ..., "arguments": {...}}, ...], or [TOOL_CALLS]name{...} or
///                [TOOL_CALLS]name[ARGS]{...}, any number
const std::vector<std::string>& tool_parser_names();

/// Returns a parser for one text. Requires: `name` is one of tool_parser_names().
std::unique_ptr<ToolParser> make_tool_parser(std::string_view name);
/// Splits <think>...</think> from a text. The opening mark counts only before all other text, or
/// where the prompt ends with it.
class ReasoningSplitter {
 public:
  /// `open`: the prompt ends with the opening mark.
  explicit ReasoningSplitter(bool open) : state_(open ? State::thinking : State::begin) {}
  void feed(std::string_view text, std::string* reasoning, std::string* content);
  void finish(std::string* reasoning, std::string* content);

 private:
  enum class State { begin, thinking, after, content };
  void put(char c, std::string* reasoning, std::string* content);

  State state_;
  std::string held_;  ///< the beginning of a mark, or white space at the beginning
};

}  // namespace hocket::serve
