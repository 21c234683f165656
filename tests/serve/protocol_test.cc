// SPDX-License-Identifier: Apache-2.0
// Requests: the table of fields against the parser, refusals that name the field, mutated bodies.
#include "serve/openai/protocol.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/rng.h"
#include "serve/openai/refusal.h"

namespace hocket::serve {
namespace {

using OrderedJson = nlohmann::ordered_json;

CallLimits limits_of_tests() {
  CallLimits limits;
  limits.vocab_size = 100;
  return limits;
}

OrderedJson minimal(Endpoint endpoint) {
  return endpoint == Endpoint::chat
             ? OrderedJson::parse(R"({"messages": [{"role": "user", "content": "Hi"}]})")
             : OrderedJson::parse(R"({"prompt": "Hi"})");
}

void parse_at(Endpoint endpoint, const OrderedJson& body) {
  if (endpoint == Endpoint::chat) {
    parse_chat(body, limits_of_tests());
  } else {
    parse_completion(body, limits_of_tests());
  }
}

/// Returns the refusal of a body; status 0: it is accepted.
Refusal refusal_of(Endpoint endpoint, const OrderedJson& body) {
  try {
    parse_at(endpoint, body);
  } catch (const Refusal& refusal) {
    EXPECT_EQ(refusal.status, 400);
    EXPECT_FALSE(refusal.message.empty());
    return refusal;
  }
  return {.status = 0, .message = ""};
}

Refusal refusal_of(Endpoint endpoint, const std::string& field, const std::string& value) {
  OrderedJson body = minimal(endpoint);
  body[field] = OrderedJson::parse(value);
  return refusal_of(endpoint, body);
}

constexpr Endpoint kEndpoints[] = {Endpoint::completions, Endpoint::chat};

TEST(Fields, TableHoldsForTheParser) {
  int64_t rows = 0;
  for (const RequestField& field : request_fields()) {
    for (const Endpoint endpoint : kEndpoints) {
      if (field.endpoints.find(static_cast<char>(endpoint)) == field.endpoints.npos) continue;
      SCOPED_TRACE(std::string(field.name) + " " + static_cast<char>(endpoint));
      ++rows;
      OrderedJson body = minimal(endpoint);
      const std::string name(field.name);
      const std::string example = field.example == "SPECIAL"
                                      ? (endpoint == Endpoint::chat ? "true" : "2")
                                      : std::string(field.example);
      body[name] = OrderedJson::parse(example);
      if (name == "stream_options") {
        body["stream"] = true;
      } else if (name == "top_logprobs") {
        body["logprobs"] = true;
      } else if (name == "echo" && endpoint == Endpoint::chat) {
        continue;  // the note says so
      }
      const Refusal refusal = refusal_of(endpoint, body);
      if (field.ours == FieldUse::refused) {
        EXPECT_EQ(refusal.param, name) << refusal.message;
        if (!field.neutral.empty()) {
          body[name] = OrderedJson::parse(field.neutral);
          EXPECT_EQ(refusal_of(endpoint, body).status, 0);
        }
      } else {
        EXPECT_EQ(refusal.status, 0) << refusal.message;
      }
      body[name] = nullptr;
      if (name != "prompt" && name != "messages") {
        EXPECT_EQ(refusal_of(endpoint, body).status, 0) << "null";
      }
    }
  }
  EXPECT_GT(rows, 120);
}

TEST(Fields, SupportedFieldsAreReadAndOthersRefused) {
  // A value of another type is refused by every supported field: so the parser reads it.
  for (const RequestField& field : request_fields()) {
    if (field.ours != FieldUse::supported) continue;
    for (const Endpoint endpoint : kEndpoints) {
      if (field.endpoints.find(static_cast<char>(endpoint)) == field.endpoints.npos) continue;
      const std::string name(field.name);
      const bool numeric =
          OrderedJson::parse(field.example == "SPECIAL" ? "1" : std::string(field.example))
              .is_number();
      const Refusal refusal = refusal_of(endpoint, name, numeric ? R"("x")" : "1.5");
      EXPECT_EQ(refusal.param.substr(0, name.size()), name)
          << name << " " << static_cast<char>(endpoint) << ": " << refusal.message;
    }
  }
}

TEST(Fields, UnknownOnesAreRefusedWithTheNearest) {
  const Refusal refusal = refusal_of(Endpoint::chat, "temprature", "1");
  EXPECT_EQ(refusal.param, "temprature");
  EXPECT_NE(refusal.message.find("try temperature"), std::string::npos) << refusal.message;
  CallLimits limits = limits_of_tests();
  limits.ignore_unknown = true;
  OrderedJson body = minimal(Endpoint::chat);
  body["temprature"] = 1;
  EXPECT_EQ(parse_chat(body, limits).ignored, std::vector<std::string>{"temprature"});
  // Fields of one endpoint are unknown to the other.
  EXPECT_EQ(refusal_of(Endpoint::completions, "messages", "[]").param, "messages");
}

TEST(Protocol, RefusesValuesOutOfRange) {
  struct Case {
    Endpoint endpoint;
    const char *field, *value;
  };
  for (const Case& one : std::vector<Case>{{Endpoint::chat, "temperature", "-0.1"},
                                           {Endpoint::chat, "top_p", "1.1"},
                                           {Endpoint::chat, "top_k", "-2"},
                                           {Endpoint::chat, "min_p", "2"},
                                           {Endpoint::chat, "repetition_penalty", "0"},
                                           {Endpoint::chat, "presence_penalty", "2.1"},
                                           {Endpoint::chat, "prompt_logprobs", "-1"},
                                           {Endpoint::chat, "n", "0"},
                                           {Endpoint::chat, "n", "1.5"},
                                           {Endpoint::chat, "n", "100000"},
                                           {Endpoint::chat, "seed", "18446744073709551615"},
                                           {Endpoint::chat, "max_tokens", "-1"},
                                           {Endpoint::chat, "stop", R"([""])"},
                                           {Endpoint::chat, "stop", "[1]"},
                                           {Endpoint::chat, "stop_token_ids", "[100]"},
                                           {Endpoint::chat, "stop_token_ids", "[-1]"},
                                           {Endpoint::chat, "logit_bias", R"({"100": 1})"},
                                           {Endpoint::chat, "logit_bias", R"({"a": 1})"},
                                           {Endpoint::chat, "top_logprobs", "2"},
                                           {Endpoint::chat, "stream_options", "{}"},
                                           {Endpoint::chat, "tool_choice", R"("required")"},
                                           {Endpoint::chat, "tool_choice", R"("some")"},
                                           {Endpoint::chat, "cache_salt", R"("")"},
                                           {Endpoint::chat, "request_id", R"("a b")"},
                                           {Endpoint::chat, "messages", "[]"},
                                           {Endpoint::chat, "messages", "[{}]"},
                                           {Endpoint::chat, "messages", R"([{"role": "user"}])"},
                                           {Endpoint::completions, "logprobs", "21"},
                                           {Endpoint::completions, "prompt", "[]"},
                                           {Endpoint::completions, "prompt", "[100]"},
                                           {Endpoint::completions, "prompt", R"([1, "a"])"},
                                           {Endpoint::completions, "prompt", "[[1], 2]"},
                                           {Endpoint::completions, "min_tokens", "17"}}) {
    const Refusal refusal = refusal_of(one.endpoint, one.field, one.value);
    EXPECT_EQ(refusal.param.substr(0, std::string(one.field).size()), one.field)
        << one.field << " " << one.value << ": " << refusal.message;
  }
}

TEST(Protocol, ReadsPromptsOfEveryForm) {
  const auto prompts = [](const std::string& json) {
    OrderedJson body;
    body["prompt"] = OrderedJson::parse(json);
    return parse_completion(body, limits_of_tests()).prompts;
  };
  EXPECT_EQ(prompts(R"("a")")[0].text, "a");
  EXPECT_EQ(prompts("[1, 2]")[0].ids, (std::vector<int32_t>{1, 2}));
  EXPECT_EQ(prompts("[1, 2]").size(), 1u);
  EXPECT_EQ(prompts(R"(["a", [3.0]])")[1].ids, std::vector<int32_t>{3});
  EXPECT_TRUE(prompts(R"(["a", [3]])")[1].is_ids);
}

// OpenAI's default, and what vLLM makes of null.
TEST(Protocol, FormatsHaveNoKeysThatAreIgnored) {
  OrderedJson body = minimal(Endpoint::chat);
  body["response_format"] = OrderedJson::parse(
      R"({"type": "json_object", "schema": {"properties": {"a": {"const": 1}}}})");
  const ChatCall call = parse_chat(body, limits_of_tests());
  EXPECT_EQ(call.rule.kind, JsonRule::Kind::schema);
  EXPECT_EQ(call.rule.schema->dump(), R"({"properties":{"a":{"const":1}}})");
  for (const auto& [format, param] : std::vector<std::pair<const char*, const char*>>{
           {R"({"type": "text", "json_schema": {"a": 1}})", "response_format.json_schema"},
           {R"({"type": "json_object", "grammar": "x"})", "response_format.grammar"},
           {R"({"type": "json_object", "schema": 3})", "response_format.schema"},
           {R"({"type": "json_schema", "json_schema": {"schema": {}}, "schema": {}})",
            "response_format.schema"},
           {R"({"type": "json_schema", "json_schema": {"schema": {}, "scheme": {}}})",
            "response_format.json_schema.scheme"}}) {
    EXPECT_EQ(refusal_of(Endpoint::chat, "response_format", format).param, param) << format;
  }
  const char* full = R"({"type": "json_schema", "json_schema": {"name": "n", "strict": true,
                         "description": "d", "schema": {}}})";
  EXPECT_EQ(refusal_of(Endpoint::chat, "response_format", full).status, 0);
}

