// SPDX-License-Identifier: Apache-2.0
#include "data/examples/records.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/text.h"

namespace hocket::data {
namespace {

constexpr size_t kBuffer = size_t{1} << 18;

bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

}  // namespace

RecordReader::RecordReader(std::unique_ptr<ByteSource> source, std::string path, Form form,
                           int64_t max_bytes)
    : source_(std::move(source)),
      path_(std::move(path)),
      form_(form),
      max_bytes_(static_cast<size_t>(max_bytes)),
      buffer_(kBuffer, '\0') {}

bool RecordReader::fill() {
  if (at_ < end_) return true;
  at_ = end_ = 0;
  // A full buffer unless the text ends: a mark at its beginning is not split.
  while (end_ < buffer_.size()) {
    const size_t n = source_->read(buffer_.data() + end_, buffer_.size() - end_);
    if (n == 0) break;
    end_ += n;
  }
  return end_ > 0;
}

int RecordReader::peek() { return fill() ? static_cast<unsigned char>(buffer_[at_]) : -1; }

void RecordReader::append(Record* record, const char* from, size_t bytes) {
  if (record->too_long || bytes > max_bytes_ - record->text.size()) {
    record->too_long = true;
    record->text.clear();
    return;
  }
  record->text.append(from, bytes);
}

void RecordReader::begin() {
  begun_ = true;
  if (!fill()) return;
  const std::string_view head(buffer_.data(), end_);
  if (head.starts_with("\xFF\xFE") || head.starts_with("\xFE\xFF")) {
    fail("data", "{} is UTF-16 or UTF-32; expected UTF-8; try iconv -t UTF-8", path_);
  }
  if (head.starts_with("\xEF\xBB\xBF")) {
    at_ = 3;
  }
  if (form_ != Form::json) return;
  skip_blanks();
  if (peek() == '[') {
    ++at_;
    in_array_ = true;
    array_line_ = line_;
  }
}

bool RecordReader::next(Record* record) {
  if (!begun_) {
    begin();
  }
  *record = {};
  if (ended_) return false;
  if (in_array_) return next_entry(record);
  if (form_ != Form::whole) return next_line(record);
  ended_ = true;
  record->line = line_;
  while (fill()) {
    append(record, buffer_.data() + at_, end_ - at_);
    at_ = end_;
  }
  return record->too_long || !record->text.empty();
}

bool RecordReader::next_line(Record* record) {
  while (fill()) {
    record->text.clear();
    record->too_long = false;
    record->line = line_;
    bool newline = false;
    while (!newline && fill()) {
      const char* from = buffer_.data() + at_;
      const auto* stop = static_cast<const char*>(std::memchr(from, '\n', end_ - at_));
      newline = stop != nullptr;
      const size_t bytes = newline ? static_cast<size_t>(stop - from) : end_ - at_;
      append(record, from, bytes);
      at_ += bytes + (newline ? 1 : 0);
    }
    ++line_;
    if (record->text.ends_with('\r')) {
      record->text.pop_back();
    }
    if (record->too_long || !trim(record->text).empty()) return true;
  }
  ended_ = true;
  return false;
}

void RecordReader::skip_blanks() {
  while (fill() && is_blank(buffer_[at_])) {
    line_ += buffer_[at_] == '\n' ? 1 : 0;
    ++at_;
  }
}

bool RecordReader::next_entry(Record* record) {
  skip_blanks();
  if (peek() == ']' && entry_ == 0) {
    ++at_;
    ended_ = true;
  } else {
    record->line = line_;
    record->entry = ++entry_;
    read_entry(record);
  }
  // The bracket is the array's own: nothing may follow.
  if (ended_) {
    skip_blanks();
    if (peek() >= 0) {
      fail("data", "{}:{}: text after the end of the array; expected one array", path_, line_);
    }
  }
  return record->entry > 0;
}

// Reads to the comma or the bracket after an entry, which is outside of its strings and brackets.
void RecordReader::read_entry(Record* record) {
  int64_t depth = 0;
  bool in_string = false, escaped = false;
  while (fill()) {
    const size_t from = at_;
    bool found = false;
    for (; at_ < end_ && !found; ++at_) {
      const char c = buffer_[at_];
      line_ += c == '\n' ? 1 : 0;
      if (in_string) {
        in_string = escaped || c != '"';
        escaped = !escaped && c == '\\';
      } else if (c == '"') {
        in_string = true;
      } else if (c == '{' || c == '[') {
        ++depth;
      } else if (depth == 0 && (c == ',' || c == ']')) {
        found = true;
        ended_ = c == ']';
      } else if (c == '}' || c == ']') {
        --depth;
      }
      if (depth < 0) {
        fail("data",
             "{}:{}: a bracket closes nothing, in entry {} of the array; expected valid JSON",
             path_, line_, record->entry);
      }
    }
    append(record, buffer_.data() + from, at_ - from - (found ? 1 : 0));
    if (found) return;
  }
  fail("data",
       "{} is cut off: its array begins in line {} and has no end; entry {} begins in line {}",
       path_, array_line_, record->entry, record->line);
}

}  // namespace hocket::data
