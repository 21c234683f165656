// SPDX-License-Identifier: Apache-2.0
// What moves bytes between processes, one rank in each. Everything else (what a collective does,
// who failed, what a rank waits for) is decided above it.
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

/// Gives the memory of a message back to where it came from, whichever library lets it go.
struct MessageDeleter {
  void (*give_back)(std::byte* data, int64_t bytes) = nullptr;
  int64_t bytes = 0;
  void operator()(std::byte* data) const { give_back(data, bytes); }
};

/// Bytes on their way. They are not set to zero first. Every step has messages of the same sizes:
/// memory of large ones is used again (comm/message.cc).
struct Message {
  Message() = default;
  explicit Message(int64_t size);
  /// Memory that is kept, which who keeps it counts.
  static Message lasting(int64_t size);
  std::unique_ptr<std::byte[], MessageDeleter> data;
  int64_t bytes = 0;
};

/// Most bytes of messages that this process had at a time: sent and not yet gone, or here and not
/// yet used up. What is kept for the next ones is never more than is left of these.
int64_t peak_message_bytes();
/// Gives back what is kept, and counts anew: of messages that no step has.
void forget_messages();

/// How a receive ended.
struct Received {
  enum class End : uint8_t {
    whole,      ///< the message is there
    timed_out,  ///< nothing came
    gone,       ///< the connection to the sender has ended
    stopped,    ///< Wire::abort
  } end = End::whole;
  std::string text;  ///< what the transport says; for the log
};

/// A message that is asked for or was begun to be sent, or a collective that was begun. It is
/// waited for before it goes.
class Incoming {
 public:
  virtual ~Incoming() = default;
  /// Blocks until it is there; what is sent, until it has gone.
  virtual Received wait(std::chrono::milliseconds timeout) = 0;
};

/// What a transport can add up; it rounds as it does.
enum class Number : uint8_t { f32, f64, bf16, f16, i32, i64 };

/// Memory of a collective of the transport: kept until that is done with it, whoever stops waiting.
struct Scratch {
  std::shared_ptr<Message> memory;  ///< of which this is a part
  std::byte* data = nullptr;
  int64_t bytes = 0;
};

/// Some ranks, and the collectives that the transport has of its own among them: in their own order
/// of sums. All members begin the same ones in the same order; what is begun is waited for.
class Team {
 public:
  virtual ~Team() = default;
  /// `data` becomes the sum of what all have there; `max`: the greatest, element by element.
  virtual std::unique_ptr<Incoming> all_reduce(Scratch data, Number number, bool max) = 0;
  /// `in`: a block for each member, in their order; `out`: the sum of those for this one.
  virtual std::unique_ptr<Incoming> reduce_scatter(Scratch in, Scratch out, Number number,
                                                   bool max) = 0;
  /// `out`: what each member has in `in`, in their order.
  virtual std::unique_ptr<Incoming> all_gather(Scratch in, Scratch out) = 0;
  /// `in`: so many bytes for each member, in their order; `out`: so many of each.
  virtual std::unique_ptr<Incoming> all_to_all(Scratch in, std::span<const int64_t> bytes_to,
                                               Scratch out,
                                               std::span<const int64_t> bytes_from) = 0;
};

/// A small table that all ranks see. Throws std::exception where the process that has it is gone;
/// where that is stopped or cut off, a call may never return.
class Table {
 public:
  virtual ~Table() = default;
  /// The rank whose process has it; -1: it is the launcher's.
  virtual int32_t holder() const = 0;
  virtual void note(const std::string& key, const std::string& value) = 0;
  /// Unless there is a value already. Returns the one that is there then.
  virtual std::string note_first(const std::string& key, const std::string& value) = 0;
  virtual std::optional<std::string> noted(const std::string& key) = 0;
};

/// Used by all lanes of a rank at the same time.
class Wire {
 public:
  /// Waits until all messages are gone, unless it was aborted.
  virtual ~Wire() = default;
  virtual int32_t rank() const = 0;
  virtual int32_t size() const = 0;
  /// Returns at once; the message is kept until it is gone. Those to one rank with one tag arrive
  /// in order. Tags are 0 or more. Throws std::exception where the rank cannot be reached.
  virtual void send(Message message, int32_t to, int32_t tag) = 0;
  /// The same, and waited for by who sends.
  virtual std::unique_ptr<Incoming> begin_send(Message message, int32_t to, int32_t tag) = 0;
  /// Begins to receive `bytes` from a rank, which sends as many. Messages flow once there is room
  /// for them here: what will be needed soon is best asked for early.
  virtual std::unique_ptr<Incoming> receive(void* into, int64_t bytes, int32_t from,
                                            int32_t tag) = 0;
  /// Meets the other members, ranks in ascending order with this one among them, which all call it;
  /// the team does not outlive the wire. Throws std::exception where one does not come.
  virtual std::unique_ptr<Team> team(std::span<const int32_t> members) = 0;
  /// Ends every receive and collective that waits, and all later ones at once.
  virtual void abort() = 0;
  /// Used by one thread at a time; may outlive the wire.
  virtual std::shared_ptr<Table> table() = 0;
};

/// Which process of a run this one is, as whoever started it says.
struct Place {
  int32_t rank = 0, size = 1;              ///< of the run
  int32_t local_rank = 0, local_size = 1;  ///< of this host
  std::string address;                     ///< of the host of rank 0
  int32_t port = 0;
  /// How often the run was started again: notes of the times before do not count.
  int32_t restarts = 0;
  bool has_table = false;  ///< whoever started it holds the table at `address`, not rank 0
  std::string launcher;    ///< its name; empty: none

  bool operator==(const Place&) const = default;
};

}  // namespace hocket::comm
