// SPDX-License-Identifier: Apache-2.0
// Implements: Message (transport.h), with a pool. The system clears pages that a process frees and
// allocates again, which costs more than the copy of the message. Large messages therefore leave
// their memory to later ones of the same size. Pooled memory plus memory in use never exceeds the
// peak in use, so the plan's figure for messages holds for the process.
#include <algorithm>
#include <map>
#include <mutex>
#include <new>

#include "comm/transport.h"

namespace hocket::comm {

namespace {

/// Minimum pooled size, 64 KiB: smaller messages cost less than the search.
constexpr int64_t kLarge = 64 << 10;

class Pool {
 public:
  std::byte* take(int64_t bytes) {
    std::lock_guard lock(mutex_);
    used_ += bytes;
    peak_ = std::max(peak_, used_);
    const auto found = idle_.find(bytes);
    if (found != idle_.end()) {
      std::byte* const data = found->second;
      forget(found);
      return data;
    }
    while (used_ + idle_bytes_ > peak_) {
      free_idle(idle_.begin());
    }
    return static_cast<std::byte*>(::operator new(static_cast<size_t>(bytes)));
  }

  void release(std::byte* data, int64_t bytes) {
    std::lock_guard lock(mutex_);
    used_ -= bytes;
    if (bytes < kLarge) {
      ::operator delete(data);
      return;
    }
    idle_.emplace(bytes, data);
    idle_bytes_ += bytes;
  }

  void forget_all() {
    std::lock_guard lock(mutex_);
    while (!idle_.empty()) {
      free_idle(idle_.begin());
    }
    peak_ = used_;
  }

  int64_t peak() {
    std::lock_guard lock(mutex_);
    return peak_;
  }

 private:
  using Idle = std::multimap<int64_t, std::byte*>;
  void forget(Idle::iterator place) {
    idle_bytes_ -= place->first;
    idle_.erase(place);
  }
  void free_idle(Idle::iterator place) {
    ::operator delete(place->second);
    forget(place);
  }

  std::mutex mutex_;
  Idle idle_;  ///< by size
  int64_t idle_bytes_ = 0;
  int64_t used_ = 0, peak_ = 0;
};

Pool& pool() {
  static Pool& all = *new Pool;  // never destroyed, since a message may outlive any static object
  return all;
}

}  // namespace

Message::Message(int64_t size)
    : data(pool().take(size),
           {[](std::byte* memory, int64_t bytes) { pool().release(memory, bytes); }, size}),
      bytes(size) {}

Message Message::unpooled(int64_t size) {
  Message message;
  message.data =
      decltype(message.data)(static_cast<std::byte*>(::operator new(static_cast<size_t>(size))),
                             {[](std::byte* memory, int64_t) { ::operator delete(memory); }, size});
  message.bytes = size;
  return message;
}

int64_t peak_message_bytes() { return pool().peak(); }
void release_pooled_messages() { pool().forget_all(); }

}  // namespace hocket::comm
