// SPDX-License-Identifier: Apache-2.0
// Implements: make_http_reward (reward_parts.h).
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/clock.h"
#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "base/stop.h"
#include "base/text.h"
#include "rl/reward_parts.h"
#include "serve/bench/bench_client.h"
#include "serve/bench/bench_stream.h"

namespace hocket::rl {

namespace {

constexpr size_t kMaxJudgeBody = size_t{4} << 20;
constexpr int64_t kJudgeSlice = 50'000'000;  // ns between two looks at stop_if_asked()
constexpr double kLeastBusyPause = 0.1;      // seconds
constexpr double kFirstBusyPause = 0.5, kLongestBusyPause = 60;  // seconds, without Retry-After
constexpr double kLongestRetryAfter = 1e7;                       // seconds
constexpr double kBusyNews = 60;                                 // seconds between two warnings
constexpr int kTooManyRequests = 429, kUnavailable = 503;
// The last number: not a part of a word or of a version such as 1.2.3. A fraction (4/5) and a
// number with a comma (0,75) are taken as a whole, so that none of their digits is taken for one.
constexpr const char* kLastNumber = R"((?<![\w.])[-+]?(?:\d+(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d+)?)"
                                    R"((?:\s*/\s*[-+]?\d[\d.]*|,\d[\d.]*)*+(?!\w|\.\d))";

struct JudgeAddress {
  sockaddr_storage address{};
  socklen_t size = 0;
};

/// The status of a server that has too many requests.
struct BusyJudge {
  std::string what;
  double retry_after_s;  // below 0: it does not say
};

/// Holds requests to a server back, for all samples, while it has too many.
class BusyGate {
 public:
  /// Returns the gate of a server: one for all rewards that ask it.
  static std::shared_ptr<BusyGate> of(const std::string& server) {
    static std::mutex mutex;
    static std::map<std::string, std::weak_ptr<BusyGate>> gates;
    const std::lock_guard lock(mutex);
    std::shared_ptr<BusyGate> gate = gates[server].lock();
    if (!gate) {
      gate = std::make_shared<BusyGate>();
      gates[server] = gate;
    }
    return gate;
  }

  /// Waits until it is open. Throws LastingFailure if that comes after the deadline.
  void wait(int64_t deadline_ns, double timeout_s) {
    for (;;) {
      stop_if_asked();
      const int64_t now = now_ns();
      {
        const std::lock_guard lock(mutex_);
        if (now >= open_ns_) return;
        if (open_ns_ > deadline_ns) {
          throw LastingFailure(
              Error::Kind::kRun, "judge",
              fmt::format("{}; waiting for it takes longer than busy_timeout_s, {} s", what_,
                          timeout_s));
        }
      }
      std::this_thread::sleep_for(std::chrono::nanoseconds(kJudgeSlice / 5));
    }
  }
  void close_for(double seconds, const std::string& what) {
    const std::lock_guard lock(mutex_);
    const int64_t now = now_ns(), until_ns = now + static_cast<int64_t>(seconds * 1e9);
    if (until_ns <= open_ns_) return;
    open_ns_ = until_ns;
    what_ = what;
    if (warned_ns_ == 0 || now - warned_ns_ > static_cast<int64_t>(kBusyNews * 1e9)) {
      log_warning("[judge] {}; requests wait for {} s", what, seconds);
      warned_ns_ = now;
    }
  }

 private:
  std::mutex mutex_;  // guards the members below
  int64_t open_ns_ = 0, warned_ns_ = 0;
  std::string what_;
};

/// One POST over a connection of its own.
class JudgeCall {
 public:
  JudgeCall(const JudgeAddress& to, std::string request, int64_t deadline_ns)
      : request_(std::move(request)),
        deadline_ns_(deadline_ns),
        reader_([this](std::string_view part) { take(part); }) {
    fd_ = socket(to.address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd_ < 0) fail_run("judge", "no socket: {}", std::strerror(errno));
    const int on = 1;
    setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (connect(fd_, reinterpret_cast<const sockaddr*>(&to.address), to.size) != 0 &&
        errno != EINPROGRESS) {
      const int error = errno;
      close(fd_);
      fail_run("judge", "no connection: {}", std::strerror(error));
    }
  }
  ~JudgeCall() { close(fd_); }
  JudgeCall(const JudgeCall&) = delete;
  JudgeCall& operator=(const JudgeCall&) = delete;

