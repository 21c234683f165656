// SPDX-License-Identifier: Apache-2.0
// A pull parser of JSON over a plain or gzip file of any length, for traces: the caller walks the
// document and skips what it does not know. Errors give the byte offset.
#pragma once

#include <zlib.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>
#include <system_error>

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"
#include "base/utf8.h"

namespace hocket::trace {

inline constexpr int kMaxJsonDepth = 200;

// Characters of a plain or gzip file, read as needed.
class TextSource {
 public:
  explicit TextSource(const std::string& path) : path_(path), buffer_(size_t{1} << 20, '\0') {
    if (is_directory(path)) fail(path, "is a folder; expected a trace (.json or .json.gz)");
    if (!file_exists(path)) fail(path, "no such file; expected a trace (.json or .json.gz)");
    file_ = gzopen(path.c_str(), "rb");
    if (file_ == nullptr) fail(path, "cannot be opened for reading");
    gzbuffer(file_, 1u << 18);
  }
  ~TextSource() { gzclose_r(file_); }
  TextSource(const TextSource&) = delete;
  TextSource& operator=(const TextSource&) = delete;

  // -1 at the end.
  int peek() { return at_ < end_ || refill() ? static_cast<unsigned char>(*at_) : -1; }
  // As peek(), but also -1 where more must be read first.
  int buffered() const { return at_ < end_ ? static_cast<unsigned char>(*at_) : -1; }
  int get() {
    const int c = peek();
    if (c >= 0) {
      ++at_;
    }
    return c;
  }
  // What is buffered from here on; skip() moves over a part of it.
  std::string_view view() {
    if (at_ == end_) {
      refill();
    }
    return {at_, static_cast<size_t>(end_ - at_)};
  }
  void skip(size_t bytes) { at_ += bytes; }

  [[noreturn]] void broken(std::string_view what) {
    if (peek() < 0 && !cause_.empty()) {
      fail(path_, "trace is cut off after {} bytes ({}); expected a whole file", offset(), cause_);
    }
    if (peek() < 0) {
      fail(path_, "trace is cut off after {} bytes, where {} was due; expected a whole file",
           offset(), what);
    }
    fail(path_, "not a trace: got '{}' at byte {}; expected {}", quote(view().substr(0, 16)),
         offset(), what);
  }

 private:
  int64_t offset() const { return base_ + (at_ - buffer_.data()); }
  bool refill() {
    if (end_ != nullptr) {
      base_ += end_ - buffer_.data();
    }
    const int n = gzread(file_, buffer_.data(), static_cast<unsigned>(buffer_.size()));
    at_ = end_ = buffer_.data();
    if (n > 0) {
      end_ += n;
      return true;
    }
    int state = Z_OK;
    const char* text = gzerror(file_, &state);
    if (state == Z_BUF_ERROR) {
      cause_ = "the gzip stream ends early";
    }
    if (n < 0 && state != Z_BUF_ERROR) {
      fail(path_, "damaged gzip stream after {} bytes: {}", base_, text);
    }
    return false;
  }

