// SPDX-License-Identifier: Apache-2.0
// Texts of messages that a chat template leaves out of its rendering.
#pragma once

#include <set>
#include <string>
#include <string_view>

#include "data/chat/chat_template.h"
#include "data/examples/example.h"

namespace hocket::data {

/// Returns what the template leaves out of `rendered`, its text of `messages`: contents, tool_calls
/// and function_call, by role ("messages of role 'developer'"). A text is left out if it is not in
/// `rendered`, and another in its place does not show either: a template may change texts, and cut
/// thoughts out of them. Schemas of tools show a called function's name as well, so another name
/// is tried in any case.
std::set<std::string> left_out_of(const ChatTemplate& chat, const Example::Turns& messages,
                                  const ChatOptions& options, std::string_view rendered);

}  // namespace hocket::data
