// SPDX-License-Identifier: Apache-2.0
#include "serve/batch/row_answerer.h"

#include <gtest/gtest.h>

#include <mutex>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/log.h"
#include "base/stop.h"
#include "tests/data/examples/example_util.h"
#include "tests/serve/batch_util.h"

namespace hocket::serve {
namespace {

/// Answers at once with the prompt's length and the sample, or as the test sets it.
class EchoService : public Service {
 public:
  RequestId submit(Request request, OnUpdate on_update) override {
    if (busy-- > 0) throw Busy();
    if (std::ssize(request.prompt) + request.max_tokens > 100) fail("engine", "over 100 tokens");
    Update update;
    if (request.logprobs >= 0) {
      update.logprobs = {{.token = 1, .logprob = -0.5, .top = {{4, -0.25}}}};
    }
    update.text = fmt::format("{} {}", request.prompt.size(), request.sampling.sample);
    update.tokens = {1, 2};
    if (!hangs) {
      on_update(update);
      update.text = "!";
      update.tokens = {3};
      update.logprobs.clear();
      update.finish = finish;
      update.error = "the device is gone";
      update.model_failed = model_failed;
      update.stop_token = 9;
      on_update(update);
    }
    requests.push_back(std::move(request));
    return std::ssize(requests);
  }
  void cancel(RequestId) override { ++cancels; }
  Stats stats() const override { return {}; }
  int64_t max_model_len() const override { return 100; }
  int64_t vocab_size() const override { return 259; }

  std::vector<Request> requests;
  int busy = 0, cancels = 0;
  bool hangs = false, model_failed = false;
  Finish finish = Finish::stop;
};

class RowAnswererTest : public ::testing::Test {
 protected:
  RowModel model() {
    RowModel out;
    out.service = &service;
    out.tokenizer = &tokenizer;
    out.chat_template = &chat_template;
    out.openai = [this](const std::string& url, const std::string& body,
                        const std::function<bool()>&) {
      urls.push_back(url);
      bodies.push_back(nlohmann::json::parse(body));
      BodyAnswer answer = answers.front();
      answers.erase(answers.begin());
      return answer;
    };
    return out;
  }
  nlohmann::json line(const std::string& text, int64_t row = 4, int64_t samples = 1) {
    return line(text, row, {.max_tokens = 20, .samples = samples});
  }
  nlohmann::json line(const std::string& text, int64_t row, RowSettings settings) {
    const RowAnswerer answerer(model(), std::move(settings));
    result = answerer.answer({row, text}, [] { return false; });
    return result.json.empty() ? nlohmann::json() : nlohmann::json::parse(result.json);
  }
  std::string error(const std::string& text) {
    const nlohmann::json json = line(text);
    EXPECT_EQ(result.kind, RowResult::Kind::error) << text;
    EXPECT_EQ(json["line"], 5) << text;
    return json["error"]["message"];
  }

