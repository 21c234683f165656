// SPDX-License-Identifier: Apache-2.0
// Load tests against a small server on sockets; streams cut at every byte; prompts and times.
#include "serve/bench/bench_client.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <numeric>
#include <thread>

#include "base/error.h"
#include "base/file.h"
#include "serve/bench/bench_load.h"
#include "serve/bench/bench_stream.h"
#include "tests/data/examples/example_util.h"

namespace hocket::serve {
namespace {

std::string bench_error(const std::function<void()>& run) {
  try {
    run();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

/// Answers every connection with a function of the request, in parts, a thread each.
class TinyServer {
 public:
  using Answer = std::function<std::vector<std::string>(const std::string& request)>;
  explicit TinyServer(Answer answer) : answer_(std::move(answer)) {
    fd_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ::bind(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address);
    ::listen(fd_, 64);
    socklen_t size = sizeof address;
    ::getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.sin_port);
    accepts_ = std::thread([this] { accept_all(); });
  }
  ~TinyServer() {
    ::shutdown(fd_, SHUT_RDWR);
    accepts_.join();
    for (std::thread& thread : threads_) {
      thread.join();
    }
    ::close(fd_);
  }
  BenchServer server() const {
    BenchServer server;
    server.port = port_;
    return server;
  }

 private:
  void accept_all() {
    for (int fd; (fd = ::accept4(fd_, nullptr, nullptr, SOCK_CLOEXEC)) >= 0;) {
      threads_.emplace_back([this, fd] { serve(fd); });
    }
  }
  void serve(int fd) {
    std::string request;
    char buffer[4096];
    // The body ends with "}" in all tests here.
    while (!request.ends_with("}") && !request.ends_with("\r\n\r\n")) {
      const ssize_t n = ::recv(fd, buffer, sizeof buffer, 0);
      if (n <= 0) break;
      request.append(buffer, static_cast<size_t>(n));
      if (request.find("POST") == 0 && request.ends_with("\r\n\r\n")) {
        request += " ";  // its body follows
      }
    }
    if (!request.empty()) {
      for (const std::string& part : answer_(request)) {
        [[maybe_unused]] const ssize_t n = ::send(fd, part.data(), part.size(), MSG_NOSIGNAL);
        ::usleep(2000);
      }
    }
    ::close(fd);
  }

  const Answer answer_;
  int fd_ = -1, port_ = 0;
  std::vector<std::thread> threads_;
  std::thread accepts_;
};

std::string chunk_of(const std::string& body) {
  return fmt::format("{:x}\r\n{}\r\n", body.size(), body);
}

const std::string kStreamHead =
    "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";

std::vector<std::string> completion_parts() {
  return {kStreamHead, chunk_of("data: {\"choices\":[{\"text\":\"Hel\"}]}\n\n"),
          chunk_of("data: {\"choices\":[{\"text\":\"lo\"}]}\n\n"),
          chunk_of("data: {\"choices\":[{\"text\":\"\",\"finish_reason\":\"stop\"}]}\n\n"),
          chunk_of("data: {\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":2}}"
                   "\n\ndata: [DONE]\n\n") +
              "0\r\n\r\n"};
}

TEST(BenchClient, MeasuresAStream) {
  TinyServer tiny([](const std::string& request) {
    EXPECT_NE(request.find("POST /v1/completions HTTP/1.1\r\n"), std::string::npos);
    EXPECT_NE(request.find("Content-Length: 2\r\n"), std::string::npos);
    return completion_parts();
  });
  LoadOptions options;
  options.path = "/v1/completions";
  options.max_concurrency = 3;
  const LoadResult result =
      run_load(tiny.server(), std::vector<BenchCall>(10, {0, "{}", 0}), options);
  ASSERT_EQ(result.requests.size(), 10u);
  for (const MeasuredRequest& request : result.requests) {
    EXPECT_TRUE(request.success) << request.error;
    EXPECT_EQ(request.text, "Hello");
    EXPECT_EQ(request.output_tokens, 2);
    EXPECT_EQ(request.prompt_tokens, 7);
    ASSERT_EQ(request.itl.size(), 1u);
    EXPECT_GE(request.itl[0], 0);  // 0: one read had both tokens
    EXPECT_GT(request.ttft, 0);
    EXPECT_NEAR(request.latency, request.ttft + request.itl[0], 1e-9);
    EXPECT_LE(request.start + request.latency, result.duration);
  }
  // Three at a time: each but the first three begins after the end of another.
  for (const MeasuredRequest& request : result.requests) {
    int under_way = 0;
    for (const MeasuredRequest& other : result.requests) {
      under_way += other.start <= request.start && request.start < other.start + other.latency;
    }
    EXPECT_LE(under_way, 3);
  }
}

TEST(BenchClient, CallsAreSentAtTheirTimes) {
  TinyServer tiny([](const std::string&) { return completion_parts(); });
  LoadOptions options;
  options.path = "/v1/completions";
  const LoadResult result =
      run_load(tiny.server(), {{0, "{}", 5}, {0.1, "{}", 0}, {0.2, "{}", 0}}, options);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_GE(result.requests[i].start, 0.1 * static_cast<double>(i));
    EXPECT_LT(result.requests[i].start, 0.1 * static_cast<double>(i) + 0.08);
  }
  EXPECT_EQ(result.requests[0].prompt_tokens, 5);
}

