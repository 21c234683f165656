// SPDX-License-Identifier: Apache-2.0
#include "serve/bench/bench_stream.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/text.h"

namespace hocket::serve {

namespace {

constexpr size_t kMaxResponseHead = 1 << 16;
constexpr const char* kResponse = "the server's response";

std::string lower(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(), [](unsigned char c) {
    return static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
  });
  return out;
}

}  // namespace

// ---- HTTP --------------------------------------------------------------------------------------

/// Reads "HTTP/1.1 200 OK" and the headers, each on a line, from buffer_.
void ResponseReader::take_head() {
  int64_t length = -1;
  bool is_chunked = false;
  bool is_first = true;
  for (const std::string& line : split(buffer_, '\n')) {
    const std::string_view words = trim(line);
    if (is_first) {
      is_first = false;
      int64_t status = 0;
      if (!words.starts_with("HTTP/1.") || words.size() < 12 ||
          !parse_int(words.substr(9, 3), &status)) {
        fail_run(kResponse, "begins with {}; expected HTTP", quote(words));
      }
      status_ = static_cast<int>(status);
      continue;
    }
    const size_t colon = words.find(':');
    if (colon == std::string_view::npos) continue;
    const std::string name = lower(words.substr(0, colon));
    const std::string value = lower(trim(words.substr(colon + 1)));
    if (name == "content-length" && (!parse_int(value, &length) || length < 0)) {
      fail_run(kResponse, "has the length {}", quote(value));
    }
    if (name == "retry-after" && !parse_double(value, &retry_after_s_)) {
      retry_after_s_ = -1;
    }
    is_chunked |= name == "transfer-encoding" && value.ends_with("chunked");
  }
  buffer_.clear();
  if (status_ >= 100 && status_ < 200) return;  // another head follows
  left_ = length;
  state_ = is_chunked    ? State::chunk_size
           : length == 0 ? State::complete
           : length > 0  ? State::body_of_length
                         : State::body_to_end;
}

void ResponseReader::take_chunk_size(const std::string& line) {
  const std::string_view digits = std::string_view(line).substr(0, line.find_first_of("; \r"));
  left_ = 0;
  for (const char c : lower(digits)) {
    const int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
    if (digit < 0 || left_ > (int64_t{1} << 40))
      fail_run(kResponse, "has the chunk {}", quote(line));
    left_ = left_ * 16 + digit;
  }
  if (digits.empty()) fail_run(kResponse, "has a chunk without a size");
  state_ = left_ == 0 ? State::trailer : State::chunk;
}

void ResponseReader::take(std::string_view bytes) {
  while (!bytes.empty() && state_ != State::complete) {
    if (state_ == State::body_to_end) {
      on_body_(bytes);
      return;
    }
    if (state_ == State::body_of_length || state_ == State::chunk) {
      const std::string_view part = bytes.substr(0, static_cast<size_t>(left_));
      on_body_(part);
      left_ -= std::ssize(part);
      bytes.remove_prefix(part.size());
      if (left_ == 0) {
        state_ = state_ == State::chunk ? State::chunk_end : State::complete;
      }
      continue;
    }
    // All else is lines.
    const size_t end = bytes.find('\n');
    const size_t taken = end == std::string_view::npos ? bytes.size() : end + 1;
    buffer_ += bytes.substr(0, taken);
    bytes.remove_prefix(taken);
    if (buffer_.size() > kMaxResponseHead) fail_run(kResponse, "has a head without an end");
    if (end == std::string_view::npos) return;
    if (state_ == State::head) {
      if (buffer_.ends_with("\r\n\r\n") || buffer_.ends_with("\n\n")) {
        take_head();
      }
      continue;
    }
    const std::string line = std::move(buffer_);
    buffer_.clear();
    if (state_ == State::chunk_size) {
      take_chunk_size(line);
    } else if (state_ == State::chunk_end) {
      state_ = State::chunk_size;
    } else if (trim(line).empty()) {
      state_ = State::complete;  // behind the trailer
    }
  }
}