  const data::Tokenizer tokenizer = data::Tokenizer(data::chat_spec({}));
  const data::ChatTemplate chat_template = data::ChatTemplate::parse(
      "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}", "test");
  EchoService service;
  RowResult result;
  std::vector<BodyAnswer> answers;
  std::vector<std::string> urls;
  std::vector<nlohmann::json> bodies;
};

TEST_F(RowAnswererTest, AnswersPromptsOfEveryForm) {
  EXPECT_EQ(line("\"abc\"")["text"], "3 4!");
  EXPECT_EQ(result.kind, RowResult::Kind::output);
  EXPECT_EQ(result.prompt_tokens, 3);
  EXPECT_EQ(result.tokens, 3);
  EXPECT_FALSE(service.requests.back().answer);
  nlohmann::json json = line(R"({"prompt": "abcd", "custom_id": "x", "answer": "42"})");
  EXPECT_EQ(json["line"], 5);
  EXPECT_EQ(json["custom_id"], "x");
  EXPECT_EQ(json["finish_reason"], "stop");
  EXPECT_EQ(json["stop_reason"], 9);
  json = line(R"({"messages": [{"role": "user", "content": "Hi"}]})");
  EXPECT_EQ(json["prompt_tokens"], 8);
  EXPECT_TRUE(service.requests.back().answer);
  EXPECT_EQ(line(R"({"prompt": [{"role": "user", "content": "Hi"}]})")["prompt_tokens"], 8);
  EXPECT_TRUE(line(" \r").is_null());
  EXPECT_EQ(result.kind, RowResult::Kind::blank);
}

TEST_F(RowAnswererTest, ConversationsHaveToolsAndVariables) {
  const data::ChatTemplate with_tools = data::ChatTemplate::parse(
      "{% for t in tools or [] %}{{ t.function.name }}{% endfor %}{{ word or '' }}"
      "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}"
      "{{ c.function.arguments.a }}{% endfor %}{% endfor %}",
      "test");
  RowModel own = model();
  own.chat_template = &with_tools;
  const RowAnswerer answerer(own, {.max_tokens = 20});
  const auto prompt = [&](const std::string& text) {
    result = answerer.answer({4, text}, [] { return false; });
    EXPECT_EQ(result.kind, RowResult::Kind::output) << result.json;
    return tokenizer.decode(service.requests.back().prompt);
  };
  const std::string messages = R"({"messages": [{"role": "user", "content": "Hi"}])";
  EXPECT_EQ(prompt(messages + "}"), "Hi");
  EXPECT_EQ(prompt(messages + R"(, "label": 3, "chat_template_kwargs": {"word": "w"}})"), "wHi");
  EXPECT_EQ(prompt(messages + R"(, "tools": [{"type": "function", "function": {"name": "f"}}]})"),
            "fHi");
  EXPECT_EQ(prompt(messages + R"(, "tools": "[{\"name\": \"f\"}]"})"), "fHi");  // as JSON text
  // Arguments of calls are objects to templates, whatever the file has.
  EXPECT_EQ(prompt(R"({"messages": [{"role": "assistant", "content": "c", "tool_calls": [
                {"function": {"name": "f", "arguments": "{\"a\": 7}"}}]}]})"),
            "c7");
  // Text parts are one text, as in training, unless the template reads them.
  const std::string parts = R"({"messages": [{"role": "user", "content": [
      {"type": "text", "text": "Hi"}, {"type": "text", "text": "ho"}]}]})";
  EXPECT_EQ(prompt(parts), "Hi\nho");
  const data::ChatTemplate reads_parts = data::ChatTemplate::parse(
      "{% for m in messages %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endfor %}",
      "test");
  own.chat_template = &reads_parts;
  EXPECT_EQ(RowAnswerer(own, {.max_tokens = 20}).answer({4, parts}, [] { return false; }).kind,
            RowResult::Kind::output);
  EXPECT_EQ(tokenizer.decode(service.requests.back().prompt), "Hiho");
  result = answerer.answer({4, messages + R"(, "tools": 5})"}, [] { return false; });
  EXPECT_EQ(result.kind, RowResult::Kind::error);
}

TEST_F(RowAnswererTest, SamplesAreDrawnApart) {
  const nlohmann::json json = line("\"abc\"", 7, 3);
  ASSERT_EQ(json["samples"].size(), 3u);
  EXPECT_EQ(json["samples"][2]["text"], "3 23!");
  EXPECT_EQ(result.tokens, 9);
}

