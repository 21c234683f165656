// SPDX-License-Identifier: Apache-2.0
// The characters of a plain or gzip file of any length, a buffer at a time.
#pragma once

#include <zlib.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"

namespace hocket::trace {

// Characters of a plain or gzip file, read as needed. Behind what is buffered lie kStops, so that
// who looks for a character that counts, or for the end of a string, may look ahead without
// counting.
class TextSource {
 public:
  explicit TextSource(const std::string& path)
      : path_(path), buffer_(kBuffer + kBehind, '\0'), at_(buffer_.data()), end_(at_) {
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
  // The next character; NUL also where more must be read first.
  char ahead() const { return *at_; }
  // Where it lies, for looking at what follows. Behind the last character that is buffered there is
  // a NUL, then a quotation mark, then six more NULs.
  const char* at() const { return at_; }
  bool is_buffered(const char* place) const { return place < end_; }
  void move_to(const char* place) { at_ = place; }
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
  static constexpr size_t kBuffer = size_t{1} << 18;
  static constexpr std::string_view kStops{"\0\"\0\0\0\0\0\0", 8};
  static constexpr size_t kBehind = 2 * kStops.size();

  int64_t offset() const { return base_ + (at_ - buffer_.data()); }
  bool refill() {
    base_ += end_ - buffer_.data();
    const int n = gzread(file_, buffer_.data(), static_cast<unsigned>(kBuffer));
    const size_t bytes = n > 0 ? static_cast<size_t>(n) : 0;
    kStops.copy(buffer_.data() + bytes, kStops.size());
    at_ = buffer_.data();
    end_ = at_ + bytes;
    if (n > 0) return true;
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
  const char* at_;
  const char* end_;
  int64_t base_ = 0;
  std::string cause_;
};

}  // namespace hocket::trace