TEST(Protocol, RefusalsNameTheLimitOrTheType) {
  std::string bias;
  for (int i = 0; i < 10'001; ++i) {
    bias += "\"" + std::to_string(i) + "\": 1,";
  }
  bias.pop_back();
  try {
    parse_body("{\"prompt\": \"a\", \"logit_bias\": {" + bias + "}}");
    FAIL() << "it is accepted";
  } catch (const Refusal& refusal) {
    EXPECT_NE(refusal.message.find("'logit_bias' has more than 10000 keys"), std::string::npos)
        << refusal.message;
  }
  OrderedJson body = minimal(Endpoint::chat);
  body["tools"] = OrderedJson::parse(R"([{"type": "function", "function": {"name": "f"}}])");
  body["tool_choice"] = {{"type", "allowed_tools"}};
  Refusal refusal = refusal_of(Endpoint::chat, body);
  EXPECT_EQ(refusal.param, "tool_choice.type");
  EXPECT_NE(refusal.message.find("allowed_tools"), std::string::npos) << refusal.message;
  refusal = refusal_of(Endpoint::completions, "prompt", "[]");
  EXPECT_NE(refusal.message.find("empty"), std::string::npos) << refusal.message;
}

TEST(Protocol, NullTakesTheDefaultOfMaxTokens) {
  const OrderedJson text = OrderedJson::parse(R"({"prompt": "a", "max_tokens": null})");
  EXPECT_EQ(parse_completion(text, limits_of_tests()).max_tokens, 16);
  OrderedJson chat = minimal(Endpoint::chat);
  chat["max_tokens"] = nullptr;
  EXPECT_FALSE(parse_chat(chat, limits_of_tests()).max_tokens.has_value());
  // The model's files have a smaller one.
  CallLimits limits = limits_of_tests();
  limits.max_tokens = 7;
  EXPECT_EQ(parse_completion(text, limits).max_tokens, 7);
  limits.max_tokens = 70;
  EXPECT_EQ(parse_completion(text, limits).max_tokens, 16);
}

