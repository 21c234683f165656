// SPDX-License-Identifier: Apache-2.0
// Executes a program on a rank: tasks in in-order lanes, each waiting for the events of the tasks
// of other lanes that it depends on. Errors in lanes are kept and surface at the end of the step.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "program/program.h"
#include "runtime/played.h"
#include "runtime/rank.h"

namespace hocket::runtime {

/// A program prepared to run on a rank, with the persistent tensors of one of its stores. All
/// executors of a rank share its threads and its arenas. One runs at a time; what lies in inputs
/// and outputs is of the executor that was fed last, and stays until another one of the rank is fed
/// or started. Step buffers hold nothing between steps.
class Executor {
 public:
  /// `rank` outlives the executor, and runs no step just now. Error: the program has no memory
  /// plan, asks for kernels that there are not, or holds persistent tensors otherwise than the
  /// store does. `played`: how long its tasks take; null: as long as they do.
  Executor(Rank& rank, std::shared_ptr<PersistentStore> store,
           std::shared_ptr<const program::Program> program,
           std::shared_ptr<const Played> played = nullptr);
  /// Cancels its own step if it runs.
  ~Executor();

  /// What copies into inputs and out of outputs.
  Device& device() const;

  /// Where a named input lies on the device, to be written before a step. What other executors of
  /// the rank had in theirs is lost. Valid until another executor is made. Error: the rank has no
  /// such buffer, or runs a step.
  void* input(std::string_view name, int32_t micro_batch = program::kNone);
  /// Where a named input or output lies, as this executor's last step left it. Error: the rank has
  /// no such buffer, or another executor has been fed or started since.
  const void* output(std::string_view name, int32_t micro_batch = program::kNone) const;
  bool has(std::string_view name, int32_t micro_batch = program::kNone) const;
  const std::vector<program::Buffer>& buffers() const;
  const program::Buffer& buffer(std::string_view name, int32_t micro_batch = program::kNone) const;

  /// The value of one of the program's symbols, for the next step and those after it. Error: the
  /// program has no such symbol, the symbol cannot have the value (graph/dim.h), or the rank runs a
  /// step.
  void set_symbol(std::string_view name, int64_t value);
  /// By place in Program::symbols; 0: not set.
  const std::vector<int64_t>& symbol_values() const;

  /// Error: a symbol has no value, or another executor has taken over the memory of the inputs
  /// since they were fed.
  void require_inputs() const;
  /// Starts a step on the lane threads; `wait` blocks until it is over and throws what went wrong.
  /// Error: a step runs already, or as require_inputs().
  void start();
  void wait();
  /// Runs a step on the calling thread, task by task in issue order: `visit` gets the task and a
  /// function that runs it (once, or as often as it likes). For profiling; lanes are not used.
  void run_inline(const std::function<void(program::TaskId, const std::function<void()>&)>& visit);

  /// Where any buffer of the rank's class lies, by its place in buffers(), where a view begins: for
  /// who looks on in run_inline.
  const void* data(program::BufferId buffer) const;

  /// Times of the last step's tasks, by task id of the rank's class.
  const std::vector<TaskTime>& times() const;

 private:
  struct Impl;
  bool holds() const;
  void take_over();
  void poison();

  Rank& rank_;
  std::shared_ptr<Impl> impl_;
  int64_t held_ = program::kNone;  ///< generation of the inputs and outputs that it took over last
};

}  // namespace hocket::runtime
