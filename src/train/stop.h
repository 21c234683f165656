// SPDX-License-Identifier: Apache-2.0
// Ending a training by signals. While steps run, the first SIGINT, SIGTERM or SIGHUP is
// acknowledged at once and ends the run after this step, with a checkpoint; a second one ends the
// process immediately (the same signal within half a second counts as the first: `timeout` and
// launchers send it to the process and to its group). At any other time (before the first step, in
// the evaluation at the end) the first one does. Both print the checkpoint from which the same
// command resumes.
// A separate thread handles signals: it may print, and it responds while a step hangs.
#pragma once

#include <signal.h>

#include <chrono>
#include <mutex>
#include <string>
#include <thread>

namespace hocket::train {

class StopSignals {
 public:
  /// Blocks the signals here and in all threads that follow. To be made before any other thread,
  /// which would otherwise be hit by them. SIGHUP stays ignored where it was (nohup). One object at
  /// a time.
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  /// Begins a step: the first signal from now on waits for its end. Returns false if a signal came
  /// before. `promise`: the message's word for the run's reaction; by default it finishes the step
  /// and saves it.
  bool begin_step(int64_t step, const std::string& promise = "");
  /// The signal that came while steps ran; 0: none.
  int requested();
  /// Ends the steps: the first signal from now on ends the process. Returns the one that came while
  /// they ran; 0: none.
  int end_steps();
  /// The rest of a sentence: "the same command goes on from runs/x/checkpoints/step-000040".
  void set_resume(const std::string& text);

 private:
  void watch();
  void take(int signal);

  sigset_t signals_, before_;
  int signal_fd_ = -1, end_fd_ = -1;
  std::mutex mutex_;   ///< guards the members below
  int64_t step_ = 0;   ///< the one that runs; 0: none
  int requested_ = 0;  ///< the first signal that came while steps ran
  std::chrono::steady_clock::time_point requested_at_;
  std::string promise_, resume_;
  std::thread thread_;
};

/// The exit code of a process that a signal ended, as shells have it: 130, 143, 129.
inline int exit_code_of(int signal) { return 128 + signal; }

}  // namespace hocket::train