  /// Returns the body. Throws BusyJudge, or Error, unless the status is 200.
  std::string run(double timeout_s) {
    while (!reader_.is_complete()) {
      stop_if_asked();
      if (now_ns() >= deadline_ns_) fail_run("judge", "no answer within {} s", timeout_s);
      wait();
      send_some();
      if (!receive()) {
        reader_.end();
      }
    }
    const int status = reader_.status();
    if (status == 200) return std::move(body_);
    const std::string what =
        fmt::format("status {}: {}", status, printable(trim(body_).substr(0, 300)));
    if (status == kTooManyRequests || status == kUnavailable) {
      throw BusyJudge{what, std::min(reader_.retry_after_s(), kLongestRetryAfter)};
    }
    fail_run("judge", "{}", what);
  }

 private:
  void take(std::string_view part) {
    body_ += part;
    if (body_.size() > kMaxJudgeBody) {
      fail_run("judge", "the answer is over {}", human_bytes(kMaxJudgeBody));
    }
  }
  void wait() const {
    const auto events = static_cast<short>(sent_ < request_.size() ? POLLIN | POLLOUT : POLLIN);
    pollfd poll_fd{fd_, events, 0};
    const int64_t left_ns = std::clamp<int64_t>(deadline_ns_ - now_ns(), 0, kJudgeSlice);
    const timespec timeout{0, left_ns};
    ppoll(&poll_fd, 1, &timeout, nullptr);
  }
  static bool is_later() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }
  void send_some() {
    while (sent_ < request_.size()) {
      const ssize_t n = send(fd_, request_.data() + sent_, request_.size() - sent_, MSG_NOSIGNAL);
      if (n < 0) {
        if (is_later() || errno == ENOTCONN) return;
        // The server may have answered before it took everything.
        broken_ = errno;
        sent_ = request_.size();
        return;
      }
      sent_ += static_cast<size_t>(n);
    }
  }
  /// Receives the next bytes. Returns false if the connection has ended.
  bool receive() {
    std::array<char, 1 << 14> buffer;
    while (!reader_.is_complete()) {
      const ssize_t n = recv(fd_, buffer.data(), buffer.size(), 0);
      if (n == 0 && (broken_ == 0 || reader_.status() != 0)) return false;
      if (n > 0) {
        reader_.take({buffer.data(), static_cast<size_t>(n)});
        continue;
      }
      if (n < 0 && (is_later() || (errno == ENOTCONN && broken_ == 0))) return true;
      fail_run("judge", "no connection: {}", std::strerror(broken_ != 0 ? broken_ : errno));
    }
    return true;
  }

  const std::string request_;
  const int64_t deadline_ns_;
  serve::ResponseReader reader_;
  int fd_ = -1, broken_ = 0;
  size_t sent_ = 0;
  std::string body_;
};

/// Returns the text with the values in place of their names in braces. Values are not looked into.
std::string filled(std::string_view text,
                   const std::vector<std::pair<std::string_view, std::string>>& values) {
  std::string out;
  while (!text.empty()) {
    const auto found = std::find_if(values.begin(), values.end(),
                                    [&](const auto& each) { return text.starts_with(each.first); });
    if (found != values.end()) {
      out += found->second;
      text.remove_prefix(found->first.size());
    } else {
      out += text.front();
      text.remove_prefix(1);
    }
  }
  return out;
}

class HttpReward : public Reward {
 public:
  HttpReward(const engine::RewardSection& section, const std::string& where)
      : section_(section),
        pattern_(section.judge_pattern.empty() ? kLastNumber : section.judge_pattern,
                 "judge_pattern", where) {
    if (section.url.empty()) fail(where, "http needs url");
    if (section.judge_model.empty()) fail(where, "http needs judge_model");
    if (section.judge_prompt.find("{answer}") == std::string::npos) {
      fail(where, "http needs judge_prompt with {{answer}} in it; got {}",
           quote(section.judge_prompt));
    }
    if (!section.judge_pattern.empty() && !pattern_.has_group()) {
      fail(where, "judge_pattern {} has no group; expected one around the number",
           quote(section.judge_pattern));
    }
    try {
      server_ = serve::parse_base_url(section.url);
    } catch (const Error&) {
      fail(where, "url is {}; expected http://HOST[:PORT][/PATH], without https",
           quote(section.url));
    }
    if (server_.prefix.ends_with("/v1")) {
      server_.prefix.resize(server_.prefix.size() - 3);  // as clients of OpenAI write it
    }
    if (!section.api_key_env.empty()) {
      const char* key = std::getenv(section.api_key_env.c_str());
      if (key == nullptr) fail(where, "api_key_env: {} is not set", section.api_key_env);
      server_.headers.emplace_back("Authorization", std::string("Bearer ") + key);
    }
    resolve(where);
    gate_ = BusyGate::of(fmt::format("{}:{}{}", server_.host, server_.port, server_.prefix));
  }

