// SPDX-License-Identifier: Apache-2.0
// ctest: slow
// The server on sockets: malformed requests, limits, clients that go or are slow, floods, stopping.
#include "serve/http.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <atomic>

#include "base/clock.h"
#include "base/error.h"
#include "base/rng.h"
#include "tests/serve/serve_util.h"

namespace hocket::serve {
namespace {

constexpr const char* kPrompt = R"({"prompt": "abc"})";

bool wait_for_condition(const std::function<bool()>& condition) {
  for (const int64_t start = now_ns(); seconds_since(start) < 10;) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return false;
}

TEST(Http, KeepsConnections) {
  FakeServer server;
  Client client(server.port());
  for (int i = 0; i < 20; ++i) {
    client.send(post_text("/v1/completions", kPrompt));
    const Answer answer = parse_answer(client.read_until("}}}"));
    ASSERT_EQ(answer.status, 200);
    EXPECT_EQ(answer.json()["choices"][0]["text"], "abc");
  }
  EXPECT_EQ(server.http().connections(), 1);
  // Requests that come before the answer to the last one are answered in turn.
  client.send("GET /health HTTP/1.1\r\nHost: x\r\n\r\nGET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n");
  const std::string both = client.read_until("max_model_len\":4096}]}");
  EXPECT_NE(both.find("{\"status\":\"ok\"}"), std::string::npos);
}

TEST(Http, AnswersMalformedRequests) {
  FakeServer server({}, fake_options(),
                    {.max_body = 1000, .head_timeout_s = 0.5, .read_timeout_s = 0.5});
  struct Case {
    std::string bytes;
    int status;
  };
  const std::string chunked =
      "POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n";
  for (const Case& one : std::vector<Case>{
           {"nonsense\r\n\r\n", 400},
           {"GET /" + std::string(9'000, 'x') + " HTTP/1.1\r\nHost: x\r\n\r\n", 414},
           {"GET /" + std::string(70'000, 'x') + " HTTP/1.1\r\nHost: x\r\n\r\n", 414},
           {"GET\r\n\r\n", 400},
           {"BREW / HTTP/1.1\r\nHost: x\r\n\r\n", 400},
           {"GET / HTTP/9\r\n\r\n", 400},
           {"PUT /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}", 405},
           {"GET /%00%ff HTTP/1.1\r\nHost: x\r\n\r\n", 404},
           {"POST /v1/completions HTTP/1.1\r\nHost: x\r\n\r\n", 400},
           {"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n", 400},
           {"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n", 413},
           {"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: "
            "6\r\n\r\nabcdef",
            400},
           {"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 17\r\n\r\nshort", 400},
           {"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: multipart/form-data; "
            "boundary=a\r\n"
            "Content-Length: 3\r\n\r\nabc",
            415},
           {chunked + "Content-Length: 3\r\n\r\n3\r\nabc\r\n0\r\n\r\n", 400},
           {chunked + "\r\nzz\r\n", 400},
           {chunked + fmt::format("\r\n{:x}\r\n{}\r\n0\r\n\r\n", 2000, std::string(2000, 'a')),
            413},
           {chunked + "\r\n11\r\n{\"prompt\": \"abc\"}\r\n0\r\n\r\n", 200},
       }) {
    Client client(server.port());
    client.send(one.bytes);
    const std::string got =
        one.status == 200 ? client.read_until("}}}") : client.read_until("\r\n\r\n");
    EXPECT_EQ(parse_answer(got + "\r\n\r\n").status, one.status) << one.bytes << "\n" << got;
  }
  // Bodies of bad UTF-8 and of broken JSON.
  EXPECT_EQ(fetch(server.port(), "POST", "/v1/completions", "{\"prompt\": \"\xff\"}").status, 400);
  EXPECT_EQ(fetch(server.port(), "POST", "/v1/completions", "{\"prompt\"").json()["error"]["code"],
            "invalid_json");
  EXPECT_EQ(fetch(server.port(), "POST", "/v1/completions", std::string(1001, ' ')).status, 413);
  EXPECT_EQ(fetch(server.port(), "GET", "/health").status, 200);
}

TEST(Http, LimitsHeadersAndTheirTime) {
  FakeServer server({}, fake_options(), {.head_timeout_s = 0.3});
  Client large(server.port());
  large.send("GET /health HTTP/1.1\r\n");
  for (int i = 0; i < 100; ++i) {
    if (!large.send(fmt::format("X-{}: {}\r\n", i, std::string(4000, 'a')))) break;
  }
  EXPECT_EQ(large.read_all().find("200 OK"), std::string::npos);
  // A client that sends a byte now and then has no more time than others.
  Client slow(server.port());
  const int64_t start = now_ns();
  const std::string text = "GET /health HTTP/1.1\r\nX: ";
  bool open = true;
  for (size_t i = 0; open && seconds_since(start) < 5; ++i) {
    open = slow.send(i < text.size() ? text.substr(i, 1) : "y");
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  EXPECT_FALSE(open);
  EXPECT_TRUE(wait_for_condition([&] { return server.http().connections() == 0; }));
}

TEST(Http, SilentClientsKeepOthersOutForTheTimeOfAHeadOnly) {
  FakeServer server({}, fake_options(), {.max_connections = 3, .head_timeout_s = 0.3});
  Client nothing(server.port()), part(server.port()), old(server.port());
  part.send("GET /hea");
  old.send("GET /health HTTP/1.1\r\nHost: x\r\n\r\nGET");  // and a part of a next one
  EXPECT_NE(old.read_until("ok").find("200 OK"), std::string::npos);
  EXPECT_TRUE(wait_for_condition([&] { return server.http().connections() == 3; }));
  const int64_t start = now_ns();
  EXPECT_EQ(fetch(server.port(), "GET", "/health").status, 200);
  EXPECT_LT(seconds_since(start), 5);
}

TEST(Http, ABodyHasTimeOfItsOwn) {
  FakeServer server({}, fake_options(), {.head_timeout_s = 0.2, .read_timeout_s = 10});
  Client client(server.port());
  const std::string text = post_text("/v1/completions", kPrompt, "Connection: close\r\n");
  client.send(text.substr(0, text.size() - 3));
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  client.send(text.substr(text.size() - 3));
  EXPECT_EQ(parse_answer(client.read_all()).status, 200);
}

TEST(Http, AClientThatDisconnectsCancelsItsTexts) {
  FakeServer server({.reply = std::string(3000, 'x'), .step_s = 0.005});
  const std::string body = R"({"prompt": "x", "max_tokens": 3000, "stream": )";
  int64_t expected = 0;
  for (const char* stream : {"true}", "false}"}) {
    for (const int phase : {0, 1, 2, 3}) {
      Client client(server.port());
      const std::string all = post_text("/v1/completions", body + stream);
      if (phase == 0) {  // within the request
        client.send(all.substr(0, all.size() / 2));
        client.close();
        continue;
      }
      client.send(all);
      ASSERT_TRUE(wait_for_condition([&] { return server.service().running() == 1; }));
      if (phase == 2 && stream[0] == 't') {
        client.read_until("data: ");
      }
      ++expected;
      phase == 3 ? client.reset() : client.close();
      ASSERT_TRUE(wait_for_condition([&] { return server.service().cancelled() == expected; }))
          << stream << phase;
    }
  }
  EXPECT_TRUE(wait_for_condition(
      [&] { return server.http().connections() == 0 && server.api().streams() == 0; }));
  const std::string metrics = fetch(server.port(), "GET", "/metrics").body;
  EXPECT_NE(metrics.find("finished_reason=\"abort\"} 6.0"), std::string::npos) << metrics;
}

TEST(Http, SlowReadersAreDropped) {
  FakeServer server({.reply = std::string(200'000, 'x'), .window = 300'000}, fake_options(),
                    {.write_timeout_s = 0.3});
  Client slow(server.port());
  slow.small_window();
  slow.send(post_text("/v1/completions",
                      R"({"prompt": "x", "max_tokens": 200000, "stream": true, "logprobs": 5})"));
  // Others are served meanwhile.
  EXPECT_EQ(
      fetch(server.port(), "POST", "/v1/completions", R"({"prompt": "x", "max_tokens": 2})").status,
      200);
  EXPECT_TRUE(wait_for_condition([&] { return server.api().streams() == 0; }));
  EXPECT_TRUE(server.service().wait_idle());
}

TEST(Http, FloodsAreAnsweredOrRefused) {
  ApiOptions options = fake_options();
  options.max_streams = 4;
  FakeServer server({.step_s = 0.002}, options, {.max_connections = 24});
  std::atomic<int64_t> good{0}, refused{0}, other{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 16; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 12; ++i) {
        const bool streams = (t + i) % 2 == 0;
        const Answer answer =
            fetch(server.port(), "POST", "/v1/completions",
                  fmt::format(R"({{"prompt": "abcdefgh", "stream": {}}})", streams));
        if (answer.status == 429) {
          ++refused;
        } else if (answer.status == 200 && (!streams || answer.body.ends_with("[DONE]\n\n"))) {
          ++good;
        } else {
          ++other;
        }
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(good + refused, 16 * 12);
  EXPECT_EQ(other, 0);
  EXPECT_GT(good, 0);
  EXPECT_GT(refused, 0);
  EXPECT_TRUE(wait_for_condition([&] { return server.api().streams() == 0; }));
}

TEST(Http, MutatedRequestsNeverEndTheServer) {
  FakeServer server({}, fake_options(),
                    {.head_timeout_s = 0.05, .read_timeout_s = 0.05, .idle_timeout_s = 0.05});
  Rng rng(3);
  const std::string whole = post_text("/v1/completions", R"({"prompt": "abc", "stream": true})");
  for (int i = 0; i < 150; ++i) {
    std::string bytes = whole;
    for (uint64_t k = 0, n = 1 + rng.below(5); k < n; ++k) {
      const size_t at = rng.below(bytes.size());
      rng.below(2) == 0 ? (void)bytes.erase(at, 1 + rng.below(5))
                        : (void)(bytes[at] = static_cast<char>(rng.below(256)));
      if (bytes.empty()) {
        bytes = "x";
      }
    }
    Client client(server.port());
    client.send(bytes);
    if (rng.below(3) > 0) {
      client.read_until("\r\n\r\n");
    }
  }
  EXPECT_EQ(fetch(server.port(), "POST", "/v1/completions", kPrompt).status, 200);
  EXPECT_TRUE(server.service().wait_idle());
}

TEST(Http, StoppingFinishesRunningTextsAndRefusesNewOnes) {
  FakeServer server({.held = true});
  Client running(server.port());
  running.send(post_text("/v1/completions", R"({"prompt": "abc", "stream": true})"));
  ASSERT_TRUE(wait_for_condition([&] { return server.service().running() == 1; }));
  server.api().drain();
  EXPECT_EQ(fetch(server.port(), "GET", "/health").status, 503);
  EXPECT_EQ(fetch(server.port(), "POST", "/v1/completions", kPrompt).status, 503);
  server.service().release();
  EXPECT_NE(running.read_until("[DONE]\n\n").find("[DONE]"), std::string::npos);
}

TEST(Http, StoppingAtOnceAnswersOpenRequestsWithAnError) {
  FakeServer server({.held = true});
  Client stream(server.port()), whole(server.port());
  stream.send(post_text("/v1/completions", R"({"prompt": "abc", "stream": true})"));
  whole.send(post_text("/v1/completions", kPrompt));
  ASSERT_TRUE(wait_for_condition([&] { return server.service().running() == 2; }));
  server.api().stop();
  EXPECT_NE(stream.read_until("[DONE]\n\n").find("the server is stopping"), std::string::npos);
  EXPECT_EQ(parse_answer(whole.read_until("}}")).status, 503);
  server.http().stop();
  EXPECT_EQ(server.http().connections(), 0);
  server.http().stop();
}

TEST(Http, StoppingLetsClientsReadCompleteAnswers) {
  // More than the system's buffers hold: most of it is still to be written when the server stops.
  const std::string body(size_t{32} << 20, 'x');
  std::atomic<bool> asked{false};
  const auto http = open_http({.port = 0}, [&](const HttpRequest&, HttpPeer&) {
    asked = true;
    return HttpResponse{.body = body};
  });
  Client client(http->port()), idle(http->port());
  client.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
  ASSERT_TRUE(wait_for_condition([&] { return asked.load(); }));
  std::thread stop([&] { http->stop(); });
  EXPECT_EQ(idle.read_all(), "");  // the server stops
  EXPECT_EQ(parse_answer(client.read_all()).body.size(), body.size());
  stop.join();
}

TEST(Http, StoppingDoesNotWaitForClientsThatReadNothing) {
  std::atomic<bool> asked{false};
  const auto http = open_http({.port = 0}, [&](const HttpRequest&, HttpPeer&) {
    asked = true;
    return HttpResponse{.body = std::string(size_t{64} << 20, 'x')};
  });
  Client client(http->port());
  client.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
  ASSERT_TRUE(wait_for_condition([&] { return asked.load(); }));
  const int64_t start = now_ns();
  http->stop();
  EXPECT_LT(seconds_since(start), 20);  // not the 30 s of write_timeout_s
}

TEST(Http, RefusesAnAddressThatIsTaken) {
  FakeServer server;
  const auto again = [&] {
    return open_http({.port = server.port()},
                     [](const HttpRequest&, HttpPeer&) { return HttpResponse(); });
  };
  EXPECT_THROW(again(), Error);
}

TEST(Http, OldClientsReadStreamsToTheEndOfTheConnection) {
  FakeServer server;
  Client client(server.port());
  std::string request = post_text("/v1/completions", R"({"prompt": "abc", "stream": true})");
  request.replace(request.find("HTTP/1.1"), 8, "HTTP/1.0");
  client.send(request);
  const std::string answer = client.read_all();
  EXPECT_TRUE(answer.ends_with("data: [DONE]\n\n")) << answer;
  EXPECT_EQ(answer.find("chunked"), std::string::npos);
}

}  // namespace
}  // namespace hocket::serve