TEST_F(RowAnswererTest, FieldsOfRequestsBesideAPromptCount) {
  RowSettings settings{.max_tokens = 20, .stops = {"END"}, .stop_tokens = {7}};
  settings.sampling.temperature = 0.5;
  settings.sampling.presence_penalty = 0.25;
  settings.sampling.seed = 11;
  line(R"({"prompt": "x", "max_tokens": 3, "temperature": 0, "stop": "E", "stop_token_ids": [8]})",
       4, settings);
  Request request = service.requests.back();
  EXPECT_EQ(request.max_tokens, 3);
  EXPECT_EQ(request.sampling.temperature, 0);
  EXPECT_EQ(request.sampling.presence_penalty, 0.25);
  EXPECT_EQ(request.sampling.seed, 11u);
  EXPECT_EQ(request.stops, std::vector<std::string>{"E"});
  EXPECT_EQ(request.stop_tokens, (std::vector<int32_t>{7, 8}));
  line(R"({"messages": [{"role": "user", "content": "Hi"}], "max_completion_tokens": 4,
           "presence_penalty": 0, "ignore_eos": true, "top_k": 5, "seed": 9})",
       4, settings);
  request = service.requests.back();
  EXPECT_EQ(request.max_tokens, 4);
  EXPECT_EQ(request.sampling.temperature, 0.5);
  EXPECT_EQ(request.sampling.presence_penalty, 0);
  EXPECT_EQ(request.sampling.top_k, 5);
  EXPECT_EQ(request.sampling.seed, 9u);
  EXPECT_EQ(request.sampling.sample, 0);
  EXPECT_TRUE(request.stop_tokens.empty());
  // A row's number of texts, drawn apart from those of other rows.
  EXPECT_EQ(line(R"({"prompt": "x", "n": 2})", 4, settings)["samples"].size(), 2u);
  const uint64_t seed = service.requests.back().sampling.seed;
  line(R"({"prompt": "x", "n": 2})", 5, settings);
  EXPECT_NE(service.requests.back().sampling.seed, seed);
  // Null, fields without effect, and keys of the user's own.
  EXPECT_EQ(line(R"({"prompt": "x", "logprobs": null, "user": "me", "bad_words": [], "label": 3})")
                .count("text"),
            1u);
}

TEST_F(RowAnswererTest, OtherFieldsOfRequestsBesideAPromptAreErrors) {
  EXPECT_NE(error(R"({"prompt": "x", "response_format": {"type": "json_object"}})")
                .find("response_format has no meaning beside a prompt's text"),
            std::string::npos);
  EXPECT_NE(error(R"({"prompt": "x", "max_completion_tokens": 3})").find("max_completion_tokens"),
            std::string::npos);
  EXPECT_NE(error(R"({"messages": [{"role": "user", "content": "Hi"}], "logprobs": true})")
                .find("logprobs has no meaning beside messages"),
            std::string::npos);
  EXPECT_NE(error(R"({"prompt": "x", "temperature": "hot"})").find("temperature is"),
            std::string::npos);
  EXPECT_NE(error(R"({"prompt": "x", "min_tokens": 30})").find("min_tokens is 30"),
            std::string::npos);
}

TEST_F(RowAnswererTest, TheJobsSettingsAreDefaultsOfBodies) {
  const RowSettings settings{.body_defaults =
                                 R"({"max_tokens": 3, "temperature": 0, "n": 2, "logprobs": 1})"};
  answers.assign(4, {200, "{}"});
  line(R"({"url": "/v1/completions", "body": {"prompt": "x", "temperature": 0.5, "n": null}})", 4,
       settings);
  bodies.back().erase("seed");
  EXPECT_EQ(bodies.back(),
            nlohmann::json::parse(
                R"({"prompt": "x", "temperature": 0.5, "n": 2, "max_tokens": 3, "logprobs": 1})"));
  line(R"({"url": "/v1/chat/completions", "body": {"max_completion_tokens": 7}})", 4, settings);
  bodies.back().erase("seed");
  EXPECT_EQ(bodies.back(), nlohmann::json::parse(R"({"max_completion_tokens": 7, "temperature": 0,
                                 "n": 2, "logprobs": true, "top_logprobs": 1})"));
}

TEST_F(RowAnswererTest, CustomIdsComeBackAsTheyAre) {
  EXPECT_EQ(line(R"({"prompt": "x", "custom_id": 7})")["custom_id"], 7);
  EXPECT_EQ(line(R"({"prompt": "x", "custom_id": "7"})")["custom_id"], "7");
  EXPECT_FALSE(line(R"({"prompt": "x", "custom_id": null})").contains("custom_id"));
  answers.assign(2, {200, "{}"});
  EXPECT_EQ(line(R"({"custom_id": -7, "url": "/v1/completions", "body": {}})")["custom_id"], -7);
  EXPECT_TRUE(line(R"({"url": "/v1/completions", "body": {}})")["custom_id"].is_null());
  error(R"({"custom_id": 9, "prompt": 5})");
  EXPECT_EQ(nlohmann::json::parse(result.json)["custom_id"], 9);
  EXPECT_NE(error(R"({"prompt": "x", "custom_id": 18446744073709551615})").find("64 bits"),
            std::string::npos);
}