TEST(Protocol, ReadsMessagesAsTemplatesExpectThem) {
  const ChatCall call = parse_chat(OrderedJson::parse(R"({"messages": [
      {"role": "user", "content": [{"type": "text", "text": "a", "x": 1}, "b"]},
      {"role": "assistant", "reasoning": "r", "tool_calls": [
        {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"z\": 1, \"a\": 2}"}}]},
      {"role": "tool", "tool_call_id": "1", "content": "ok"},
      {"role": "assistant", "content": "done", "tool_calls": []}]})"),
                                   limits_of_tests());
  const OrderedJson& messages = *call.messages;
  EXPECT_EQ(messages[0]["content"].dump(),
            R"([{"type":"text","text":"a"},{"type":"text","text":"b"}])");
  EXPECT_EQ(messages[1]["content"], "");  // templates concatenate it
  EXPECT_EQ(messages[1]["tool_calls"][0]["function"]["arguments"].dump(), R"({"z":1,"a":2})");
  EXPECT_EQ(messages[1]["reasoning_content"], "r");
  EXPECT_FALSE(messages[3].contains("tool_calls"));
  EXPECT_EQ(
      refusal_of(Endpoint::chat, "messages",
                 R"([{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}])")
          .param,
      "messages[0].content");
  EXPECT_EQ(refusal_of(Endpoint::chat, "messages", R"([{"role": "assistant", "tool_calls": [
                           {"function": {"name": "f", "arguments": "{"}}]}])")
                .param,
            "messages[0].tool_calls[0].function.arguments");
}