void ResponseReader::end() {
  if (state_ == State::body_to_end) {
    state_ = State::complete;
  }
  if (state_ == State::complete) return;
  fail_run(kResponse, "{}",
           status_ == 0 ? "did not come: the connection was closed"
                        : "is incomplete: the connection was closed");
}

// ---- events ------------------------------------------------------------------------------------

void EventReader::take(std::string_view bytes) {
  for (const char c : bytes) {
    const bool ends_return = after_return_ && c == '\n';
    after_return_ = c == '\r';
    if (ends_return) continue;
    if (c == '\n' || c == '\r') {
      take_line(line_);
      line_.clear();
    } else {
      line_ += c;
    }
  }
}

void EventReader::take_line(std::string_view line) {
  if (line.empty()) {
    if (has_data_) {
      on_data_(data_);
    }
    data_.clear();
    has_data_ = false;
    return;
  }
  if (!line.starts_with("data")) return;
  line.remove_prefix(4);
  if (!line.empty() && line.front() != ':') return;
  if (!line.empty()) {
    line.remove_prefix(1);
  }
  if (line.starts_with(' ')) {
    line.remove_prefix(1);
  }
  if (has_data_) {
    data_ += '\n';
  }
  has_data_ = true;
  data_ += line;
}

// ---- chunks ------------------------------------------------------------------------------------

namespace {

std::string string_member(const nlohmann::json& json, const char* name) {
  const auto found = json.find(name);
  return found != json.end() && found->is_string() ? found->get<std::string>() : "";
}

void take_count(const nlohmann::json& usage, const char* name, int64_t* count) {
  const auto found = usage.find(name);
  if (found != usage.end() && found->is_number_integer()) {
    *count = found->get<int64_t>();
  }
}

bool has_text(const nlohmann::json& delta) {
  for (const char* name : {"content", "reasoning", "reasoning_content"}) {
    if (!string_member(delta, name).empty()) return true;
  }
  const auto calls = delta.find("tool_calls");
  return calls != delta.end() && calls->is_array() && !calls->empty();
}

}  // namespace

void AnswerMeter::take_piece(const std::string& text, double now) {
  if (pieces_++ == 0) {
    request_.ttft = now - request_.start;
  } else {
    request_.itl.push_back(now - last_);
  }
  last_ = now;
  request_.text += text;
}

void AnswerMeter::take(const std::string& data, double now) {
  if (data == "[DONE]") return;
  const nlohmann::json json = nlohmann::json::parse(data, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return fail("an event is no JSON object: " + quote(data));
  if (const auto error = json.find("error"); error != json.end() && !error->is_null()) {
    const std::string message = error->is_object() ? string_member(*error, "message") : "";
    return fail(message.empty() ? error->dump() : message);
  }
  if (const auto usage = json.find("usage"); usage != json.end() && usage->is_object()) {
    take_count(*usage, "completion_tokens", &request_.output_tokens);
    take_count(*usage, "prompt_tokens", &request_.prompt_tokens);
  }
  const auto choices = json.find("choices");
  if (choices == json.end() || !choices->is_array() || choices->empty()) return;
  const nlohmann::json& choice = choices->front();
  if (!choice.is_object()) return fail("a choice is no JSON object: " + quote(data));
  if (!is_chat_) {
    // An empty text may be a token, a part of a character; beside a finish_reason it is the end.
    const std::string text = string_member(choice, "text");
    if (!text.empty() || string_member(choice, "finish_reason").empty()) {
      take_piece(text, now);
    }
    return;
  }
  const auto delta = choice.find("delta");
  if (delta == choice.end() || !delta->is_object() || !has_text(*delta)) return;
  take_piece(string_member(*delta, "content"), now);
}

void AnswerMeter::fail(const std::string& error) {
  if (request_.error.empty()) {
    request_.error = error.empty() ? "failed" : error;
  }
}

MeasuredRequest AnswerMeter::finish(int status) {
  if (status != 200) {
    fail(fmt::format("status {}", status));
  } else if (pieces_ == 0) {
    fail("the stream has no piece of an answer");
  }
  request_.success = request_.error.empty();
  request_.latency = last_ - request_.start;
  return request_;
}

}  // namespace hocket::serve
