// SPDX-License-Identifier: Apache-2.0
// Endpoints over a service that echoes, without sockets.
#include "serve/openai/api.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/text.h"
#include "tests/serve/serve_util.h"

namespace hocket::serve {
namespace {

using OrderedJson = nlohmann::ordered_json;

class ApiTest : public testing::Test {
 protected:
  HttpResponse ask(const std::string& path, const OrderedJson& body,
                   const std::string& method = "POST") {
    HttpRequest request;
    request.method = method;
    request.path = path;
    request.address = "127.0.0.1";
    request.headers = headers;
    request.body = body.is_null() ? "" : body.dump();
    if (api == nullptr) {
      api = std::make_unique<Api>(options, service, tokenizer, &chat_template);
    }
    return api->handle(request, peer);
  }
  OrderedJson get(const std::string& path) { return json_of(ask(path, nullptr, "GET")); }
  OrderedJson json_of(const HttpResponse& response) {
    EXPECT_EQ(response.status, 200) << response.body;
    return OrderedJson::parse(response.body);
  }
  OrderedJson complete(const std::string& body) {
    return json_of(ask("/v1/completions", OrderedJson::parse(body)));
  }
  OrderedJson chat(const std::string& body) {
    return json_of(ask("/v1/chat/completions", OrderedJson::parse(body)));
  }
  std::vector<OrderedJson> stream(const std::string& path, const std::string& body) {
    const HttpResponse response = ask(path, OrderedJson::parse(body));
    EXPECT_EQ(response.status, 200) << response.body;
    EXPECT_EQ(response.type, "text/event-stream");
    FakeStream out;
    if (response.stream != nullptr) {
      response.stream(out);
    }
    return out.events();
  }
  /// The error of a refusal.
  OrderedJson error(int status, const std::string& path, const std::string& body) {
    const HttpResponse response = ask(path, OrderedJson::parse(body));
    EXPECT_EQ(response.status, status) << response.body;
    return OrderedJson::parse(response.body)["error"];
  }

