// SPDX-License-Identifier: Apache-2.0
#include "serve/bench/bench_client.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <list>
#include <memory>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/text.h"
#include "serve/bench/bench_stream.h"

namespace hocket::serve {

namespace {

constexpr const char* kBench = "bench serve";
constexpr double kLongestPoll = 0.1;
constexpr size_t kMaxErrorBody = 2000;

struct BenchAddress {
  sockaddr_storage address{};
  socklen_t size = 0;
  int family = AF_INET;
};

/// Returns the server's address: the first that accepts a connection.
BenchAddress reach(const BenchServer& server) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error =
      getaddrinfo(server.host.c_str(), std::to_string(server.port).c_str(), &hints, &found);
  if (error != 0) fail(kBench, "{} is not known: {}", quote(server.host), gai_strerror(error));
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> list(found, &freeaddrinfo);
  std::string reason;
  for (const addrinfo* at = found; at; at = at->ai_next) {
    const int fd = ::socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const bool is_open = fd >= 0 && ::connect(fd, at->ai_addr, at->ai_addrlen) == 0;
    reason = std::strerror(errno);
    if (fd >= 0) {
      ::close(fd);
    }
    if (!is_open) continue;
    BenchAddress address;
    std::memcpy(&address.address, at->ai_addr, at->ai_addrlen);
    address.size = at->ai_addrlen;
    address.family = at->ai_family;
    return address;
  }
  fail_run(kBench, "no server at {}:{}: {}", server.host, server.port, reason);
}

std::string request_text(const BenchServer& server, const char* method, const std::string& path,
                         const std::string& body) {
  std::string text = fmt::format(
      "{} {}{} HTTP/1.1\r\nHost: {}:{}\r\nConnection: close\r\nUser-Agent: hocket-bench\r\n"
      "Accept: */*\r\n",
      method, server.prefix, path, server.host, server.port);
  for (const auto& [name, value] : server.headers) {
    text += fmt::format("{}: {}\r\n", name, value);
  }
  if (!body.empty()) {
    text += fmt::format("Content-Type: application/json\r\nContent-Length: {}\r\n", body.size());
  }
  return text + "\r\n" + body;
}

/// A request on its way.
class Exchange {
 public:
  /// Connects without waiting. `start`: the time of the test now.
  Exchange(const BenchAddress& address, std::string request, size_t call, bool is_chat,
           double start)
      : call_(call),
        start_(start),
        out_(std::move(request)),
        meter_(is_chat, start),
        events_([this](const std::string& data) { meter_.take(data, now_); }),
        reader_([this](std::string_view bytes) { take_body(bytes); }) {
    fd_ = ::socket(address.family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    const int on = 1;
    setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (fd_ < 0 ||
        (::connect(fd_, reinterpret_cast<const sockaddr*>(&address.address), address.size) != 0 &&
         errno != EINPROGRESS)) {
      end_with(std::strerror(errno));
    }
  }
  ~Exchange() {
    if (fd_ >= 0) {
      ::close(fd_);
    }
  }
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  size_t call() const { return call_; }
  double start() const { return start_; }
  bool is_over() const { return over_; }
  pollfd waits() const {
    return {fd_, static_cast<short>(written_ < out_.size() ? POLLIN | POLLOUT : POLLIN), 0};
  }
  const std::string& body() const { return body_; }
  int status() const { return reader_.status(); }

  /// Reads and writes all that is possible at a time of the test.
  void step(short events, double now) {
    now_ = now;
    try {
      if ((events & (POLLOUT | POLLERR | POLLHUP)) != 0) {
        write_some();
      }
      if (!over_ && (events & (POLLIN | POLLERR | POLLHUP)) != 0) {
        read_some();
      }
    } catch (const Error& error) {
      end_with(std::string(error.text()));
    }
  }
  void end_with(const std::string& error) {
    over_ = true;
    meter_.fail(error);
  }
  MeasuredRequest result() {
    if (status() != 0 && status() != 200) {
      meter_.fail(fmt::format("status {}: {}", status(), printable(trim(body_))));
    }
    return meter_.finish(status());
  }

 private:
  void write_some() {
    while (written_ < out_.size()) {
      const ssize_t n = ::send(fd_, out_.data() + written_, out_.size() - written_, MSG_NOSIGNAL);
      if (n < 0) {
        if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) return;
        // The server may have answered before it took everything.
        written_ = out_.size();
        broken_ = std::strerror(errno);
        return;
      }
      written_ += static_cast<size_t>(n);
    }
  }
  void read_some() {
    char buffer[1 << 16];
    for (;;) {
      const ssize_t n = ::recv(fd_, buffer, sizeof buffer, 0);
      if (n < 0) {
        if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) return;
        return end_with(broken_.empty() ? std::strerror(errno) : broken_);
      }
      if (n == 0) {
        reader_.end();
        over_ = true;
        return;
      }
      reader_.take({buffer, static_cast<size_t>(n)});
      if (reader_.is_complete()) {
        over_ = true;
        return;
      }
    }
  }
  void take_body(std::string_view bytes) {
    if (status() == 200 && keeps_events_) {
      events_.take(bytes);
    }
    if (status() != 200 || !keeps_events_) {
      body_ += bytes;
      if (status() != 200) {
        body_.resize(std::min(body_.size(), kMaxErrorBody));
      }
    }
  }

