// SPDX-License-Identifier: Apache-2.0
#include "serve/batch/input_rows.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"

namespace hocket::serve {

namespace {

constexpr int64_t kIndexRows = 256;
constexpr int64_t kReadBytes = 1 << 16;

/// Reads a file line by line.
class LineReader {
 public:
  LineReader(const RandomFile& file, int64_t at, int64_t most_bytes)
      : file_(file), at_(at), most_bytes_(most_bytes) {}

  /// Sets the next line, or only that it is too long. False at the end of the file.
  bool next(std::string* line, bool* is_too_long) {
    line->clear();
    *is_too_long = false;
    bool any = false;
    while (fill()) {
      any = true;
      const char* begin = buffer_.data() + used_;
      const size_t left = buffer_.size() - used_;
      const auto* end = static_cast<const char*>(std::memchr(begin, '\n', left));
      const size_t bytes = end ? static_cast<size_t>(end - begin) : left;
      if (!*is_too_long) {
        line->append(begin, bytes);
      }
      if (std::ssize(*line) > most_bytes_) {
        *is_too_long = true;
        line->clear();
      }
      used_ += bytes + (end ? 1 : 0);
      if (end) return true;
    }
    return any;
  }

 private:
  bool fill() {
    if (used_ < buffer_.size()) return true;
    const int64_t bytes = std::min(kReadBytes, file_.size() - at_);
    if (bytes <= 0) return false;
    buffer_.resize(static_cast<size_t>(bytes));
    file_.read(at_, buffer_.data(), buffer_.size());
    at_ += bytes;
    used_ = 0;
    return true;
  }

  const RandomFile& file_;
  int64_t at_;
  const int64_t most_bytes_;
  std::string buffer_;
  size_t used_ = 0;
};

}  // namespace

InputRows::InputRows(const std::string& path)
    : path_(path), identity_(file_identity(path)), file_(path) {
  Hasher hasher;
  int64_t place = 0;
  bool at_line_begin = true;
  read_pieces(path, [&](std::string_view piece) {
    hasher.add(piece);
    for (size_t at = 0; at < piece.size();) {
      if (at_line_begin) {
        if (rows_ % kIndexRows == 0) {
          places_.push_back(place + static_cast<int64_t>(at));
        }
        ++rows_;
      }
      const size_t end = piece.find('\n', at);
      at_line_begin = end != std::string_view::npos;
      at = at_line_begin ? end + 1 : piece.size();
    }
    place += std::ssize(piece);
    return true;
  });
  hash_ = hasher.finish();
  if (rows_ == 0) fail(path, "is empty; expected a JSON object a line");
  if (place != file_.size()) fail(path, "changed while it was read; try again when it is written");
}

std::vector<InputRow> InputRows::read(int64_t first, int64_t count, int64_t most_bytes,
                                      int64_t most_row_bytes) const {
  HOCKET_CHECK(first >= 0 && count > 0 && first + count <= rows_, "rows {} + {} of {}", first,
               count, rows_);
  LineReader reader(file_, places_[static_cast<size_t>(first / kIndexRows)], most_row_bytes);
  std::vector<InputRow> rows;
  int64_t bytes = 0;
  InputRow row;
  for (row.row = first / kIndexRows * kIndexRows; row.row < first + count; ++row.row) {
    if (!reader.next(&row.text, &row.is_too_long)) {
      fail(path_, "ends at row {}; it had {}: it was changed", row.row, rows_);
    }
    if (row.row < first) continue;
    bytes += std::ssize(row.text);
    if (bytes > most_bytes && !rows.empty()) break;
    rows.push_back(row);
  }
  return rows;
}

void InputRows::require_unchanged() const {
  if (file_identity(path_) != identity_) {
    fail(path_, "was changed while its rows were read; results may belong to other rows");
  }
}

}  // namespace hocket::serve
