// SPDX-License-Identifier: Apache-2.0
#include "data/examples/left_out.h"

#include <nlohmann/json.hpp>
#include <vector>

#include "base/error.h"
#include "base/text.h"

namespace hocket::data {
namespace {

using Turns = Example::Turns;

constexpr size_t kComparedBytes = 256;  // of a text; bounds the search

/// A text that a template is to show.
struct Told {
  std::string* text;
  std::string name;  ///< "messages of role 'user'"
  bool is_function;  ///< a called function's name, which the schema of a tool shows as well
};

void collect_text(Turns* object, const char* key, const std::string& name, std::vector<Told>* out) {
  if (!object->is_object()) return;
  const auto found = object->find(key);
  if (found == object->end() || !found->is_string()) return;
  auto& text = found->get_ref<std::string&>();
  if (trim(text).empty()) return;
  out->push_back({&text, name, std::string_view(key) == "name"});
}

/// Adds the content of a message, or its parts, and the names of the functions that it calls.
void collect_texts(Turns* message, std::vector<Told>* out) {
  const auto role = message->find("role");
  const std::string of_role =
      " of role " + quote(role->is_string() ? role->get<std::string>() : role->dump());
  collect_text(message, "content", "messages" + of_role, out);
  const auto list_of = [&](const char* key) {
    const auto found = message->find(key);
    return found != message->end() && found->is_array() ? &*found : nullptr;
  };
  if (Turns* parts = list_of("content")) {
    for (Turns& part : *parts) {
      collect_text(&part, "text", "messages" + of_role, out);
    }
  }
  if (Turns* calls = list_of("tool_calls")) {
    for (Turns& call : *calls) {
      const bool wrapped = call.is_object() && call.contains("function");
      collect_text(wrapped ? &call["function"] : &call, "name", "tool_calls" + of_role, out);
    }
  }
  if (message->contains("function_call")) {
    collect_text(&(*message)["function_call"], "name", "function_call" + of_role, out);
  }
}

}  // namespace

std::set<std::string> left_out_of(const ChatTemplate& chat, const Turns& messages,
                                  const ChatOptions& options, std::string_view rendered) {
  Turns changed = messages;
  std::vector<Told> doubtful;
  for (Turns& message : changed) {
    if (!message.is_object() || !message.contains("role")) continue;
    std::vector<Told> texts;
    collect_texts(&message, &texts);
    for (Told& told : texts) {
      const std::string_view text = trim(*told.text).substr(0, kComparedBytes);
      if (told.is_function || rendered.find(text) == std::string_view::npos) {
        doubtful.push_back(std::move(told));
      }
    }
  }
  if (doubtful.empty()) return {};
  // Digits, which no template changes.
  const auto other = [](size_t index) { return fmt::format("90210418{:04}81402019", index); };
  for (size_t i = 0; i < doubtful.size(); ++i) {
    *doubtful[i].text = other(i);
  }
  std::string shown;
  try {
    shown = chat.render(changed, options).text;
  } catch (const Error&) {
    return {};  // the template reads these texts
  }
  std::set<std::string> out;
  for (size_t i = 0; i < doubtful.size(); ++i) {
    if (shown.find(other(i)) == std::string::npos) {
      out.insert(doubtful[i].name);
    }
  }
  return out;
}

}  // namespace hocket::data