  std::string path_;
  gzFile file_ = nullptr;
  std::string buffer_;
  const char* at_ = nullptr;
  const char* end_ = nullptr;
  int64_t base_ = 0;
  std::string cause_;
};

inline bool is_json_space(int c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

inline bool ends_token(char c) {
  if (c >= '0' && c <= '9') return false;
  return is_json_space(c) || c == ',' || c == '}' || c == ']' || c == ':' || c == '"' || c == '{' ||
         c == '[';
}

// Pull parser. Strings and number tokens are valid until the next call.
class JsonStream {
 public:
  explicit JsonStream(const std::string& path) : in_(path) {}

  // First character of the next value or mark; -1 at the end.
  int next() {
    const int c = in_.buffered();
    return c > ' ' ? c : next_behind_space();
  }
  void expect(char c, std::string_view what) {
    if (next() != c) {
      in_.broken(what);
    }
    in_.skip(1);
  }
  // Calls `member(key)`, which must consume the value, for every member of an object.
  template <typename F>
  void object(F&& member) {
    expect('{', "an object");
    if (next() == '}') return void(in_.get());
    for (;;) {
      if (next() != '"') {
        in_.broken("a key");
      }
      string(&key_);
      expect(':', "':'");
      next();
      member(std::string_view(key_));
      const int c = next();
      if (c != ',' && c != '}') {
        in_.broken("',' or '}'");
      }
      in_.skip(1);
      if (c == '}') return;
    }
  }
  template <typename F>
  void array(F&& element, bool may_lack_end = false) {
    expect('[', "an array");
    if (next() == ']') return void(in_.get());
    for (;;) {
      element();
      int c = next();
      if (c < 0 && may_lack_end) return;
      if (c != ',' && c != ']') {
        in_.broken("',' or ']'");
      }
      in_.get();
      // Chrome's own writers leave a comma behind.
      if (c == ',' && may_lack_end && (next() == ']' || next() < 0)) {
        c = in_.get();
      }
      if (c == ']' || c < 0) return;
    }
  }
  // Text of a string; escapes decoded.
  const std::string& string() {
    string(&text_);
    return text_;
  }
  void string(std::string* out) {
    expect('"', "a string");
    out->clear();
    for (;;) {
      const std::string_view view = in_.view();
      if (view.empty()) {
        in_.broken("the end of a string");
      }
      size_t n = 0;
      while (n < view.size() && view[n] != '"' && view[n] != '\\') {
        ++n;
      }
      out->append(view.data(), n);
      in_.skip(n);
      if (n == view.size()) continue;
      if (in_.get() == '"') return;
      escape(out);
    }
  }
  // A number, or whatever stands where one was due (true, null), as text.
  const std::string& token() {
    text_.clear();
    next();
    for (;;) {
      const std::string_view view = in_.view();
      size_t n = 0;
      while (n < view.size() && !ends_token(view[n])) {
        ++n;
      }
      text_.append(view.substr(0, n));
      in_.skip(n);
      if (text_.size() > 512) {
        in_.broken("a number");
      }
      if (n < view.size() || view.empty()) break;
    }
    if (text_.empty()) {
      in_.broken("a value");
    }
    return text_;
  }
  void skip_value() {
    int depth = 0;
    do {
      const int c = next();
      if (c == '"') {
        string();
      } else if (c == '{' || c == '[') {
        in_.get();
        if (++depth > kMaxJsonDepth) {
          in_.broken("at most 200 levels of nesting");
        }
      } else if (c == '}' || c == ']') {
        in_.get();
        --depth;
      } else if (depth > 0 && (c == ',' || c == ':')) {
        in_.get();
      } else {
        token();
      }
    } while (depth > 0);
  }
  // Numbers; 0 for anything else (-1 for what is no int32), which is consumed.
  double real() {
    if (!scalar()) return 0;
    double value = 0;
    std::from_chars(scalar_.data(), scalar_.data() + scalar_.size(), value);
    return std::isfinite(value) ? value : 0;
  }
  int64_t integer() {
    if (!scalar()) return 0;
    int64_t value = 0;
    if (parse_int(scalar_, &value)) return value;
    double other = 0;
    std::from_chars(scalar_.data(), scalar_.data() + scalar_.size(), other);
    return std::fabs(other) < 9e18 ? static_cast<int64_t>(other) : 0;
  }
  // False, and `*value` as it was, for what is no finite number; it is consumed in any case.
  bool number(double* value) {
    double read = 0;
    if (!scalar()) return false;
    const auto [end, error] =
        std::from_chars(scalar_.data(), scalar_.data() + scalar_.size(), read);
    if (error != std::errc() || end != scalar_.data() + scalar_.size() || !std::isfinite(read)) {
      return false;
    }
    *value = read;
    return true;
  }
  int32_t small() {
    const int64_t value = integer();
    return value == static_cast<int32_t>(value) ? static_cast<int32_t>(value) : -1;
  }
  // Microseconds in decimal, as nanoseconds: exact to the third decimal, rounded beyond.
  int64_t micro() {
    if (!scalar()) return 0;
    const std::string_view t = scalar_;
    size_t i = !t.empty() && t[0] == '-' ? 1 : 0;
    const size_t first = i;
    int64_t ns = 0;
    for (; i < t.size() && t[i] >= '0' && t[i] <= '9'; ++i) {
      ns = ns * 10 + (t[i] - '0');
    }
    bool plain = i > first && i - first <= 15;
    if (plain && i < t.size() && t[i] == '.') {
      ++i;
      for (int digit = 0; digit < 3; ++digit) {
        ns *= 10;
        if (i < t.size() && t[i] >= '0' && t[i] <= '9') {
          ns += t[i++] - '0';
        }
      }
      if (i < t.size() && t[i] >= '5' && t[i] <= '9') {
        ++ns;
      }
      while (i < t.size() && t[i] >= '0' && t[i] <= '9') {
        ++i;
      }
    } else {
      ns *= 1000;
    }
    if (plain && i == t.size()) return t[0] == '-' ? -ns : ns;
    double value = 0;
    std::from_chars(t.data(), t.data() + t.size(), value);
    return std::fabs(value) < 9e15 ? std::llround(value * 1000) : 0;
  }
  void check_end() {
    if (next() >= 0) {
      in_.broken("the end of the file");
    }
  }

 private:
  int next_behind_space() {
    for (;;) {
      const std::string_view view = in_.view();
      if (view.empty()) return -1;
      size_t n = 0;
      while (n < view.size() && is_json_space(view[n])) {
        ++n;
      }
      in_.skip(n);
      if (n < view.size()) return static_cast<unsigned char>(view[n]);
    }
  }
  // True if a token was read into scalar_, which is valid until the next call.
  bool scalar() {
    const int c = next();
    if (c == '{' || c == '[') {
      skip_value();
      return false;
    }
    if (c == '"') {
      scalar_ = string();
      return true;
    }
    const std::string_view view = in_.view();
    size_t n = 0;
    while (n < view.size() && !ends_token(view[n])) {
      ++n;
    }
    if (n == 0 || n == view.size() || n > 512) {
      scalar_ = token();
      return true;
    }
    scalar_ = view.substr(0, n);
    in_.skip(n);
    return true;
  }
  void escape(std::string* out) {
    const int c = in_.get();
    constexpr std::string_view kFrom = "\"\\/bfnrt", kTo = "\"\\/\b\f\n\r\t";
    const size_t i = c < 0 ? kFrom.npos : kFrom.find(static_cast<char>(c));
    if (i != kFrom.npos) {
      *out += kTo[i];
    } else if (c == 'u') {
      uint32_t code = hex4();
      if (code >= 0xD800 && code < 0xDC00 && in_.peek() == '\\') {
        in_.get();
        if (in_.get() != 'u') {
          in_.broken("the second half of a surrogate pair");
        }
        code = 0x10000 + ((code - 0xD800) << 10) + ((hex4() - 0xDC00) & 0x3FF);
      }
      append_utf8(code, out);
    } else {
      in_.broken("an escape");
    }
  }
  uint32_t hex4() {
    uint32_t code = 0;
    for (int i = 0; i < 4; ++i) {
      const int c = in_.get();
      const int digit = c >= '0' && c <= '9'   ? c - '0'
                        : c >= 'a' && c <= 'f' ? c - 'a' + 10
                        : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                               : -1;
      if (digit < 0) {
        in_.broken("four hexadecimal digits");
      }
      code = code * 16 + static_cast<uint32_t>(digit);
    }
    return code;
  }

  TextSource in_;
  std::string text_, key_;
  std::string_view scalar_;
};

}  // namespace hocket::trace
