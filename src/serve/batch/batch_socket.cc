// SPDX-License-Identifier: Apache-2.0
#include "serve/batch/batch_socket.h"

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
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "base/json.h"
#include "base/json_writer.h"

namespace hocket::serve {

namespace {

constexpr size_t kMaxHeader = 1 << 20;
constexpr int64_t kMaxBody = int64_t{1} << 31;
constexpr size_t kBatchReadBytes = 1 << 16;
constexpr unsigned kUserTimeoutMs = 30'000;

using AddressList = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

/// Returns the addresses of a host, or null with the reason.
AddressList resolve(const std::string& host, int port, bool listens, std::string* reason) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | (listens ? AI_PASSIVE : 0);
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.empty() ? nullptr : host.c_str(), std::to_string(port).c_str(),
                                &hints, &found);
  if (error != 0) {
    *reason = gai_strerror(error);
    found = nullptr;
  }
  return {found, &freeaddrinfo};
}

void set_socket_options(int fd) {
  fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  // A host that vanished is noticed.
  setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &kUserTimeoutMs, sizeof kUserTimeoutMs);
}

/// Removes what was done with, once it is much.
void drop_done(std::string* buffer, size_t* done) {
  if (*done == buffer->size()) {
    buffer->clear();
    *done = 0;
  } else if (*done > (size_t{1} << 20)) {
    buffer->erase(0, *done);
    *done = 0;
  }
}

}  // namespace

BatchSocket::BatchSocket(int fd) : fd_(fd) { set_socket_options(fd); }

BatchSocket::~BatchSocket() {
  if (fd_ >= 0) {
    ::close(fd_);
  }
}

BatchSocket::BatchSocket(BatchSocket&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)),
      in_(std::move(other.in_)),
      out_(std::move(other.out_)),
      read_(other.read_),
      written_(other.written_) {}

std::optional<BatchSocket> BatchSocket::connect(const std::string& host, int port,
                                                double timeout_s) {
  std::string reason;
  const AddressList addresses = resolve(host, port, false, &reason);
  for (const addrinfo* at = addresses.get(); at; at = at->ai_next) {
    const int fd = ::socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) continue;
    BatchSocket socket(fd);
    if (::connect(fd, at->ai_addr, at->ai_addrlen) != 0) {
      if (errno != EINPROGRESS) continue;
      pollfd waiting{fd, POLLOUT, 0};
      if (::poll(&waiting, 1, static_cast<int>(timeout_s * 1e3)) != 1) continue;
      int error = 0;
      socklen_t size = sizeof error;
      getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
      if (error != 0) continue;
    }
    return socket;
  }
  return std::nullopt;
}

void BatchSocket::queue(const BatchMessage& message) {
  JsonWriter json;
  json.object().member("type", message.type);
  const auto text = [&](const char* name, const std::string& value) {
    if (!value.empty()) {
      json.member(name, value);
    }
  };
  text("key", message.key);
  text("name", message.name);
  text("text", message.text);
  json.member("first", message.first).member("rows", message.rows).member("count", message.count);
  json.member("bytes", message.body.size()).end();
  out_ += json.take() + "\n";
  out_ += message.body;
}

bool BatchSocket::write_some() {
  while (wants_to_write()) {
    const ssize_t n =
        ::send(fd_, out_.data() + written_, out_.size() - written_, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0) {
      if (errno == EINTR) continue;
      return errno == EAGAIN || errno == EWOULDBLOCK;
    }
    written_ += static_cast<size_t>(n);
  }
  drop_done(&out_, &written_);
  return true;
}

bool BatchSocket::read_some() {
  for (;;) {
    const size_t had = in_.size();
    in_.resize(had + kBatchReadBytes);
    const ssize_t n = ::recv(fd_, in_.data() + had, kBatchReadBytes, MSG_DONTWAIT);
    in_.resize(had + static_cast<size_t>(std::max<ssize_t>(0, n)));
    if (n == 0) return false;
    if (n < 0) {
      if (errno == EINTR) continue;
      return errno == EAGAIN || errno == EWOULDBLOCK;
    }
    if (static_cast<size_t>(n) < kBatchReadBytes) return true;
  }
}

std::optional<BatchMessage> BatchSocket::next() {
  constexpr const char* where = "a message of the batch job";
  const size_t end = in_.find('\n', read_);
  if (end == std::string::npos) {
    if (in_.size() - read_ > kMaxHeader) fail_run(where, "has no end");
    return std::nullopt;
  }
  const nlohmann::json json =
      parse_json(std::string_view(in_).substr(read_, end - read_), where, {.max_depth = 2});
  const JsonView view(json, where);
  const int64_t bytes = view.get_int("bytes");
  if (bytes < 0 || bytes > kMaxBody) fail_run(where, "says that it has {} bytes", bytes);
  if (in_.size() - end - 1 < static_cast<size_t>(bytes)) return std::nullopt;
  BatchMessage message;
  message.type = view.get_string("type");
  message.key = view.get_string("key", "");
  message.name = view.get_string("name", "");
  message.text = view.get_string("text", "");
  message.first = view.get_int("first");
  message.rows = view.get_int("rows");
  message.count = view.get_int("count");
  message.body = in_.substr(end + 1, static_cast<size_t>(bytes));
  read_ = end + 1 + static_cast<size_t>(bytes);
  drop_done(&in_, &read_);
  return message;
}

BatchListener::BatchListener(const std::string& host, int port) {
  std::string reason;
  const AddressList addresses = resolve(host, port, true, &reason);
  for (const addrinfo* at = addresses.get(); at && fd_ < 0; at = at->ai_next) {
    fd_ = ::socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd_ < 0) continue;
    const int on = 1;
    setsockopt(fd_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (::bind(fd_, at->ai_addr, at->ai_addrlen) != 0 || ::listen(fd_, 128) != 0) {
      reason = std::strerror(errno);
      ::close(fd_);
      fd_ = -1;
    }
  }
  if (fd_ < 0) fail("batch", "cannot listen on {}:{}: {}", host, port, reason);
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size);
  port_ = ntohs(address.ss_family == AF_INET6
                    ? reinterpret_cast<const sockaddr_in6*>(&address)->sin6_port
                    : reinterpret_cast<const sockaddr_in*>(&address)->sin_port);
}

BatchListener::~BatchListener() { ::close(fd_); }

std::optional<BatchSocket> BatchListener::accept() {
  const int fd = ::accept4(fd_, nullptr, nullptr, SOCK_CLOEXEC);
  if (fd < 0) return std::nullopt;
  return BatchSocket(fd);
}

}  // namespace hocket::serve
