// SPDX-License-Identifier: Apache-2.0
// Transport: moves bytes between processes with one rank each. The layers above decide everything
// else: semantics of collectives, blame for failures, wait-for edges.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace hocket::comm {

/// Deleter that returns a message's memory to its allocator, in whichever library that is.
struct MessageDeleter {
  void (*release)(std::byte* data, int64_t bytes) = nullptr;
  int64_t bytes = 0;
  void operator()(std::byte* data) const { release(data, bytes); }
};

/// Bytes in flight, uninitialised. Every step has messages of the same sizes, so memory of large
/// ones is pooled (comm/message.cc).
struct Message {
  Message() = default;
  explicit Message(int64_t size);
  /// Allocates a long-lived message outside of the pool; its owner accounts for it.
  static Message unpooled(int64_t size);
  std::unique_ptr<std::byte[], MessageDeleter> data;
  int64_t bytes = 0;
};

/// Returns the peak bytes of this process's messages: sent and not delivered, or received and not
/// consumed. Pooled memory never exceeds the difference between this peak and current use.
int64_t peak_message_bytes();
/// Frees the pooled memory and resets the peak, after messages that steps do not have.
void release_pooled_messages();

/// Outcome of a wait.
struct WaitResult {
  enum class End : uint8_t {
    completed,     ///< received, delivered or reduced
    timed_out,     ///< nothing came within the timeout
    disconnected,  ///< the connection to the peer has ended
    stopped,       ///< Transport::abort
  } end = End::completed;
  std::string text;  ///< message of the transport; for the log
};

/// Pending send, receive or collective. Must be waited for before it is destroyed.
class Request {
 public:
  virtual ~Request() = default;
  /// Blocks until the operation has completed: received, delivered, or reduced.
  virtual WaitResult wait(std::chrono::milliseconds timeout) = 0;
};

/// Element types that a transport can reduce; rounding is the transport's.
enum class ReduceType : uint8_t { f32, f64, bf16, f16, i32, i64 };

/// Memory of a transport's collective. It lives until the transport is done with it, even if the
/// caller stops waiting.
struct Scratch {
  std::shared_ptr<Message> memory;  ///< allocation that contains it
  std::byte* data = nullptr;
  int64_t bytes = 0;
};

/// Process group with the transport's own collectives, which reduce in their own order. All members
/// begin the same collectives in the same order, and wait for each.
class CollectiveGroup {
 public:
  virtual ~CollectiveGroup() = default;
  /// Reduces in place over all members: sum, or with `max` the elementwise maximum.
  virtual std::unique_ptr<Request> all_reduce(Scratch data, ReduceType type, bool max) = 0;
  /// Reduces blocks: `in` has a block for each member, in order; `out` receives this member's.
  virtual std::unique_ptr<Request> reduce_scatter(Scratch in, Scratch out, ReduceType type,
                                                  bool max) = 0;
  /// Gathers: `out` receives the `in` of each member, in order.
  virtual std::unique_ptr<Request> all_gather(Scratch in, Scratch out) = 0;
  /// Exchanges: `in` has bytes_to[i] for member i, in order; `out` receives bytes_from[i] of member
  /// i.
  virtual std::unique_ptr<Request> all_to_all(Scratch in, std::span<const int64_t> bytes_to,
                                              Scratch out, std::span<const int64_t> bytes_from) = 0;
};

/// Small key-value table shared by all ranks. Throws std::exception when its host process is gone.
/// A call may never return when the host is stopped or cut off.
class SharedTable {
 public:
  virtual ~SharedTable() = default;
  /// Returns the rank that hosts the table; -1: the launcher.
  virtual int32_t holder() const = 0;
  virtual void set(const std::string& key, const std::string& value) = 0;
  /// Sets a value if there is none. Returns the effective value.
  virtual std::string set_if_absent(const std::string& key, const std::string& value) = 0;
  virtual std::optional<std::string> get(const std::string& key) = 0;
};

/// Transport of one rank. May be called concurrently by all lanes.
class Transport {
 public:
  /// Waits until all messages are delivered, unless it was aborted.
  virtual ~Transport() = default;
  virtual int32_t rank() const = 0;
  virtual int32_t size() const = 0;
  /// Sends without blocking; the transport owns the message. Messages to one rank with one tag
  /// arrive in order. Tags are not negative. Throws std::exception when the rank cannot be reached.
  virtual void send(Message message, int32_t to, int32_t tag) = 0;
  /// Sends likewise, and returns a request that the sender waits for.
  virtual std::unique_ptr<Request> begin_send(Message message, int32_t to, int32_t tag) = 0;
  /// Posts a receive of `bytes`, which the sender sends exactly. Messages flow once a receive is
  /// posted, so posting early overlaps the transfer.
  virtual std::unique_ptr<Request> receive(void* into, int64_t bytes, int32_t from,
                                           int32_t tag) = 0;
  /// Creates a process group. Requires: all members, ascending ranks that include this one, make
  /// the call; the group does not outlive the transport. Throws std::exception when a member does
  /// not come.
  virtual std::unique_ptr<CollectiveGroup> group(std::span<const int32_t> members) = 0;
  /// Ends every pending receive and collective, and all later ones at once.
  virtual void abort() = 0;
  /// Returns the shared table. Not thread-safe; may outlive the transport.
  virtual std::shared_ptr<SharedTable> shared_table() = 0;
};

/// Position of this process in its run, as stated by the launcher.
struct LaunchInfo {
  int32_t rank = 0, size = 1;              ///< in the run
  int32_t local_rank = 0, local_size = 1;  ///< on this host
  std::string address;                     ///< of rank 0's host
  int32_t port = 0;
  /// Number of restarts of the run: table entries of earlier attempts are ignored.
  int32_t restarts = 0;
  bool has_table = false;  ///< the launcher hosts the table at `address`, instead of rank 0
  std::string launcher;    ///< name of the launcher; empty: none

  bool operator==(const LaunchInfo&) const = default;
};

}  // namespace hocket::comm
