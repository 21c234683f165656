// SPDX-License-Identifier: Apache-2.0
// Execution of a program on a rank: tasks run in in-order lanes, and wait for the events of the
// tasks of other lanes that they depend on. Errors in lanes are stored and thrown at the end of the
// step.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "program/program.h"
#include "runtime/emulated_device.h"
#include "runtime/rank.h"

namespace hocket::runtime {

/// Program prepared to run on a rank, with the persistent tensors of one of its stores. All
/// executors of a rank share its threads and arenas, and one runs at a time. Inputs and outputs
/// belong to the executor that was fed last, until another one is fed or started. Step buffers hold
/// nothing between steps.
class Executor {
 public:
  /// Prepares the program. Requires: `rank` outlives the executor and runs no step. Throws Error if
  /// the program has no memory plan, needs kernels that do not exist, or lays out persistent
  /// tensors differently from the store. `emulated`: durations of an emulated device; null: none.
  Executor(Rank& rank, std::shared_ptr<PersistentStore> store,
           std::shared_ptr<const program::Program> program,
           std::shared_ptr<const EmulatedDevice> emulated = nullptr);
  /// Cancels its own step if it is running.
  ~Executor();

  /// Device that copies into inputs and out of outputs.
  Device& device() const;

  /// Returns the device address of a named input, to be written before a step. Discards the inputs
  /// of other executors of the rank. Valid until another executor is created. Throws Error if the
  /// rank has no such buffer, or runs a step.
  void* input(std::string_view name, int32_t micro_batch = program::kNone);
  /// Returns the address of a named input or output, as this executor's last step left it. Throws
  /// Error if the rank has no such buffer, or another executor has been fed or started since.
  const void* output(std::string_view name, int32_t micro_batch = program::kNone) const;
  bool has(std::string_view name, int32_t micro_batch = program::kNone) const;
  const std::vector<program::Buffer>& buffers() const;
  const program::Buffer& buffer(std::string_view name, int32_t micro_batch = program::kNone) const;

  /// Sets the value of a symbol for the next and later steps. Throws Error if the program has no
  /// such symbol, the value is not valid for it (graph/dim.h), or the rank runs a step.
  void set_symbol(std::string_view name, int64_t value);
  /// Values by index in Program::symbols; 0: not set.
  const std::vector<int64_t>& symbol_values() const;

  /// Throws Error if a symbol has no value, or another executor has taken over the inputs' memory
  /// since they were fed.
  void require_inputs() const;
  /// Starts a step on the lane threads; `wait` blocks until it ends and throws its error. Throws
  /// Error if a step is running already, and as require_inputs() does.
  void start();
  void wait();
  /// Runs a step on the calling thread, task by task in issue order: `visit` gets the task and a
  /// function that runs it, which it may call any number of times. For profiling; lanes are not
  /// used.
  void run_inline(const std::function<void(program::TaskId, const std::function<void()>&)>& visit);

  /// Returns the address of any buffer of the rank's class, by its index in buffers(); for a view,
  /// its first element. For observers in run_inline.
  const void* data(program::BufferId buffer) const;

  /// Times of the last step's tasks, by task id in the rank's class.
  const std::vector<TaskTime>& times() const;

 private:
  struct Impl;
  bool holds() const;
  void take_over();
  void poison();

  Rank& rank_;
  std::shared_ptr<Impl> impl_;
  int64_t held_ =
      program::kNone;  ///< generation of the inputs and outputs when they were last taken over
};

}  // namespace hocket::runtime
