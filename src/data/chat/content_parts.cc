// SPDX-License-Identifier: Apache-2.0
#include "data/chat/content_parts.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

namespace hocket::data {
namespace {

using OrderedJson = nlohmann::ordered_json;

// Texts that no template changes: digits have neither case nor blanks.
constexpr const char* kFirstText = "90210417000171402019";
constexpr const char* kSecondText = "90210417000271402019";
/// Value of a field that only a template shows that prints parts as they are.
constexpr const char* kOtherField = "90210417000371402019";
constexpr const char* kCallId = "abcdefghi";  // of nine letters, as Mistral's templates want it

bool is_text_part(const OrderedJson& part) {
  if (!part.is_object()) return false;
  const auto type = part.find("type"), text = part.find("text");
  return type != part.end() && *type == "text" && text != part.end() && text->is_string();
}

/// Returns chats with a message, the shortest first: alone, with a user's message after or before
/// it, and as the result of a call.
std::vector<OrderedJson> chats_with(const OrderedJson& message) {
  const OrderedJson user = {{"role", "user"}, {"content", "x"}};
  const OrderedJson call = {{"id", kCallId},
                            {"type", "function"},
                            {"function", {{"name", "f"}, {"arguments", OrderedJson::object()}}}};
  const OrderedJson calls = {
      {"role", "assistant"}, {"content", "x"}, {"tool_calls", OrderedJson::array({call})}};
  OrderedJson result = message;
  result["tool_call_id"] = kCallId;
  result["name"] = "f";
  return {OrderedJson::array({message}), OrderedJson::array({message, user}),
          OrderedJson::array({user, message}), OrderedJson::array({user, calls, result})};
}

}  // namespace

bool has_text_parts(const OrderedJson& message) {
  const auto content = message.find("content");
  return content != message.end() && content->is_array() &&
         std::all_of(content->begin(), content->end(), is_text_part);
}

void join_text_parts(OrderedJson* message) {
  std::string text;
  bool first = true;
  for (const OrderedJson& part : message->at("content")) {
    text += first ? "" : "\n";
    text += part.at("text").get_ref<const std::string&>();
    first = false;
  }
  (*message)["content"] = std::move(text);
}

bool reads_text_parts(const std::string& role, const TryRender& render) {
  const auto part = [](const char* text) {
    return OrderedJson{{"type", "text"}, {"text", text}, {"note", kOtherField}};
  };
  const auto parts = OrderedJson::array({part(kFirstText), part(kSecondText)});
  const std::vector<OrderedJson> with_parts = chats_with({{"role", role}, {"content", parts}});
  const std::vector<OrderedJson> with_text = chats_with({{"role", role}, {"content", kFirstText}});
  const auto shows = [](const std::optional<std::string>& text, std::string_view what) {
    return text && text->find(what) != std::string::npos;
  };
  for (size_t i = 0; i < with_parts.size(); ++i) {
    const std::optional<std::string> text = render(with_parts[i]);
    if (shows(text, kFirstText) && shows(text, kSecondText) && !shows(text, kOtherField)) {
      return true;
    }
    if (shows(render(with_text[i]), kFirstText)) return false;
  }
  return false;
}

}  // namespace hocket::data
