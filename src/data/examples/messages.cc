// SPDX-License-Identifier: Apache-2.0
#include "data/examples/messages.h"

#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/ordered_json.h"
#include "base/text.h"

namespace hocket::data {
namespace {

using Json = nlohmann::ordered_json;

const std::string& string_of(const Json& value) { return value.get_ref<const std::string&>(); }

// A fault of one example: its place is added by the reader of the source.
template <typename... Args>
[[noreturn]] void refuse(fmt::format_string<Args...> what, Args&&... args) {
  fail("example", what, std::forward<Args>(args)...);
}

/// Returns the value of a key that is there and not null.
const Json* field_of(const Json& object, const std::string& key) {
  const auto found = object.find(key);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

Json parse_text(const std::string& text, const std::string& what) {
  try {
    return parse_ordered_json(text, what);
  } catch (const Error& error) {
    refuse("{} is text that is {}", what, error.text());
  }
}

/// Makes an object of arguments that are JSON text.
void read_arguments(Json* function, const std::string& what) {
  const auto name = function->find("name");
  if (name == function->end() || !name->is_string() || string_of(*name).empty()) {
    refuse("{} has no name", what);
  }
  const auto arguments = function->find("arguments");
  if (arguments == function->end()) refuse("{} has no arguments; expected an object", what);
  if (arguments->is_string()) {
    *arguments = parse_text(string_of(*arguments), "arguments of " + what);
  }
  if (!arguments->is_object()) {
    refuse("arguments of {} are {}; expected an object, or one as JSON text", what,
           type_text(*arguments));
  }
}

void read_calls(Json* calls, const std::string& what) {
  if (!calls->is_array()) refuse("{} is {}; expected a list", what, type_text(*calls));
  for (size_t i = 0; i < calls->size(); ++i) {
    Json& call = (*calls)[i];
    const std::string name = fmt::format("{} {}", what, i);
    if (!call.is_object()) refuse("{} is {}; expected an object", name, type_text(call));
    const auto function = call.find("function");
    if (function != call.end() && !function->is_object()) {
      refuse("function of {} is {}; expected an object", name, type_text(*function));
    }
    read_arguments(function != call.end() ? &*function : &call, name);
  }
}

/// Returns the calls that a text of ShareGPT stands for: one object or a list of them.
Json calls_of(const std::string& text, const std::string& what) {
  Json parsed = parse_text(text, what);
  if (parsed.is_object()) {
    parsed = Json::array({std::move(parsed)});
  }
  if (!parsed.is_array() || parsed.empty()) {
    refuse("{} is {}; expected a function call, or a list of them", what, type_text(parsed));
  }
  Json calls = Json::array();
  for (Json& function : parsed) {
    calls.push_back({{"type", "function"}, {"function", std::move(function)}});
  }
  read_calls(&calls, what);
  return calls;
}

bool is_empty_content(const Json& content) {
  if (content.is_string()) return trim(string_of(content)).empty();
  if (!content.is_array()) return true;
  for (const Json& part : content) {
    if (!trim(string_of(part.at("text"))).empty()) return false;
  }
  return true;
}

/// Refuses content other than a string, null, or a list of parts that are text.
void check_content(const Json& content, const std::string& what) {
  if (content.is_string() || content.is_null()) return;
  if (!content.is_array()) {
    refuse("content of {} is {}; expected a string", what, type_text(content));
  }
  for (const Json& part : content) {
    const Json* type = part.is_object() ? field_of(part, "type") : nullptr;
    const Json* text = part.is_object() ? field_of(part, "text") : nullptr;
    if (type == nullptr || *type != "text" || text == nullptr || !text->is_string()) {
      const std::string kind =
          type != nullptr && type->is_string() ? quote(string_of(*type)) : "no";
      refuse("content of {} has a part of {} type; expected parts of type \"text\" with a text",
             what, kind);
    }
  }
}

bool has_text(const Json& message, const char* key) {
  const Json* value = field_of(message, key);
  return value != nullptr && value->is_string() && !trim(string_of(*value)).empty();
}

/// Turns of the user and the assistant say something; the result of a tool may be empty.
void check_turn(const Json& message, const std::string& role, const std::string& what) {
  check_content(message["content"], what);
  if (!is_empty_content(message["content"])) return;
  const Json* calls = field_of(message, "tool_calls");
  const bool says_more = (calls != nullptr && !calls->empty()) ||
                         has_text(message, "reasoning_content") || has_text(message, "thinking") ||
                         has_text(message, "reasoning");
  if (role == "user" || (role == "assistant" && !says_more)) {
    refuse("{} is an empty turn of the {}; expected content", what, role);
  }
  if (message["content"].is_null() && role != "assistant") {
    refuse("content of {} is missing; expected a string", what);
  }
}

Json read_message(const Json& given, const MessageTags& tags, const std::string& what) {
  if (!given.is_object()) refuse("{} is {}; expected an object", what, type_text(given));
  const Json* role = field_of(given, tags.role);
  if (role == nullptr || !role->is_string()) {
    refuse("{} has no {}; expected a string", what, quote(tags.role));
  }
  const auto known = tags.roles.find(string_of(*role));
  if (known == tags.roles.end()) {
    std::vector<std::string> names;
    for (const auto& [name, meaning] : tags.roles) {
      names.push_back(name);
    }
    refuse("{} has the {} {}; expected one of {}; try tags for other names", what, tags.role,
           quote(string_of(*role)), join(names, ", "));
  }
  const bool is_call = known->second == MessageTags::kFunctionCall;
  const std::string meaning = is_call ? "assistant" : known->second;
  const Json* content = field_of(given, tags.content);
  Json message = {{"role", meaning}, {"content", content != nullptr ? *content : Json(nullptr)}};
  for (const auto& [key, value] : given.items()) {
    if (key == tags.role || key == tags.content) continue;
    if (key == "role" || key == "content") {
      refuse("{} has both {} and {}", what, quote(key),
             quote(key == "role" ? tags.role : tags.content));
    }
    message[key] = value;
  }
  if (is_call) {
    if (content == nullptr || !content->is_string()) {
      refuse("{} of {} is no text; expected a function call as JSON", tags.content, what);
    }
    message["tool_calls"] = calls_of(string_of(*content), what);
    message["content"] = "";
  } else if (const auto calls = message.find("tool_calls");
             calls != message.end() && !calls->is_null()) {
    if (meaning != "assistant") refuse("{} has tool_calls; expected those of the assistant", what);
    read_calls(&*calls, "tool call of " + what);
  }
  check_turn(message, meaning, what);
  return message;
}

}  // namespace

const char* type_text(const Json& value) {
  if (value.is_null()) return "null";
  if (value.is_string()) return "a string";
  if (value.is_boolean()) return "true or false";
  if (value.is_number()) return "a number";
  return value.is_object() ? "an object" : "a list";
}

Json message_of(const char* role, const std::string& content) {
  return {{"role", role}, {"content", content}};
}

MessageTags MessageTags::chat() {
  MessageTags tags;
  for (const char* role : {"system", "developer", "user", "assistant", "tool"}) {
    tags.roles[role] = role;
  }
  tags.roles["human"] = "user";  // as Axolotl reads chats
  tags.roles["gpt"] = "assistant";
  return tags;
}

MessageTags MessageTags::sharegpt() {
  MessageTags tags;
  tags.role = "from";
  tags.content = "value";
  tags.roles = {{"human", "user"},    {"user", "user"},
                {"gpt", "assistant"}, {"assistant", "assistant"},
                {"system", "system"}, {"observation", "tool"},
                {"tool", "tool"},     {"function_call", kFunctionCall}};
  return tags;
}

void MessageTags::rename(const std::map<std::string, std::string>& tags, const std::string& where) {
  const std::map<std::string, std::string> meanings = {{"user_tag", "user"},
                                                       {"assistant_tag", "assistant"},
                                                       {"observation_tag", "tool"},
                                                       {"function_tag", kFunctionCall},
                                                       {"system_tag", "system"}};
  std::map<std::string, std::string> renamed;
  for (const auto& [key, name] : tags) {
    if (key == "role_tag") {
      role = name;
    } else if (key == "content_tag") {
      content = name;
    } else if (const auto meaning = meanings.find(key); meaning != meanings.end()) {
      std::erase_if(roles, [&](const auto& known) { return known.second == meaning->second; });
      if (!name.empty() && !renamed.emplace(name, meaning->second).second) {
        fail(where, "tags give the role {} twice; expected different names", quote(name));
      }
    } else {
      std::vector<std::string> keys = {"role_tag", "content_tag"};
      for (const auto& [known, meant] : meanings) {
        keys.push_back(known);
      }
      fail(where, "unknown key {} of tags; expected one of {}", quote(key), join(keys, ", "));
    }
  }
  for (const auto& [name, meaning] : renamed) {
    roles[name] = meaning;
  }
}

Json read_messages(const Json& list, const MessageTags& tags, const std::string& what) {
  if (!list.is_array()) refuse("{} is {}; expected a list of messages", what, type_text(list));
  if (list.empty()) refuse("{} has no messages; expected at least one", what);
  Json messages = Json::array();
  for (size_t i = 0; i < list.size(); ++i) {
    messages.push_back(read_message(list[i], tags, fmt::format("message {} of {}", i, what)));
  }
  return messages;
}

Json read_tools(const Json& value, bool wraps) {
  Json tools = value;
  if (tools.is_string()) {
    const std::string text = string_of(value);
    if (trim(text).empty()) return nullptr;
    tools = parse_text(text, "tools");
  }
  if (tools.is_null()) return nullptr;
  if (!tools.is_array()) {
    refuse("tools is {}; expected a list of functions, or one as JSON text", type_text(tools));
  }
  if (tools.empty()) return nullptr;
  for (Json& tool : tools) {
    if (!tool.is_object()) refuse("tools has {}; expected objects", type_text(tool));
    if (wraps && !tool.contains("function") && tool.contains("name")) {
      Json wrapped = {{"type", "function"}};
      wrapped["function"] = std::move(tool);
      tool = std::move(wrapped);
    }
  }
  return tools;
}

void check_turns(const Json& messages, bool open) {
  const size_t first = messages[0]["role"] == "system" ? 1 : 0;
  for (size_t i = first; i < messages.size(); ++i) {
    const std::string role = string_of(messages[i]["role"]);
    const bool asks = (i - first) % 2 == 0;
    const bool fits = asks ? role == "user" || role == "tool" : role == "assistant";
    if (!fits) {
      refuse(
          "message {} is of role {}; expected turns of user (or tool) and assistant after each "
          "other; try format: chat, which takes any order",
          i, role);
    }
  }
  const bool ends_open = (messages.size() - first) % 2 != 0;
  if (messages.size() == first || ends_open != open) {
    refuse("the last message is of role {}; expected {}", string_of(messages.back()["role"]),
           open ? "user or tool" : "assistant");
  }
}

}  // namespace hocket::data
