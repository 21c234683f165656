// SPDX-License-Identifier: Apache-2.0
// Every parser takes one byte after the other, so that the split of the text cannot matter.
#include "serve/openai/tool_parser.h"

#include <utility>

#include "base/error.h"
#include "serve/openai/json_scan.h"

namespace hocket::serve {
namespace {

/// Dialects of calls, in the order of tool_parser_names().
enum class Dialect { hermes, llama3_json, mistral };

constexpr std::string_view kHermesOpen = "<tool_call>", kHermesClose = "</tool_call>";
constexpr std::string_view kPythonTag = "<|python_tag|>";
constexpr std::string_view kMistralOpen = "[TOOL_CALLS]", kMistralArgs = "[ARGS]";
constexpr std::string_view kMistralId = "[CALL_ID]";

class CallParser final : public ToolParser {
 public:
  explicit CallParser(Dialect dialect)
      : dialect_(dialect), state_(dialect == Dialect::llama3_json ? State::lead : State::text) {}

  void feed(std::string_view text, ToolText* out) override {
    out_ = out;
    for (const char c : text) {
      put(c);
    }
  }

  void finish(ToolText* out) override {
    out_ = out;
    if (state_ == State::gap) {
      held_.clear();  // of a closing mark
    } else if (state_ != State::text && !begun_) {
      give_up();
    }
    for (const char c : std::exchange(held_, "")) {
      content(c);
    }
    if (!after_call_) {
      out_->content += std::exchange(space_, "");
    }
  }

 private:
  enum class State {
    text,       ///< outside of calls
    lead,       ///< behind the mark that opens calls
    call,       ///< in a call's object
    gap,        ///< behind a call
    name,       ///< in a name that stands before its arguments
    arguments,  ///< in arguments that stand behind their name
  };

  void put(char c) {
    raw_ += c;
    switch (state_) {
      case State::text:
        return in_text(c);
      case State::lead:
        return in_lead(c);
      case State::call:
        return in_call(c);
      case State::gap:
        return in_gap(c);
      case State::name:
        return in_name(c);
      case State::arguments:
        return in_arguments(c);
    }
  }

  std::string_view mark() const { return dialect_ == Dialect::hermes ? kHermesOpen : kMistralOpen; }

  /// Passes a byte of content on; white space waits, as a call may follow it.
  void content(char c) {
    if (is_json_space(c)) {
      space_ += c;
      return;
    }
    if (after_call_) {
      space_.clear();
      after_call_ = false;
    }
    out_->content += std::exchange(space_, "");
    out_->content += c;
  }

  /// Makes what was read since the mark content.
  void give_up() {
    state_ = State::text;
    held_.clear();
    for (const char c : std::exchange(raw_, "")) {
      content(c);
    }
    in_list_ = false;
  }

  void in_text(char c) {
    if (dialect_ == Dialect::llama3_json) {  // calls are the whole text
      raw_.clear();
      return content(c);
    }
    held_ += c;
    while (!mark().starts_with(held_)) {
      content(held_.front());
      held_.erase(0, 1);
    }
    raw_ = held_;
    if (held_ == mark()) {
      held_.clear();
      state_ = State::lead;
    }
  }

  void begin(State state) {
    state_ = state;
    begun_ = false;
    call_ = CallScan();
    value_ = JsonScan();
  }

  void in_lead(char c) {
    if (!held_.empty() || (dialect_ == Dialect::llama3_json && c == '<')) {
      held_ += c;
      if (!kPythonTag.starts_with(held_)) return give_up();
      if (held_ == kPythonTag) {
        held_.clear();
      }
      return;
    }
    if (is_json_space(c)) return;
    if (c == '[' && dialect_ != Dialect::llama3_json && !in_list_) {
      in_list_ = true;
    } else if (c == '{' && (dialect_ != Dialect::mistral || in_list_)) {
      begin(State::call);
      in_call(c);
    } else if (c == ']' && in_list_) {
      end_list();
    } else if (dialect_ == Dialect::mistral && !in_list_) {
      begin(State::name);
      name_.clear();
      in_name(c);
    } else {
      give_up();
    }
  }

  void end_list() {
    in_list_ = false;
    raw_.clear();
    state_ = dialect_ == Dialect::hermes ? State::gap : State::text;
    space_.clear();
    after_call_ = true;
  }

  void open_call(const std::string& name) {
    begun_ = true;
    space_.clear();
    out_->calls.push_back({.index = count_++, .name = name, .arguments = ""});
  }
  void add_arguments(const std::string& text) {
    if (text.empty()) return;
    if (out_->calls.empty() || out_->calls.back().index != count_ - 1) {
      out_->calls.push_back({.index = count_ - 1, .name = "", .arguments = ""});
    }
    out_->calls.back().arguments += text;
  }

  void end_call() {
    state_ = State::gap;
    begun_ = false;
    raw_.clear();
    held_.clear();
    after_call_ = true;
  }