  FakeService service;
  const data::Tokenizer tokenizer = byte_tokenizer();
  const data::ChatTemplate chat_template = plain_template();
  ApiOptions options = fake_options();
  std::vector<std::pair<std::string, std::string>> headers;
  FakePeer peer;
  std::unique_ptr<Api> api;
};

TEST_F(ApiTest, CompletionHasTextAndUsage) {
  const OrderedJson json = complete(R"({"model": "alias", "prompt": "Hello"})");
  EXPECT_EQ(json["object"], "text_completion");
  EXPECT_EQ(json["model"], "fake");
  EXPECT_EQ(json["id"].get<std::string>().substr(0, 5), "cmpl-");
  const OrderedJson& choice = json["choices"][0];
  EXPECT_EQ(choice["text"], "Hello");
  EXPECT_EQ(choice["finish_reason"], "stop");
  EXPECT_TRUE(choice["stop_reason"].is_null());
  EXPECT_TRUE(choice["logprobs"].is_null());
  // The end of text is a token, too.
  EXPECT_EQ(
      json["usage"].dump(),
      R"({"prompt_tokens":5,"total_tokens":11,"completion_tokens":6,"prompt_tokens_details":{"cached_tokens":0}})");
}

TEST_F(ApiTest, CompletionsOfListsAreInOrder) {
  const OrderedJson json = complete(R"({"prompt": ["ab", [99, 100]], "n": 2, "max_tokens": 1})");
  ASSERT_EQ(json["choices"].size(), 4u);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(json["choices"][i]["index"], i);
    EXPECT_EQ(json["choices"][i]["text"], i < 2 ? "a" : "c");
    EXPECT_EQ(json["choices"][i]["finish_reason"], "length");
  }
  EXPECT_EQ(json["usage"]["prompt_tokens"], 4);
  EXPECT_EQ(json["usage"]["completion_tokens"], 4);
  const std::vector<Request> requests = service.requests();
  EXPECT_EQ(requests[1].sampling.sample, 1);
  EXPECT_EQ(requests[2].sampling.sample, 0);
  EXPECT_EQ(requests[0].sampling.seed, requests[1].sampling.seed);
}

TEST_F(ApiTest, EchoHasLogprobsAsLmEvalReadsThem) {
  const OrderedJson json = complete(
      R"({"prompt": [[97, 98, 99]], "echo": true, "logprobs": 1, "max_tokens": 1, "temperature": 0, "seed": 1234})");
  const OrderedJson& choice = json["choices"][0];
  EXPECT_EQ(choice["text"], "abca");
  const OrderedJson& logprobs = choice["logprobs"];
  EXPECT_EQ(logprobs["tokens"].dump(), R"(["a","b","c","a"])");
  ASSERT_EQ(logprobs["token_logprobs"].size(), 4u);
  EXPECT_TRUE(logprobs["token_logprobs"][0].is_null());
  EXPECT_TRUE(logprobs["top_logprobs"][0].is_null());
  EXPECT_DOUBLE_EQ(logprobs["token_logprobs"][1], -0.098);
  // The alternatives and the token itself; the best of fake_logprobs is token 0.
  EXPECT_DOUBLE_EQ(logprobs["top_logprobs"][1]["b"], -0.098);
  EXPECT_DOUBLE_EQ(logprobs["top_logprobs"][1][std::string(1, '\0')], 0);
  EXPECT_EQ(logprobs["text_offset"].dump(), "[0,1,2,3]");
  EXPECT_FALSE(choice.contains("prompt_logprobs"));
  EXPECT_EQ(service.requests()[0].prompt_logprobs, 1);
  EXPECT_EQ(service.requests()[0].sampling.seed, 1234u);
}

TEST_F(ApiTest, LogprobsHaveTheTokenThatEnds) {
  // lm-eval leaves out the last row: that of the token which is made after the prompt.
  const std::string body = R"("logprobs": 1, "max_tokens": 1, "echo": true, "temperature": 0})";
  service.set_reply("c");
  OrderedJson choice =
      complete(R"({"prompt": "ab", "stop_token_ids": [99], )" + body)["choices"][0];
  EXPECT_EQ(choice["text"], "ab");
  EXPECT_EQ(choice["finish_reason"], "stop");
  EXPECT_EQ(choice["logprobs"]["tokens"].dump(), R"(["a","b","c"])");
  EXPECT_EQ(choice["logprobs"]["token_logprobs"].size(), 3u);
  choice =
      chat(R"({"messages": [{"role": "user", "content": "x"}], "logprobs": true})")["choices"][0];
  EXPECT_EQ(choice["message"]["content"], "c");
  ASSERT_EQ(choice["logprobs"]["content"].size(), 2u);
  EXPECT_EQ(choice["logprobs"]["content"][1]["token"], "<|end|>");
}

TEST_F(ApiTest, OffsetsCountCharactersAndBytesAreNamed) {
  const OrderedJson json = complete(R"({"prompt": "é!", "logprobs": 0})");
  const OrderedJson& logprobs = json["choices"][0]["logprobs"];
  EXPECT_EQ(logprobs["tokens"][0], "bytes:\\xc3");
  EXPECT_EQ(logprobs["text_offset"].dump(), "[0,1,1,2]");
  const OrderedJson ids = complete(
      R"({"prompt": "a", "logprobs": 0, "return_tokens_as_token_ids": true, "max_tokens": 1})");
  EXPECT_EQ(ids["choices"][0]["logprobs"]["tokens"][0], "token_id:97");
}

TEST_F(ApiTest, OffsetsBeginWithTheTextAndNotBeforeIt) {
  // lm-eval's gguf looks for the first token at or behind the context's length.
  options.beginning = {kEndToken};
  service.set_reply("c");
  const OrderedJson logprobs =
      complete(R"({"prompt": "ab", "echo": true, "logprobs": 0, "max_tokens": 1})")["choices"][0]
                                                                                   ["logprobs"];
  EXPECT_EQ(logprobs["tokens"].dump(), R"(["<|end|>","a","b","c"])");
  EXPECT_EQ(logprobs["text_offset"].dump(), "[0,0,1,2]");
  // Given as an id, the same token is part of the text.
  const OrderedJson ids = complete(
      R"({"prompt": [256, 97], "echo": true, "logprobs": 0, "max_tokens": 1})")["choices"][0];
  EXPECT_EQ(ids["text"], "<|end|>ac");
  EXPECT_EQ(ids["logprobs"]["text_offset"].dump(), "[0,7,8]");
}

TEST_F(ApiTest, EchoAndPromptLogprobsHaveTheirOwnAlternatives) {
  const OrderedJson choice = complete(
      R"({"prompt": "ab", "echo": true, "logprobs": 1, "prompt_logprobs": 3, "max_tokens": 0})")
      ["choices"][0];
  EXPECT_EQ(choice["logprobs"]["top_logprobs"][1].size(), 2u);  // and the token itself
  EXPECT_EQ(choice["prompt_logprobs"][1].size(), 4u);
}

TEST_F(ApiTest, ReadsThePromptAloneWithoutTokens) {
  const OrderedJson json = complete(
      R"({"prompt": "ab", "max_tokens": 0, "echo": true, "logprobs": 0, "prompt_logprobs": 1, "return_token_ids": true})");
  const OrderedJson& choice = json["choices"][0];
  EXPECT_EQ(choice["text"], "ab");
  EXPECT_EQ(choice["finish_reason"], "length");
  EXPECT_EQ(choice["logprobs"]["tokens"].size(), 2u);
  EXPECT_TRUE(choice["prompt_logprobs"][0].is_null());
  EXPECT_DOUBLE_EQ(choice["prompt_logprobs"][1]["98"]["logprob"], -0.098);
  EXPECT_EQ(choice["prompt_logprobs"][1]["98"]["rank"], 99);  // beyond the alternatives
  EXPECT_EQ(choice["prompt_logprobs"][1]["0"]["rank"], 1);
  EXPECT_EQ(choice["prompt_token_ids"].dump(), "[97,98]");
  EXPECT_EQ(choice["token_ids"].dump(), "[]");
}

TEST_F(ApiTest, StopsAreReported) {
  OrderedJson choice = complete(R"({"prompt": "abcdef", "stop": ["x", "cd"]})")["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "stop");
  EXPECT_EQ(choice["stop_reason"], "cd");
  choice = complete(R"({"prompt": "abcdef", "stop_token_ids": [99]})")["choices"][0];
  EXPECT_EQ(choice["text"], "ab");
  EXPECT_EQ(choice["stop_reason"], 99);
  EXPECT_EQ(
      complete(R"({"prompt": "ab", "ignore_eos": true, "max_tokens": 4})")["choices"][0]["text"],
      "ab..");
}

TEST_F(ApiTest, SamplingReachesTheService) {
  complete(
      R"({"prompt": "ab", "temperature": 0.3, "top_k": 4, "top_p": 0.5, "min_p": 0.1, "repetition_penalty": 1.5,
               "presence_penalty": 1, "frequency_penalty": -1, "logit_bias": {"7": -3}, "seed": -1, "min_tokens": 2,
               "cache_salt": "s", "priority": -4, "include_stop_str_in_output": true, "stop": "z"})");
  const Request request = service.requests()[0];
  EXPECT_EQ(request.sampling.temperature, 0.3);
  EXPECT_EQ(request.sampling.top_k, 4);
  EXPECT_EQ(request.sampling.top_p, 0.5);
  EXPECT_EQ(request.sampling.min_p, 0.1);
  EXPECT_EQ(request.sampling.repetition_penalty, 1.5);
  EXPECT_EQ(request.sampling.presence_penalty, 1);
  EXPECT_EQ(request.sampling.frequency_penalty, -1);
  EXPECT_EQ(request.sampling.logit_bias, (std::vector<std::pair<int32_t, double>>{{7, -3}}));
  EXPECT_EQ(request.sampling.seed, UINT64_MAX);
  EXPECT_EQ(request.min_tokens, 2);
  EXPECT_EQ(request.max_tokens, 16);
  EXPECT_EQ(request.cache_salt, "s");
  EXPECT_EQ(request.priority, -4);
  EXPECT_TRUE(request.include_stop);
  EXPECT_EQ(request.stops, std::vector<std::string>{"z"});
  EXPECT_EQ(request.stop_tokens, std::vector<int32_t>{kEndToken});
  // Without a seed every request has another one.
  complete(R"({"prompt": "ab"})");
  complete(R"({"prompt": "ab"})");
  EXPECT_NE(service.requests()[1].sampling.seed, service.requests()[2].sampling.seed);
}

TEST_F(ApiTest, CompletionStreams) {
  const auto events = stream("/v1/completions",
                             R"({"prompt": "abc", "stream": true, "echo": true, "logprobs": 0,
                                 "stream_options": {"include_usage": true}})");
  std::string text;
  std::vector<int64_t> offsets;
  for (size_t i = 0; i + 1 < events.size(); ++i) {
    text += events[i]["choices"][0]["text"];
    for (const auto& offset : events[i]["choices"][0]["logprobs"]["text_offset"]) {
      offsets.push_back(offset);
    }
    EXPECT_EQ(events[i]["id"], events[0]["id"]);
    EXPECT_FALSE(events[i].contains("usage"));
    EXPECT_EQ(events[i]["choices"][0]["finish_reason"].is_null(), i + 2 < events.size());
  }
  EXPECT_EQ(text, "abcabc");
  EXPECT_EQ(offsets, (std::vector<int64_t>{0, 1, 2, 3, 4, 5, 6}));
  EXPECT_TRUE(events.back()["choices"].empty());
  EXPECT_EQ(events.back()["usage"]["completion_tokens"], 4);
}