TEST(BenchClient, FaultsAreErrorsOfTheirRequests) {
  const std::string head = kStreamHead;
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"HTTP/1.1 429 Too Many Requests\r\nContent-Length: 9\r\n\r\ncome back"},
       "status 429: come back"},
      {{head, chunk_of("data: {\"choices\":[{\"text\":\"a\"}]}\n\n")}, "incomplete"},
      {{head, chunk_of("data: {\"error\":{\"message\":\"out of memory\"}}\n\n") + "0\r\n\r\n"},
       "out of memory"},
      {{head, chunk_of("data: [DONE]\n\n") + "0\r\n\r\n"}, "no piece"},
      {{head, chunk_of("data: nonsense\n\n") + "0\r\n\r\n"}, "no JSON object"},
      {{"SSH-2.0-OpenSSH\r\n\r\n"}, "expected HTTP"},
      {{head, "zz\r\n"}, "chunk"},
      {{}, "did not come"},
  };
  std::atomic<size_t> at = 0;
  TinyServer tiny([&](const std::string&) { return cases[at].first; });
  LoadOptions options;
  options.path = "/v1/completions";
  for (; at < cases.size(); ++at) {
    const LoadResult result = run_load(tiny.server(), {{0, "{}", 0}}, options);
    EXPECT_FALSE(result.requests[0].success);
    EXPECT_NE(result.requests[0].error.find(cases[at].second), std::string::npos)
        << at.load() << ": " << result.requests[0].error;
    EXPECT_EQ(result.requests[0].output_tokens, 0);
  }
}

