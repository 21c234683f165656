// SPDX-License-Identifier: Apache-2.0
#include "runtime/memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/math.h"

namespace hocket::runtime {

namespace {

/// Large pages spare faults and TLB misses; a refusal of the advice costs nothing.
constexpr int64_t kLargeEnough = 4 << 20;

}  // namespace

Region::Region(int64_t bytes) : Region(bytes, std::array{program::Range{0, bytes}}) {}

Region::Region(int64_t bytes, std::span<const program::Range> used) : bytes_(bytes) {
  if (bytes == 0) return;
  void* reserved = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) {
    fail_run("memory", "can't reserve {} bytes: {}; try a smaller micro_batch or recompute", bytes,
             std::strerror(errno));
  }
  data_ = static_cast<std::byte*>(reserved);
  // The system forms a large page only where the advice holds for all of it.
  madvise(reserved, static_cast<size_t>(bytes), MADV_NOHUGEPAGE);
  for (const program::Range& range : used) {
    if (range.end - range.begin < kLargeEnough) continue;
    madvise(data_ + range.begin, static_cast<size_t>(std::min(range.end, bytes) - range.begin),
            MADV_HUGEPAGE);
  }
}

Region::~Region() {
  if (data_) {
    munmap(data_, static_cast<size_t>(bytes_));
  }
}

Region::Region(Region&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

Region& Region::operator=(Region&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

int64_t Region::resident_bytes() const {
  if (!data_) return 0;
  // Piece by piece: an arena can reserve far more addresses than it takes memory.
  constexpr int64_t kPiece = int64_t{1} << 30;
  const int64_t page = sysconf(_SC_PAGESIZE);
  std::vector<unsigned char> resident(static_cast<size_t>(std::min(bytes_, kPiece) / page + 1));
  int64_t pages = 0;
  for (int64_t begin = 0; begin < bytes_; begin += kPiece) {
    const int64_t bytes = std::min(kPiece, bytes_ - begin);
    if (mincore(data_ + begin, static_cast<size_t>(bytes), resident.data()) != 0) return bytes_;
    for (int64_t i = 0; i < (bytes + page - 1) / page; ++i) {
      pages += resident[i] & 1;
    }
  }
  return pages * page;
}

PersistentStore::Entry& PersistentStore::get(const std::string& name, const graph::TensorType& type,
                                             const graph::Layout& layout) {
  auto it = entries_.find(name);
  if (it == entries_.end()) {
    // Of a tensor with a symbol only the rows that come are touched.
    const int64_t bytes = round_up(type.bytes(), 64);
    Entry entry{type, layout, type.symbolic() ? Region(bytes, {}) : Region(bytes), false};
    return entries_.emplace(name, std::move(entry)).first->second;
  }
  if (!(it->second.type == type) || !(it->second.layout == layout)) {
    fail_run("memory", "{} is {} in memory; the program expects {}", name,
             to_string(it->second.type), to_string(type));
  }
  return it->second;
}

PersistentStore::Entry* PersistentStore::find(const std::string& name) {
  auto it = entries_.find(name);
  return it == entries_.end() ? nullptr : &it->second;
}

int64_t PersistentStore::resident_bytes() const {
  int64_t bytes = 0;
  for (const auto& [name, entry] : entries_) {
    bytes += entry.memory.resident_bytes();
  }
  return bytes;
}

}  // namespace hocket::runtime