TEST_F(ApiTest, ChatHasAMessage) {
  service.set_reply("Hi é");
  const OrderedJson json = chat(R"({"messages": [{"role": "system", "content": "s"},
      {"role": "user", "content": "Hello"}], "logprobs": true, "top_logprobs": 2, "return_token_ids": true,
      "return_sampled_logprobs": true, "return_prompt_text": true})");
  EXPECT_EQ(json["object"], "chat.completion");
  const OrderedJson& choice = json["choices"][0];
  EXPECT_EQ(choice["message"]["role"], "assistant");
  EXPECT_EQ(choice["message"]["content"], "Hi é");
  EXPECT_FALSE(choice["message"].contains("tool_calls"));
  EXPECT_EQ(choice["finish_reason"], "stop");
  const OrderedJson& first = choice["logprobs"]["content"][0];
  EXPECT_EQ(first["token"], "H");
  EXPECT_DOUBLE_EQ(first["logprob"], -0.072);
  EXPECT_DOUBLE_EQ(first["sampled_logprob"], -0.144);
  EXPECT_EQ(first["bytes"].dump(), "[72]");
  EXPECT_EQ(first["top_logprobs"].size(), 2u);
  EXPECT_EQ(choice["token_ids"].dump(), "[72,105,32,195,169,256]");
  const std::string prompt = "<system>s|<user>Hello|<assistant>";
  EXPECT_EQ(tokenizer.decode(json["prompt_token_ids"].get<std::vector<int32_t>>()), prompt);
  EXPECT_EQ(tokenizer.decode(service.requests()[0].prompt), prompt);
  EXPECT_EQ(json["prompt_text"], prompt);
  EXPECT_TRUE(service.requests()[0].answer);
  // Without max_tokens the rest of the window.
  EXPECT_EQ(service.requests()[0].max_tokens, 4096 - std::ssize(prompt));
}

