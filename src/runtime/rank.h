// SPDX-License-Identifier: Apache-2.0
// A rank in this process: what its programs have in common. Lane threads, in every memory space
// an arena of step buffers and one of inputs and outputs, and a communicator. Programs are bound to
// it by executors, each with one of its stores, and one of them runs at a time.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "kernels/backend.h"
#include "runtime/lanes.h"
#include "runtime/memory.h"

namespace hocket::runtime {

class Rank {
 public:
  /// `communicator` outlives the rank; null: its programs have no communication.
  Rank(int32_t id, std::shared_ptr<kernels::Backend> backend, comm::Communicator* communicator,
       RankOptions options = {});
  ~Rank();
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  int32_t id() const { return id_; }
  /// A store in the memory of its device: one of a model's parameters, of which it may have many.
  std::shared_ptr<PersistentStore> make_store();
  /// What all its stores have taken.
  int64_t stores_resident_bytes(program::Space space = program::Space::device) const;
  /// Makes the lanes of a running step stop at their next task. The rank runs no step after it.
  void cancel() { lanes_->cancel(); }
  /// Tasks that have begun and not ended, by name; between steps that the last one has ended.
  std::string doing() const { return lanes_->doing(); }
  /// Called from a lane when a task fails, before the other lanes stop (so that peers can be told).
  void set_on_error(std::function<void(const std::string&)> on_error) {
    lanes_->set_on_error(std::move(on_error));
  }
  /// Pages of a space that its programs together have touched so far.
  int64_t arena_resident_bytes(program::Space space = program::Space::device) const {
    return arenas_[place_of(space)].step.resident_bytes();
  }
  int64_t inputs_outputs_resident_bytes(program::Space space = program::Space::device) const {
    return arenas_[place_of(space)].inputs_outputs.resident_bytes();
  }

 private:
  friend class Executor;
  /// Those of one memory space.
  struct Arenas {
    explicit Arenas(const std::shared_ptr<Device>& device) : step(device), inputs_outputs(device) {}
    Arena step;
    Arena inputs_outputs;
  };
  /// Another number whenever one of the arenas has another memory.
  int64_t arena_generation() const;
  int64_t inputs_outputs_generation() const;

  const int32_t id_;
  const std::shared_ptr<kernels::Backend> backend_;
  comm::Communicator* const communicator_;
  const RankOptions options_;
  // Of whoever has programs for them, and of steps: a kernel that hangs keeps what it may touch.
  std::vector<std::weak_ptr<PersistentStore>> stores_;
  const std::shared_ptr<Lanes> lanes_;
  std::array<Arenas, program::kNumSpaces> arenas_;
  /// The executor that the inputs and outputs were of last, there or gone; null: nobody's yet.
  const void* holder_ = nullptr;
  int programs_ = 0;  ///< bound
};

}  // namespace hocket::runtime
