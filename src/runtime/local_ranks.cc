// SPDX-License-Identifier: Apache-2.0
#include "runtime/local_ranks.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "base/error.h"

namespace hocket::runtime {

namespace {

std::vector<int32_t> all_ranks(int32_t size) {
  std::vector<int32_t> ids(static_cast<size_t>(size));
  std::iota(ids.begin(), ids.end(), 0);
  return ids;
}

}  // namespace

LocalRanks::LocalRanks(int32_t world_size, std::shared_ptr<kernels::Backend> backend,
                       const RankOptions& options)
    : LocalRanks(std::make_shared<comm::LocalWorld>(world_size, options.timeout),
                 all_ranks(world_size), std::move(backend), options) {}

LocalRanks::LocalRanks(std::shared_ptr<comm::World> world, std::vector<int32_t> ids,
                       std::shared_ptr<kernels::Backend> backend, const RankOptions& options)
    : world_(std::move(world)), ids_(std::move(ids)) {
  HOCKET_CHECK(std::adjacent_find(ids_.begin(), ids_.end(), std::greater_equal<>()) == ids_.end(),
               "ranks are not in ascending order");
  for (int32_t id : ids_) {
    HOCKET_CHECK(id >= 0 && id < world_->size(), "rank {} in a world of {}", id, world_->size());
    ranks_.push_back(std::make_unique<Rank>(id, backend, &world_->communicator(id), options));
  }
  for (auto& rank : ranks_) {
    rank->set_on_error([this](const std::string& what) {
      world_->abort(what);
      for (auto& other : ranks_) {
        other->cancel();
      }
    });
  }
  world_->watch(
      [this] {
        std::string tasks;
        for (const auto& rank : ranks_) {
          const std::string doing = rank->doing();
          tasks += (tasks.empty() || doing.empty() ? "" : ", ") + doing;
        }
        return tasks;
      },
      [this](const std::string&) {
        for (const auto& rank : ranks_) {
          rank->cancel();
        }
      });
}

LocalRanks::~LocalRanks() {
  for (auto& rank : ranks_) {
    rank->set_on_error(nullptr);
  }
  world_->leave();
}

size_t LocalRanks::place_of(int32_t id) const {
  const auto found = std::lower_bound(ids_.begin(), ids_.end(), id);
  if (found == ids_.end() || *found != id) {
    fail_run("ranks", "rank {} is not in this process", id);
  }
  return static_cast<size_t>(found - ids_.begin());
}

bool LocalRanks::has(int32_t id) const { return std::binary_search(ids_.begin(), ids_.end(), id); }
Rank& LocalRanks::at(int32_t id) { return *ranks_[place_of(id)]; }
const Rank& LocalRanks::at(int32_t id) const { return *ranks_[place_of(id)]; }

program::Memory LocalRanks::measured(int32_t id) const {
  const Rank& rank = at(id);
  program::Memory memory;
  memory.persistent = rank.stores_resident_bytes();
  memory.inputs_outputs = rank.inputs_outputs_resident_bytes();
  memory.step_buffers = rank.arena_resident_bytes();
  memory.host = rank.stores_resident_bytes(program::Space::host) +
                rank.inputs_outputs_resident_bytes(program::Space::host) +
                rank.arena_resident_bytes(program::Space::host);
  memory.messages = world_->peak_message_bytes(id);
  return memory;
}

Store::Store(LocalRanks& ranks) : ranks_(&ranks) {
  for (int32_t id : ranks.ids()) {
    of_ranks_.push_back(ranks.at(id).make_store());
  }
}

const std::shared_ptr<PersistentStore>& Store::shared(int32_t id) const {
  return of_ranks_[ranks_->place_of(id)];
}

LocalRun::LocalRun(std::shared_ptr<const program::Program> program, const Store& store,
                   const std::shared_ptr<const EmulatedDevice>& emulated)
    : ranks_(store.ranks()), executors_(static_cast<size_t>(ranks_.world_size())) {
  if (program->num_ranks() != ranks_.world_size()) {
    fail_run("ranks", "the program is for {} ranks; this world has {}", program->num_ranks(),
             ranks_.world_size());
  }
  for (int32_t id : ranks_.ids()) {
    executors_[static_cast<size_t>(id)] =
        std::make_unique<Executor>(ranks_.at(id), store.shared(id), program, emulated);
  }
}

Executor& LocalRun::executor(int32_t id) {
  return const_cast<Executor&>(std::as_const(*this).executor(id));
}

const Executor& LocalRun::executor(int32_t id) const {
  if (!ranks_.has(id)) {
    fail_run("ranks", "rank {} is not in this process", id);
  }
  return *executors_[static_cast<size_t>(id)];
}

void LocalRun::set_symbol(std::string_view name, int64_t value) {
  for (int32_t id : ranks_.ids()) {
    executor(id).set_symbol(name, value);
  }
}

void LocalRun::step() {
  // A step begins on all ranks or on none.
  if (ranks_.in_step_.exchange(true)) {
    fail_run("step", "these ranks run a step already; expected one program at a time");
  }
  struct End {
    std::atomic<bool>& in_step;
    ~End() { in_step = false; }
  } const end{ranks_.in_step_};
  for (int32_t id : ranks_.ids()) {
    executor(id).require_inputs();
  }
  for (int32_t id : ranks_.ids()) {
    executor(id).start();
  }
  std::optional<Error> first;
  for (int32_t id : ranks_.ids()) {
    try {
      executor(id).wait();
    } catch (const Error& error) {
      // The error of the failed rank is more useful than those of the ranks it stopped.
      if (!first ||
          (first->cause() == Error::Cause::stopped && error.cause() == Error::Cause::own)) {
        first = error;
      }
    }
  }
  if (first) throw Error(Error::Kind::kRun, "step", first->what(), first->cause());
}

}  // namespace hocket::runtime
