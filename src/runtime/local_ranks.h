// SPDX-License-Identifier: Apache-2.0
// Ranks as threads of this process, all of a world or some of them, and programs that run on them.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "comm/communicator.h"
#include "program/memory.h"
#include "runtime/executor.h"
#include "runtime/rank.h"

namespace hocket::runtime {

/// Ranks in this process, or a subset of them. A failure of one stops all, and is reported to the
/// world.
class LocalRanks {
 public:
  /// Creates all ranks of a world.
  LocalRanks(int32_t world_size, std::shared_ptr<kernels::Backend> backend,
             const RankOptions& options);
  /// Creates the ranks `ids`, ascending, of a world that has others elsewhere.
  LocalRanks(std::shared_ptr<comm::World> world, std::vector<int32_t> ids,
             std::shared_ptr<kernels::Backend> backend, const RankOptions& options);
  ~LocalRanks();

  int32_t world_size() const { return world_->size(); }
  /// Ranks in this process.
  const std::vector<int32_t>& ids() const { return ids_; }
  bool has(int32_t id) const;
  /// Returns a rank. Throws Error if it is not in this process.
  Rank& at(int32_t id);
  const Rank& at(int32_t id) const;
  comm::World& world() const { return *world_; }
  /// Processes with the ranks of the world.
  comm::Processes& processes() const { return world_->processes(); }
  /// Returns the memory that a rank has allocated so far, by the categories of program::Memory.
  program::Memory measured(int32_t id) const;

 private:
  friend class LocalRun;
  friend class Store;
  size_t place_of(int32_t id) const;

  std::shared_ptr<comm::World> world_;
  std::vector<int32_t> ids_;
  std::vector<std::unique_ptr<Rank>> ranks_;  // in the order of ids_
  std::atomic<bool> in_step_{false};
};

/// Persistent tensors of one model on the local ranks. The same ranks can have several stores with
/// layouts of their own: a policy and its reference, weights and their average. A handle with
/// shared ownership: copies refer to the same tensors, which live until the last copy or program on
/// them is gone.
class Store {
 public:
  /// Creates an empty store. Requires: `ranks` outlives it.
  explicit Store(LocalRanks& ranks);
  LocalRanks& ranks() const { return *ranks_; }
  /// Returns the store of a local rank.
  PersistentStore& at(int32_t id) const { return *shared(id); }
  const std::shared_ptr<PersistentStore>& shared(int32_t id) const;

 private:
  LocalRanks* ranks_;
  std::vector<std::shared_ptr<PersistentStore>> of_ranks_;  ///< in the order of ranks_->ids()
};

/// Program prepared on local ranks, with the classes that these ranks belong to.
class LocalRun {
 public:
  /// Prepares the program. Requires: the ranks of the store outlive the run. `emulated`: see
  /// Executor. Throws Error if the world's size is not that of the program.
  LocalRun(std::shared_ptr<const program::Program> program, const Store& store,
           const std::shared_ptr<const EmulatedDevice>& emulated = nullptr);
  /// Runs one step on every local rank, and throws the first error, which names rank, task and
  /// cause. Throws Error, without running anything, if these ranks run another step, or another
  /// program was fed after this one.
  void step();
  /// Calls Executor::set_symbol on every local rank.
  void set_symbol(std::string_view name, int64_t value);
  /// Returns the executor of a local rank.
  Executor& executor(int32_t id);
  const Executor& executor(int32_t id) const;

 private:
  LocalRanks& ranks_;
  std::vector<std::unique_ptr<Executor>> executors_;  // by rank of the world; null: not local
};

}  // namespace hocket::runtime
