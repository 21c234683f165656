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
          if (refusals_ > 0) {
            --refusals_;
            return serve::HttpResponse{
                .status = refusal_, .body = "Rate limit", .headers = refusal_headers_};
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
  /// Refuses the next requests; `retry_after`: header, "" for none.
  void refuse(int times, int status, const std::string& retry_after) {
    const std::lock_guard lock(mutex_);
    refusals_ = times;
    refusal_ = status;
    refusal_headers_.clear();
    if (!retry_after.empty()) {
      refusal_headers_.emplace_back("Retry-After", retry_after);
    }
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
  int status_ = 200, refusals_ = 0, refusal_ = 429;
  std::vector<std::pair<std::string, std::string>> refusal_headers_;
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
  EXPECT_EQ(score(last.get(), "Score: .5"), 0.5);
  EXPECT_EQ(score(last.get(), "Score: **-.25**"), -0.25);
  EXPECT_EQ(score(last.get(), "4/5, so 0.8."), 0.8);
  EXPECT_EQ(score(last.get(), "0.5, 1"), 1);
  for (const char* none : {"", "good", "v2", "1e999", "NaN", "1.2.3"}) {
    EXPECT_TRUE(holds(error_in([&] { score(last.get(), none); }), "has no number")) << none;
  }
  const auto refused = [&](const std::string& content) {
    return error_in([&] { score(last.get(), content); });
  };
  EXPECT_EQ(refused("Score: 0,75"),
            "[judge] the answer 'Score: 0,75' has no number but '0,75'; expected one such as 0.75, "
            "or judge_pattern with a group around the number");
  for (const char* part : {"4/5", "4 / 5", "8.5/10", "1,000", "1,000.5"}) {
    EXPECT_TRUE(holds(refused(fmt::format("I gave 3. Score: {}.", part)),
                      fmt::format("has no number but '{}", part)))
        << part << refused(part);
  }
  EXPECT_TRUE(holds(refused("0,75x"), "has no number"));
  engine::RewardSection section = judge_section(judge.url());
  section.judge_pattern = R"(Score: *(\S+))";
  const auto marked = make_reward(section, "judges");
  section.judge_pattern = R"(Score: *([0-9.]+)/5)";
  EXPECT_EQ(score(make_reward(section, "judges").get(), "Score: 4/5"), 4);
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
  EXPECT_TRUE(holds(error(200, "<html>"), "[judge] "));
  EXPECT_TRUE(holds(error(200, "{}"), "[judge] choices"));
  EXPECT_TRUE(holds(error(200, R"({"choices": []})"), "[judge] choices"));
  EXPECT_TRUE(holds(error(200, R"({"choices": [{"message": {"content": null}}]})"), "content"));
  EXPECT_TRUE(holds(error(200, R"({"choices": [{"message": {"content": 5}}]})"), "content"));
  EXPECT_TRUE(holds(error(200, std::string(5 << 20, ' ')), "the answer is over 4 MiB"));
  judge.stop();
  EXPECT_TRUE(holds(error(200, ""), "[judge] no connection"));
}

TEST(RewardHttp, WaitsForABusyServer) {
  FakeJudge judge;
  judge.say("0.5");
  engine::RlSection rl;
  rl.rewards = {judge_section(judge.url())};
  rl.rewards[0].retries = 0;  // refusals are no tries
  RewardPool pool(rl, "rl");
  const Prompt prompt = task_of("1");
  const auto scored = [&] {
    Sample sample = answer_of("x");
    pool.add(prompt, sample);
    pool.wait();
    return sample;
  };
  struct Case {
    int times, status;
    const char* retry_after;
    double least_s;
  };
  for (const Case& one : std::vector<Case>{
           {1, 429, "1", 1}, {4, 503, "0", 0.3}, {2, 429, "", 1.4}, {1, 429, "soon", 0.4}}) {
    judge.refuse(one.times, one.status, one.retry_after);
    const int64_t start = now_ns();
    const Sample sample = scored();
    EXPECT_EQ(sample.reward, 0.5);
    EXPECT_EQ(sample.rewards.at("http").tries, 1);
    EXPECT_GE(seconds_since(start), one.least_s) << one.retry_after;
  }
}

TEST(RewardHttp, ABusyServerIsLeftAloneByAllSamples) {
  FakeJudge judge;
  judge.say("1");
  const auto one = make_reward(judge_section(judge.url()), "judges");
  const auto other = make_reward(judge_section(judge.url() + "/v1"), "judges");
  judge.refuse(1, 429, "2");
  const int64_t start = now_ns();
  std::thread first([&] { EXPECT_EQ(score_under(one.get(), 1, "x"), 1); });
  while (judge.requests().empty()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(200));  // for the answer
  EXPECT_EQ(score_under(other.get(), 1, "x"), 1);
  EXPECT_GE(seconds_since(start), 2);
  first.join();
  EXPECT_EQ(judge.requests().size(), 3U);
}

TEST(RewardHttp, WaitsForABusyServerEnd) {
  FakeJudge judge;
  engine::RlSection rl;
  rl.rewards = {judge_section(judge.url())};
  rl.rewards[0].busy_timeout_s = 1;
  rl.rewards[0].retries = 5;
  const Prompt prompt = task_of("1");
  for (const char* retry_after : {"", "0", "9999999999", "1e400"}) {
    judge.refuse(1000, 429, retry_after);
    RewardPool pool(rl, "rl");
    Sample sample = answer_of("x");
    const int64_t start = now_ns();
    pool.add(prompt, sample);
    pool.wait();
    const RewardPart& part = sample.rewards.at("http");
    EXPECT_TRUE(part.failed);
    EXPECT_EQ(part.tries, 1);  // a further one waits no better
    EXPECT_TRUE(holds(part.error,
                      "[judge] status 429: Rate limit; waiting for it takes longer than "
                      "busy_timeout_s, 1 s"))
        << part.error;
    EXPECT_LT(seconds_since(start), 20);
  }
  // A stop ends the waiting.
  rl.rewards[0].busy_timeout_s = 600;
  FakeJudge fresh;
  fresh.refuse(1000, 429, "500");
  rl.rewards[0].url = fresh.url();
  const auto patient = make_reward(rl.rewards[0], "judges");
  const int64_t start = now_ns();
  const StopWhen stop([&] { return seconds_since(start) > 0.1; });
  EXPECT_THROW(score_under(patient.get(), 1, "x"), Stopped);
  EXPECT_LT(seconds_since(start), 30);
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
