// SPDX-License-Identifier: Apache-2.0
// A compiled program on the ranks of this process, fed and read by logical tensors, for train,
// eval, generate and profile.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/batch.h"
#include "run/compile.h"
#include "runtime/local_ranks.h"

namespace hocket::engine {

/// Returns the execution options of a run: plan.threads_per_rank and plan.timeout_s.
runtime::RankOptions rank_options(const Run& run);

/// The ranks of a run's plan that this process has, with the kernels of its CPU: all of them, as
/// threads, or with ranks as processes its own, once all processes have come. They take memory and
/// threads only when a program is prepared on them.
runtime::LocalRanks local_ranks(const Run& run);

class Session {
 public:
  /// Requires: the ranks of the store outlive the session. Sessions on the same ranks share threads
  /// and memory, those of one store also persistent tensors; one runs at a time. Inputs and outputs
  /// are valid until another session on the ranks is fed or run. `emulated`: durations of an
  /// emulated device (engine/emulate.h); null: none.
  Session(std::shared_ptr<const Compiled> compiled, runtime::Store store,
          std::shared_ptr<const runtime::EmulatedDevice> emulated = nullptr);
  Session(Compiled compiled, runtime::Store store,
          std::shared_ptr<const runtime::EmulatedDevice> emulated = nullptr)
      : Session(std::make_shared<const Compiled>(std::move(compiled)), std::move(store),
                std::move(emulated)) {}

  const Compiled& compiled() const { return *compiled_; }
  const program::Program& program() const { return compiled_->program; }
  const graph::Graph& graph() const { return compiled_->reference; }
  const std::shared_ptr<const runtime::EmulatedDevice>& emulated() const { return emulated_; }
  const runtime::Store& store() const { return store_; }
  runtime::LocalRanks& ranks() const { return store_.ranks(); }
  runtime::LocalRun& run() { return run_; }
  const runtime::LocalRun& run() const { return run_; }

  /// The value of a symbol of the program, from the next step on; before `feed`.
  void set_symbol(std::string_view name, int64_t value) { run_.set_symbol(name, value); }
  /// Gives every local rank its part of the next step's inputs.
  void feed(const FeedMap& feeds);
  void feed(const Batch& batch) { feed(batch.feeds()); }
  /// The full output tensor: its parts put together, each taken once. With ranks as processes all
  /// of them call it, and each gets it. Throws Error if some of it is on no rank.
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
  void step() { run_.step(); }

 private:
  const graph::Tensor& tensor(const std::string& name) const;

  std::shared_ptr<const Compiled> compiled_;
  runtime::Store store_;
  std::shared_ptr<const runtime::EmulatedDevice> emulated_;
  runtime::LocalRun run_;
};

}  // namespace hocket::engine
