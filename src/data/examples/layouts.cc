// SPDX-License-Identifier: Apache-2.0
#include "data/examples/layouts.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "base/utf8.h"

namespace hocket::data {
namespace {

using Json = nlohmann::ordered_json;
using Kind = Example::Kind;

template <typename... Args>
[[noreturn]] void no_example(fmt::format_string<Args...> what, Args&&... args) {
  fail("example", what, std::forward<Args>(args)...);
}

bool is_blank_text(const std::string& text) { return trim(text).empty(); }

const std::string& role_of(const Json& message) {
  return message.at("role").get_ref<const std::string&>();
}

/// Puts the text of a column `system` before messages that have no such message.
void add_system(const Row& row, Json* messages) {
  const std::string system = row.text_or_empty("system");
  if (system.empty()) return;
  const Json message = message_of("system", system);
  const std::string& first = role_of(messages->front());
  if (first != "system" && first != "developer") {
    messages->insert(messages->begin(), message);
  } else if (messages->front()["content"] != message["content"]) {
    no_example("{} and the first message are two different system messages", row.shown("system"));
  }
}

/// Reads tools and variables of the template. Tools are wrapped in LLaMA-Factory's layouts, alpaca
/// and sharegpt; the others are TRL's.
void read_extras(const Row& row, bool wraps_tools, Example* example) {
  if (const Json* tools = row.find("tools")) {
    example->tools = read_tools(*tools, wraps_tools);
  }
  if (const Json* variables = row.find("chat_template_kwargs")) {
    if (!variables->is_object()) {
      no_example("{} is {}; expected an object", row.shown("chat_template_kwargs"),
                 type_text(*variables));
    }
    example->template_variables = *variables;
  }
}

/// Returns a string, or messages.
Json turns_of(const Row& row, const char* column, const MessageTags& tags) {
  const Json& value = row.at(column);
  if (value.is_string()) return value;
  if (!value.is_array()) {
    no_example("{} is {}; expected a string or a list of messages", row.shown(column),
               type_text(value));
  }
  return read_messages(value, tags, row.shown(column));
}

/// Checks what the model says after a prompt: text, or messages of which the first and the last are
/// the assistant's.
void check_answer(const Json& answer, const std::string& what) {
  if (answer.is_string()) {
    if (is_blank_text(answer.get_ref<const std::string&>())) {
      no_example("{} is empty", what);
    }
    return;
  }
  for (const Json& message : {answer.front(), answer.back()}) {
    if (role_of(message) != "assistant") {
      no_example("{} begins or ends with a message of role {}; expected assistant", what,
                 role_of(message));
    }
  }
}

void check_prompt(const Json& prompt, const Json& answer, const Row& row, const char* column) {
  if (prompt.is_string() != answer.is_string()) {
    no_example("{} is {} and {} is {}; expected two strings or two lists of messages",
               row.shown("prompt"), type_text(prompt), row.shown(column), type_text(answer));
  }
  if (!prompt.is_string() && role_of(prompt.back()) == "assistant") {
    no_example("{} ends with a message of the assistant; expected the user's or a tool's",
               row.shown("prompt"));
  }
}

bool begins_with(const Json& answer, const Json& prompt) {
  if (answer.is_string()) {
    const auto& text = prompt.get_ref<const std::string&>();
    return !text.empty() && answer.get_ref<const std::string&>().starts_with(text);
  }
  return answer.size() >= prompt.size() && std::equal(prompt.begin(), prompt.end(), answer.begin());
}

/// Returns the bytes that both texts begin with, whole characters of at most all but the last one.
size_t common_text(const std::string& a, const std::string& b) {
  size_t at = 0;
  for (;;) {
    const int length = utf8_length(a, at);
    if (length == 0 || at + length >= std::min(a.size(), b.size()) ||
        a.compare(at, length, b, at, length) != 0) {
      break;
    }
    at += length;
  }
  // A blank before the difference belongs to the answers.
  return at > 0 && a[at - 1] == ' ' ? at - 1 : at;
}

size_t common_messages(const Json& a, const Json& b) {
  size_t at = 0;
  while (at + 1 < std::min(a.size(), b.size()) && a[at] == b[at]) {
    ++at;
  }
  return at;
}

Json part_of(const Json& turns, size_t begin, size_t end) {
  if (turns.is_string()) return turns.get_ref<const std::string&>().substr(begin, end - begin);
  Json part = Json::array();
  for (size_t i = begin; i < end; ++i) {
    part.push_back(turns[i]);
  }
  return part;
}

size_t length_of(const Json& turns) {
  return turns.is_string() ? turns.get_ref<const std::string&>().size() : turns.size();
}

/// Splits off the prompt: the text or messages that both answers begin with.
void split_prompt(Example* example) {
  const Json chosen = std::move(example->chosen), rejected = std::move(example->rejected);
  const size_t shared = chosen.is_string() ? common_text(chosen.get_ref<const std::string&>(),
                                                         rejected.get_ref<const std::string&>())
                                           : common_messages(chosen, rejected);
  if (shared == 0) {
    no_example("there is no prompt, and chosen and rejected do not begin alike");
  }
  example->prompt = part_of(chosen, 0, shared);
  example->chosen = part_of(chosen, shared, length_of(chosen));
  example->rejected = part_of(rejected, shared, length_of(rejected));
}

void check_pair(const Row& row, const Example& example) {
  check_answer(example.chosen, row.shown("chosen"));
  check_answer(example.rejected, row.shown("rejected"));
  if (example.chosen == example.rejected) {
    no_example("chosen and rejected are the same");
  }
}

/// Takes the last message as the answer that the label judges.
void split_answer(const Row& row, Json messages, Example* example) {
  if (messages.size() < 2 || role_of(messages.back()) != "assistant") {
    no_example("the last message is of role {}; expected an answer of the assistant after a prompt",
               role_of(messages.back()));
  }
  example->kind = Kind::unpaired;
  example->label = row.truth("label");
  example->prompt = part_of(messages, 0, messages.size() - 1);
  example->completion = part_of(messages, messages.size() - 1, messages.size());
}

/// Returns the one message of an answer in an object.
Json answer_of(const Row& row, const char* column, const MessageTags& tags) {
  const Json& value = row.at(column);
  if (!value.is_object()) {
    no_example("{} is {}; expected a message", row.shown(column), type_text(value));
  }
  return read_messages(Json::array({value}), tags, row.shown(column));
}

}  // namespace

const Json* Row::find(const char* column) const {
  const auto name = names_.find(column);
  if (name == names_.end() || name->second.empty()) return nullptr;
  const auto found = object_.find(name->second);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

std::string Row::shown(const char* column) const {
  const auto name = names_.find(column);
  if (name == names_.end() || name->second == column) return column;
  return fmt::format("{} ({})", name->second, column);
}

const Json& Row::at(const char* column) const {
  const Json* value = find(column);
  if (value == nullptr) {
    no_example("column {} is missing or null", shown(column));
  }
  return *value;
}

const std::string& Row::text(const char* column) const {
  const Json& value = at(column);
  if (!value.is_string()) {
    no_example("{} is {}; expected a string", shown(column), type_text(value));
  }
  return value.get_ref<const std::string&>();
}

std::string Row::text_or_empty(const char* column) const {
  return find(column) == nullptr ? "" : text(column);
}

bool Row::truth(const char* column) const {
  const Json& value = at(column);
  if (!value.is_boolean()) {
    no_example("{} is {}; expected true or false", shown(column), type_text(value));
  }
  return value.get<bool>();
}

void read_text(const Row& row, Example* example) {
  example->kind = Kind::text;
  example->text = row.text("text");
  if (is_blank_text(example->text)) {
    no_example("{} is empty", row.shown("text"));
  }
}

void read_chat(const Row& row, const MessageTags& tags, bool in_turns, Example* example) {
  read_extras(row, in_turns, example);
  Json messages = read_messages(row.at("messages"), tags, row.shown("messages"));
  const bool pair = row.find("chosen") != nullptr || row.find("rejected") != nullptr;
  if (in_turns) {
    check_turns(messages, pair);
  }
  add_system(row, &messages);
  if (row.find("label") != nullptr) {
    split_answer(row, std::move(messages), example);
  } else if (pair) {
    example->kind = Kind::preference;
    example->chosen = answer_of(row, "chosen", tags);
    example->rejected = answer_of(row, "rejected", tags);
    example->prompt = std::move(messages);
    check_pair(row, *example);
    if (role_of(example->prompt.back()) == "assistant") {
      no_example(
          "the last message before chosen and rejected is the assistant's; expected the "
          "user's or a tool's");
    }
  } else {
    example->kind = Kind::chat;
    example->messages = std::move(messages);
  }
}

void read_completion(const Row& row, const MessageTags& tags, Example* example) {
  read_extras(row, false, example);
  example->kind = Kind::completion;
  example->prompt = turns_of(row, "prompt", tags);
  example->completion = turns_of(row, "completion", tags);
  check_prompt(example->prompt, example->completion, row, "completion");
  check_answer(example->completion, row.shown("completion"));
}

void read_unpaired(const Row& row, const MessageTags& tags, Example* example) {
  if (row.find("prompt") == nullptr && row.find("messages") != nullptr) {
    read_extras(row, false, example);
    Json messages = read_messages(row.at("messages"), tags, row.shown("messages"));
    add_system(row, &messages);
    split_answer(row, std::move(messages), example);
    return;
  }
  read_completion(row, tags, example);
  example->kind = Kind::unpaired;
  example->label = row.truth("label");
}

void read_preference(const Row& row, const MessageTags& tags, Example* example) {
  read_extras(row, false, example);
  example->kind = Kind::preference;
  example->chosen = turns_of(row, "chosen", tags);
  example->rejected = turns_of(row, "rejected", tags);
  if (example->chosen.is_string() != example->rejected.is_string()) {
    no_example("chosen is {} and rejected is {}; expected two of a kind",
               type_text(example->chosen), type_text(example->rejected));
  }
  const Json* prompt = row.find("prompt");
  // A prompt that is text beside whole conversations repeats what these begin with.
  if (prompt == nullptr || (prompt->is_string() && !example->chosen.is_string())) {
    split_prompt(example);
    check_prompt(example->prompt, example->chosen, row, "chosen");
  } else {
    example->prompt = turns_of(row, "prompt", tags);
    check_prompt(example->prompt, example->chosen, row, "chosen");
    if (begins_with(example->chosen, example->prompt) &&
        begins_with(example->rejected, example->prompt)) {
      no_example(
          "{} stands at the beginning of chosen and rejected again; try columns: {{prompt: "
          "\"\"}}, which takes it from there",
          row.shown("prompt"));
    }
  }
  check_pair(row, *example);
}

void read_alpaca(const Row& row, Example* example) {
  read_extras(row, true, example);
  Json messages = Json::array();
  const auto add = [&](const char* role, const std::string& content, const std::string& what) {
    if (is_blank_text(content)) {
      no_example("{} is empty; expected the text of a turn", what);
    }
    messages.push_back(message_of(role, content));
  };
  if (const std::string system = row.text_or_empty("system"); !system.empty()) {
    messages.push_back(message_of("system", system));
  }
  if (const Json* history = row.find("history")) {
    if (!history->is_array()) {
      no_example("{} is {}; expected a list of pairs", row.shown("history"), type_text(*history));
    }
    for (const Json& pair : *history) {
      if (!pair.is_array() || pair.size() != 2 || !pair[0].is_string() || !pair[1].is_string()) {
        no_example("{} has an entry that is no pair of strings", row.shown("history"));
      }
      add("user", pair[0].get<std::string>(), "a turn of " + row.shown("history"));
      add("assistant", pair[1].get<std::string>(), "a turn of " + row.shown("history"));
    }
  }
  std::vector<std::string> parts;
  for (const char* column : {"instruction", "input"}) {
    if (std::string part = row.text_or_empty(column); !part.empty()) {
      parts.push_back(std::move(part));
    }
  }
  add("user", join(parts, "\n"), row.shown("instruction"));
  const bool pair = row.find("chosen") != nullptr || row.find("rejected") != nullptr;
  if (row.find("label") == nullptr && pair) {
    example->kind = Kind::preference;
    example->prompt = std::move(messages);
    example->chosen = Json::array({message_of("assistant", row.text("chosen"))});
    example->rejected = Json::array({message_of("assistant", row.text("rejected"))});
    for (const char* column : {"chosen", "rejected"}) {
      if (is_blank_text(row.text(column))) {
        no_example("{} is empty", row.shown(column));
      }
    }
    check_pair(row, *example);
    return;
  }
  add("assistant", row.text("output"), row.shown("output"));
  if (row.find("label") != nullptr) {
    split_answer(row, std::move(messages), example);
  } else {
    example->kind = Kind::chat;
    example->messages = std::move(messages);
  }
}

}  // namespace hocket::data