TEST_F(RowAnswererTest, LogProbabilitiesAndSplitSpecialTokens) {
  const nlohmann::json json = line("\"x\"", 4, {.max_tokens = 3, .logprobs = 2});
  EXPECT_EQ(json["token_logprobs"], nlohmann::json::parse("[-0.5]"));
  EXPECT_EQ(json["top_logprobs"],
            nlohmann::json::parse(R"([[{"token_id": 4, "logprob": -0.25}]])"));
  EXPECT_EQ(service.requests.back().logprobs, 2);
  const RowSettings split{.max_tokens = 3, .split_special_tokens = true};
  EXPECT_EQ(line("\"x\"", 4, split).count("text"), 1u);
  const auto is_error = [&](const char* text) {
    line(text, 4, split);
    return result.kind == RowResult::Kind::error;
  };
  EXPECT_TRUE(is_error(R"({"messages": [{"role": "user", "content": "Hi"}]})"));
  EXPECT_TRUE(is_error(R"({"url": "/v1/completions", "body": {}})"));
}

TEST_F(RowAnswererTest, WrongRowsAreErrors) {
  EXPECT_NE(error("{\"prompt\": ").find("[row]"), std::string::npos);
  EXPECT_NE(error("17").find("neither a string nor an object"), std::string::npos);
  EXPECT_NE(error("{\"text\": \"a\"}").find("not one of prompt, messages and body"),
            std::string::npos);
  EXPECT_NE(error(R"({"prompt": "a", "messages": []})").find("not one of"), std::string::npos);
  EXPECT_NE(error(R"({"prompt": 1})").find("prompt is no string"), std::string::npos);
  EXPECT_NE(error(R"({"messages": "a"})").find("no list"), std::string::npos);
  EXPECT_NE(error("{\"prompt\": \"" + std::string(90, 'a') + "\"}").find("over 100 tokens"),
            std::string::npos);
  EXPECT_NE(error(R"({"prompt": "a", "custom_id": []})").find("custom_id"), std::string::npos);
  EXPECT_NE(error("\"\xff\"").find("UTF-8"), std::string::npos);
  const RowAnswerer answerer(model(), {.max_tokens = 1});
  result = answerer.answer({4, "", true}, [] { return false; });
  EXPECT_EQ(result.kind, RowResult::Kind::error);
}

TEST_F(RowAnswererTest, FaultsOfTheServiceAreNotTheRows) {
  service.busy = 2;
  EXPECT_EQ(line("\"abc\"")["text"], "3 4!");
  service.finish = Finish::failed;
  EXPECT_THROW(line("\"abc\""), Error);
  // The engine goes on behind a text whose logits are not finite: only its row is wrong.
  service.model_failed = true;
  EXPECT_EQ(line("{\"prompt\": \"abc\", \"custom_id\": 7}")["error"]["code"], "logits_not_finite");
  EXPECT_EQ(result.kind, RowResult::Kind::error);
  EXPECT_EQ(nlohmann::json::parse(result.json)["custom_id"], 7);
  service.hangs = true;
  service.requests.clear();
  const RowAnswerer answerer(model(), {.max_tokens = 1});
  EXPECT_THROW(answerer.answer({0, "\"abc\""}, [&] { return !service.requests.empty(); }), Stopped);
  EXPECT_GE(service.cancels, 1);
}

