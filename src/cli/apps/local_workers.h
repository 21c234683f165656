// SPDX-License-Identifier: Apache-2.0
// Workers of a batch job as processes of this program, started again when they fail.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace hocket::cli {

/// Starts and watches processes. Each ends with the process that started it.
class LocalWorkers {
 public:
  /// `arguments`: those of worker `index` behind "hocket".
  LocalWorkers(int64_t count, std::function<std::vector<std::string>(int64_t index)> arguments);
  ~LocalWorkers();  ///< ends them
  LocalWorkers(const LocalWorkers&) = delete;
  LocalWorkers& operator=(const LocalWorkers&) = delete;

  void start();
  /// Starts those again that failed, a while after that. Throws Error where that does not help: bad
  /// input, or several failures without a finished row. `rows`: finished by now.
  void tend(int64_t rows);
  /// Waits until all have ended or the time is over; then ends them.
  void join(double seconds);

 private:
  struct Process {
    pid_t pid = 0;          ///< 0: it does not run
    int64_t starts_at = 0;  ///< time, in ns; 0: it is not to be started
  };
  void start(Process* process, int64_t index) const;
  void note_end(Process* process, int status, int64_t rows);

  const std::function<std::vector<std::string>(int64_t)> arguments_;
  std::vector<Process> processes_;
  int64_t failures_ = 0;  ///< since a row was finished
  int64_t rows_ = 0;
};

}  // namespace hocket::cli