TEST(Protocol, DefaultsComeFromTheModelsFiles) {
  CallLimits limits = limits_of_tests();
  limits.temperature = 0.6;
  limits.top_k = 20;
  limits.min_p = 0.05;
  limits.repetition_penalty = 1.05;
  const ChatCall plain = parse_chat(minimal(Endpoint::chat), limits);
  EXPECT_EQ(plain.sampling.temperature, 0.6);
  EXPECT_EQ(plain.sampling.top_k, 20);
  EXPECT_EQ(plain.sampling.top_p, 1);
  EXPECT_EQ(plain.sampling.min_p, 0.05);
  EXPECT_EQ(plain.sampling.repetition_penalty, 1.05);
  OrderedJson body = minimal(Endpoint::chat);
  body["temperature"] = 0;
  body["top_k"] = -1;
  body["min_p"] = 0;
  body["repetition_penalty"] = 1;
  const ChatCall given = parse_chat(body, limits);
  EXPECT_EQ(given.sampling.temperature, 0);
  EXPECT_EQ(given.sampling.top_k, 0);
  EXPECT_EQ(given.sampling.min_p, 0);
  EXPECT_EQ(given.sampling.repetition_penalty, 1);
}

TEST(Protocol, MalformedBodiesAreRefused) {
  for (const std::string& body :
       {std::string(), std::string("{"), std::string("[1] x"), std::string("{\"a\": \"\xff\"}"),
        std::string("{\"a\": 1, \"a\": 2}"), std::string(100'000, '['), std::string("\0", 1)}) {
    EXPECT_THROW(parse_body(body), Refusal) << body.substr(0, 40);
  }
  EXPECT_THROW(parse_completion(parse_body("[1]"), limits_of_tests()), Refusal);
  EXPECT_THROW(parse_completion(parse_body("3"), limits_of_tests()), Refusal);
}

/// Changes, deletes, doubles or inserts bytes.
std::string mutated(std::string text, Rng* rng) {
  for (uint64_t i = 0, n = 1 + rng->below(4); i < n && !text.empty(); ++i) {
    const size_t at = rng->below(text.size());
    switch (rng->below(4)) {
      case 0:
        text[at] = static_cast<char>(rng->below(256));
        break;
      case 1:
        text.erase(at, 1 + rng->below(8));
        break;
      case 2:
        text.insert(at, text.substr(at, rng->below(16)));
        break;
      default:
        text.insert(at, 1, "{}[]\":,0-e"[rng->below(10)]);
    }
  }
  return text;
}

TEST(Protocol, MutatedBodiesAreParsedOrRefused) {
  Rng rng(7);
  int64_t accepted = 0;
  for (const Endpoint endpoint : kEndpoints) {
    OrderedJson full = minimal(endpoint);
    for (const RequestField& field : request_fields()) {
      const bool has = field.endpoints.find(static_cast<char>(endpoint)) != field.endpoints.npos;
      if (has && field.ours == FieldUse::supported && field.example != "SPECIAL") {
        full[std::string(field.name)] = OrderedJson::parse(field.example);
      }
    }
    full["logprobs"] = endpoint == Endpoint::chat ? OrderedJson(true) : OrderedJson(2);
    for (const char* exclusive : {"prompt_logprobs", "structured_outputs", "echo"}) {
      full.erase(exclusive);
    }
    EXPECT_EQ(refusal_of(endpoint, full).message, "");
    const std::string text = full.dump();
    for (int i = 0; i < 3000; ++i) {
      try {
        parse_at(endpoint, parse_body(mutated(text, &rng)));
        ++accepted;
      } catch (const Refusal& refusal) {
        EXPECT_FALSE(refusal.message.empty());
        error_json(refusal);
      }
    }
  }
  EXPECT_GT(accepted, 0);
}

TEST(Refusal, HasOpenAisErrorBody) {
  const auto json = OrderedJson::parse(
      error_json({.status = 400, .message = "a \"b\" \xff", .param = "n", .code = ""}));
  EXPECT_EQ(json.dump(),
            "{\"error\":{\"message\":\"a \\\"b\\\" \xef\xbf\xbd\",\"type\":"
            "\"invalid_request_error\",\"param\":\"n\",\"code\":null}}");
  const HttpResponse busy = error_response({.status = 429, .message = "x", .retry_after_s = 2});
  EXPECT_EQ(busy.headers[0], (std::pair<std::string, std::string>("Retry-After", "2")));
}

}  // namespace
}  // namespace hocket::serve
