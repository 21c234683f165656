// SPDX-License-Identifier: Apache-2.0
#include "serve/openai/row_fields.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <span>
#include <string_view>

#include "base/error.h"
#include "serve/openai/parse_call.h"
#include "serve/openai/refusal.h"

namespace hocket::serve {
namespace {

using OrderedJson = nlohmann::ordered_json;
using Names = std::span<const std::string_view>;

/// Fields that are read here, with either kind of prompt.
constexpr std::string_view kReadFields[] = {"temperature",
                                            "top_p",
                                            "top_k",
                                            "min_p",
                                            "repetition_penalty",
                                            "presence_penalty",
                                            "frequency_penalty",
                                            "logit_bias",
                                            "seed",
                                            "stop",
                                            "stop_token_ids",
                                            "include_stop_str_in_output",
                                            "ignore_eos",
                                            "max_tokens",
                                            "min_tokens",
                                            "n",
                                            "cache_salt",
                                            "priority"};
constexpr const char* kChatMaxTokens = "max_completion_tokens";
/// Fields of the prompt itself, which others read (chat_row.h).
constexpr std::string_view kPromptFields[] = {"prompt", "messages"};
constexpr std::string_view kChatPromptFields[] = {"tools", "chat_template_kwargs"};

bool is_one_of(Names names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

/// Returns the fields of a row that are read here; refuses other fields of requests that ask for
/// something.
OrderedJson fields_to_read(const OrderedJson& row, bool is_chat) {
  OrderedJson body = OrderedJson::object();
  for (const auto& [key, value] : row.items()) {
    const RequestField* field = find_field(key, is_chat ? Endpoint::chat : Endpoint::completions);
    const RequestField* other = find_field(key, is_chat ? Endpoint::completions : Endpoint::chat);
    const RequestField* found = field != nullptr ? field : other;
    if (found == nullptr || value.is_null() || found->ours == FieldUse::no_effect) continue;
    if (is_one_of(kPromptFields, key) || (is_chat && is_one_of(kChatPromptFields, key))) continue;
    if (is_one_of(kReadFields, key) || (is_chat && key == kChatMaxTokens)) {
      body[key] = value;
      continue;
    }
    if (!found->neutral.empty() && value == OrderedJson::parse(found->neutral)) continue;
    refuse(key, fmt::format("has no meaning beside {}; give the request as a body (with url "
                            "/v1/{}completions), or the key another name",
                            is_chat ? "messages" : "a prompt's text", is_chat ? "chat/" : ""));
  }
  return body;
}

RowFields read_fields(const OrderedJson& fields, int64_t vocab_size, Request* request) {
  CallLimits limits;
  Sampling& sampling = request->sampling;
  limits.temperature = sampling.temperature;
  limits.top_p = sampling.top_p;
  limits.top_k = sampling.top_k;
  limits.min_p = sampling.min_p;
  limits.repetition_penalty = sampling.repetition_penalty;
  limits.vocab_size = vocab_size;
  const Body in(fields);
  const auto has = [&](std::string_view name) { return in.find(name) != nullptr; };
  Call call;
  parse_common(in, limits, &call);
  const Sampling defaults = sampling;
  sampling = call.sampling;
  sampling.sample = defaults.sample;
  sampling.seed = call.has_seed ? sampling.seed : defaults.seed;
  if (!has("presence_penalty")) {
    sampling.presence_penalty = defaults.presence_penalty;
  }
  if (!has("frequency_penalty")) {
    sampling.frequency_penalty = defaults.frequency_penalty;
  }
  if (has("stop")) {
    request->stops = call.stops;
  }
  if (call.ignore_eos) {
    request->stop_tokens.clear();
  }
  request->stop_tokens.insert(request->stop_tokens.end(), call.stop_tokens.begin(),
                              call.stop_tokens.end());
  request->include_stop = call.include_stop;
  request->max_tokens = in.integer(kChatMaxTokens, 0, int64_t{1} << 30)
                            .value_or(call.max_tokens.value_or(request->max_tokens));
  request->min_tokens = call.min_tokens;
  if (request->min_tokens > request->max_tokens) {
    refuse("min_tokens", fmt::format("is {}; expected at most max_tokens, {}", request->min_tokens,
                                     request->max_tokens));
  }
  request->cache_salt = call.cache_salt;
  request->priority = call.priority;
  return {.texts = has("n") ? std::optional(call.n) : std::nullopt,
          .has_seed = call.has_seed,
          .has_max_tokens = has("max_tokens") || has(kChatMaxTokens)};
}

}  // namespace

RowFields read_row_fields(const OrderedJson& row, bool is_chat, int64_t vocab_size,
                          const std::string& where, Request* request) {
  try {
    return read_fields(fields_to_read(row, is_chat), vocab_size, request);
  } catch (const Refusal& refusal) {
    fail(where, "{}", refusal.message);
  }
}

void write_row_logprobs(const std::vector<TokenLogprobs>& logprobs, JsonWriter* json) {
  if (logprobs.empty()) return;
  json->key("token_logprobs").array();
  for (const TokenLogprobs& each : logprobs) {
    json->value(each.logprob);
  }
  json->end().key("top_logprobs").array();
  for (const TokenLogprobs& each : logprobs) {
    json->array();
    for (const auto& [token, logprob] : each.top) {
      json->object().member("token_id", token).member("logprob", logprob).end();
    }
    json->end();
  }
  json->end();
}

}  // namespace hocket::serve