 public:
  /// Makes the exchange keep the whole body: it is no stream of events.
  void keep_body() { keeps_events_ = false; }

 private:
  const size_t call_;
  const double start_;
  int fd_ = -1;
  std::string out_, body_, broken_;
  size_t written_ = 0;
  bool over_ = false, keeps_events_ = true;
  double now_ = 0;
  AnswerMeter meter_;
  EventReader events_;
  ResponseReader reader_;
};

timespec timespec_of(double seconds) {
  const auto whole = static_cast<time_t>(seconds);
  return {whole, static_cast<long>((seconds - static_cast<double>(whole)) * 1e9)};
}

/// Waits up to `seconds` for the exchanges, and steps those that are ready.
void step_all(std::list<Exchange>* exchanges, double seconds, int64_t start_ns) {
  std::vector<pollfd> waiting;
  for (const Exchange& exchange : *exchanges) {
    waiting.push_back(exchange.waits());
  }
  const timespec timeout = timespec_of(std::clamp(seconds, 0.0, kLongestPoll));
  ::ppoll(waiting.data(), waiting.size(), &timeout, nullptr);
  size_t at = 0;
  for (Exchange& exchange : *exchanges) {
    const short events = waiting[at++].revents;
    if (events != 0 && !exchange.is_over()) {
      exchange.step(events, seconds_since(start_ns));
    }
  }
}

class Load {
 public:
  Load(const BenchServer& server, const std::vector<BenchCall>& calls, const LoadOptions& options)
      : server_(server), calls_(calls), options_(options), address_(reach(server)) {
    allow_open_files(static_cast<int64_t>(calls.size()));
    result_.requests.resize(calls.size());
  }

  LoadResult run() {
    while (finished_ < calls_.size()) {
      const bool stops = options_.stop && options_.stop();
      if (!stops) {
        begin_due();
      }
      step_all(&exchanges_, time_to_next(), start_);
      end_late(stops);
      take_finished();
      if (stops) {
        fail_unsent();
      }
    }
    result_.duration = seconds_since(start_);
    return std::move(result_);
  }