TEST_F(ApiTest, ChatStreams) {
  service.set_reply("<think>ab</think>Hi");
  const auto events =
      stream("/v1/chat/completions",
             R"({"messages": [{"role": "user", "content": "x"}], "stream": true, "n": 2,
                                 "stream_options": {"include_usage": true, "continuous_usage_stats": true}})");
  std::string content[2], reasoning[2];
  std::string finish[2];
  int64_t roles = 0;
  for (const OrderedJson& event : events) {
    if (!event["choices"].empty() && event["choices"][0]["delta"].contains("role")) {
      EXPECT_EQ(event["choices"][0]["delta"].dump(), R"({"role":"assistant","content":""})");
    }
    EXPECT_EQ(event["object"], "chat.completion.chunk");
    EXPECT_TRUE(event.contains("usage"));
    if (event["choices"].empty()) continue;
    const OrderedJson& choice = event["choices"][0];
    const size_t i = choice["index"];
    content[i] += choice["delta"].value("content", "");
    reasoning[i] += choice["delta"].value("reasoning", "");
    roles += choice["delta"].contains("role") ? 1 : 0;
    if (!choice["finish_reason"].is_null()) {
      finish[i] = choice["finish_reason"];
    }
  }
  for (const int i : {0, 1}) {
    EXPECT_EQ(content[i], "Hi");
    EXPECT_EQ(reasoning[i], "ab");
    EXPECT_EQ(finish[i], "stop");
  }
  EXPECT_EQ(roles, 2);
  EXPECT_EQ(events.back()["usage"]["completion_tokens"], 2 * 20);
}

TEST_F(ApiTest, ReasoningThatThePromptOpensIsSplit) {
  service.set_reply("ab</think>\nHi");
  const std::string opened = R"({"messages": [{"role": "user", "content": "x"}],
      "chat_template_kwargs": {"opening": "<think>\n"})";
  OrderedJson message = chat(opened + "}")["choices"][0]["message"];
  EXPECT_EQ(message["reasoning"], "ab");
  EXPECT_EQ(message["content"], "Hi");
  message = chat(opened + R"(, "include_reasoning": false})")["choices"][0]["message"];
  EXPECT_FALSE(message.contains("reasoning"));
  EXPECT_EQ(message["content"], "Hi");
}

constexpr const char* kTools =
    R"("messages": [{"role": "user", "content": "x"}], "tools": [{"type": "function", "function":
       {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}}])";

