// SPDX-License-Identifier: Apache-2.0
// Memory of a rank: arenas that its programs share in turn, and persistent stores.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "program/buffer_contents.h"
#include "program/memory.h"
#include "runtime/device.h"

namespace hocket::runtime {

/// Memory that the programs of one rank use in turn, each from offset 0: reserved for the largest
/// need, and committed where any of them plans to use it.
class Arena {
 public:
  explicit Arena(std::shared_ptr<Device> device) : device_(std::move(device)) {}

  /// Adds a user that needs `bytes` and plans to touch `used`. If the arena must grow, its content
  /// is lost and its generation changes.
  void add(const void* user, int64_t bytes, std::vector<program::Range> used);
  /// Removes a user and decommits ranges that no other user plans to touch; after the last user,
  /// everything.
  void remove(const void* user);

  /// Returns the memory; null: there are no users. Copy the pointer to keep the memory alive: the
  /// arena may release it.
  const std::shared_ptr<Memory>& memory() const { return memory_; }
  /// Changes whenever the memory is replaced.
  int64_t generation() const { return generation_; }
  int64_t resident_bytes() const { return memory_ ? memory_->resident_bytes() : 0; }

 private:
  struct Need {
    int64_t bytes = 0;
    std::vector<program::Range> used;
  };
  std::vector<program::Range> used() const;

  std::shared_ptr<Device> device_;
  std::shared_ptr<Memory> memory_;
  std::map<const void*, Need> users_;
  int64_t generation_ = 0;
};

/// Returns the device that owns the memory of a space, for a rank of this device.
std::shared_ptr<Device> device_of(program::Space space, const std::shared_ptr<Device>& device);
/// Returns the device that runs the kernels of a lane.
std::shared_ptr<Device> device_of_lane(program::Lane lane, const std::shared_ptr<Device>& device);

/// One rank's part of a model's tensors that outlive programs: parameters, optimizer state, KV
/// cache. Programs with equal layouts share a store; a rank may have several.
class PersistentStore {
 public:
  struct Entry : program::Contents {
    std::byte* data = nullptr;
    bool initialised = false;
  };
  explicit PersistentStore(int32_t rank = 0, std::shared_ptr<Device> device = cpu_device())
      : rank_(rank), device_(std::move(device)) {}
  int32_t rank() const { return rank_; }

  /// Creates the absent entries of a program's persistent buffers, side by side, so that small
  /// tensors share large pages too. get() would give each pages of its own.
  void add(const program::Program& program);
  /// Returns the entry of a persistent buffer, by name. Creates it zero-filled if absent, with room
  /// for the upper bounds of symbols. Throws Error if it exists with another type, other elements,
  /// or in another space.
  Entry& get(const program::Buffer& buffer, const program::Program& program);
  /// Throws Error if a tensor of this store, initialised or not, is part of another buffer of the
  /// program, which is not in the store.
  void expect_same_layouts(const program::Program& program) const;
  Entry* find(const std::string& name);
  const std::map<std::string, Entry>& entries() const { return entries_; }
  std::map<std::string, Entry>& entries() { return entries_; }
  int64_t resident_bytes(program::Space space = program::Space::device) const;
  /// Device that copies the entries' data from and to the host.
  Device& device() const { return *device_; }

 private:
  /// Creates entries of these buffers, all of one space, in memory of their own.
  void create(program::Space space, const std::vector<const program::Buffer*>& buffers,
              const program::Program& program);

  const int32_t rank_;
  std::shared_ptr<Device> device_;
  std::map<std::string, Entry> entries_;
  std::array<std::vector<std::unique_ptr<Memory>>, program::kNumSpaces> memories_;
};

}  // namespace hocket::runtime
