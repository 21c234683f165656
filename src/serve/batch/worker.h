// SPDX-License-Identifier: Apache-2.0
// Worker of a batch job: gets rows from the master, generates, sends results.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <string>

#include "serve/batch/input_rows.h"
#include "serve/batch/row_result.h"

namespace hocket::serve {

/// Generates the results of rows.
class RowGenerator {
 public:
  /// Takes a row's result, or what went wrong, which ends the worker.
  using Done = std::function<void(RowResult, std::exception_ptr)>;
  virtual ~RowGenerator() = default;
  /// Rows that it works at together; begin() is called only with fewer under way.
  virtual int64_t slots() const = 0;
  /// Begins a row, on one thread. `done` is called once, by any thread, also before this returns. A
  /// row that is wrong has an error as its result.
  virtual void begin(InputRow row, Done done) = 0;
  /// Ends the rows under way soon; their results do not matter. May be called concurrently.
  virtual void cancel() = 0;
};

struct BatchWorkerOptions {
  std::string host = "127.0.0.1";
  int port = 0;
  std::string key, name;
  /// Makes the generator, once, from the job's settings as the master has them.
  std::function<RowGenerator&(const std::string& settings)> generator;
  double beat_s = 1;        ///< interval of heartbeats
  double reconnect_s = 60;  ///< without a master for so long it gives up
  std::function<bool()> stop;
};

/// Works until the job is finished, or it is stopped. Without a master it goes on with the rows
/// that it has, and delivers them to the next master at that address. Throws Error if the master
/// refuses it, or there is none for too long.
void run_batch_worker(const BatchWorkerOptions& options);

}  // namespace hocket::serve
