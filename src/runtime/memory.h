// SPDX-License-Identifier: Apache-2.0
// Memory of a rank: the arena of step buffers and the persistent store.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>

#include "graph/layout.h"
#include "graph/tensor_type.h"
#include "program/memory.h"

namespace hocket::runtime {

/// A range of addresses; pages are committed when touched, and stay until the region goes.
class Region {
 public:
  Region() = default;
  /// All of it is meant to be used. Throws Error when the address space or memory is exhausted.
  explicit Region(int64_t bytes);
  /// Only `used` is meant to be: elsewhere no page is larger than the least, so that a touch at the
  /// end of a used range commits nothing beyond it.
  Region(int64_t bytes, std::span<const program::Range> used);
  ~Region();
  Region(Region&& other) noexcept;
  Region& operator=(Region&& other) noexcept;
  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  int64_t resident_bytes() const;  ///< of pages that were ever touched

 private:
  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
};

/// Named tensors of one rank that survive programs: parameters, optimizer state, KV cache.
class PersistentStore {
 public:
  struct Entry {
    graph::TensorType type;  ///< local
    graph::Layout layout;
    Region memory;
    bool initialised = false;
  };
  /// The entry of this name; made (zero-filled) if absent, with room for the bounds of symbols.
  /// Throws Error if it exists with another type or layout.
  Entry& get(const std::string& name, const graph::TensorType& type, const graph::Layout& layout);
  Entry* find(const std::string& name);
  const std::map<std::string, Entry>& entries() const { return entries_; }
  std::map<std::string, Entry>& entries() { return entries_; }
  int64_t resident_bytes() const;

 private:
  std::map<std::string, Entry> entries_;
};

}  // namespace hocket::runtime