TEST_F(RowAnswererTest, AnswersLinesOfOpenAisBatches) {
  const std::string row =
      R"({"custom_id": "r1", "method": "POST", "url": "/v1/chat/completions", "body": {"n": 1}})";
  answers = {{429, "{}"},
             {200, R"({"id":"c1","usage":{"prompt_tokens":3,"completion_tokens":4}})"}};
  const nlohmann::json json = line(row);
  EXPECT_EQ(json["custom_id"], "r1");
  EXPECT_EQ(json["response"]["status_code"], 200);
  EXPECT_EQ(json["response"]["request_id"], "c1");
  EXPECT_EQ(json["response"]["body"]["usage"]["prompt_tokens"], 3);
  EXPECT_TRUE(json["error"].is_null());
  EXPECT_EQ(result.prompt_tokens, 3);
  EXPECT_EQ(result.tokens, 4);
  EXPECT_EQ(urls, (std::vector<std::string>(2, "/v1/chat/completions")));
  EXPECT_EQ(bodies[0]["n"], 1);
  // Answered again it has the same seed; another row has another.
  answers = {{200, "{}"}, {200, "{}"}};
  line(row);
  line(row, 5);
  EXPECT_EQ(bodies[2]["seed"], bodies[0]["seed"]);
  EXPECT_NE(bodies[3]["seed"], bodies[0]["seed"]);
  // A null is no seed.
  answers = {{200, "{}"}};
  line(R"({"url": "/v1/chat/completions", "body": {"n": 1, "seed": null}})");
  EXPECT_EQ(bodies[4]["seed"], bodies[0]["seed"]);
  answers = {{400, R"({"error":{"message":"n is odd"}})"}};
  EXPECT_EQ(error(row), "n is odd");
  EXPECT_EQ(nlohmann::json::parse(result.json)["custom_id"], "r1");
  answers = {{500, R"({"error":{"message":"no memory"}})"}};
  EXPECT_THROW(line(row), Error);
  answers = {{500, R"({"error":{"message":"a logit is inf","code":"logits_not_finite"}})"}};
  EXPECT_EQ(error(row), "a logit is inf");
  EXPECT_EQ(nlohmann::json::parse(result.json)["error"]["code"], "logits_not_finite");
  EXPECT_NE(error(R"({"url": "/v1/completions", "body": {"stream": true}})").find("stream"),
            std::string::npos);
  EXPECT_NE(error(R"({"url": "/v1/completions", "method": "GET", "body": {}})").find("GET"),
            std::string::npos);
  EXPECT_NE(error(R"({"body": {}})").find("url"), std::string::npos);
}

/// A whole job on a service, with rows of every kind.
TEST_F(RowAnswererTest, AnswersAWholeJobOnAService) {
  const BatchFolder folder(120);
  const RowAnswerer answerer(model(), {.max_tokens = 10});
  const auto generator =
      pooled_generator(8, [&](const InputRow& row, const std::function<bool()>& cancelled) {
        static std::mutex one;  // the service of this test is not for several threads
        const std::lock_guard lock(one);
        return answerer.answer(row, cancelled);
      });
  const BatchSummary summary = run_batch_threads(folder.master_options(), {generator.get()});
  EXPECT_TRUE(summary.is_complete);
  EXPECT_EQ(summary.outputs, 120 - summary.blanks);
  EXPECT_EQ(std::ssize(service.requests), summary.outputs);
  EXPECT_EQ(summary.tokens, 3 * summary.outputs);
}

/// A generator that fails ends its worker, and the row is not lost.
TEST_F(RowAnswererTest, AFailureEndsTheWorker) {
  const BatchFolder folder(60);
  std::atomic<int> calls = 0;
  const auto failing = pooled_generator(4, [&](const InputRow& row, const std::function<bool()>&) {
    if (++calls > 10) fail_run("engine", "the device is gone");
    return fake_result(row);
  });
  SleepingGenerator good(500);
  BatchMasterOptions options = folder.master_options();
  std::vector<std::thread> threads;
  set_log_sink([](LogLevel, const std::string&) {});
  options.on_listen = [&](int port, const std::string&) {
    threads.emplace_back([&, port] {
      EXPECT_THROW(run_batch_worker(batch_worker_options(port, *failing)), Error);
      run_batch_worker(batch_worker_options(port, good));
    });
  };
  EXPECT_TRUE(run_batch_master(options).is_complete);
  for (std::thread& thread : threads) {
    thread.join();
  }
  set_log_sink(nullptr);
  folder.expect_whole();
}

}  // namespace
}  // namespace hocket::serve
