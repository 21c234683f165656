// SPDX-License-Identifier: Apache-2.0
// Master of a batch job: leases shards of the input to workers, and holds every result exactly
// once. All files are its own; workers have no state that must survive.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "serve/batch/shard_table.h"

namespace hocket::serve {

struct BatchMasterOptions {
  std::string input, folder;
  std::string settings;  ///< everything that determines the results: workers get it
  std::string host = "127.0.0.1";
  int port = 0;     ///< 0: that of the job's last master if it is free, else any
  std::string key;  ///< that workers must have; empty: a random one
  ShardOptions shards;
  double silence_s = 30;                        ///< a worker that says nothing so long is lost
  int64_t most_row_bytes = int64_t{16} << 20;   ///< longer rows are errors
  int64_t most_shard_bytes = int64_t{8} << 20;  ///< of its rows
  bool keep_parts = false;                      ///< after the merge
  /// Called once, when it listens.
  std::function<void(int port, const std::string& key)> on_listen;
  /// Called many times a second with the rows that are done: may start workers again. The job fails
  /// if it throws.
  std::function<void(int64_t rows)> tend;
  std::function<void(const std::string&)> progress;  ///< a line on the state
  std::function<bool()> stop;                        ///< true: end soon; the job goes on later
};

struct BatchSummary {
  bool is_complete = false;   ///< else it was stopped
  bool was_complete = false;  ///< by an earlier call: nothing was done
  int64_t rows = 0, outputs = 0, errors = 0, blanks = 0, prompt_tokens = 0, tokens = 0;
  int64_t restored = 0, restored_tokens = 0;  ///< that an earlier master had
  double seconds = 0;
};

/// Runs the job until every row is done and merged, or it is stopped. Results are in `folder`:
/// output.jsonl and errors.jsonl, in the order of the input. Throws Error for an input or folder
/// that does not fit.
BatchSummary run_batch_master(const BatchMasterOptions& options);

}  // namespace hocket::serve
