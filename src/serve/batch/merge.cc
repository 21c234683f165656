// SPDX-License-Identifier: Apache-2.0
#include "serve/batch/merge.h"

#include <algorithm>
#include <map>

#include "base/error.h"
#include "base/file.h"
#include "serve/batch/row_result.h"

namespace hocket::serve {

namespace {

/// Reads a part; its rows are in order and those of the journal.
std::vector<RowResult> read_part(const BatchPart& part, const RandomFile& file) {
  const std::string& path = file.path();
  std::string text(static_cast<size_t>(part.bytes), '\0');
  if (part.bytes > file.size() - part.at) {
    fail_run(path, "has {} bytes; the journal has a part that ends at {}", file.size(),
             part.at + part.bytes);
  }
  file.read(part.at, text.data(), text.size());
  if (hash128(text).hex() != part.hash) {
    fail_run(path,
             "is not as it was written at byte {}; take the part's line out of the journal to have "
             "its rows done again",
             part.at);
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
  std::sort(parts.begin(), parts.end(),
            [](const BatchPart& a, const BatchPart& b) { return a.rows.first < b.rows.first; });
  int64_t next = 0;
  for (const BatchPart& part : parts) {
    if (part.rows.first != next) {
      fail_run(BatchJournal::path(folder), "has row {} {}", std::min(next, part.rows.first),
               part.rows.first < next ? "twice" : "in no part");
    }
    next += part.rows.count;
  }
  if (next != rows) fail_run(BatchJournal::path(folder), "has {} of {} rows", next, rows);
  std::map<std::string, RandomFile> files;
  write_file_atomic(join_path(folder, "errors.jsonl"), [&](FileWriter& errors) {
    write_file_atomic(join_path(folder, "output.jsonl"), [&](FileWriter& output) {
      for (const BatchPart& part : parts) {
        const auto [file, is_new] =
            files.try_emplace(part.file, join_path(parts_folder, part.file));
        for (const RowResult& result : read_part(part, file->second)) {
          if (result.kind == RowResult::Kind::blank) continue;
          FileWriter& written = result.kind == RowResult::Kind::output ? output : errors;
          written.write(result.json);
          written.write("\n");
        }
      }
    });
  });
}

}  // namespace hocket::serve
