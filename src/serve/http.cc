// SPDX-License-Identifier: Apache-2.0
// Sockets, threads, limits and timeouts are ours; cpp-httplib reads requests off a connection and
// writes answers to it (httplib::Server::process_request over a stream of ours).
#include "serve/http.h"

// The library of the system is compiled with these, which change its types.
#define CPPHTTPLIB_OPENSSL_SUPPORT
#define CPPHTTPLIB_ZLIB_SUPPORT
#define CPPHTTPLIB_BROTLI_SUPPORT
#include <fcntl.h>
#include <httplib.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/text.h"

namespace hocket::serve {
namespace {

constexpr size_t kMaxHead = size_t{64} << 10;  // bytes of request line and headers together
constexpr int kBacklog = 1024;                 // connections that wait to be accepted
constexpr double kLingerS = 2;  // an answer to a body that was not read reaches its client so
constexpr std::chrono::seconds kLastAnswers(5);  // that clients have to take when it stops
constexpr int64_t kSecond = 1'000'000'000;

int64_t ns_of(double seconds) { return static_cast<int64_t>(seconds * 1e9); }

/// Waits for an event of a socket until a deadline; false if none came.
bool wait_for(int fd, short events, int64_t deadline_ns) {
  for (;;) {
    const int64_t left_ns = std::max<int64_t>(deadline_ns - now_ns(), 0);
    pollfd poll_fd{fd, events, 0};
    const int ready = ::poll(&poll_fd, 1, static_cast<int>((left_ns + 999'999) / 1'000'000));
    if (ready > 0) return true;
    if (ready == 0 || errno != EINTR) return false;
  }
}

/// One connection, as httplib reads and writes it.
class Connection final : public httplib::Stream, public HttpPeer {
 public:
  Connection(int fd, const HttpOptions& options) : fd_(fd), options_(options) {}

  /// Waits for the first byte of a request; false if the connection ends or idles too long.
  bool next_request(bool first) {
    head_bytes_ = 0;
    in_head_ = true;
    path.clear();
    answered = false;
    deadline_ns_ = now_ns() + ns_of(first ? options_.head_timeout_s : options_.idle_timeout_s);
    if (at_ == filled_ && !fill()) return false;
    if (!first) {
      deadline_ns_ = now_ns() + ns_of(options_.head_timeout_s);
    }
    return true;
  }
  void end_head() {
    in_head_ = false;
    deadline_ns_ = now_ns() + ns_of(options_.read_timeout_s);
  }

  bool is_readable() const override { return at_ < filled_ || wait_for(fd_, POLLIN, deadline_ns_); }
  bool is_writable() const override { return !closed(); }

  ssize_t read(char* to, size_t size) override {
    if (at_ == filled_ && !fill()) return -1;
    size_t count = std::min(size, filled_ - at_);
    if (in_head_) {
      head_bytes_ += count;
      if (head_bytes_ > kMaxHead) {
        must_close = true;
        return -1;
      }
    }
    std::memcpy(to, buffer_ + at_, count);
    at_ += count;
    return static_cast<ssize_t>(count);
  }

  ssize_t write(const char* from, size_t size) override {
    const int64_t deadline_ns = now_ns() + ns_of(options_.write_timeout_s);
    while (!dead_) {
      const ssize_t sent = ::send(fd_, from, size, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent >= 0) {
        answered = true;
        return sent;
      }
      const bool full = errno == EAGAIN || errno == EWOULDBLOCK;
      if ((!full && errno != EINTR) || (full && !wait_for(fd_, POLLOUT, deadline_ns))) {
        dead_ = true;
      }
    }
    return -1;
  }

  void get_remote_ip_and_port(std::string& ip, int& port) const override {
    address_of(::getpeername, &ip, &port);
  }
  void get_local_ip_and_port(std::string& ip, int& port) const override {
    address_of(::getsockname, &ip, &port);
  }
  socket_t socket() const override { return fd_; }

  bool gone() override { return closed(); }
  /// The client sent more than was read: closing now would reset the connection, and the answer
  /// with it.
  bool has_unread() const {
    pollfd poll_fd{fd_, POLLIN, 0};
    return at_ < filled_ || (::poll(&poll_fd, 1, 0) == 1 && (poll_fd.revents & POLLIN) != 0);
  }

  /// Reads and drops what the client still sends, so that closing does not destroy the answer.
  void linger() {
    ::shutdown(fd_, SHUT_WR);
    deadline_ns_ = now_ns() + ns_of(kLingerS);
    while (fill()) {
    }
  }

  std::string path;         ///< of the request
  bool answered = false;    ///< something was written since the request began
  bool must_close = false;  ///< the rest of what the client sends is no request

 private:
  template <typename GetName>
  void address_of(GetName get_name, std::string* ip, int* port) const {
    sockaddr_storage address{};
    socklen_t size = sizeof address;
    char host[NI_MAXHOST] = "", service[NI_MAXSERV] = "0";
    if (get_name(fd_, reinterpret_cast<sockaddr*>(&address), &size) == 0) {
      ::getnameinfo(reinterpret_cast<sockaddr*>(&address), size, host, sizeof host, service,
                    sizeof service, NI_NUMERICHOST | NI_NUMERICSERV);
    }
    *ip = host;
    *port = std::atoi(service);
  }

  bool closed() const {
    pollfd poll_fd{fd_, POLLRDHUP, 0};
    return dead_ || ::poll(&poll_fd, 1, 0) < 0 ||
           (poll_fd.revents & (POLLRDHUP | POLLHUP | POLLERR | POLLNVAL)) != 0;
  }

  /// Reads into the empty buffer; false at the end of the connection or the deadline.
  bool fill() {
    at_ = filled_ = 0;
    while (wait_for(fd_, POLLIN, deadline_ns_)) {
      const ssize_t got = ::recv(fd_, buffer_, sizeof buffer_, MSG_DONTWAIT);
      if (got > 0) {
        filled_ = static_cast<size_t>(got);
        return true;
      }
      if (got == 0 || (errno != EINTR && errno != EAGAIN)) return false;
    }
    return false;
  }

  const int fd_;
  const HttpOptions& options_;
  int64_t deadline_ns_ = 0;  ///< of reading
  size_t head_bytes_ = 0;
  bool in_head_ = true, dead_ = false;
  size_t at_ = 0, filled_ = 0;  ///< of the buffer: read, filled
  char buffer_[16384];
};

/// A connection that sends a text and takes everything.
class TextStream final : public httplib::Stream {
 public:
  explicit TextStream(std::string_view text) : text_(text) {}
  bool is_readable() const override { return true; }
  bool is_writable() const override { return true; }
  ssize_t read(char* to, size_t size) override {
    const size_t count = text_.copy(to, size);
    text_.remove_prefix(count);
    return static_cast<ssize_t>(count);
  }
  ssize_t write(const char*, size_t size) override { return static_cast<ssize_t>(size); }
  void get_remote_ip_and_port(std::string&, int&) const override {}
  void get_local_ip_and_port(std::string&, int&) const override {}
  socket_t socket() const override { return -1; }

 private:
  std::string_view text_;
};

/// The connection that this thread answers.
thread_local Connection* current = nullptr;

class SinkStream final : public HttpStream {
 public:
  explicit SinkStream(httplib::DataSink& sink) : sink_(sink) {}
  bool write(std::string_view part) override {
    // An empty chunk would end the body.
    if (!part.empty() && ok_) {
      ok_ = sink_.write(part.data(), part.size());
    }
    return ok_;
  }
  bool gone() override { return !ok_ || current->gone(); }

 private:
  httplib::DataSink& sink_;
  bool ok_ = true;
};

std::string lower(std::string text) {
  for (char& c : text) {
    c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return text;
}

/// Listening socket of an address. Throws Error.
int listen_at(const std::string& host, int port) {
  const auto refuse = [&](const std::string& why) {
    fail_run("http", "cannot listen at {}:{}: {}; try another --host or --port", host, port, why);
  };
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  const int error = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (error != 0) refuse(::gai_strerror(error));
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> free_later(found, ::freeaddrinfo);
  std::string why = "no address";
  for (const addrinfo* at = found; at != nullptr; at = at->ai_next) {
    const int fd = ::socket(at->ai_family, at->ai_socktype | SOCK_CLOEXEC, at->ai_protocol);
    const int yes = 1;
    if (fd >= 0) {
      ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
      if (::bind(fd, at->ai_addr, at->ai_addrlen) == 0 && ::listen(fd, kBacklog) == 0) return fd;
    }
    why = std::strerror(errno);
    if (fd >= 0) {
      ::close(fd);
    }
  }
  refuse(why);
  return -1;
}

int port_of(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
  const uint16_t port = address.ss_family == AF_INET6
                            ? reinterpret_cast<sockaddr_in6*>(&address)->sin6_port
                            : reinterpret_cast<sockaddr_in*>(&address)->sin_port;
  return ntohs(port);
}

/// httplib's reading of requests and writing of answers, on connections that `Server` accepts.
class Protocol : public httplib::Server {
 public:
  Protocol(const HttpOptions& options, HttpHandler handler, int listening)
      : options_(options), handler_(std::move(handler)) {
    svr_sock_ = listening;  // httplib ends streams where there is none
    // Reported to clients; `Server` ends connections.
    set_keep_alive_timeout(static_cast<time_t>(options.idle_timeout_s));
    set_keep_alive_max_count(10'000);
    // Tables that httplib makes at first use are made before there are threads.
    TextStream refused("GET / HTTP/0\r\n\r\n");
    bool closed = false;
    process(refused, true, closed, nullptr);
    const auto plain = [this](const httplib::Request& request, httplib::Response& response) {
      without_body(request, response);
    };
    const auto reading = [this](const httplib::Request& request, httplib::Response& response,
                                const httplib::ContentReader& reader) {
      with_body(request, response, reader);
    };
    // Every path is "/" to httplib, which would match it with regular expressions.
    Get("/", plain).Options("/", plain);
    Post("/", reading).Put("/", reading).Patch("/", reading).Delete("/", reading);
    set_error_handler([this](const httplib::Request&, httplib::Response& response) {
      if (!response.body.empty() || response.has_header("X-Answered")) return;
      current->must_close = true;
      refuse(response, response.status, "malformed HTTP request");
    });
    set_exception_handler(
        [this](const httplib::Request&, httplib::Response& response, std::exception_ptr) {
          current->must_close = true;
          refuse(response, 500, "internal error");
        });
  }

  /// Answers one request; false if the connection is to be closed.
  bool answer(Connection* connection) {
    bool closed = false;
    const bool ok = process(*connection, false, closed, [connection](httplib::Request& request) {
      connection->end_head();
      connection->path = std::move(request.path);
      request.path = "/";
      request.ranges.clear();
      // Compressing costs more than loopback and local networks take, and delays streams.
      request.headers.erase("Accept-Encoding");
    });
    if (!connection->answered && connection->must_close) {
      refuse_request_line(connection);
    }
    return ok && !closed && !connection->must_close;
  }

 private:
  /// Calls process_request of any httplib: newer ones (0.18 is one) take the addresses, too.
  template <typename Stream>
  bool process(Stream& stream, bool last, bool& closed,
               const std::function<void(httplib::Request&)>& change) {
    if constexpr (requires { this->process_request(stream, last, closed, change); }) {
      return this->process_request(stream, last, closed, change);
    } else {
      std::string remote, local;
      int remote_port = 0, local_port = 0;
      stream.get_remote_ip_and_port(remote, remote_port);
      stream.get_local_ip_and_port(local, local_port);
      return this->process_request(stream, remote, remote_port, local, local_port, last, closed,
                                   change);
    }
  }

  void refuse(httplib::Response& response, int status, const std::string& text) const {
    send(options_.error(status, text), response, false);
  }

  /// Answers a request line longer than a head may be, of which httplib says nothing.
  void refuse_request_line(Connection* connection) const {
    const HttpResponse answer =
        options_.error(414, fmt::format("the request line has more than {} bytes", kMaxHead));
    std::string text = fmt::format(
        "HTTP/1.1 {} URI Too Long\r\nConnection: close\r\nContent-Type: {}\r\n"
        "Content-Length: {}\r\n",
        answer.status, answer.type, answer.body.size());
    for (const auto& [name, value] : answer.headers) {
      text += fmt::format("{}: {}\r\n", name, value);
    }
    text += "\r\n" + answer.body;
    for (std::string_view rest = text; !rest.empty();) {
      const ssize_t sent = connection->write(rest.data(), rest.size());
      if (sent < 0) return;
      rest.remove_prefix(static_cast<size_t>(sent));
    }
  }

  static HttpRequest request_of(const httplib::Request& request) {
    HttpRequest out;
    out.method = request.method;
    out.path = current->path;
    out.address = request.remote_addr;
    for (const auto& [name, value] : request.headers) {
      out.headers.emplace_back(lower(name), value);
    }
    return out;
  }

  void without_body(const httplib::Request& request, httplib::Response& response) const {
    if (request.has_header("Content-Length") || request.has_header("Transfer-Encoding")) {
      current->must_close = true;  // a body would be read as the next request
    }
    send(handler_(request_of(request), *current), response, request.version == "HTTP/1.0");
  }

  void with_body(const httplib::Request& request, httplib::Response& response,
                 const httplib::ContentReader& reader) const {
    HttpRequest ours = request_of(request);
    const bool chunked = request.has_header("Transfer-Encoding");
    const std::string length_text = request.get_header_value("Content-Length");
    int64_t length = 0;
    const auto unread = [&](int status, const std::string& text) {
      current->must_close = true;
      refuse(response, status, text);
    };
    if ((chunked && request.has_header("Content-Length")) ||
        request.get_header_value_count("Content-Length") > 1 ||
        (!length_text.empty() && (!parse_int(length_text, &length) || length < 0))) {
      return unread(400, "Content-Length is malformed, or not the only length of the body");
    }
    if (request.is_multipart_form_data()) {
      return unread(415, "got multipart/form-data; expected application/json");
    }
    const std::string too_large =
        fmt::format("the body is over {}, the limit of this server (--max-body-mb)",
                    human_bytes(static_cast<double>(options_.max_body)));
    if (length > options_.max_body) return unread(413, too_large);
    bool over = false, busy = false;
    ByteBudget::Share held(options_.budget);
    if (chunked || length > 0) {
      const bool whole = reader([&](const char* data, size_t size) {
        over = static_cast<int64_t>(ours.body.size() + size) > options_.max_body;
        busy = !over && !held.set(std::ssize(ours.body) + static_cast<int64_t>(size));
        if (over || busy) return false;
        ours.body.append(data, size);
        return true;
      });
      if (over) return unread(413, too_large);
      if (busy) return unread(429, "other requests take the memory of this server for them");
      if (!whole) return unread(400, "the body is malformed, or did not come in time");
    }
    send(handler_(ours, *current), response, request.version == "HTTP/1.0");
  }

  /// `until_close`: the client of a stream knows its end by the end of the connection.
  static void send(HttpResponse answer, httplib::Response& response, bool until_close) {
    response.status = answer.status;
    response.headers.clear();
    for (const auto& [name, value] : answer.headers) {
      response.set_header(name, value);
    }
    if (current->must_close) {
      response.set_header("Connection", "close");
    }
    if (answer.stream == nullptr) {
      response.set_content(answer.body, answer.type);
      return;
    }
    auto provider = [stream = std::move(answer.stream)](size_t, httplib::DataSink& sink) {
      SinkStream out(sink);
      try {
        stream(out);
      } catch (const std::exception& error) {
        log_warning("a stream was broken off: {}", error.what());
        return false;
      }
      if (out.gone()) return false;
      sink.done();
      return true;
    };
    if (until_close) {
      current->must_close = true;
      response.set_content_provider(answer.type, provider);
    } else {
      response.set_chunked_content_provider(answer.type, provider);
    }
  }

  const HttpOptions& options_;
  const HttpHandler handler_;
};

class Server final : public HttpServer {
 public:
  Server(const HttpOptions& options, HttpHandler handler)
      : options_(options), listening_(listen_at(options.host, options.port)) {
    if (options_.error == nullptr) {
      options_.error = [](int status, const std::string& text) {
        return HttpResponse{.status = status, .type = "text/plain", .body = text + "\n"};
      };
    }
    wake_ = ::eventfd(0, EFD_CLOEXEC);
    HOCKET_CHECK(wake_ >= 0, "eventfd");
    protocol_ = std::make_unique<Protocol>(options_, std::move(handler), listening_);
    port_ = port_of(listening_);
    accepting_ = std::thread([this] { accept_all(); });
  }
  ~Server() override {
    stop();
    ::close(wake_);
  }

  int port() const override { return port_; }
  int64_t connections() const override {
    const std::lock_guard lock(mutex_);
    return static_cast<int64_t>(open_.size());
  }

  void stop() override {
    const std::lock_guard one_at_a_time(stop_mutex_);
    if (stopped_) return;
    stopped_ = true;
    const uint64_t one = 1;
    HOCKET_CHECK(::write(wake_, &one, sizeof one) == sizeof one, "eventfd");
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
      shut_all(SHUT_RD);  // streams see a closed connection, whole answers are still written
    }
    free_.notify_all();
    accepting_.join();
    std::unique_lock lock(mutex_);
    const auto ended = [&] { return threads_ == 0; };
    if (!free_.wait_for(lock, kLastAnswers, ended)) {
      shut_all(SHUT_RDWR);
      free_.wait(lock, ended);
    }
    ::close(listening_);
  }

 private:
  void accept_all() {
    for (;;) {
      {
        std::unique_lock lock(mutex_);
        free_.wait(lock, [&] { return stopping_ || threads_ < options_.max_connections; });
        if (stopping_) return;
      }
      pollfd poll_fds[] = {{listening_, POLLIN, 0}, {wake_, POLLIN, 0}};
      ::poll(poll_fds, 2, -1);
      if (poll_fds[1].revents != 0) return;
      if (poll_fds[0].revents == 0) continue;
      const int fd = ::accept4(listening_, nullptr, nullptr, SOCK_CLOEXEC);
      if (fd >= 0) {
        take(fd);
      } else if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
      }
    }
  }

  /// Requires: mutex_ is held.
  void shut_all(int direction) {
    for (const int fd : open_) {
      ::shutdown(fd, direction);
    }
  }

  /// Starts the connection's thread.
  void take(int fd) {
    const int yes = 1;
    ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    const std::lock_guard lock(mutex_);
    if (stopping_) {
      ::close(fd);
      return;
    }
    try {
      std::thread([this, fd] { serve(fd); }).detach();  // stop() waits for `threads_`
    } catch (const std::system_error&) {
      ::close(fd);  // the system has no thread left
      return;
    }
    open_.insert(fd);
    ++threads_;
  }

  void serve(int fd) {
    {
      auto connection = std::make_unique<Connection>(fd, options_);
      current = connection.get();
      bool first = true;
      try {
        while (!stopping_ && connection->next_request(first) &&
               protocol_->answer(connection.get())) {
          first = false;
        }
      } catch (const std::exception& error) {
        log_warning("a connection was closed: {}", error.what());
      }
      if ((connection->must_close || connection->has_unread()) && !connection->gone()) {
        connection->linger();
      }
      current = nullptr;
    }
    const std::lock_guard lock(mutex_);
    open_.erase(fd);
    ::close(fd);
    --threads_;
    free_.notify_all();
  }

  HttpOptions options_;
  const int listening_;
  int wake_ = -1, port_ = 0;
  std::unique_ptr<Protocol> protocol_;
  std::thread accepting_;
  std::mutex stop_mutex_;
  bool stopped_ = false;

  mutable std::mutex mutex_;  ///< guards the members below
  std::condition_variable free_;
  std::atomic<bool> stopping_{false};  ///< read without the mutex by connections
  int threads_ = 0;
  std::set<int> open_;
};

}  // namespace

std::string_view HttpRequest::header(std::string_view name) const {
  for (const auto& [key, value] : headers) {
    if (key == name) return value;
  }
  return "";
}

std::unique_ptr<HttpServer> open_http(const HttpOptions& options, HttpHandler handler) {
  return std::make_unique<Server>(options, std::move(handler));
}

}  // namespace hocket::serve
