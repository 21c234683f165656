// SPDX-License-Identifier: Apache-2.0
// Rows of a file, a line each, read from any row on.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/hash.h"

namespace hocket::serve {

struct InputRow {
  int64_t row = 0;  ///< from 0 on; its line is row + 1
  std::string text;
  bool is_too_long = false;  ///< then `text` is empty
};

class InputRows {
 public:
  /// Reads the file once, for the number of its rows, their places and its hash. Throws Error if it
  /// cannot be read or has no row.
  explicit InputRows(const std::string& path);

  int64_t rows() const { return rows_; }
  int64_t bytes() const { return file_.size(); }
  Hash128 hash() const { return hash_; }
  /// Rows [first, first + count), or fewer, but one at least, once they have `most_bytes`. Longer
  /// rows than `most_row_bytes` are not read.
  std::vector<InputRow> read(int64_t first, int64_t count, int64_t most_bytes,
                             int64_t most_row_bytes) const;
  /// Throws Error if the file is another one than it was when it was opened.
  void require_unchanged() const;

 private:
  std::string path_, identity_;
  RandomFile file_;
  int64_t rows_ = 0;
  std::vector<int64_t> places_;  ///< of every kIndexRows-th row
  Hash128 hash_;
};

}  // namespace hocket::serve
