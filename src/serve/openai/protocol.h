// SPDX-License-Identifier: Apache-2.0
// Requests of OpenAI's interface, parsed and checked. Functions throw Refusal, with the field.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "serve/openai/fields.h"
#include "serve/request.h"

namespace hocket::serve {

/// Defaults and limits that parsing needs.
struct CallLimits {
  // Defaults that the model's files have.
  std::optional<double> temperature, top_p, min_p, repetition_penalty;
  std::optional<int64_t> top_k, max_tokens;
  int64_t vocab_size = 0;
  int64_t max_n = 128;         ///< texts of a prompt
  int64_t max_prompts = 2048;  ///< of a request to /v1/completions
  int64_t max_logprobs = 20;
  bool ignore_unknown = false;
};

/// Restriction of a text to JSON.
struct JsonRule {
  enum class Kind { none, object, schema };
  Kind kind = Kind::none;
  std::shared_ptr<const nlohmann::ordered_json> schema;  ///< of Kind::schema
};

/// Fields that both endpoints have.
struct Call {
  std::string model, request_id;
  Sampling sampling;
  bool has_seed = false;
  std::vector<std::string> stops;
  std::vector<int32_t> stop_tokens;  ///< of the request alone
  bool include_stop = false, ignore_eos = false;
  std::optional<int64_t> max_tokens;
  std::string max_tokens_field = "max_tokens";  ///< that gave it
  int64_t min_tokens = 0, n = 1;
  int64_t logprobs = -1, prompt_logprobs = -1;  ///< as in Request
  bool stream = false, include_usage = false, continuous_usage = false;
  bool return_token_ids = false, tokens_as_ids = false, sampled_logprobs = false;
  std::optional<bool> skip_special_tokens, add_special_tokens;
  std::string cache_salt;
  int64_t priority = 0;
  JsonRule rule;
  std::vector<std::string> ignored;  ///< unknown fields
};

struct PromptInput {
  std::string text = {};
  std::vector<int32_t> ids = {};
  bool is_ids = false;
};

struct CompletionCall : Call {
  std::vector<PromptInput> prompts;
  bool echo = false;
};

enum class ToolChoice { none, automatic, required, named };

struct ChatCall : Call {
  std::shared_ptr<nlohmann::ordered_json> messages;   ///< normalised for templates
  std::shared_ptr<nlohmann::ordered_json> tools;      ///< null: none
  std::shared_ptr<nlohmann::ordered_json> documents;  ///< null: none
  std::shared_ptr<nlohmann::ordered_json> variables;  ///< of the template, an object
  ToolChoice tool_choice = ToolChoice::none;
  std::string function;  ///< of ToolChoice::named
  bool parallel_tool_calls = true, include_reasoning = true, return_prompt_text = false;
  bool add_generation_prompt = true, continue_final_message = false;
};

/// Parses a body. Refused: malformed JSON, a value of another type or out of range, and every
/// field that would change the answer and is not supported.
nlohmann::ordered_json parse_body(std::string_view body);
CompletionCall parse_completion(const nlohmann::ordered_json& body, const CallLimits& limits);
ChatCall parse_chat(const nlohmann::ordered_json& body, const CallLimits& limits);

/// Reads the fields of a chat's prompt alone: messages, tools, variables (also /tokenize's).
void parse_conversation(const nlohmann::ordered_json& body, ChatCall* call);

}  // namespace hocket::serve
