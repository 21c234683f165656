// SPDX-License-Identifier: Apache-2.0
// Executes a program: a thread per lane, in-order queues, and a counter of finished tasks per lane
// on which tasks of other lanes wait. Errors in lanes are kept and surface at the end of the step.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "kernels/backend.h"
#include "program/program.h"
#include "runtime/memory.h"

namespace hocket::runtime {

struct ExecutorOptions {
  int threads = 1;                             ///< intra-op threads of the compute lane
  std::chrono::milliseconds timeout{300'000};  ///< of every wait
  kernels::Device device = kernels::Device::cpu;
  /// Tests: step buffers hold NaN before their first write and after their last use.
  bool poison = false;
};

/// When a task ran, in nanoseconds of the steady clock.
struct TaskTime {
  int64_t start_ns = 0, end_ns = 0;
};

/// One rank of a program.
class Executor {
 public:
  Executor(const program::Program& program, int32_t rank,
           const std::shared_ptr<kernels::Backend>& backend, comm::Communicator* communicator,
           PersistentStore& store, ExecutorOptions options);
  ~Executor();

  /// Memory of a named input or output buffer (throws Error if the rank has none).
  void* input(std::string_view name, int32_t micro_batch = program::kNone) const;
  const void* output(std::string_view name, int32_t micro_batch = program::kNone) const;
  bool has(std::string_view name, int32_t micro_batch = program::kNone) const;
  const std::vector<program::Buffer>& buffers() const;
  const program::Buffer& buffer(std::string_view name, int32_t micro_batch = program::kNone) const;

  /// The value of one of the program's symbols, for this step and those after it. Throws Error for
  /// a symbol that the program does not have, or a value that it cannot have (graph/dim.h).
  void set_symbol(std::string_view name, int64_t value);
  /// By place in Program::symbols; 0: not set.
  const std::vector<int64_t>& symbol_values() const;

  /// Starts a step on the lane threads; `wait` blocks until it is over and throws what went wrong.
  /// Throws Error where a symbol has no value.
  void start();
  void wait();
  /// Runs a step on the calling thread, task by task in issue order: `visit` gets the task and a
  /// function that runs it (once, or as often as it likes). For profiling; lanes are not used.
  void run_inline(const std::function<void(program::TaskId, const std::function<void()>&)>& visit);
  /// Makes the lanes of a running step stop at their next task.
  void cancel();
  /// Called from a lane when a task fails, before the lanes stop (so that peers can be told).
  std::function<void(const std::string&)> on_error;

  /// Times of the last step's tasks, by task id of the rank's class.
  const std::vector<TaskTime>& times() const;
  /// Bytes of pages that the rank has touched so far, but for those of its store and its messages.
  program::Memory measured() const;

  struct Impl;

 private:
  std::unique_ptr<Impl> impl_;
};

/// All ranks of a program as threads of this process.
class LocalRun {
 public:
  /// `stores`: one per rank, outliving the run.
  LocalRun(const program::Program& program, std::shared_ptr<kernels::Backend> backend,
           std::vector<PersistentStore>& stores, ExecutorOptions options);
  ~LocalRun();
  /// Runs one step on every rank; throws the first error, which names rank, task and cause.
  void step();
  /// Executor::set_symbol, on every rank.
  void set_symbol(std::string_view name, int64_t value);
  Executor& rank(int32_t id) { return *executors_[id]; }
  int32_t size() const { return static_cast<int32_t>(executors_.size()); }
  comm::LocalWorld& world() { return *world_; }
  /// Memory that the rank has taken so far, by the names of program::Memory; `persistent` is its
  /// store's.
  program::Memory measured(int32_t rank) const;

 private:
  std::vector<PersistentStore>& stores_;
  std::unique_ptr<comm::LocalWorld> world_;
  std::vector<std::unique_ptr<Executor>> executors_;
};

}  // namespace hocket::runtime
