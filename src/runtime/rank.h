// SPDX-License-Identifier: Apache-2.0
// State that the programs of a rank share: lane threads, a communicator, and in every memory space
// an arena of step buffers and one of inputs and outputs. Executors bind programs to the rank, each
// with one of its stores; one program runs at a time.
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

/// A rank in this process.
class Rank {
 public:
  /// Requires: `communicator` outlives the rank; null: programs without communication.
  Rank(int32_t id, std::shared_ptr<kernels::Backend> backend, comm::Communicator* communicator,
       RankOptions options = {});
  ~Rank();
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  int32_t id() const { return id_; }
  /// Creates a store in the device's memory, for one model's tensors; a rank may have many.
  std::shared_ptr<PersistentStore> make_store();
  /// Returns the bytes allocated by all of its stores.
  int64_t stores_resident_bytes(program::Space space = program::Space::device) const;
  /// Stops the lanes of a running step at their next task. The rank runs no step afterwards.
  void cancel() { lanes_->cancel(); }
  /// Returns the names of tasks that have begun and not ended; between steps, a text that says that
  /// the last step has ended.
  std::string doing() const { return lanes_->doing(); }
  /// Sets a callback for failures of tasks. A lane calls it before the other lanes stop, so that
  /// peers can be notified.
  void set_on_error(std::function<void(const std::string&)> on_error) {
    lanes_->set_on_error(std::move(on_error));
  }
  /// Returns the bytes of the pages in a space that its programs have touched so far.
  int64_t arena_resident_bytes(program::Space space = program::Space::device) const {
    return arenas_[place_of(space)].step.resident_bytes();
  }
  int64_t inputs_outputs_resident_bytes(program::Space space = program::Space::device) const {
    return arenas_[place_of(space)].inputs_outputs.resident_bytes();
  }

 private:
  friend class Executor;
  /// Arenas of one memory space.
  struct Arenas {
    explicit Arenas(const std::shared_ptr<Device>& device) : step(device), inputs_outputs(device) {}
    Arena step;
    Arena inputs_outputs;
  };
  /// Changes whenever the memory of one of the arenas is replaced.
  int64_t arena_generation() const;
  int64_t inputs_outputs_generation() const;

  const int32_t id_;
  const std::shared_ptr<kernels::Backend> backend_;
  comm::Communicator* const communicator_;
  const RankOptions options_;
  // Owned by stores' users and by running steps: a kernel that hangs keeps the memory that it may
  // touch.
  std::vector<std::weak_ptr<PersistentStore>> stores_;
  const std::shared_ptr<Lanes> lanes_;
  std::array<Arenas, program::kNumSpaces> arenas_;
  /// Executor that owned the inputs and outputs last, possibly destroyed; null: none yet.
  const void* holder_ = nullptr;
  int programs_ = 0;  ///< number of executors
};

}  // namespace hocket::runtime
