// SPDX-License-Identifier: Apache-2.0
// Messages of a conversation as files have them to messages as chat templates read them.
#pragma once

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace hocket::data {

/// Names of fields and roles in the messages of a source.
struct MessageTags {
  /// Role of a message whose content is JSON of function calls: it becomes tool_calls.
  static constexpr const char* kFunctionCall = "function_call";

  std::string role = "role", content = "content";
  std::map<std::string, std::string> roles;  ///< in the file → of templates, or kFunctionCall

  /// Names of chat templates: role, content; system, developer, user, assistant, tool; and human
  /// for user, gpt for assistant.
  static MessageTags chat();
  /// Names of ShareGPT: from, value; human or user, gpt or assistant, system, function_call,
  /// observation or tool.
  static MessageTags sharegpt();
  /// Replaces names by those of `tags`, by LLaMA-Factory's keys: role_tag, content_tag, user_tag,
  /// assistant_tag, observation_tag, function_tag, system_tag. An empty one: there is no such role.
  /// Throws Error, in the name of `where`, for another key.
  void rename(const std::map<std::string, std::string>& tags,
              const std::string& where = "data.sources");
};

/// Returns messages with the fields `role` and `content` and all others that they have. Arguments
/// of function calls become objects where they are JSON text. `what` names the list in errors.
/// Throws Error for an unknown role, an empty turn, content that is no text, and broken calls.
nlohmann::ordered_json read_messages(const nlohmann::ordered_json& list, const MessageTags& tags,
                                     const std::string& what);

/// Returns the list of tools of a column: a list or its JSON text; null if it is empty. Throws
/// Error for anything else. `wraps`: a bare function gets the object around it that templates want.
/// LLaMA-Factory does so, and OpenAI's API takes no bare one. TRL passes tools to the template as
/// they are, so rows in its columns are not wrapped.
nlohmann::ordered_json read_tools(const nlohmann::ordered_json& value, bool wraps);

/// Throws Error unless turns of user or tool alternate with turns of the assistant, after at most
/// one system message. The last turn must be the assistant's, or, if `open`, the user's or a
/// tool's.
void check_turns(const nlohmann::ordered_json& messages, bool open);

/// {"role": role, "content": content}.
nlohmann::ordered_json message_of(const char* role, const std::string& content);

/// "null", "a string", "a number", "true or false", "an object", "a list".
const char* type_text(const nlohmann::ordered_json& value);

}  // namespace hocket::data
