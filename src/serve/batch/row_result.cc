// SPDX-License-Identifier: Apache-2.0
#include "serve/batch/row_result.h"

#include "base/error.h"
#include "base/text.h"

namespace hocket::serve {

namespace {

/// Reads records: a line of a letter and integers, the last one the length of the text behind it,
/// which a line end follows.
class RecordReader {
 public:
  RecordReader(std::string_view text, const std::string& where) : text_(text), where_(where) {}

  bool at_end() const { return at_ == text_.size(); }
  /// Reads the next record; `numbers` are those before the length.
  void next(char* letter, std::vector<int64_t>* numbers, std::string* body) {
    const size_t end = text_.find('\n', at_);
    if (end == std::string_view::npos) {
      damaged();
    }
    const std::vector<std::string> words = split(text_.substr(at_, end - at_), ' ');
    int64_t bytes = 0;
    if (words.size() != numbers->size() + 2 || words[0].size() != 1 ||
        !parse_int(words.back(), &bytes) || bytes < 0 ||
        static_cast<size_t>(bytes) >= text_.size() - end - 1) {
      damaged();
    }
    *letter = words[0][0];
    for (size_t i = 0; i < numbers->size(); ++i) {
      if (!parse_int(words[i + 1], &(*numbers)[i]) || (*numbers)[i] < 0) {
        damaged();
      }
    }
    *body = text_.substr(end + 1, static_cast<size_t>(bytes));
    at_ = end + 1 + static_cast<size_t>(bytes) + 1;
    if (text_[at_ - 1] != '\n') {
      damaged();
    }
  }
  [[noreturn]] void damaged() const { fail_run(where_, "is damaged at byte {}", at_); }

 private:
  const std::string_view text_;
  const std::string& where_;
  size_t at_ = 0;
};

}  // namespace

void write_custom_id(const CustomId& id, JsonWriter* json) {
  if (const auto* text = std::get_if<std::string>(&id)) {
    json->member("custom_id", *text);
  } else if (const auto* number = std::get_if<int64_t>(&id)) {
    json->member("custom_id", *number);
  }
}

RowResult row_error(int64_t row, const CustomId& custom_id, std::string_view code,
                    std::string_view message) {
  JsonWriter json;
  json.object().member("line", row + 1);
  write_custom_id(custom_id, &json);
  json.key("error").object().member("code", code).member("message", message).end().end();
  return {row, RowResult::Kind::error, 0, 0, json.take()};
}

void append_result(const RowResult& result, std::string* out) {
  *out += fmt::format("{} {} {} {} {}\n", static_cast<char>(result.kind), result.row,
                      result.prompt_tokens, result.tokens, result.json.size());
  out->append(result.json).push_back('\n');
}

std::vector<RowResult> parse_results(std::string_view text, const std::string& where) {
  std::vector<RowResult> results;
  for (RecordReader reader(text, where); !reader.at_end();) {
    RowResult result;
    char kind = 0;
    std::vector<int64_t> numbers(3);
    reader.next(&kind, &numbers, &result.json);
    if (kind != 'O' && kind != 'E' && kind != 'B') {
      reader.damaged();
    }
    if (result.json.find('\n') != std::string::npos) {
      reader.damaged();
    }
    result.kind = static_cast<RowResult::Kind>(kind);
    result.row = numbers[0];
    result.prompt_tokens = numbers[1];
    result.tokens = numbers[2];
    results.push_back(std::move(result));
  }
  return results;
}

void append_row(const InputRow& row, std::string* out) {
  *out += fmt::format("{} {} {}\n", row.is_too_long ? 'L' : 'R', row.row, row.text.size());
  out->append(row.text).push_back('\n');
}

std::vector<InputRow> parse_rows(std::string_view text, const std::string& where) {
  std::vector<InputRow> rows;
  for (RecordReader reader(text, where); !reader.at_end();) {
    InputRow row;
    char kind = 0;
    std::vector<int64_t> numbers(1);
    reader.next(&kind, &numbers, &row.text);
    if (kind != 'R' && kind != 'L') {
      reader.damaged();
    }
    row.is_too_long = kind == 'L';
    row.row = numbers[0];
    rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace hocket::serve
