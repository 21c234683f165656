// SPDX-License-Identifier: Apache-2.0
// A compiled program with local ranks, fed and read by logical tensors: what train, eval, generate
// and profile have in common.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/batch.h"
#include "engine/compile.h"
#include "kernels/backend.h"
#include "runtime/executor.h"

namespace hocket::engine {

/// How a run's ranks execute: plan.threads_per_rank and plan.timeout_s.
runtime::ExecutorOptions executor_options(const Run& run);

/// The persistent tensors of all local ranks; shared by the programs of one session.
using Stores = std::vector<runtime::PersistentStore>;

class Session {
 public:
  /// `stores` must have one entry per rank of the program and outlive the session.
  Session(Compiled compiled, std::shared_ptr<kernels::Backend> backend, Stores& stores,
          runtime::ExecutorOptions options);

  const Compiled& compiled() const { return compiled_; }
  const program::Program& program() const { return compiled_.program; }
  const graph::Graph& graph() const { return compiled_.reference; }
  runtime::LocalRun& run() { return *run_; }
  Stores& stores() { return stores_; }
  const Stores& stores() const { return stores_; }

  /// The value of a symbol of the program, from the next step on; before `feed`.
  void set_symbol(std::string_view name, int64_t value) { run_->set_symbol(name, value); }
  /// Gives every rank its part of what the next step reads.
  void feed(const Batch& batch);
  /// The full output tensor: parts put together, partial sums added, replicas taken once.
  std::vector<std::byte> collect(const std::string& name,
                                 int32_t micro_batch = program::kNone) const;
  template <typename T>
  std::vector<T> collect_as(const std::string& name, int32_t micro_batch = program::kNone) const {
    std::vector<std::byte> raw = collect(name, micro_batch);
    const T* data = reinterpret_cast<const T*>(raw.data());
    return std::vector<T>(data, data + raw.size() / sizeof(T));
  }
  /// The first loss of the step: that of the text, without balance losses.
  double loss() const;
  void step() { run_->step(); }
  /// Gives back all memory but the persistent tensors. Nothing can be fed, run or collected after
  /// it.
  void end() { run_.reset(); }

 private:
  const graph::Tensor& tensor(const std::string& name) const;

  Compiled compiled_;
  Stores& stores_;
  std::unique_ptr<runtime::LocalRun> run_;
};

}  // namespace hocket::engine
