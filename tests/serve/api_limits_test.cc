// SPDX-License-Identifier: Apache-2.0
// Endpoints over a service that is busy, slow or failing: places, memory, time, and errors.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/text.h"
#include "serve/openai/api.h"
#include "tests/serve/serve_util.h"

namespace hocket::serve {
namespace {

using OrderedJson = nlohmann::ordered_json;

TEST(ApiLimits, BusyIs429WithRetryAfter) {
  FakeServer server({.limit = 2, .held = true});
  Client one(server.port()), two(server.port());
  const std::string body = R"({"prompt": "abc"})";
  one.send(post_text("/v1/completions", body));
  two.send(post_text("/v1/completions", body));
  while (server.service().running() < 2) {
    std::this_thread::yield();
  }
  const Answer busy = fetch(server.port(), "POST", "/v1/completions", body);
  EXPECT_EQ(busy.status, 429);
  EXPECT_NE(busy.head.find("Retry-After: 1\r\n"), std::string::npos) << busy.head;
  EXPECT_EQ(busy.json()["error"]["code"], "rate_limit_exceeded");
  server.service().release();
  EXPECT_EQ(parse_answer(one.read_until("}}}")).status, 200);
}

TEST(ApiLimits, TextsBeyondTheQueueWaitForThoseOfTheirRequest) {
  FakeServer server({.limit = 3});
  const Answer answer =
      fetch(server.port(), "POST", "/v1/completions", R"({"prompt": "ab", "n": 40})");
  ASSERT_EQ(answer.status, 200) << answer.body;
  const OrderedJson json = answer.json();
  ASSERT_EQ(json["choices"].size(), 40u);
  for (const OrderedJson& choice : json["choices"]) {
    EXPECT_EQ(choice["text"], "ab");
  }
}

TEST(ApiLimits, TextsThatWaitHoldNeitherPromptsNorConstraints) {
  std::atomic<int64_t> made{0};
  ApiOptions options = fake_options();
  options.constraint = [&](const OrderedJson*) {
    ++made;
    return std::make_shared<AnyConstraint>();
  };
  FakeServer server({.limit = 3, .held = true}, options);
  Client client(server.port());
  client.send(post_text("/v1/completions", R"({"prompt": [[97], [98]], "n": 100,
                        "response_format": {"type": "json_object"}})"));
  while (server.service().running() < 3) {
    std::this_thread::yield();
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(500));  // two more looks at the queue
  EXPECT_EQ(made, 4);
  const std::vector<Request> requests = server.service().requests();
  EXPECT_EQ(&requests[0].prompt.ids(), &requests[2].prompt.ids());
}

TEST(ApiLimits, RequestsBeyondTheMemoryForAllAreRefused) {
  ByteBudget budget(20'000);
  ApiOptions options = fake_options();
  options.budget = &budget;
  HttpOptions http;
  http.budget = &budget;
  FakeServer server({.window = 100'000, .held = true}, options, http);
  const auto ask = [&](int64_t bytes) {
    return fetch(server.port(), "POST", "/v1/completions",
                 fmt::format(R"({{"prompt": "{}"}})", std::string(bytes, 'a')));
  };
  Client first(server.port());
  first.send(
      post_text("/v1/completions", fmt::format(R"({{"prompt": "{}"}})", std::string(2000, 'a'))));
  while (server.service().running() < 1) {
    std::this_thread::yield();
  }
  EXPECT_GE(budget.held(), 4 * 2000);  // its tokens
  const Answer busy = ask(3000);
  EXPECT_EQ(busy.status, 429) << busy.body;
  EXPECT_NE(busy.head.find("Retry-After: 1\r\n"), std::string::npos) << busy.head;
  EXPECT_EQ(ask(15'000).status, 429);  // its body alone
  // Values of JSON take more than their text: such a body never fits.
  std::string ids;
  for (int i = 0; i < 1000; ++i) {
    ids += ",1";
  }
  const Answer large =
      fetch(server.port(), "POST", "/v1/completions", fmt::format(R"({{"prompt": [1{}]}})", ids));
  EXPECT_EQ(large.status, 413) << large.body;
  server.service().release();
  EXPECT_EQ(parse_answer(first.read_until("}}}")).status, 200);
  for (int i = 0; i < 1000 && budget.held() > 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  EXPECT_EQ(budget.held(), 0);
}

TEST(ApiLimits, ARequestWithoutAPlaceIsNotRead) {
  ApiOptions options = fake_options();
  options.max_streams = 1;
  FakeServer server({.held = true}, options);
  Client first(server.port());
  first.send(post_text("/v1/completions", R"({"prompt": "abc"})"));
  while (server.service().running() < 1) {
    std::this_thread::yield();
  }
  EXPECT_EQ(fetch(server.port(), "POST", "/v1/completions", "no JSON").status, 429);
  EXPECT_EQ(fetch(server.port(), "POST", "/v1/chat/completions", "no JSON").status, 429);
  server.service().release();
}

TEST(ApiLimits, FailuresAreErrors) {
  FakeServer server({.reply = "abcdef", .failure = "rank 1 was killed"});
  const Answer whole = fetch(server.port(), "POST", "/v1/completions", R"({"prompt": "x"})");
  EXPECT_EQ(whole.status, 500);
  EXPECT_EQ(whole.json()["error"]["message"], "rank 1 was killed");
  const Answer part =
      fetch(server.port(), "POST", "/v1/completions", R"({"prompt": "x", "stream": true})");
  EXPECT_EQ(part.status, 200);
  EXPECT_NE(part.body.find(R"({"error":{"message":"rank 1 was killed")"), std::string::npos)
      << part.body;
  EXPECT_TRUE(part.body.ends_with("data: [DONE]\n\n"));
  const Answer health = fetch(server.port(), "GET", "/health");
  EXPECT_EQ(health.status, 503);
  EXPECT_EQ(health.json()["error"]["message"], "the engine failed: rank 1 was killed");
}

TEST(ApiLimits, ATextThatFailsAloneGivesStatus400) {
  FakeServer server({.reply = "abcdef", .failure = "no token may follow", .texts_fail = true});
  const Answer answer = fetch(server.port(), "POST", "/v1/completions", R"({"prompt": "x"})");
  EXPECT_EQ(answer.status, 400);
  EXPECT_EQ(answer.json()["error"]["code"], "text_failed");
  EXPECT_EQ(fetch(server.port(), "GET", "/health").status, 200);
}

TEST(ApiLimits, ATextWithoutLogitsIsAServerErrorAndOthersGoOn) {
  FakeServer server({.reply = "abcdef",
                     .failure = "the model's logit is inf",
                     .texts_fail = true,
                     .model_fails = true});
  const Answer answer = fetch(server.port(), "POST", "/v1/completions", R"({"prompt": "x"})");
  EXPECT_EQ(answer.status, 500);
  EXPECT_EQ(answer.json()["error"]["message"], "the model's logit is inf");
  EXPECT_EQ(answer.json()["error"]["code"], "logits_not_finite");
  EXPECT_EQ(fetch(server.port(), "GET", "/health").status, 200);
}

TEST(ApiLimits, ATextOfAStoppedEngineIsAServerError) {
  FakeServer server({.reply = "abcdef", .failure = "the engine is shut down", .shut_down = true});
  const Answer answer = fetch(server.port(), "POST", "/v1/completions", R"({"prompt": "x"})");
  EXPECT_EQ(answer.status, 503);
  EXPECT_EQ(answer.json()["error"]["message"], "the engine is shut down");
  EXPECT_EQ(fetch(server.port(), "GET", "/health").status, 503);
}

TEST(ApiLimits, TimeoutsEndRequests) {
  ApiOptions options = fake_options();
  options.timeout_s = 0.2;
  FakeServer server({.held = true}, options);
  EXPECT_EQ(fetch(server.port(), "POST", "/v1/completions", R"({"prompt": "x"})").status, 504);
  EXPECT_TRUE(server.service().wait_idle());
  EXPECT_EQ(server.service().cancelled(), 1);
}

}  // namespace
}  // namespace hocket::serve
