// SPDX-License-Identifier: Apache-2.0
// Memory of a rank: the arena of step buffers and the persistent store.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "graph/layout.h"
#include "graph/tensor_type.h"

namespace hocket::runtime {

/// A range of addresses; pages are committed when touched.
class Region {
 public:
  Region() = default;
  explicit Region(int64_t bytes);  ///< throws Error when the address space or memory is exhausted
  ~Region();
  Region(Region&& other) noexcept;
  Region& operator=(Region&& other) noexcept;
  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  /// Bytes of pages that were ever touched.
  int64_t resident_bytes() const;

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
  /// The entry of this name; made (zero-filled) if absent. Throws Error if it exists with another
  /// type or layout.
  Entry& get(const std::string& name, const graph::TensorType& type, const graph::Layout& layout);
  Entry* find(const std::string& name);
  const std::map<std::string, Entry>& entries() const { return entries_; }
  std::map<std::string, Entry>& entries() { return entries_; }
  int64_t bytes() const;

 private:
  std::map<std::string, Entry> entries_;
};

}  // namespace hocket::runtime
