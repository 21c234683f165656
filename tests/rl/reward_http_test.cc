// SPDX-License-Identifier: Apache-2.0
// A judge behind a server: the requests, and servers that are slow, broken or silent.
#include <cstdlib>
#include <mutex>
#include <thread>

#include "base/clock.h"
#include "base/stop.h"
#include "serve/http.h"
#include "tests/rl/reward_util.h"

namespace hocket::rl {
namespace {

/// Answers every request alike, and keeps them.
class FakeJudge {
 public:
  FakeJudge() {
    serve::HttpOptions options;
    options.port = 0;
    server_ =
        serve::open_http(options, [this](const serve::HttpRequest& request, serve::HttpPeer& peer) {
          const std::lock_guard lock(mutex_);
          requests_.push_back(request);
          while (slow_ && !peer.gone()) {
            std::this_thread::sleep_for(std::chrono::milliseconds(5));
          }
          return serve::HttpResponse{.status = status_, .body = body_};
        });
  }
  std::string url() const { return fmt::format("http://127.0.0.1:{}", server_->port()); }
  void set(int status, const std::string& body) {
    status_ = status;
    body_ = body;
  }
  void say(const std::string& content) {
    const nlohmann::json body = {
        {"choices", {{{"message", {{"role", "assistant"}, {"content", content}}}}}}};
    set(200, body.dump());
  }
  void be_slow(bool slow) { slow_ = slow; }
  std::vector<serve::HttpRequest> requests() {
    const std::lock_guard lock(mutex_);
    return requests_;
  }
  void stop() { server_->stop(); }

