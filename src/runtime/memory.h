// SPDX-License-Identifier: Apache-2.0
// Memory of a rank: arenas that its programs use in turn, and persistent stores.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "program/contract.h"
#include "program/memory.h"
#include "runtime/device.h"

namespace hocket::runtime {

/// Memory that programs of one rank use in turn, from its beginning each: reserved to the greatest
/// need among them, and used as far as any of them plans to.
class Arena {
 public:
  explicit Arena(std::shared_ptr<Device> device) : device_(std::move(device)) {}

  /// `user` needs `bytes`, of which it plans to touch `used`. What others hold is lost if the arena
  /// must grow: its generation tells.
  void add(const void* user, int64_t bytes, std::vector<program::Range> used);
  /// Gives back what nobody else plans to touch; after the last user everything.
  void remove(const void* user);

  /// Null without users. Kept by whoever must not lose it: the arena itself may let it go.
  const std::shared_ptr<Memory>& memory() const { return memory_; }
  /// Another one whenever the memory is another.
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

/// What has the memory of a space, for a rank of this device.
std::shared_ptr<Device> device_of(program::Space space, const std::shared_ptr<Device>& device);
/// What runs the kernels of a lane.
std::shared_ptr<Device> device_of_lane(program::Lane lane, const std::shared_ptr<Device>& device);

/// What one rank has of the tensors of one model that survive programs: parameters, optimizer
/// state, KV cache. Programs that hold them alike share it; a rank may have several.
class PersistentStore {
 public:
  struct Entry : program::Contents {
    std::unique_ptr<Memory> memory;
    bool initialised = false;
  };
  explicit PersistentStore(int32_t rank = 0, std::shared_ptr<Device> device = cpu_device())
      : rank_(rank), device_(std::move(device)) {}
  int32_t rank() const { return rank_; }

  /// The entry of the name of a program's persistent buffer; made (zero-filled) if absent, with
  /// room for the bounds of symbols. Throws Error if it exists with another type, with other
  /// elements, or in another space.
  Entry& get(const program::Buffer& buffer, const program::Program& program);
  /// Error: a tensor that is here, filled or not, is in another buffer of the program, which is not
  /// here.
  void expect_alike(const program::Program& program) const;
  Entry* find(const std::string& name);
  const std::map<std::string, Entry>& entries() const { return entries_; }
  std::map<std::string, Entry>& entries() { return entries_; }
  int64_t resident_bytes(program::Space space = program::Space::device) const;
  /// Copies what entries have, from and to the host.
  Device& device() const { return *device_; }

 private:
  const int32_t rank_;
  std::shared_ptr<Device> device_;
  std::map<std::string, Entry> entries_;
};

}  // namespace hocket::runtime
