// SPDX-License-Identifier: Apache-2.0
// Journal of a batch job: a line of JSON an event, on the disk before the event counts.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/file.h"
#include "serve/batch/shard_table.h"

namespace hocket::serve {

/// Results of consecutive rows, a piece of a file in the folder of parts.
struct BatchPart {
  RowRange rows;
  std::string file;  ///< its name in the folder
  int64_t at = 0, bytes = 0;
  std::string hash;  ///< of the piece, hexadecimal
  int64_t outputs = 0, errors = 0, blanks = 0, prompt_tokens = 0, tokens = 0;
};

/// Identity of a job: another input or other settings are another job.
struct BatchJob {
  std::string input;  ///< path, for messages
  int64_t rows = 0, bytes = 0;
  std::string hash;      ///< of the input, hexadecimal
  std::string settings;  ///< everything that determines the results
};

/// Content of a journal.
struct BatchHistory {
  BatchJob job;
  int64_t epoch = 0;  ///< starts of a master so far
  int port = 0;       ///< of the last master; 0: none
  std::string key;    ///< that workers must have
  std::vector<BatchPart> parts;
  bool is_merged = false;
};

class BatchJournal {
 public:
  /// Opens the journal of a folder, or begins one for `job`. A last line that is incomplete is cut
  /// off: its event did not count. Throws Error for damage, and for the journal of another job,
  /// with the difference.
  BatchJournal(const std::string& folder, const BatchJob& job);

  const BatchHistory& history() const { return history_; }
  /// Adds an event. Like the next ones it returns when that is on the disk.
  void start(int port, const std::string& key);
  void add(const std::vector<BatchPart>& parts);
  void merged();

  static std::string path(const std::string& folder);

 private:
  void append(const std::string& line);

  BatchHistory history_;
  std::unique_ptr<FileWriter> file_;
};

}  // namespace hocket::serve