 private:
  std::mutex mutex_;
  std::vector<serve::HttpRequest> requests_;
  int status_ = 200;
  std::string body_;
  std::atomic<bool> slow_{false};
  std::unique_ptr<serve::HttpServer> server_;
};

engine::RewardSection judge_section(const std::string& url) {
  engine::RewardSection section;
  section.type = "http";
  section.url = url;
  section.judge_model = "judge";
  section.judge_prompt = "Q {prompt} A {answer} T {ground_truth} {other}";
  section.timeout_s = 20;
  return section;
}

TEST(RewardHttp, AsksTheJudge) {
  FakeJudge judge;
  engine::RewardSection section = judge_section(judge.url() + "/deep/v1/");
  section.api_key_env = "HOCKET_TEST_JUDGE_KEY";
  setenv("HOCKET_TEST_JUDGE_KEY", "secret", 1);
  const auto reward = make_reward(section, "judges");
  judge.say("I give 3, no, 7.5");
  EXPECT_EQ(score_under(reward.get(), "right", "is {prompt} \xff"), 7.5);
  EXPECT_EQ(score_under(reward.get(), {{"a", 1}}, ""), 7.5);
  const std::vector<serve::HttpRequest> requests = judge.requests();
  ASSERT_EQ(requests.size(), 2U);
  EXPECT_EQ(requests[0].method, "POST");
  EXPECT_EQ(requests[0].path, "/deep/v1/chat/completions");
  EXPECT_EQ(requests[0].header("authorization"), "Bearer secret");
  const nlohmann::json body = nlohmann::json::parse(requests[0].body);
  EXPECT_EQ(body.at("model"), "judge");
  EXPECT_EQ(body.at("temperature"), 0);
  EXPECT_EQ(body.at("messages").at(0).at("role"), "user");
  EXPECT_EQ(body.at("messages").at(0).at("content"),
            "Q Q A is {prompt} \xEF\xBF\xBD T right {other}");
  EXPECT_EQ(nlohmann::json::parse(requests[1].body).at("messages").at(0).at("content"),
            "Q Q A  T {\"a\":1} {other}");
  EXPECT_TRUE(holds(error_in([&] { score_under(reward.get(), nullptr, "x"); }),
                    "prompt 7 has no ground truth"));
}

TEST(RewardHttp, FindsTheNumber) {
  FakeJudge judge;
  const auto last = make_reward(judge_section(judge.url()), "judges");
  const auto score = [&](Reward* reward, const std::string& content) {
    judge.say(content);
    return score_under(reward, 1, "x");
  };
  EXPECT_EQ(score(last.get(), "Score: -2."), -2);
  EXPECT_EQ(score(last.get(), "9 of 10"), 10);
  EXPECT_EQ(score(last.get(), "3-4"), 4);
  EXPECT_EQ(score(last.get(), "5 by v2"), 5);
  EXPECT_EQ(score(last.get(), "1e-3"), 1e-3);
  EXPECT_EQ(score(last.get(), "7, by section 4.1.2."), 7);
  for (const char* none : {"", "good", "v2", "1e999", "NaN", "1.2.3"}) {
    EXPECT_TRUE(holds(error_in([&] { score(last.get(), none); }), "has no number")) << none;
  }
  engine::RewardSection section = judge_section(judge.url());
  section.judge_pattern = R"(Score: *(\S+))";
  const auto marked = make_reward(section, "judges");
  EXPECT_EQ(score(marked.get(), "Score: 1. Score: 0.5 of 10"), 0.5);
  EXPECT_TRUE(holds(error_in([&] { score(marked.get(), "7"); }), "has no number"));
  EXPECT_TRUE(holds(error_in([&] { score(marked.get(), "Score: high"); }),
                    "has no number where judge_pattern matches"));
  EXPECT_TRUE(holds(error_in([&] { score(marked.get(), "Score: nan"); }), "has no number"));
}

TEST(RewardHttp, ErrorsNameTheServersWrongAnswer) {
  FakeJudge judge;
  const auto reward = make_reward(judge_section(judge.url()), "judges");
  const auto error = [&](int status, const std::string& body) {
    judge.set(status, body);
    return error_in([&] { score_under(reward.get(), 1, "x"); });
  };
  EXPECT_EQ(error(500, "no memory\n"), "[judge] status 500: no memory");
  EXPECT_TRUE(holds(error(429, ""), "status 429"));
  EXPECT_TRUE(holds(error(200, "<html>"), "[judge] "));
  EXPECT_TRUE(holds(error(200, "{}"), "[judge] choices"));
  EXPECT_TRUE(holds(error(200, R"({"choices": []})"), "[judge] choices"));
  EXPECT_TRUE(holds(error(200, R"({"choices": [{"message": {"content": null}}]})"), "content"));
  EXPECT_TRUE(holds(error(200, R"({"choices": [{"message": {"content": 5}}]})"), "content"));
  EXPECT_TRUE(holds(error(200, std::string(5 << 20, ' ')), "the answer is over 4 MiB"));
  judge.stop();
  EXPECT_TRUE(holds(error(200, ""), "[judge] no connection"));
}

TEST(RewardHttp, SlowServersEndInTime) {
  FakeJudge judge;
  judge.say("1");
  judge.be_slow(true);
  engine::RewardSection section = judge_section(judge.url());
  section.timeout_s = 0.2;
  const auto reward = make_reward(section, "judges");
  int64_t start = now_ns();
  EXPECT_EQ(error_in([&] { score_under(reward.get(), 1, "x"); }), "[judge] no answer within 0.2 s");
  EXPECT_LT(seconds_since(start), 30);
  // A stop ends the waiting before the time does.
  section.timeout_s = 600;
  const auto patient = make_reward(section, "judges");
  start = now_ns();
  const StopWhen stop([&] { return seconds_since(start) > 0.1; });
  EXPECT_THROW(score_under(patient.get(), 1, "x"), Stopped);
  EXPECT_LT(seconds_since(start), 30);
}

TEST(RewardHttp, SectionsThatLackSomethingAreRefused) {
  const auto error = [](const std::function<void(engine::RewardSection*)>& change) {
    engine::RewardSection section = judge_section("http://127.0.0.1:1");
    change(&section);
    return error_in([&] { make_reward(section, "judges"); });
  };
  EXPECT_EQ(error([](auto*) {}), "");
  EXPECT_TRUE(holds(error([](auto* s) { s->url = ""; }), "[judges] http needs url"));
  EXPECT_TRUE(holds(error([](auto* s) { s->url = "https://a"; }), "without https"));
  EXPECT_TRUE(holds(error([](auto* s) { s->url = "http://no.such.host.invalid"; }), "not known"));
  EXPECT_TRUE(holds(error([](auto* s) { s->judge_model = ""; }), "judge_model"));
  EXPECT_TRUE(holds(error([](auto* s) { s->judge_prompt = "good?"; }), "{answer}"));
  EXPECT_TRUE(holds(error([](auto* s) { s->judge_pattern = "("; }), "no regular expression"));
  EXPECT_TRUE(holds(error([](auto* s) { s->judge_pattern = "\\d"; }), "has no group"));
  EXPECT_TRUE(holds(error([](auto* s) { s->api_key_env = "HOCKET_TEST_NO_KEY"; }), "is not set"));
}

}  // namespace
}  // namespace hocket::rl
