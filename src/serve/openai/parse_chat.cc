// SPDX-License-Identifier: Apache-2.0
// Implements: parse_chat, parse_conversation (protocol.h).
#include <fmt/core.h>

#include <nlohmann/json.hpp>

#include "base/text.h"
#include "serve/openai/parse_call.h"

namespace hocket::serve {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr int64_t kMaxTools = 1024;

/// Returns a message's content as chat templates take it: text, or parts of text, of which the
/// template or ChatTemplate makes one text.
OrderedJson content_of(const OrderedJson& content, const std::string& param) {
  if (content.is_string()) return content;
  if (!content.is_array()) refuse(param, "is neither text nor a list of parts");
  OrderedJson out = OrderedJson::array();
  for (const OrderedJson& part : content) {
    if (part.is_string()) {
      out.push_back({{"type", "text"}, {"text", part}});
      continue;
    }
    const Body in(part, param);
    const std::string type = in.text("type").value_or("");
    const auto text = in.text("text");
    if (type != "text" || !text) {
      refuse(param, fmt::format("has a part of type {}; expected text: this server reads no "
                                "images, audio or files",
                                quote(type, 40)));
    }
    out.push_back({{"type", "text"}, {"text", *text}});
  }
  return out;
}

/// Arguments of calls are JSON in a string; templates expect the object.
OrderedJson call_of_message(const OrderedJson& call, const std::string& param) {
  OrderedJson out = call;
  const Body in(call, param);
  const auto* function = in.object("function");
  if (function == nullptr) refuse(param + ".function", "is missing");
  const Body inner(*function, param + ".function");
  if (!inner.text("name")) refuse(param + ".function.name", "is missing");
  const auto* arguments = inner.find("arguments");
  if (arguments != nullptr && arguments->is_string()) {
    const std::string text = arguments->get<std::string>();
    OrderedJson parsed = trim(text).empty()
                             ? OrderedJson::object()
                             : OrderedJson::parse(text, nullptr, /*allow_exceptions=*/false);
    if (!parsed.is_object()) refuse(param + ".function.arguments", "is no JSON object");
    out["function"]["arguments"] = std::move(parsed);
  }
  return out;
}

OrderedJson read_message(const OrderedJson& message, const std::string& param) {
  const Body in(message, param);
  const std::string role = in.text("role").value_or("");
  if (role.empty()) refuse(param + ".role", "is missing; expected system, user, assistant or tool");
  OrderedJson out = message;
  const auto* content = in.find("content");
  const auto* calls = in.list("tool_calls");
  if (content != nullptr) {
    out["content"] = content_of(*content, param + ".content");
  } else if (role == "assistant") {
    out["content"] = "";  // as vLLM: templates concatenate it
  } else {
    refuse(param + ".content", "is missing");
  }
  if (calls != nullptr && !calls->empty()) {
    OrderedJson list = OrderedJson::array();
    for (size_t i = 0; i < calls->size(); ++i) {
      list.push_back(call_of_message((*calls)[i], fmt::format("{}.tool_calls[{}]", param, i)));
    }
    out["tool_calls"] = std::move(list);
  } else {
    out.erase("tool_calls");  // templates take an empty list for calls
  }
  // Both names are in use by clients and by templates.
  for (const auto& [one, other] :
       {std::pair("reasoning", "reasoning_content"), std::pair("reasoning_content", "reasoning")}) {
    if (const auto text = in.text(one); text && in.find(other) == nullptr) {
      out[other] = *text;
    }
  }
  return out;
}

void check_tools(const OrderedJson& tools) {
  if (std::ssize(tools) > kMaxTools) {
    refuse("tools", fmt::format("has {} tools; expected at most {}", tools.size(), kMaxTools));
  }
  for (size_t i = 0; i < tools.size(); ++i) {
    const std::string param = fmt::format("tools[{}]", i);
    const Body in(tools[i], param);
    if (in.text("type").value_or("function") != "function") {
      refuse(param + ".type", "is not supported; expected function");
    }
    const auto* function = in.object("function");
    if (function == nullptr) refuse(param + ".function", "is missing");
    const Body inner(*function, param + ".function");
    if (inner.text("name").value_or("").empty()) {
      refuse(param + ".function.name", "is missing");
    }
    inner.object("parameters");
  }
}

const OrderedJson* function_named(const OrderedJson& tools, const std::string& name) {
  for (const OrderedJson& tool : tools) {
    if (tool["function"]["name"] == name) return &tool["function"];
  }
  return nullptr;
}

void parse_tool_choice(const Body& body, ChatCall* call) {
  const bool any = call->tools != nullptr && !call->tools->empty();
  call->tool_choice = any ? ToolChoice::automatic : ToolChoice::none;
  const OrderedJson* choice = body.find("tool_choice");
  if (choice == nullptr) return;
  if (choice->is_object()) {
    const Body in(*choice, "tool_choice");
    const std::string type = in.text("type").value_or("function");
    if (type != "function") {
      refuse("tool_choice.type", fmt::format("is {}; expected function", quote(type, 40)));
    }
    const auto* function = in.object("function");
    const auto name =
        function == nullptr ? std::nullopt : Body(*function, "tool_choice.function").text("name");
    if (!name) refuse("tool_choice.function.name", "is missing");
    if (!any || function_named(*call->tools, *name) == nullptr) {
      refuse("tool_choice.function.name",
             fmt::format("is {}, which is no function of tools", quote(*name, 60)));
    }
    call->tool_choice = ToolChoice::named;
    call->function = *name;
    return;
  }
  const std::string word = body.text("tool_choice").value_or("");
  if (word == "none") {
    call->tool_choice = ToolChoice::none;
  } else if (word == "required") {
    if (!any) refuse("tool_choice", "is required, without any tools");
    call->tool_choice = ToolChoice::required;
  } else if (word != "auto") {
    refuse("tool_choice",
           fmt::format("is {}; expected none, auto, required or a function", quote(word, 40)));
  }
}

void parse_variables(const Body& body, ChatCall* call) {
  call->variables = std::make_shared<OrderedJson>(OrderedJson::object());
  if (const auto* given = body.object("chat_template_kwargs")) {
    *call->variables = *given;
    for (const char* own : {"messages", "tools", "documents", "add_generation_prompt"}) {
      if (given->contains(own)) {
        refuse(fmt::format("chat_template_kwargs.{}", own), "is a field of the request");
      }
    }
  }
  if (const auto effort = body.text("reasoning_effort")) {
    OrderedJson& variables = *call->variables;
    if (!variables.contains("reasoning_effort")) {
      variables["reasoning_effort"] = *effort;
    }
    if (!variables.contains("enable_thinking")) {
      variables["enable_thinking"] = *effort != "none";
    }
  }
}

}  // namespace

