// SPDX-License-Identifier: Apache-2.0
// Messages between the master of a batch job and its workers, over TCP: a line of JSON, then as
// many bytes as it says.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace hocket::serve {

/// Messages of workers: ask (key: for the settings); hello (key, name, count = slots); hold (rows
/// that it still works at); want (a shard); beat (count = rows finished since it began); result
/// (rows, body); bye. Messages of the master: welcome (text = settings); refused (text = reason);
/// shard (rows, body); wait (nothing to do now); taken (rows: the result is on the disk); finished
/// (the job is).
struct BatchMessage {
  std::string type = {};
  std::string key = {}, name = {}, text = {};
  int64_t first = 0, rows = 0, count = 0;
  std::string body = {};
};

/// A connection that neither reads nor writes longer than it can at once. Owns its descriptor.
class BatchSocket {
 public:
  explicit BatchSocket(int fd);
  ~BatchSocket();
  BatchSocket(BatchSocket&& other) noexcept;
  BatchSocket& operator=(BatchSocket&&) = delete;

  /// Connects within `timeout_s`; nothing if nobody listens there.
  static std::optional<BatchSocket> connect(const std::string& host, int port, double timeout_s);

  int fd() const { return fd_; }
  void queue(const BatchMessage& message);
  bool wants_to_write() const { return written_ < out_.size(); }
  /// Bytes that wait to be written.
  int64_t queued() const { return static_cast<int64_t>(out_.size() - written_); }
  /// Bytes that were read and are no complete message yet.
  int64_t buffered() const { return static_cast<int64_t>(in_.size() - read_); }
  /// Writes some bytes. This and the next one return false once the connection is closed or broken.
  bool write_some();
  bool read_some();
  /// The next complete message that was read. Throws Error for bytes that are no message.
  std::optional<BatchMessage> next();

 private:
  int fd_ = -1;
  std::string in_, out_;
  size_t read_ = 0, written_ = 0;  ///< bytes of them that are done with
};

/// Listens for workers. Port 0 is any free one.
class BatchListener {
 public:
  /// Throws Error if the address cannot be had.
  BatchListener(const std::string& host, int port);
  ~BatchListener();
  BatchListener(const BatchListener&) = delete;
  BatchListener& operator=(const BatchListener&) = delete;
  int fd() const { return fd_; }
  int port() const { return port_; }
  /// A connection that waits, if there is one.
  std::optional<BatchSocket> accept();

 private:
  int fd_ = -1, port_ = 0;
};

}  // namespace hocket::serve
