// SPDX-License-Identifier: Apache-2.0
// Memory of messages. The system clears pages that a process gives back and asks for again, which
// costs more than what is then copied there: large messages that are gone leave theirs to the next
// ones of their size.
#include <iterator>
#include <map>
#include <mutex>
#include <new>

#include "comm/wire.h"

namespace hocket::comm {

namespace {

/// Smaller ones cost less than the search.
constexpr int64_t kLarge = 64 << 10;
/// What is kept for later at most.
constexpr int64_t kMostIdle = 16 << 20;

class Pool {
 public:
  std::byte* take(int64_t bytes) {
    if (bytes >= kLarge) {
      std::lock_guard lock(mutex_);
      const auto found = idle_.find(bytes);
      if (found != idle_.end()) {
        std::byte* const data = found->second;
        idle_.erase(found);
        idle_bytes_ -= bytes;
        return data;
      }
    }
    return static_cast<std::byte*>(::operator new(static_cast<size_t>(bytes)));
  }

  void give_back(std::byte* data, int64_t bytes) {
    if (bytes < kLarge || bytes > kMostIdle) {
      ::operator delete(data);
      return;
    }
    std::lock_guard lock(mutex_);
    // What nobody asks for any more goes first.
    while (idle_bytes_ + bytes > kMostIdle) {
      const auto other = idle_.begin()->first == bytes ? std::prev(idle_.end()) : idle_.begin();
      idle_bytes_ -= other->first;
      ::operator delete(other->second);
      idle_.erase(other);
    }
    idle_.emplace(bytes, data);
    idle_bytes_ += bytes;
  }

 private:
  std::mutex mutex_;
  std::multimap<int64_t, std::byte*> idle_;  ///< by size
  int64_t idle_bytes_ = 0;
};

Pool& pool() {
  static Pool& all = *new Pool;  // for as long as anybody may have a message
  return all;
}

}  // namespace

Message::Message(int64_t size)
    : data(pool().take(size),
           {[](std::byte* memory, int64_t bytes) { pool().give_back(memory, bytes); }, size}),
      bytes(size) {}

}  // namespace hocket::comm
