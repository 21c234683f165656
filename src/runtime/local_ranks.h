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

/// The ranks that this process holds, or this part of it. When one fails, all are stopped, and the
/// world is told.
class LocalRanks {
 public:
  /// All ranks of a world.
  LocalRanks(int32_t world_size, std::shared_ptr<kernels::Backend> backend,
             const RankOptions& options);
  /// The ranks `ids`, in ascending order, of a world that has others elsewhere.
  LocalRanks(std::shared_ptr<comm::World> world, std::vector<int32_t> ids,
             std::shared_ptr<kernels::Backend> backend, const RankOptions& options);
  ~LocalRanks();

  int32_t world_size() const { return world_->size(); }
  /// The ranks that are here.
  const std::vector<int32_t>& ids() const { return ids_; }
  bool has(int32_t id) const;
  /// Error: the rank is not here.
  Rank& at(int32_t id);
  const Rank& at(int32_t id) const;
  comm::World& world() const { return *world_; }
  /// Those that have the ranks of the world.
  comm::Processes& processes() const { return world_->processes(); }
  /// Memory that a rank has taken so far, by the names of program::Memory.
  program::Memory measured(int32_t id) const;

 private:
  friend class LocalRun;
  friend class Store;
  size_t place_of(int32_t id) const;

  std::shared_ptr<comm::World> world_;
  std::vector<int32_t> ids_;
  std::vector<std::unique_ptr<Rank>> ranks_;  // as ids_
  std::atomic<bool> in_step_{false};
};

/// The persistent tensors of one model on the ranks that are here. Several can be on the same
/// ranks, in layouts of their own: a policy and its reference, weights and their average. A handle:
/// copies are of the same tensors, which go with the last one and the last program on them.
class Store {
 public:
  /// An empty one. `ranks` outlives it.
  explicit Store(LocalRanks& ranks);
  LocalRanks& ranks() const { return *ranks_; }
  /// Of a rank that is here.
  PersistentStore& at(int32_t id) const { return *shared(id); }
  const std::shared_ptr<PersistentStore>& shared(int32_t id) const;

 private:
  LocalRanks* ranks_;
  std::vector<std::shared_ptr<PersistentStore>> of_ranks_;  ///< as ranks_->ids()
};

/// A program prepared on local ranks: those classes of it that they are of.
class LocalRun {
 public:
  /// The ranks of the store outlive the run. `played`: as Executor has it. Error: they are of
  /// another world than the program.
  LocalRun(std::shared_ptr<const program::Program> program, const Store& store,
           const std::shared_ptr<const Played>& played = nullptr);
  /// Runs one step on every rank that is here; throws the first error, which names rank, task and
  /// cause. Error, and nothing is run: these ranks run another step, or another program was fed
  /// after this one.
  void step();
  /// Executor::set_symbol, on every rank that is here.
  void set_symbol(std::string_view name, int64_t value);
  /// Of a rank that is here.
  Executor& executor(int32_t id);
  const Executor& executor(int32_t id) const;

 private:
  LocalRanks& ranks_;
  std::vector<std::unique_ptr<Executor>> executors_;  // by rank of the world; null: not here
};

}  // namespace hocket::runtime