 private:
  bool has_room() const {
    return !options_.max_concurrency || std::ssize(exchanges_) < *options_.max_concurrency;
  }
  void begin_due() {
    while (next_ < calls_.size() && has_room() && calls_[next_].at <= seconds_since(start_)) {
      exchanges_.emplace_back(address_,
                              request_text(server_, "POST", options_.path, calls_[next_].body),
                              next_, options_.is_chat, seconds_since(start_));
      ++next_;
    }
  }
  double time_to_next() const {
    if (next_ == calls_.size() || !has_room()) return kLongestPoll;
    return calls_[next_].at - seconds_since(start_);
  }
  void end_late(bool stops) {
    for (Exchange& exchange : exchanges_) {
      if (exchange.is_over()) continue;
      if (stops) {
        exchange.end_with("interrupted");
      } else if (seconds_since(start_) - exchange.start() > options_.timeout_s) {
        exchange.end_with(fmt::format("no end after {} s", options_.timeout_s));
      }
    }
  }
  void take_finished() {
    for (auto exchange = exchanges_.begin(); exchange != exchanges_.end();) {
      if (!exchange->is_over()) {
        ++exchange;
        continue;
      }
      MeasuredRequest request = exchange->result();
      const int64_t known = calls_[exchange->call()].prompt_tokens;
      request.prompt_tokens = known > 0 ? known : request.prompt_tokens;
      if (!request.success) {
        request.output_tokens = 0;
      } else if (request.output_tokens == 0) {
        // The server does not count: a piece is a token, unless a tokenizer knows better.
        request.output_tokens = options_.count_tokens ? options_.count_tokens(request.text)
                                                      : std::ssize(request.itl) + 1;
      }
      result_.requests[exchange->call()] = std::move(request);
      exchange = exchanges_.erase(exchange);
      ++finished_;
      if (options_.progress) {
        options_.progress(static_cast<int64_t>(finished_));
      }
    }
  }
  void fail_unsent() {
    for (; next_ < calls_.size(); ++next_, ++finished_) {
      result_.requests[next_].error = "not sent: interrupted";
    }
  }

  const BenchServer& server_;
  const std::vector<BenchCall>& calls_;
  const LoadOptions& options_;
  const BenchAddress address_;
  const int64_t start_ = now_ns();
  std::list<Exchange> exchanges_;
  size_t next_ = 0, finished_ = 0;
  LoadResult result_;
};

}  // namespace

BenchServer parse_base_url(const std::string& url) {
  constexpr std::string_view scheme = "http://";
  if (!url.starts_with(scheme)) {
    fail(kBench, "--base-url is {}; expected http://HOST:PORT (https is not supported)",
         quote(url));
  }
  BenchServer server;
  std::string_view rest = std::string_view(url).substr(scheme.size());
  const size_t slash = rest.find('/');
  if (slash != std::string_view::npos) {
    server.prefix = rest.substr(slash);
    while (server.prefix.ends_with('/')) {
      server.prefix.pop_back();
    }
    rest = rest.substr(0, slash);
  }
  server.port = 80;
  // An IPv6 address stands in brackets.
  const size_t bracket = rest.starts_with('[') ? rest.find(']') : std::string_view::npos;
  const size_t colon = rest.find(':', bracket == std::string_view::npos ? 0 : bracket);
  if (colon != std::string_view::npos) {
    int64_t port = 0;
    if (!parse_int(rest.substr(colon + 1), &port) || port < 1 || port > 65535) {
      fail(kBench, "--base-url has the port {}", quote(rest.substr(colon + 1)));
    }
    server.port = static_cast<int>(port);
    rest = rest.substr(0, colon);
  }
  if (bracket != std::string_view::npos) {
    rest = rest.substr(1, bracket - 1);
  }
  if (rest.empty()) fail(kBench, "--base-url {} names no host", quote(url));
  server.host = rest;
  return server;
}

LoadResult run_load(const BenchServer& server, const std::vector<BenchCall>& calls,
                    const LoadOptions& options) {
  return Load(server, calls, options).run();
}

std::string http_get(const BenchServer& server, const std::string& path, double timeout_s) {
  const int64_t start = now_ns();
  std::list<Exchange> exchanges;
  Exchange& exchange =
      exchanges.emplace_back(reach(server), request_text(server, "GET", path, ""), 0, false, 0);
  exchange.keep_body();
  while (!exchange.is_over()) {
    step_all(&exchanges, kLongestPoll, start);
    if (seconds_since(start) > timeout_s) {
      exchange.end_with(fmt::format("no end after {} s", timeout_s));
    }
  }
  if (exchange.status() != 200) {
    fail_run(kBench, "GET {} of {}:{}: {}", path, server.host, server.port,
             exchange.result().error);
  }
  return exchange.body();
}

}  // namespace hocket::serve
