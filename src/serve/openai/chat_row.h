// SPDX-License-Identifier: Apache-2.0
// Conversations in rows of data files, rendered as the server renders those of requests.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "data/chat/chat_template.h"

namespace hocket::serve {

/// Renders the messages of a row up to where the answer begins. Of the row's other keys `tools` (a
/// list, or its JSON text) and `chat_template_kwargs` count. Throws Error in the name of `where`.
std::string render_row(const data::ChatTemplate& chat_template,
                       const nlohmann::ordered_json& messages, const nlohmann::ordered_json& row,
                       const std::string& where);

}  // namespace hocket::serve
