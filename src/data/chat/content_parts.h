// SPDX-License-Identifier: Apache-2.0
// Contents of messages that are lists of text parts: whether a template reads them as such, and the
// string for templates that do not (docs/chat-templates.md).
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

namespace hocket::data {

/// Returns whether a message's content is a list of parts that are all text.
bool has_text_parts(const nlohmann::ordered_json& message);
/// Makes one string of a message's text parts, joined by newlines, as vLLM does.
void join_text_parts(nlohmann::ordered_json* message);

/// Returns the text of messages; nothing where the template refuses them.
using TryRender = std::function<std::optional<std::string>(const nlohmann::ordered_json& messages)>;
/// Returns whether a template prints the texts of a list of parts, of messages of this role. It
/// does not where it loses them, prints the list itself, or refuses it. Decided in the shortest
/// chat that shows the message's text.
bool reads_text_parts(const std::string& role, const TryRender& render);

}  // namespace hocket::data
