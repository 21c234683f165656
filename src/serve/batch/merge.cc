// SPDX-License-Identifier: Apache-2.0
#include "serve/batch/merge.h"

#include <algorithm>

#include "base/error.h"
#include "base/file.h"
#include "serve/batch/row_result.h"

namespace hocket::serve {

namespace {

/// Reads a part; its rows are in order and those of the journal.
std::vector<RowResult> read_part(const BatchPart& part, const std::string& path) {
  const std::string text = read_file(path);
  if (std::ssize(text) != part.bytes || hash128(text).hex() != part.hash) {
    fail_run(path, "is not as it was written; remove its event from the journal to make it anew");
  }
  std::vector<RowResult> results = parse_results(text, path);
  int64_t row = part.rows.first;
  for (const RowResult& result : results) {
    if (result.row != row++) fail_run(path, "has row {} in place of {}", result.row, row - 1);
  }
  if (row != part.rows.first + part.rows.count) {
    fail_run(path, "has {} rows; expected {}", results.size(), part.rows.count);
  }
  return results;
}

}  // namespace

void merge_batch(std::vector<BatchPart> parts, const std::string& parts_folder,
                 const std::string& folder, int64_t rows) {
  std::sort(parts.begin(), parts.end(), [](const BatchPart& a, const BatchPart& b) {
    return a.rows.first < b.rows.first;
  });
  int64_t next = 0;
  for (const BatchPart& part : parts) {
    if (part.rows.first != next) {
      fail_run(BatchJournal::path(folder), "has row {} {}", std::min(next, part.rows.first),
               part.rows.first < next ? "twice" : "in no part");
    }
    next += part.rows.count;
  }
  if (next != rows) fail_run(BatchJournal::path(folder), "has {} of {} rows", next, rows);
  write_file_atomic(join_path(folder, "errors.jsonl"), [&](FileWriter& errors) {
    write_file_atomic(join_path(folder, "output.jsonl"), [&](FileWriter& output) {
      for (const BatchPart& part : parts) {
        for (const RowResult& result : read_part(part, join_path(parts_folder, part.file))) {
          if (result.kind == RowResult::Kind::blank) continue;
          FileWriter& file = result.kind == RowResult::Kind::output ? output : errors;
          file.write(result.json);
          file.write("\n");
        }
      }
    });
  });
}

}  // namespace hocket::serve