TEST(BenchClient, ReportsTimeoutsAndAbsentServers) {
  TinyServer slow([](const std::string&) {
    ::usleep(400'000);
    return std::vector<std::string>{};
  });
  LoadOptions options;
  options.path = "/v1/completions";
  options.timeout_s = 0.15;
  const LoadResult result = run_load(slow.server(), {{0, "{}", 0}}, options);
  EXPECT_NE(result.requests[0].error.find("no end after 0.15 s"), std::string::npos);
  BenchServer nobody;
  nobody.port = 1;
  EXPECT_NE(bench_error([&] {
              run_load(nobody, {{0, "{}", 0}}, options);
            }).find("no server"),
            std::string::npos);
}

TEST(BenchClient, GetsABody) {
  TinyServer tiny([](const std::string& request) -> std::vector<std::string> {
    if (request.starts_with("GET /v1/models ")) {
      return {"HTTP/1.1 200 OK\r\n\r\n{\"data\"", ":[]}"};  // without a length
    }
    return {"HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\nnone"};
  });
  EXPECT_EQ(http_get(tiny.server(), "/v1/models", 5), "{\"data\":[]}");
  EXPECT_NE(bench_error([&] { http_get(tiny.server(), "/x", 5); }).find("status 404: none"),
            std::string::npos);
}

TEST(BenchClient, ReadsHostPortAndPrefixOfABaseUrl) {
  EXPECT_EQ(parse_base_url("http://a.b:8000").port, 8000);
  const BenchServer server = parse_base_url("http://[::1]:81/proxy/");
  EXPECT_EQ(server.host, "::1");
  EXPECT_EQ(server.port, 81);
  EXPECT_EQ(server.prefix, "/proxy");
  EXPECT_EQ(parse_base_url("http://host").port, 80);
  for (const char* wrong : {"https://host", "host:80", "http://", "http://host:x", "http://:80"}) {
    EXPECT_NE(bench_error([&] { parse_base_url(wrong); }), "") << wrong;
  }
}

TEST(BenchStream, SplitsAtAnyByteChangeNothing) {
  std::string whole;
  for (const std::string& part : completion_parts()) {
    whole += part;
  }
  whole += "bytes of nobody";
  for (size_t cut = 0; cut <= whole.size(); ++cut) {
    AnswerMeter meter(false, 0);
    EventReader events([&](const std::string& data) { meter.take(data, 1); });
    ResponseReader reader([&](std::string_view bytes) { events.take(bytes); });
    reader.take(std::string_view(whole).substr(0, cut));
    reader.take(std::string_view(whole).substr(cut));
    EXPECT_TRUE(reader.is_complete());
    const MeasuredRequest request = meter.finish(reader.status());
    EXPECT_TRUE(request.success) << cut << request.error;
    EXPECT_EQ(request.text, "Hello");
  }
}

TEST(BenchStream, ReadsEventsOfEveryForm) {
  std::vector<std::string> found;
  EventReader events([&](const std::string& data) { found.push_back(data); });
  events.take(": comment\r\ndata:a\r\n\r\nevent: x\ndata: b\ndata: c\n\ndata\n\n\n\rdata: d\r\r");
  EXPECT_EQ(found, (std::vector<std::string>{"a", "b\nc", "", "d"}));
}

TEST(BenchStream, AChunkWithOnlyARoleCountsNoToken) {
  AnswerMeter meter(true, 10);
  meter.take(R"({"choices":[{"delta":{"role":"assistant","content":""}}]})", 11);
  meter.take(R"({"choices":[{"delta":{"content":"a"}}]})", 12);
  meter.take(R"({"choices":[{"delta":{"reasoning":"b"}}]})", 14);
  meter.take(R"({"choices":[{"delta":{},"finish_reason":"stop"}]})", 15);
  const MeasuredRequest request = meter.finish(200);
  EXPECT_EQ(request.ttft, 2);
  EXPECT_EQ(request.itl, std::vector<double>{2});
  EXPECT_EQ(request.latency, 4);
  EXPECT_EQ(request.text, "a");
}

TEST(BenchLoad, ArrivalTimesHaveTheirRateAndBurstiness) {
  EXPECT_EQ(arrival_times(3, std::nullopt, 1, 0), (std::vector<double>(3)));
  for (const double burstiness : {0.25, 1.0, 4.0}) {
    const std::vector<double> times = arrival_times(4000, 10, burstiness, 1);
    EXPECT_NEAR(times.back(), 400, 1e-6);
    EXPECT_TRUE(std::is_sorted(times.begin(), times.end()));
    double squares = 0;
    for (size_t i = 1; i < times.size(); ++i) {
      squares += std::pow((times[i] - times[i - 1]) * 10 - 1, 2);
    }
    // Gaps of mean 1 have the variance 1 / shape.
    EXPECT_NEAR(squares / 4000 * burstiness, 1, 0.15) << burstiness;
  }
  EXPECT_EQ(arrival_times(10, 3, 1, 7), arrival_times(10, 3, 1, 7));
  EXPECT_NE(arrival_times(10, 3, 1, 7), arrival_times(10, 3, 1, 8));
}

TEST(BenchLoad, RandomPromptsHaveTheirLengths) {
  const data::Tokenizer tokenizer(
      data::chat_spec({{"a", "b"}, {"ab", "c"}, {" ", "t"}, {" t", "h"}, {"x", "y"}}));
  RandomPrompts options;
  options.count = 50;
  options.input_len = 40;
  options.output_len = 8;
  options.range_ratio = 0.5;
  options.prefix_len = 10;
  const std::vector<BenchPrompt> prompts = random_prompts(options, tokenizer);
  std::string prefix = prompts[0].text;
  int64_t least = 1000, most = 0;
  for (const BenchPrompt& prompt : prompts) {
    EXPECT_EQ(std::ssize(tokenizer.encode(prompt.text)), prompt.tokens);
    least = std::min(least, prompt.tokens);
    most = std::max(most, prompt.tokens);
    EXPECT_GE(prompt.output_tokens, 4);
    EXPECT_LE(prompt.output_tokens, 12);
    while (!prompt.text.starts_with(prefix)) {
      prefix.pop_back();
    }
  }
  EXPECT_GE(least, 30);
  EXPECT_LE(most, 70);
  EXPECT_GT(most - least, 20);
  EXPECT_EQ(std::ssize(tokenizer.encode(prefix)), 10) << prefix;
  options.range_ratio = 0;
  options.prefix_len = 0;
  for (const BenchPrompt& prompt : random_prompts(options, tokenizer)) {
    EXPECT_EQ(prompt.tokens, 40);
    EXPECT_EQ(prompt.output_tokens, 8);
  }
}

TEST(BenchLoad, ReadsPromptsOfAFileInTurn) {
  const std::string path = ::testing::TempDir() + fmt::format("/bench-{}.jsonl", ::getpid());
  write_file_atomic(path, "{\"prompt\":\"abc\"}\n\n{\"prompt\":\"d\",\"output_tokens\":3}\n");
  const data::Tokenizer tokenizer(data::chat_spec({}));
  const std::vector<BenchPrompt> prompts = file_prompts(path, 5, 9, &tokenizer);
  ASSERT_EQ(prompts.size(), 5u);
  EXPECT_EQ(prompts[0].tokens, 3);
  EXPECT_EQ(prompts[0].output_tokens, 9);
  EXPECT_EQ(prompts[3].text, "d");
  EXPECT_EQ(prompts[3].output_tokens, 3);
  EXPECT_EQ(file_prompts(path, 1, 9, nullptr)[0].tokens, 0);
  write_file_atomic(path, "{\"promt\":\"abc\"}\n");
  EXPECT_NE(bench_error([&] { file_prompts(path, 5, 9, nullptr); }).find("prompt"),
            std::string::npos);
  remove_file(path);
}

}  // namespace
}  // namespace hocket::serve