  RewardPart score(const Scored& scored) override {
    const std::string body = patient_answer(request_of(message_of(scored)));
    return {.score = score_of(answer_of(body)), .error = {}, .details = {}};
  }

 private:
  /// Returns the body of the answer, after waits while the server has too many requests.
  std::string patient_answer(const std::string& request) const {
    const double timeout_s = section_.busy_timeout_s;
    const int64_t deadline_ns = now_ns() + static_cast<int64_t>(timeout_s * 1e9);
    for (double pause = kFirstBusyPause;; pause = std::min(2 * pause, kLongestBusyPause)) {
      gate_->wait(deadline_ns, timeout_s);
      try {
        return ask(request);
      } catch (const BusyJudge& busy) {
        const double asked = std::max(busy.retry_after_s, kLeastBusyPause);
        gate_->close_for(busy.retry_after_s >= 0 ? asked : pause, busy.what);
      }
    }
  }
  std::string ask(const std::string& request) const {
    const int64_t deadline_ns = now_ns() + static_cast<int64_t>(section_.timeout_s * 1e9);
    for (size_t i = 0;; ++i) {
      try {
        return JudgeCall(addresses_[i], request, deadline_ns).run(section_.timeout_s);
      } catch (const Error&) {
        if (i + 1 == addresses_.size()) throw;
      }
    }
  }

  void resolve(const std::string& where) {
    addrinfo hints{}, *found = nullptr;
    hints.ai_socktype = SOCK_STREAM;
    const int error =
        getaddrinfo(server_.host.c_str(), std::to_string(server_.port).c_str(), &hints, &found);
    if (error != 0) {
      fail(where, "the host {} of url is not known: {}", quote(server_.host), gai_strerror(error));
    }
    for (const addrinfo* at = found; at; at = at->ai_next) {
      JudgeAddress& address = addresses_.emplace_back();
      std::memcpy(&address.address, at->ai_addr, at->ai_addrlen);
      address.size = at->ai_addrlen;
    }
    freeaddrinfo(found);
  }

  std::string message_of(const Scored& scored) const {
    const auto& truth = scored.prompt.ground_truth;
    const bool needs_truth = section_.judge_prompt.find("{ground_truth}") != std::string::npos;
    if (needs_truth && truth.is_null()) {
      fail("judge", "prompt {} has no ground truth, which judge_prompt asks for",
           scored.prompt.index);
    }
    const std::string text = truth.is_string() ? truth.get<std::string>() : truth.dump();
    return filled(section_.judge_prompt, {{"{prompt}", scored.prompt.text},
                                          {"{answer}", scored.sample.text},
                                          {"{ground_truth}", text}});
  }

  std::string request_of(const std::string& message) const {
    using Json = nlohmann::ordered_json;
    const Json body = {{"model", section_.judge_model},
                       {"messages", Json::array({{{"role", "user"}, {"content", message}}})},
                       {"temperature", 0}};
    const std::string text = body.dump(-1, ' ', false, Json::error_handler_t::replace);
    std::string head = fmt::format(
        "POST {}/v1/chat/completions HTTP/1.1\r\nHost: {}:{}\r\nConnection: close\r\n"
        "User-Agent: hocket\r\nAccept: */*\r\n",
        server_.prefix, server_.host, server_.port);
    for (const auto& [name, value] : server_.headers) {
      head += fmt::format("{}: {}\r\n", name, value);
    }
    return head +
           fmt::format("Content-Type: application/json\r\nContent-Length: {}\r\n\r\n",
                       text.size()) +
           text;
  }

  static std::string answer_of(const std::string& body) {
    const nlohmann::json json = parse_json(body, "judge");
    const JsonView choice = JsonView(json, "judge").at("choices").at(size_t{0});
    return choice.at("message").get_string("content");
  }

  double score_of(const std::string& answer) const {
    const std::optional<std::string_view> found = pattern_.last_match(answer);
    double score = 0;
    if (found && parse_double(trim(*found), &score)) return score;
    const std::string why = !found ? ""
                            : !section_.judge_pattern.empty()
                                ? " where judge_pattern matches"
                                : fmt::format(
                                      " but {}; expected one such as 0.75, or judge_pattern with a "
                                      "group around the number",
                                      quote(trim(*found)));
    fail_run("judge", "the answer {} has no number{}", quote(answer), why);
  }

  const engine::RewardSection section_;
  const TextPattern pattern_;
  serve::BenchServer server_;
  std::vector<JudgeAddress> addresses_;
  std::shared_ptr<BusyGate> gate_;
};

}  // namespace

std::unique_ptr<Reward> make_http_reward(const engine::RewardSection& section,
                                         const std::string& where) {
  return std::make_unique<HttpReward>(section, where);
}

}  // namespace hocket::rl