  void in_call(char c) {
    const CallScan::State state = call_.put(c);
    if (!begun_ && call_.known()) {
      open_call(call_.name());
    }
    if (begun_) {
      add_arguments(call_.take_arguments());
    }
    if (state == CallScan::State::more) return;
    // An object with a name alone may be anything where no mark says that it is a call.
    const bool marked = dialect_ != Dialect::llama3_json;
    if (state == CallScan::State::done && !begun_ && call_.has_name() && marked) {
      open_call(call_.name());
      add_arguments("{}");
    }
    if (!begun_) return give_up();
    end_call();
  }

  void in_gap(char c) {
    if (!held_.empty() || (dialect_ == Dialect::hermes && c == '<')) {
      held_ += c;
      if (held_ == kHermesClose) {
        held_.clear();
        raw_.clear();
        state_ = State::text;
      } else if (!kHermesClose.starts_with(held_)) {
        leave_gap();
      }
      return;
    }
    if (is_json_space(c)) return;
    if (in_list_ && c == ',') {
      raw_.clear();
      state_ = State::lead;
    } else if (in_list_ && c == ']') {
      end_list();
    } else if (dialect_ == Dialect::llama3_json && c == ';') {
      raw_.clear();
      state_ = State::lead;
    } else {
      held_ = c;
      leave_gap();
    }
  }

  /// Reads what was held as text, behind a call without its closing mark.
  void leave_gap() {
    state_ = State::text;
    in_list_ = false;
    raw_.clear();
    for (const char c : std::exchange(held_, "")) {
      put(c);
    }
  }

  void in_name(char c) {
    if (c == '{') {
      std::string name = name_;
      if (const size_t at = name.find(kMistralArgs); at != std::string::npos) {
        name.resize(at);
      }
      if (const size_t at = name.find(kMistralId); at != std::string::npos) {
        name.resize(at);
      }
      while (!name.empty() && is_json_space(name.back())) {
        name.pop_back();
      }
      if (name.empty() || name.find_first_of("[]\n") != std::string::npos) return give_up();
      open_call(name);
      state_ = State::arguments;
      return in_arguments(c);
    }
    name_ += c;
    if (c == '\n' || c == '"') {
      give_up();
    }
  }

  void in_arguments(char c) {
    const JsonScan::State state = value_.put(c);
    if (state == JsonScan::State::bad) return end_call();
    add_arguments(std::string(1, c));
    if (state == JsonScan::State::done) {
      end_call();
    }
  }

  const Dialect dialect_;
  State state_;
  ToolText* out_ = nullptr;
  std::string raw_;    ///< since the mark, or the end of the last call
  std::string held_;   ///< the beginning of a mark
  std::string space_;  ///< white space that may stand before a call
  std::string name_;
  CallScan call_;
  JsonScan value_;
  int64_t count_ = 0;        ///< calls
  bool begun_ = false;       ///< the call that is read is out, with its name
  bool in_list_ = false;     ///< calls are the elements of a list
  bool after_call_ = false;  ///< white space is dropped
};

}  // namespace

const std::vector<std::string>& tool_parser_names() {
  static const std::vector<std::string> names = {"hermes", "llama3_json", "mistral"};
  return names;
}

std::unique_ptr<ToolParser> make_tool_parser(std::string_view name) {
  for (const Dialect dialect : {Dialect::hermes, Dialect::llama3_json, Dialect::mistral}) {
    if (name == tool_parser_names()[static_cast<size_t>(dialect)]) {
      return std::make_unique<CallParser>(dialect);
    }
  }
  HOCKET_CHECK(false, "no tool parser {}", name);
  return nullptr;
}

void ReasoningSplitter::put(char c, std::string* reasoning, std::string* content) {
  constexpr std::string_view open = "<think>", close = "</think>";
  switch (state_) {
    case State::begin: {
      held_ += c;
      const std::string_view mark = std::string_view(held_).substr(
          std::min(held_.find_first_not_of(" \t\r\n"), held_.size()));
      if (mark == open) {
        held_.clear();
        state_ = State::thinking;
      } else if (!open.starts_with(mark)) {
        *content += std::exchange(held_, "");
        state_ = State::content;
      }
      return;
    }
    case State::thinking:
      held_ += c;
      while (!close.starts_with(held_)) {
        *reasoning += held_.front();
        held_.erase(0, 1);
      }
      if (held_ == close) {
        held_.clear();
        state_ = State::after;
      }
      return;
    case State::after:
      if (is_json_space(c)) return;
      state_ = State::content;
      *content += c;
      return;
    case State::content:
      *content += c;
      return;
  }
}

void ReasoningSplitter::feed(std::string_view text, std::string* reasoning, std::string* content) {
  if (state_ == State::content) {
    *content += text;
    return;
  }
  for (const char c : text) {
    put(c, reasoning, content);
  }
}

void ReasoningSplitter::finish(std::string* reasoning, std::string* content) {
  *(state_ == State::thinking ? reasoning : content) += std::exchange(held_, "");
}

}  // namespace hocket::serve
