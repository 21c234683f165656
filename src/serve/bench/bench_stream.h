// SPDX-License-Identifier: Apache-2.0
// Streamed answers of OpenAI servers, read byte by byte: HTTP/1.1, server-sent events, chunks.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "serve/bench/bench_metrics.h"

namespace hocket::serve {

/// Reads an HTTP response from pieces of any size.
class ResponseReader {
 public:
  using OnBody = std::function<void(std::string_view)>;
  explicit ResponseReader(OnBody on_body) : on_body_(std::move(on_body)) {}
  /// Takes the next bytes. Throws Error for bytes that are no response.
  void take(std::string_view bytes);
  /// Takes the end of the connection. Throws Error if the response had not ended.
  void end();
  /// Returns whether the response is complete; bytes behind it are ignored.
  bool is_complete() const { return state_ == State::complete; }
  int status() const { return status_; }  ///< 0: not known yet
  /// Returns the seconds of the header Retry-After; below 0: none, or a date.
  double retry_after_s() const { return retry_after_s_; }

 private:
  enum class State {
    head,
    body_of_length,
    body_to_end,
    chunk_size,
    chunk,
    chunk_end,
    trailer,
    complete
  };
  void take_head();
  bool take_line(std::string* line);
  void take_chunk_size(const std::string& line);

  const OnBody on_body_;
  State state_ = State::head;
  int status_ = 0;
  double retry_after_s_ = -1;
  int64_t left_ = 0;    ///< bytes of the body or chunk
  std::string buffer_;  ///< a line that is not complete
};

/// Splits a body into the data of its server-sent events.
class EventReader {
 public:
  explicit EventReader(std::function<void(const std::string&)> on_data)
      : on_data_(std::move(on_data)) {}
  void take(std::string_view bytes);

 private:
  void take_line(std::string_view line);

  const std::function<void(const std::string&)> on_data_;
  std::string line_, data_;
  bool has_data_ = false, after_return_ = false;
};

/// Measures the chunks of a completion, or of a chat. A chunk with text, or in a completion also
/// one without that does not end it, is a piece of the answer; a chat's chunk with the role alone
/// is none.
class AnswerMeter {
 public:
  AnswerMeter(bool is_chat, double start) : is_chat_(is_chat), last_(start) {
    request_.start = start;
  }
  /// Takes an event's data at a time, in seconds.
  void take(const std::string& data, double now);
  /// Ends the stream. Returns the request: successful if a piece came and nothing failed. Without
  /// the server's count output_tokens is 0.
  MeasuredRequest finish(int status);
  /// Fails the request.
  void fail(const std::string& error);

 private:
  void take_piece(const std::string& text, double now);

  const bool is_chat_;
  double last_;
  int64_t pieces_ = 0;
  MeasuredRequest request_;
};

}  // namespace hocket::serve