void parse_conversation(const OrderedJson& body, ChatCall* call) {
  const Body in(body);
  const OrderedJson* messages = in.list("messages");
  if (messages == nullptr || messages->empty()) {
    refuse("messages", "is missing; expected a list with a message");
  }
  call->messages = std::make_shared<OrderedJson>(OrderedJson::array());
  for (size_t i = 0; i < messages->size(); ++i) {
    call->messages->push_back(read_message((*messages)[i], fmt::format("messages[{}]", i)));
  }
  if (const OrderedJson* tools = in.list("tools"); tools != nullptr && !tools->empty()) {
    check_tools(*tools);
    call->tools = std::make_shared<OrderedJson>(*tools);
  }
  if (const OrderedJson* documents = in.list("documents")) {
    call->documents = std::make_shared<OrderedJson>(*documents);
  }
  parse_variables(in, call);
  call->continue_final_message = in.boolean("continue_final_message").value_or(false);
  const auto prompt = in.boolean("add_generation_prompt");
  call->add_generation_prompt = prompt.value_or(!call->continue_final_message);
  if (call->continue_final_message) {
    if (call->add_generation_prompt) {
      refuse("continue_final_message", "and add_generation_prompt exclude each other");
    }
    if (Body(messages->back()).find("content") == nullptr) {
      refuse("continue_final_message", "needs a last message with content");
    }
  }
}

ChatCall parse_chat(const OrderedJson& body, const CallLimits& limits) {
  ChatCall call;
  check_fields(body, Endpoint::chat, limits, &call.ignored);
  const Body in(body);
  parse_common(in, limits, &call);
  parse_conversation(body, &call);
  parse_tool_choice(in, &call);
  call.parallel_tool_calls = in.boolean("parallel_tool_calls").value_or(true);
  call.include_reasoning = in.boolean("include_reasoning").value_or(true);
  call.return_prompt_text = in.boolean("return_prompt_text").value_or(false);
  if (in.boolean("echo").value_or(false)) refuse("echo", "is not supported in a chat");
  const bool logprobs = in.boolean("logprobs").value_or(false);
  const auto top = in.integer("top_logprobs", 0, limits.max_logprobs);
  if (top.value_or(0) > 0 && !logprobs) {
    refuse("top_logprobs", "is given; expected logprobs: true with it");
  }
  call.logprobs = logprobs ? top.value_or(0) : -1;
  if (const auto tokens = in.integer("max_completion_tokens", 0, int64_t{1} << 30)) {
    call.max_tokens = tokens;
    call.max_tokens_field = "max_completion_tokens";
  }
  if (call.max_tokens && call.min_tokens > *call.max_tokens) {
    refuse("min_tokens", fmt::format("is {}; expected at most {}, {}", call.min_tokens,
                                     call.max_tokens_field, *call.max_tokens));
  }
  const bool forced =
      call.tool_choice == ToolChoice::required || call.tool_choice == ToolChoice::named;
  if (forced && call.rule.kind != JsonRule::Kind::none) {
    refuse("response_format", "and a forced tool_choice exclude each other");
  }
  return call;
}

}  // namespace hocket::serve
