// SPDX-License-Identifier: Apache-2.0
#include "serve/openai/chat_row.h"

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "data/examples/messages.h"
#include "serve/openai/protocol.h"
#include "serve/openai/refusal.h"

namespace hocket::serve {

std::string render_row(const data::ChatTemplate& chat_template,
                       const nlohmann::ordered_json& messages, const nlohmann::ordered_json& row,
                       const std::string& where) {
  nlohmann::ordered_json body = nlohmann::ordered_json::object();
  body["messages"] = messages;
  if (const auto tools = row.find("tools"); tools != row.end()) {
    try {
      body["tools"] = data::read_tools(*tools, /*wraps=*/true);  // the API refuses bare functions
    } catch (const Error& error) {
      fail(where, "{}", error.text());
    }
  }
  if (const auto variables = row.find("chat_template_kwargs"); variables != row.end()) {
    body["chat_template_kwargs"] = *variables;
  }
  ChatCall call;
  try {
    parse_conversation(body, &call);
  } catch (const Refusal& refusal) {
    fail(where, "{}", refusal.message);
  }
  data::ChatOptions options;
  options.tools = call.tools.get();
  options.variables = call.variables.get();
  options.add_generation_prompt = true;
  return chat_template.render(*call.messages, options).text;
}

}  // namespace hocket::serve