TEST_F(ApiTest, ToolCallsComeOutOfTheText) {
  service.set_reply(
      "See:\n<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1}}</tool_call>"
      "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 2}}</tool_call>");
  const std::string body = std::string("{") + kTools;
  OrderedJson choice = chat(body + "}")["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  EXPECT_EQ(choice["message"]["content"], "See:");
  ASSERT_EQ(choice["message"]["tool_calls"].size(), 2u);
  const OrderedJson& call = choice["message"]["tool_calls"][1];
  EXPECT_EQ(call["type"], "function");
  EXPECT_EQ(call["function"].dump(), R"({"name":"f","arguments":"{\"a\": 2}"})");
  EXPECT_NE(call["id"], choice["message"]["tool_calls"][0]["id"]);
  EXPECT_TRUE(tokenizer.decode(service.requests()[0].prompt).starts_with("[f]|<user>"));

  choice = chat(body + R"(, "parallel_tool_calls": false})")["choices"][0];
  EXPECT_EQ(choice["message"]["tool_calls"].size(), 1u);
  choice = chat(body + R"(, "tool_choice": "none"})")["choices"][0];
  EXPECT_FALSE(choice["message"].contains("tool_calls"));
  EXPECT_EQ(choice["finish_reason"], "stop");
  EXPECT_TRUE(tokenizer.decode(service.requests()[2].prompt).starts_with("<user>"));
}

TEST_F(ApiTest, ToolCallsStream) {
  service.set_reply("<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1}}</tool_call>");
  const auto events =
      stream("/v1/chat/completions", std::string("{\"stream\": true, ") + kTools + "}");
  std::string arguments, ids, names;
  for (const OrderedJson& event : events) {
    for (const OrderedJson& call :
         event["choices"][0]["delta"].value("tool_calls", OrderedJson::array())) {
      EXPECT_EQ(call["index"], 0);
      ids += call.value("id", "");
      names += call["function"].value("name", "");
      arguments += call["function"].value("arguments", "");
    }
  }
  EXPECT_EQ(names, "f");
  EXPECT_TRUE(ids.starts_with("call_"));
  EXPECT_EQ(arguments, "{\"a\": 1}");
  EXPECT_EQ(events.back()["choices"][0]["finish_reason"], "tool_calls");
}

TEST_F(ApiTest, ResponseFormatsBecomeConstraints) {
  std::vector<OrderedJson> schemas;
  options.constraint = [&](const OrderedJson* schema) {
    if (schema != nullptr && schema->contains("not")) fail("json", "not is not supported");
    schemas.push_back(schema == nullptr ? OrderedJson() : *schema);
    return std::make_shared<AnyConstraint>();
  };
  const std::string plain =
      R"({"messages": [{"role": "user", "content": "x"}], "n": 2, "response_format": )";
  chat(plain + R"({"type": "json_object"}})");
  EXPECT_TRUE(schemas.back().is_null());
  chat(plain +
       R"({"type": "json_schema", "json_schema": {"name": "s", "schema": {"z": 1, "a": 2}}}})");
  EXPECT_EQ(schemas.back().dump(), R"({"z":1,"a":2})");
  const auto requests = service.requests();
  ASSERT_EQ(requests.size(), 4u);
  EXPECT_NE(requests[2].constraint, nullptr);
  EXPECT_NE(requests[2].constraint, requests[3].constraint);
  const OrderedJson refused = error(
      400, "/v1/chat/completions",
      plain + R"({"type": "json_schema", "json_schema": {"name": "s", "schema": {"not": {}}}}})");
  EXPECT_NE(refused["message"].get<std::string>().find("not is not supported"), std::string::npos);
}

TEST_F(ApiTest, ForcedToolsBecomeConstraints) {
  std::string asked;
  options.tool_constraint = [&](const OrderedJson& tools, const std::string& parser,
                                const std::string& function, int64_t most) {
    asked = fmt::format("{} {} '{}' {}", tools.size(), parser, function, most);
    return std::make_shared<AnyConstraint>();
  };
  options.tool_parser = "";  // hermes then does
  service.set_reply(R"(<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>)");
  const std::string body = std::string("{") + kTools;
  OrderedJson choice = chat(body + R"(, "tool_choice": "required"})")["choices"][0];
  EXPECT_EQ(choice["message"]["tool_calls"][0]["function"]["arguments"], "{\"a\": 1}");
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  EXPECT_EQ(asked, "1 hermes '' -1");
  EXPECT_NE(service.requests()[0].constraint, nullptr);
  chat(body + R"(, "tool_choice": "required", "parallel_tool_calls": false})");
  EXPECT_EQ(asked, "1 hermes '' 1");
  choice = chat(
      body + R"(, "tool_choice": {"type": "function", "function": {"name": "f"}}})")["choices"][0];
  EXPECT_EQ(choice["message"]["tool_calls"][0]["function"]["name"], "f");
  EXPECT_EQ(choice["finish_reason"], "stop");
  EXPECT_EQ(asked, "1 hermes 'f' 1");
  EXPECT_EQ(error(400, "/v1/chat/completions", body + "}")["param"], "tool_choice");
}

/// Tells how its reasoning begins.
class ReasoningConstraint final : public TokenConstraint {
 public:
  explicit ReasoningConstraint(std::string* told) : told_(told) {}
  void allow(std::span<uint32_t> mask) override { std::ranges::fill(mask, ~uint32_t{0}); }
  void accept(int32_t) override {}
  bool may_end() const override { return true; }
  void begin_with_reasoning(bool is_open, const std::vector<int32_t>& ends) override {
    *told_ = fmt::format("{} {}", is_open ? "open" : "may begin", ends.at(0));
  }

 private:
  std::string* const told_;
};

TEST_F(ApiTest, ConstrainedTextsMayReason) {
  std::string told;
  options.constraint = [&](const OrderedJson*) {
    return std::make_shared<ReasoningConstraint>(&told);
  };
  service.set_reply("ab</think>\n\"abc\"");
  const std::string body = R"({"messages": [{"role": "user", "content": "x"}],
      "response_format": {"type": "json_object"}, "chat_template_kwargs": {"opening": )";
  OrderedJson message = chat(body + R"("<think>\n"}})")["choices"][0]["message"];
  EXPECT_EQ(told, "open 256");
  EXPECT_EQ(message["reasoning"], "ab");
  EXPECT_EQ(message["content"], "\"abc\"");
  service.set_reply("<think>ab</think>\"abc\"");
  message = chat(body + R"(""}})")["choices"][0]["message"];
  EXPECT_EQ(told, "may begin 256");
  EXPECT_EQ(message["reasoning"], "ab");
  EXPECT_EQ(message["content"], "\"abc\"");
  // The prompt has ended it.
  told = "";
  service.set_reply("\"abc\"");
  message = chat(body + R"("<think>\n\n</think>\n\n"}})")["choices"][0]["message"];
  EXPECT_EQ(told, "");
  EXPECT_EQ(message["content"], "\"abc\"");
}

TEST_F(ApiTest, ReasoningAloneHasNoContent) {
  service.set_reply("<think>ab");
  const OrderedJson choice =
      chat(R"({"messages": [{"role": "user", "content": "x"}]})")["choices"][0];
  EXPECT_EQ(choice["message"]["reasoning"], "ab");
  EXPECT_TRUE(choice["message"]["content"].is_null());
}

TEST_F(ApiTest, HiddenTokensHaveNoEventsOfTheirOwn) {
  service.set_reply(R"(<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>)");
  const std::string body = std::string("{") + kTools + R"(, "stream": true)";
  const auto empty = [](const std::vector<OrderedJson>& events) {
    return std::ranges::count_if(events, [](const OrderedJson& event) {
      const OrderedJson& choice = event["choices"][0];
      return choice["delta"].empty() && choice["finish_reason"].is_null();
    });
  };
  EXPECT_EQ(empty(stream("/v1/chat/completions", body + "}")), 0);
  // Their ids are asked for here.
  EXPECT_GT(empty(stream("/v1/chat/completions", body + R"(, "return_token_ids": true})")), 0);
}

TEST(Api, ToolsThatTheTemplateLeavesOutAreRefused) {
  FakeService service;
  const data::Tokenizer tokenizer = byte_tokenizer();
  const data::ChatTemplate without =
      data::ChatTemplate::parse("{% for m in messages %}{{ m.content }}{% endfor %}", "test");
  Api api(fake_options(), service, tokenizer, &without);
  FakePeer peer;
  HttpRequest request;
  request.method = "POST";
  request.path = "/v1/chat/completions";
  for (const char* choice : {"\"auto\"", "\"required\""}) {
    request.body = std::string("{") + kTools + ", \"tool_choice\": " + choice + "}";
    const HttpResponse response = api.handle(request, peer);
    EXPECT_EQ(response.status, 400) << response.body;
    EXPECT_EQ(OrderedJson::parse(response.body)["error"]["param"], "tools");
  }
}

/// Special tokens are left out of answers, but not those that mark reasoning.
TEST(Api, MarksOfReasoningThatAreSpecialAreSeen) {
  FakeService service;
  data::TokenizerSpec spec = byte_tokenizer().spec();
  for (const char* mark : {"<think>", "</think>"}) {
    data::AddedToken added;
    added.id = static_cast<int32_t>(spec.tokens.size());
    added.text = mark;
    added.special = true;
    added.in_vocabulary = true;
    spec.tokens.emplace_back(mark);
    spec.added.push_back(added);
  }
  const data::Tokenizer tokenizer(std::move(spec));
  const data::ChatTemplate chat_template = plain_template();
  ApiOptions options = fake_options();
  HttpRequest request;
  request.method = "POST";
  request.path = "/v1/chat/completions";
  request.body = R"({"messages": [{"role": "user", "content": "x"}]})";
  FakePeer peer;
  for (const bool splits : {true, false}) {
    options.splits_reasoning = splits;
    Api api(options, service, tokenizer, &chat_template);
    EXPECT_EQ(api.handle(request, peer).status, 200);
    EXPECT_EQ(service.requests().back().answer, !splits);
  }
}

TEST_F(ApiTest, RefusesWithOpenAisErrors) {
  EXPECT_EQ(error(404, "/v1/completions", R"({"model": "other", "prompt": "a"})")["code"],
            "model_not_found");
  const OrderedJson window =
      error(400, "/v1/completions", R"({"prompt": "abcdef", "max_tokens": 4095})");
  EXPECT_EQ(window["code"], "context_length_exceeded");
  EXPECT_NE(window["message"].get<std::string>().find("4096"), std::string::npos);
  EXPECT_NE(window["message"].get<std::string>().find("4101"), std::string::npos);
  EXPECT_EQ(error(400, "/v1/completions", R"({"prompt": "a", "suffix": "b"})")["param"], "suffix");
  EXPECT_EQ(error(400, "/v1/completions", R"({"prompt": "a", "best_of": 2})")["param"], "best_of");
  EXPECT_EQ(error(400, "/v1/completions", R"({"prompt": ""})")["type"], "invalid_request_error");
  EXPECT_EQ(error(404, "/v1/responses", "{}")["type"], "not_found_error");
  EXPECT_EQ(error(404, "/v1/embeddings", "{}")["type"], "not_found_error");
  EXPECT_EQ(error(404, "/nothing", "{}")["type"], "not_found_error");
  EXPECT_EQ(error(405, "/health", "{}")["type"], "invalid_request_error");
  EXPECT_EQ(
      error(
          400, "/v1/chat/completions",
          R"({"messages": [{"role": "user", "content": "x"}], "response_format": {"type": "json_object"}})")
          ["param"],
      "response_format");
  const OrderedJson large = error(
      400, "/v1/chat/completions",
      OrderedJson{{"messages", {{{"role", "user"}, {"content", std::string(5000, 'x')}}}}}.dump());
  EXPECT_EQ(large["code"], "context_length_exceeded");
  // A special token is one, however long its text is: 7,000 bytes are 1,000 tokens.
  std::string ends;
  for (int i = 0; i < 1000; ++i) {
    ends += "<|end|>";
  }
  EXPECT_EQ(ask("/v1/completions", {{"prompt", ends}, {"max_tokens", 1}}).status, 200);
}

TEST_F(ApiTest, LogsHaveNoTextOfRequests) {
  std::vector<std::string> lines;
  options.log = [&](const std::string& line) { lines.push_back(line); };
  error(400, "/v1/chat/completions", R"({"messages": "private words"})");
  error(400, "/v1/completions", R"({"prompt": [1, "private words"]})");
  complete(R"({"prompt": "private words"})");
  error(404, "/v1/completions", R"({"prompt": "private words", "model": "other"})");
  ASSERT_EQ(lines.size(), 4u);
  for (const std::string& line : lines) {
    EXPECT_EQ(line.find("private"), std::string::npos) << line;
  }
  EXPECT_NE(lines[0].find("400"), std::string::npos);
  EXPECT_NE(lines[0].find("messages"), std::string::npos);
  EXPECT_NE(lines[2].find("13 prompt tokens"), std::string::npos) << lines[2];
  EXPECT_NE(lines[3].find("other"), std::string::npos);
}

TEST_F(ApiTest, TokenizesAndDetokenizes) {
  OrderedJson json = json_of(ask("/tokenize", {{"prompt", "hé"}, {"return_token_strs", true}}));
  EXPECT_EQ(json["tokens"].dump(), "[104,195,169]");
  EXPECT_EQ(json["count"], 3);
  EXPECT_EQ(json["max_model_len"], 4096);
  EXPECT_EQ(json["token_strs"][0], "h");
  json = json_of(ask("/tokenize", {{"messages", {{{"role", "user"}, {"content", "x"}}}}}));
  EXPECT_EQ(json["count"], std::string("<user>x|<assistant>").size());
  json = json_of(ask("/tokenize", OrderedJson::parse(std::string("{") + kTools + "}")));
  EXPECT_EQ(json["count"], std::string("[f]|<user>x|<assistant>").size());
  EXPECT_EQ(json_of(ask("/detokenize", {{"tokens", {104, 195, 169}}}))["prompt"], "hé");
  EXPECT_EQ(ask("/detokenize", {{"tokens", {999}}}).status, 400);
  const OrderedJson unknown =
      error(400, "/tokenize", R"({"prompt": "a", "add_special_token": false})");
  EXPECT_EQ(unknown["message"],
            "add_special_token is no field that this path knows; try add_special_tokens");
  EXPECT_EQ(unknown["param"], "add_special_token");
  EXPECT_EQ(error(400, "/detokenize", R"({"tokens": [97], "prompt": "a"})")["param"], "prompt");
  EXPECT_EQ(json_of(ask("/tokenize", {{"prompt", ""}}))["count"], 0);
  const OrderedJson both =
      error(400, "/tokenize", R"({"prompt": "a", "messages": [{"role": "user", "content": "x"}]})");
  EXPECT_EQ(both["message"], "prompt and messages exclude each other");
  EXPECT_EQ(error(404, "/tokenize", R"({"prompt": "a", "model": "x"})")["code"], "model_not_found");
  EXPECT_EQ(ask("/tokenize", {{"prompt", "a"}, {"model", "alias"}}).status, 200);
  EXPECT_EQ(get("/tokenizer_info")["eos_token"], "<|end|>");
}

TEST_F(ApiTest, ServesModelsHealthMetricsAndThePage) {
  const OrderedJson models = get("/v1/models");
  EXPECT_EQ(models["data"].size(), 2u);
  EXPECT_EQ(models["data"][0]["id"], "fake");
  EXPECT_EQ(models["data"][0]["max_model_len"], 4096);
  EXPECT_EQ(get("/v1/models/alias")["id"], "alias");
  EXPECT_EQ(ask("/v1/models/x", nullptr, "GET").status, 404);
  EXPECT_EQ(get("/health")["status"], "ok");
  complete(R"({"prompt": "abc"})");
  const std::string metrics = ask("/metrics", nullptr, "GET").body;
  EXPECT_NE(metrics.find("vllm:request_success_total{engine=\"0\",model_name=\"fake\",finished_"
                         "reason=\"stop\"} 1.0"),
            std::string::npos);
  EXPECT_NE(
      metrics.find("vllm:request_generation_tokens_sum{engine=\"0\",model_name=\"fake\"} 3.0"),
      std::string::npos);
  const HttpResponse page = ask("/", nullptr, "GET");
  EXPECT_TRUE(page.type.starts_with("text/html"));
  EXPECT_NE(page.body.find("v1/chat/completions"), std::string::npos);
  EXPECT_EQ(page.body.find("http://"), std::string::npos) << "the page works offline";
  EXPECT_EQ(page.body.find("https://"), std::string::npos);
}

TEST_F(ApiTest, KeysAndOriginsAreChecked) {
  options.api_keys = {"secret", "other"};
  options.allowed_origins = {"http://good"};
  EXPECT_EQ(error(401, "/v1/completions", R"({"prompt": "a"})")["code"], "invalid_api_key");
  headers = {{"authorization", "Bearer secre"}};
  EXPECT_EQ(error(401, "/v1/completions", R"({"prompt": "a"})")["code"], "invalid_api_key");
  EXPECT_EQ(ask("/health", nullptr, "GET").status, 200);
  EXPECT_EQ(ask("/ping", nullptr, "GET").status, 200);
  EXPECT_EQ(ask("/v1/models", nullptr, "GET").status, 401);
  for (const char* given : {"Bearer other", "bearer other", "BEARER  other"}) {
    headers = {{"authorization", given}};
    complete(R"({"prompt": "a"})");
  }
  for (const char* given : {"Basic other", "Bearer", "Bearer ", "other", "Bearerother"}) {
    headers = {{"authorization", given}};
    EXPECT_EQ(ask("/v1/models", nullptr, "GET").status, 401) << given;
  }
  headers = {
      {"authorization", "Bearer other"}, {"origin", "http://bad"}, {"host", "localhost:8000"}};
  EXPECT_EQ(error(403, "/v1/completions", R"({"prompt": "a"})")["type"], "permission_error");
  headers[1].second = "http://localhost:8000";  // the server's own page
  complete(R"({"prompt": "a"})");
  headers[1].second = "http://good";
  const HttpResponse allowed = ask("/v1/completions", {{"prompt", "a"}});
  EXPECT_EQ(allowed.status, 200);
  EXPECT_EQ(allowed.headers[0].second, "http://good");
  EXPECT_EQ(ask("/v1/completions", nullptr, "OPTIONS").status, 204);
}

// A page of evil.example reaches a server on loopback once its name resolves to 127.0.0.1.
TEST_F(ApiTest, NamesOfOtherServersAreRefused) {
  const auto status = [&](const std::string& host) {
    headers = {{"host", host}};
    api.reset();
    return ask("/v1/models", nullptr, "GET").status;
  };
  EXPECT_EQ(status("evil.example"), 200);  // not on loopback
  options.hosts = {"box"};
  options.allowed_origins = {"https://llm.example:8443"};
  for (const char* host :
       {"", "localhost:8000", "LocalHost", "chat.localhost:8000", "127.0.0.1:8000", "192.168.1.7",
        "[::1]:8000", "[::1]", "box:8000", "Box", "llm.example"}) {
    EXPECT_EQ(status(host), 200) << host;
  }
  for (const char* host : {"evil.example:8000", "localhost.evil.example", "127.0.0.1.evil.example",
                           "boxes", "[::1", "llm.example.evil.example"}) {
    EXPECT_EQ(status(host), 403) << host;
  }
  headers = {{"host", "evil.example:8000"}, {"origin", "http://evil.example:8000"}};
  const OrderedJson refused = error(403, "/v1/completions", R"({"prompt": "a"})");
  EXPECT_NE(refused["message"].get<std::string>().find("'evil.example:8000' is no name"),
            std::string::npos);
  options.allowed_origins = {"*"};
  EXPECT_EQ(status("evil.example"), 200);
  // The page has no key.
  options.allowed_origins = {};
  options.api_keys = {"secret"};
  headers = {{"host", "llm.example"}, {"authorization", "Bearer secret"}};
  api.reset();
  EXPECT_EQ(ask("/v1/models", nullptr, "GET").status, 200);
  EXPECT_EQ(status("evil.example"), 401);
}

}  // namespace
}  // namespace hocket::serve
