// SPDX-License-Identifier: Apache-2.0
// Implements: parse_body, parse_completion (protocol.h), and parse_call.h.
#include "serve/openai/parse_call.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/ordered_json.h"
#include "base/text.h"
#include "serve/openai/refusal.h"

namespace hocket::serve {
namespace {

constexpr int kMaxDepth = 64;           // of nested JSON
constexpr int64_t kMaxStops = 64;       // stop strings of a request
constexpr size_t kMaxStopBytes = 1024;  // of a stop string
constexpr size_t kMaxSaltBytes = 1024;
constexpr int64_t kMaxTokens = int64_t{1} << 30;

std::vector<std::string> fields_of(Endpoint endpoint) {
  std::vector<std::string> names;
  for (const RequestField& field : request_fields()) {
    if (find_field(field.name, endpoint) != nullptr) {
      names.emplace_back(field.name);
    }
  }
  return names;
}

void parse_stops(const Body& body, const CallLimits& limits, Call* call) {
  call->stops = body.texts("stop");
  if (std::ssize(call->stops) > kMaxStops) {
    refuse("stop",
           fmt::format("has {} strings; expected at most {}", call->stops.size(), kMaxStops));
  }
  for (const std::string& stop : call->stops) {
    if (stop.empty()) refuse("stop", "is empty; expected some text");
    if (stop.size() > kMaxStopBytes) {
      refuse("stop", fmt::format("has {} bytes; expected at most {}", stop.size(), kMaxStopBytes));
    }
  }
  call->stop_tokens = body.tokens("stop_token_ids", limits.vocab_size);
  call->include_stop = body.boolean("include_stop_str_in_output").value_or(false);
  call->ignore_eos = body.boolean("ignore_eos").value_or(false);
  call->min_tokens = body.integer("min_tokens", 0, kMaxTokens).value_or(0);
}

void parse_logit_bias(const Body& body, const CallLimits& limits, Sampling* sampling) {
  const auto* bias = body.object("logit_bias");
  if (bias == nullptr) return;
  for (const auto& [key, value] : bias->items()) {
    int64_t id = -1;
    if (!parse_int(key, &id) || id < 0 || id >= limits.vocab_size) {
      refuse("logit_bias",
             fmt::format("has token {}; expected 0 to {}", quote(key, 30), limits.vocab_size - 1));
    }
    const double added = Body(*bias, "logit_bias").number(key, -100, 100).value_or(0);
    sampling->logit_bias.emplace_back(static_cast<int32_t>(id), added);
  }
}

void parse_sampling(const Body& body, const CallLimits& limits, Call* call) {
  Sampling& sampling = call->sampling;
  const auto choose = [](const auto& given, const auto& of_files, auto fallback) {
    return given ? *given : of_files.value_or(fallback);
  };
  sampling.temperature = choose(body.number("temperature", 0, 100), limits.temperature, 1.0);
  sampling.top_p = choose(body.number("top_p", 0, 1), limits.top_p, 1.0);
  sampling.top_k =
      std::max<int64_t>(choose(body.integer("top_k", -1, INT32_MAX), limits.top_k, int64_t{0}), 0);
  sampling.min_p = choose(body.number("min_p", 0, 1), limits.min_p, 0.0);
  sampling.repetition_penalty =
      choose(body.number("repetition_penalty", 1e-3, 1e3), limits.repetition_penalty, 1.0);
  sampling.presence_penalty = body.number("presence_penalty", -2, 2).value_or(0);
  sampling.frequency_penalty = body.number("frequency_penalty", -2, 2).value_or(0);
  parse_logit_bias(body, limits, &sampling);
  if (const auto seed = body.integer("seed", INT64_MIN, INT64_MAX)) {
    sampling.seed = static_cast<uint64_t>(*seed);
    call->has_seed = true;
  }
  call->n = body.integer("n", 1, limits.max_n).value_or(1);
}

void parse_stream(const Body& body, Call* call) {
  call->stream = body.boolean("stream").value_or(false);
  const auto* options = body.object("stream_options");
  if (options == nullptr) return;
  if (!call->stream) refuse("stream_options", "is given; expected stream: true with it");
  const Body in(*options, "stream_options");
  for (const auto& [key, value] : options->items()) {
    if (key != "include_usage" && key != "continuous_usage_stats" && key != "include_obfuscation") {
      refuse(in.path_of(key), "is no field that this path knows; try include_usage");
    }
  }
  call->include_usage = in.boolean("include_usage").value_or(false);
  call->continuous_usage = in.boolean("continuous_usage_stats").value_or(false);
}

void parse_schema(const nlohmann::ordered_json& schema, const std::string& param, JsonRule* rule) {
  nlohmann::ordered_json parsed =
      schema.is_string() ? nlohmann::ordered_json::parse(schema.get<std::string>(), nullptr,
                                                         /*allow_exceptions=*/false)
                         : schema;
  if (!parsed.is_object() && !parsed.is_boolean()) refuse(param, "is no JSON schema");
  rule->kind = JsonRule::Kind::schema;
  rule->schema = std::make_shared<const nlohmann::ordered_json>(std::move(parsed));
}

/// Refuses keys of an object that are not `known`.
void expect_keys(const nlohmann::ordered_json& object, const std::string& path,
                 const std::vector<std::string>& known) {
  for (const auto& [key, value] : object.items()) {
    if (value.is_null() || std::ranges::find(known, key) != known.end()) continue;
    refuse(fmt::format("{}.{}", path, key),
           fmt::format("is no field that this path knows; expected {}", join(known, ", ")));
  }
}

void parse_format(const nlohmann::ordered_json& format, JsonRule* rule) {
  const Body in(format, "response_format");
  const std::string type = in.text("type").value_or("");
  if (type == "text") {
    expect_keys(format, "response_format", {"type"});
  } else if (type == "json_object") {
    expect_keys(format, "response_format", {"type", "schema"});
    rule->kind = JsonRule::Kind::object;
    if (const auto* schema = in.find("schema")) {
      parse_schema(*schema, "response_format.schema", rule);
    }
  } else if (type == "json_schema") {
    expect_keys(format, "response_format", {"type", "json_schema"});
    const auto* given = in.object("json_schema");
    const auto* schema =
        given == nullptr ? nullptr : Body(*given, "response_format.json_schema").find("schema");
    if (schema == nullptr) {
      refuse("response_format.json_schema.schema", "is missing");
    }
    expect_keys(*given, "response_format.json_schema", {"schema", "name", "description", "strict"});
    parse_schema(*schema, "response_format.json_schema.schema", rule);
  } else {
    refuse("response_format.type", fmt::format("is {}; expected text, json_object or "
                                               "json_schema",
                                               quote(type, 40)));
  }
}

void parse_rule(const Body& body, JsonRule* rule) {
  if (const auto* format = body.object("response_format")) {
    parse_format(*format, rule);
  }
  const auto* outputs = body.object("structured_outputs");
  if (outputs == nullptr) return;
  const Body in(*outputs, "structured_outputs");
  for (const auto& [key, value] : outputs->items()) {
    if (value.is_null() || key == "json" || key == "json_object") continue;
    refuse(in.path_of(key), "is not supported; try json, with a JSON schema");
  }
  const auto* schema = in.find("json");
  const bool any_object = in.boolean("json_object").value_or(false);
  if (schema == nullptr && !any_object) return;
  if (rule->kind != JsonRule::Kind::none || (schema != nullptr && any_object)) {
    refuse("structured_outputs", "asks for a format beside another one; expected one");
  }
  rule->kind = JsonRule::Kind::object;
  if (schema != nullptr) {
    parse_schema(*schema, "structured_outputs.json", rule);
  }
}

/// Reads text, ids, or a list of either.
std::vector<PromptInput> parse_prompts(const Body& body, const CallLimits& limits) {
  const auto* json = body.find("prompt");
  if (json == nullptr) refuse("prompt", "is missing; expected text or token ids");
  const auto of_ids = [&](const nlohmann::ordered_json& ids) {
    return PromptInput{.ids = read_tokens(ids, "prompt", limits.vocab_size), .is_ids = true};
  };
  if (json->is_string()) return {{.text = json->get<std::string>()}};
  if (!json->is_array()) refuse("prompt", "is neither text, nor a list of texts or token ids");
  if (json->empty()) refuse("prompt", "is an empty list; expected a text or token ids in it");
  if (json->front().is_number()) return {of_ids(*json)};
  if (std::ssize(*json) > limits.max_prompts) {
    refuse("prompt",
           fmt::format("has {} prompts; expected at most {}", json->size(), limits.max_prompts));
  }
  std::vector<PromptInput> prompts;
  for (const auto& item : *json) {
    if (!item.is_string() && !item.is_array()) {
      refuse("prompt", "has an element that is neither text nor a list of token ids");
    }
    prompts.push_back(item.is_string() ? PromptInput{.text = item.get<std::string>()}
                                       : of_ids(item));
  }
  return prompts;
}

}  // namespace

void check_fields(const nlohmann::ordered_json& body, Endpoint endpoint, const CallLimits& limits,
                  std::vector<std::string>* ignored) {
  const Body checked(body);  // an object
  for (const auto& [key, value] : body.items()) {
    if (value.is_null()) continue;
    const RequestField* field = find_field(key, endpoint);
    if (field == nullptr) {
      if (!limits.ignore_unknown) {
        refuse_unknown(key, fields_of(endpoint));
      }
      ignored->push_back(key);
      continue;
    }
    if (field->ours != FieldUse::refused) continue;
    if (!field->neutral.empty() && value == nlohmann::ordered_json::parse(field->neutral)) continue;
    refuse(key, fmt::format("is not supported{}{}", field->note.empty() ? "" : ": ", field->note));
  }
}

void parse_common(const Body& body, const CallLimits& limits, Call* call) {
  call->model = body.text("model").value_or("");
  call->request_id = body.text("request_id").value_or("");
  if (call->request_id.size() > 128 || !std::ranges::all_of(call->request_id, [](unsigned char c) {
        return c > 0x20 && c < 0x7f;
      })) {
    refuse("request_id", "is no word of at most 128 printable characters");
  }
  parse_sampling(body, limits, call);
  parse_stops(body, limits, call);
  parse_stream(body, call);
  parse_rule(body, &call->rule);
  // vLLM's -1, all tokens of the vocabulary, is out of range.
  call->prompt_logprobs = body.integer("prompt_logprobs", 0, limits.max_logprobs).value_or(-1);
  if (call->prompt_logprobs >= 0 && call->stream) {
    refuse("prompt_logprobs", "is given with stream; expected one of them");
  }
  call->sampled_logprobs = body.boolean("return_sampled_logprobs").value_or(false);
  call->return_token_ids = body.boolean("return_token_ids").value_or(false);
  call->tokens_as_ids = body.boolean("return_tokens_as_token_ids").value_or(false);
  call->skip_special_tokens = body.boolean("skip_special_tokens");
  call->add_special_tokens = body.boolean("add_special_tokens");
  call->cache_salt = body.text("cache_salt").value_or("");
  if (body.find("cache_salt") != nullptr &&
      (call->cache_salt.empty() || call->cache_salt.size() > kMaxSaltBytes)) {
    refuse("cache_salt",
           fmt::format("has {} bytes; expected 1 to {}", call->cache_salt.size(), kMaxSaltBytes));
  }
  call->priority = body.integer("priority", INT64_MIN, INT64_MAX).value_or(0);
  if (const auto tokens = body.integer("max_tokens", 0, kMaxTokens)) {
    call->max_tokens = tokens;
  }
}

nlohmann::ordered_json parse_body(std::string_view body) {
  try {
    return parse_ordered_json(body, "body", {.max_depth = kMaxDepth, .max_bytes = INT64_MAX});
  } catch (const Error& error) {
    throw Refusal{.status = 400,
                  .message = fmt::format("the body is no JSON that can be read: {}", error.text()),
                  .code = "invalid_json"};
  }
}

CompletionCall parse_completion(const nlohmann::ordered_json& body, const CallLimits& limits) {
  CompletionCall call;
  check_fields(body, Endpoint::completions, limits, &call.ignored);
  const Body in(body);
  parse_common(in, limits, &call);
  call.prompts = parse_prompts(in, limits);
  call.echo = in.boolean("echo").value_or(false);
  call.logprobs = in.integer("logprobs", 0, limits.max_logprobs).value_or(-1);
  if (!call.max_tokens) {
    call.max_tokens = std::min(limits.max_tokens.value_or(16), int64_t{16});
  }
  if (call.min_tokens > *call.max_tokens) {
    refuse("min_tokens", fmt::format("is {}; expected at most max_tokens, {}", call.min_tokens,
                                     *call.max_tokens));
  }
  return call;
}

}  // namespace hocket::serve
