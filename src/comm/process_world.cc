// SPDX-License-Identifier: Apache-2.0
#include "comm/process_world.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>

#include "base/bytes.h"
#include "base/error.h"
#include "base/hash.h"
#include "comm/ops/comm_op.h"

namespace hocket::comm {

namespace {

/// Tags of collectives have this bit, those of messages do not.
constexpr int32_t kCollective = 1 << 30;

int64_t total(const std::vector<Slice>& slices) {
  int64_t bytes = 0;
  for (const Slice& slice : slices) {
    bytes += slice.bytes;
  }
  return bytes;
}

/// What a message of so many bytes takes on the links (Call::traffic).
int64_t on_links(const Call& call, int64_t bytes) {
  return call.traffic == 1 ? bytes : std::llround(static_cast<double>(bytes) * call.traffic);
}

/// A message with room for `bytes`, and what goes with them behind it.
Message message_of(const Call& call, int64_t bytes) {
  Message message(on_links(call, bytes));
  std::memset(message.data.get() + bytes, 0, static_cast<size_t>(message.bytes - bytes));
  return message;
}

/// Collectives that divide are done in parts: of so many bytes from each member to each other one,
/// and so many on their way at a time.
constexpr int64_t kPartBytes = 256 << 10;
constexpr int64_t kPartsAhead = 8;

/// The operands of another member, as far as they came. What is read of an operand lies in memory
/// of this process from its first byte to its last; the operand itself begins before it.
class Copies {
 public:
  Copies(size_t inputs, size_t outputs) : in_(inputs), out_(outputs) {}
  Copies(Copies&&) = default;
  /// Sizes are the same on all members.
  void set_in(size_t operand, void* data) { in_[operand] = data; }
  /// Makes room for what comes.
  void expect(const std::vector<Slice>& slices) {
    std::map<std::pair<bool, size_t>, std::pair<int64_t, int64_t>> spans;
    for (const Slice& slice : slices) {
      const int64_t end = slice.begin + slice.bytes;
      const auto [span, fresh] = spans.try_emplace({slice.out, slice.operand}, slice.begin, end);
      span->second = {std::min(span->second.first, slice.begin),
                      std::max(span->second.second, end)};
    }
    for (const auto& [operand, span] : spans) {
      memory_.emplace_back(span.second - span.first);
      const auto address = reinterpret_cast<uintptr_t>(memory_.back().data.get());
      (operand.first ? out_ : in_)[operand.second] =
          reinterpret_cast<void*>(address - static_cast<uintptr_t>(span.first));
    }
  }
  Operands operands() const { return {in_, out_}; }

 private:
  std::vector<Message> memory_;
  std::vector<void*> in_, out_;
};

void* place(const Operands& operands, const Slice& slice) {
  void* const base = (slice.out ? operands.out : operands.in)[slice.operand];
  return static_cast<std::byte*>(base) + slice.begin;
}

}  // namespace

class ProcessWorld::Rank : public Communicator {
 public:
  explicit Rank(Connection& connection) : connection_(connection), rank_(connection.index()) {}
  void run(const Call& call) override;

 private:
  class Part;
  void exchange(const Call& call, const Op& op);
  int32_t tag_of(const Call& call);

  Connection& connection_;
  const int32_t rank_;
  std::mutex mutex_;
  std::map<int32_t, std::vector<int32_t>> groups_;  ///< by tag; guarded by mutex_
};

void ProcessWorld::Rank::run(const Call& call) {
  HOCKET_CHECK(is_communication(*call.kind), "{} involves no other rank", call.kind->op);
  const Op& op = comm::op(call.kind->communication);
  if (op.role == Role::collective || op.role == Role::between) return exchange(call, op);
  if (call.tag < 0 || call.tag >= kCollective) {
    fail_run("comm", "a message has tag {}; expected 0 to {}", call.tag, kCollective - 1);
  }
  if (op.role == Role::receive) {
    const int64_t bytes = call.kind->out[0].bytes();
    if (on_links(call, bytes) == bytes) {
      connection_.receive(call.out[0], bytes, call.peer, call.tag);
      return;
    }
    Message message(on_links(call, bytes));
    connection_.receive(message.data.get(), message.bytes, call.peer, call.tag);
    copy_bytes(call.out[0], message.data.get(), bytes);
    return;
  }
  const int64_t bytes = call.kind->in[0].bytes();
  Message message = message_of(call, bytes);
  copy_bytes(message.data.get(), call.in[0], bytes);
  if (message.bytes > 0) {
    connection_.send(std::move(message), call.peer, call.tag);
  }
}

/// A number for the ranks of a group, the same on all of them. Two groups that share two ranks must
/// not have the same, as their collectives may come in different lanes.
int32_t ProcessWorld::Rank::tag_of(const Call& call) {
  const std::vector<int32_t> members(call.members.begin(), call.members.end());
  const std::string_view bytes(reinterpret_cast<const char*>(members.data()),
                               members.size() * sizeof(int32_t));
  const auto number = static_cast<int32_t>(hash64(bytes) & (kCollective / 2 - 1));
  const int32_t tag = kCollective | number;
  std::lock_guard lock(mutex_);
  const auto [known, fresh] = groups_.try_emplace(tag, members);
  if (known->second != members) {
    fail_run("comm", "two groups of ranks have the same number {}; try another order of ranks",
             number);
  }
  return tag;
}

/// One part of one phase of a collective: what this member sends to each other one, and brings of
/// it to where it would lie there, before it does its own part of the op.
class ProcessWorld::Rank::Part {
 public:
  Part(Rank& rank, const Call& call, const Op& op, int phase, int64_t part, int64_t parts);
  /// Sends what others read. It is copied: the operands may change at once.
  void send();
  /// Begins to receive what is read of others.
  void expect();
  /// Waits for it, and does the part.
  void run();

 private:
  /// What comes from another member: right where it is read, or in one piece that is given out.
  struct Arrival {
    std::vector<Slice> slices;
    Message packed;  ///< null: in place
    std::unique_ptr<Incoming> incoming;
  };
  Together together() const;

  Rank& rank_;
  const Call& call_;
  const Op& op_;
  const int phase_;
  const int64_t part_, parts_;
  const int32_t tag_;
  const size_t n_, me_;
  std::vector<Copies> copies_;
  std::vector<Operands> members_;
  std::vector<Arrival> arrivals_;
};

ProcessWorld::Rank::Part::Part(Rank& rank, const Call& call, const Op& op, int phase, int64_t part,
                               int64_t parts)
    : rank_(rank),
      call_(call),
      op_(op),
      phase_(phase),
      part_(part),
      parts_(parts),
      tag_(rank.tag_of(call)),
      n_(call.members.size()),
      me_(static_cast<size_t>(std::find(call.members.begin(), call.members.end(), rank.rank_) -
                              call.members.begin())),
      arrivals_(n_) {
  HOCKET_CHECK(me_ < n_, "rank {} is not in its group", rank.rank_);
  // A member that gives in a transfer has an input, one that takes has none.
  copies_.reserve(n_);
  for (size_t i = 0; i < n_; ++i) {
    copies_.emplace_back(std::max<size_t>(call.in.size(), 1), call.out.size());
    if (op.needs_sizes) {
      copies_[i].set_in(1, call.in[1]);
    }
    members_.push_back(i == me_ ? Operands{call.in, call.out} : copies_[i].operands());
  }
}

Together ProcessWorld::Rank::Part::together() const {
  const program::Kind& kind = *call_.kind;
  return {&kind.attrs, kind.in, kind.out, members_, call_.copies, call_.given, part_, parts_};
}

void ProcessWorld::Rank::Part::send() {
  const Together all = together();
  for (size_t step = 1; step < n_; ++step) {
    const size_t other = (me_ + step) % n_;
    const std::vector<Slice> slices = op_.reads(all, me_, other, phase_);
    Message message = message_of(call_, total(slices));
    std::byte* at = message.data.get();
    for (const Slice& slice : slices) {
      copy_bytes(at, place(members_[me_], slice), slice.bytes);
      at += slice.bytes;
    }
    rank_.connection_.send(std::move(message), call_.members[other], tag_);
  }
}

void ProcessWorld::Rank::Part::expect() {
  const Together all = together();
  for (size_t step = 1; step < n_; ++step) {
    const size_t other = (me_ + n_ - step) % n_;
    Arrival& arrival = arrivals_[other];
    arrival.slices = op_.reads(all, other, me_, phase_);
    copies_[other].expect(arrival.slices);
    const int64_t bytes = on_links(call_, total(arrival.slices));
    void* into = nullptr;
    if (arrival.slices.size() == 1 && bytes == arrival.slices[0].bytes) {
      into = place(members_[other], arrival.slices[0]);
    } else {
      arrival.packed = Message(bytes);
      into = arrival.packed.data.get();
    }
    arrival.incoming = rank_.connection_.expect(into, bytes, call_.members[other], tag_);
  }
}

void ProcessWorld::Rank::Part::run() {
  for (size_t step = 1; step < n_; ++step) {
    const size_t other = (me_ + n_ - step) % n_;
    Arrival& arrival = arrivals_[other];
    rank_.connection_.wait(arrival.incoming.get(), call_.members[other]);
    if (!arrival.packed.data) continue;
    const std::byte* at = arrival.packed.data.get();
    for (const Slice& slice : arrival.slices) {
      copy_bytes(place(members_[other], slice), at, slice.bytes);
      at += slice.bytes;
    }
  }
  op_.run(together(), me_, phase_);
}

/// Part by part: what a part of the first phase leaves is sent on while the next parts come. All
/// members do the same in the same order, so that messages of one tag meet those that they are for.
void ProcessWorld::Rank::exchange(const Call& call, const Op& op) {
  const int64_t n = std::ssize(call.members);
  const int64_t payload =
      on_links(call, op.payload(call.kind->attrs, call.kind->in, call.kind->out));
  const int64_t parts = op.divides ? std::max<int64_t>(1, payload / (n * kPartBytes)) : 1;
  HOCKET_CHECK(op.phases <= 2, "{} has {} phases", op.name, op.phases);
  std::deque<Part> first, second;
  const auto begin = [&](std::deque<Part>& list, int phase, int64_t part) {
    list.emplace_back(*this, call, op, phase, part, parts);
    list.back().send();
    list.back().expect();
  };
  const auto end = [](std::deque<Part>& list) {
    list.front().run();
    list.pop_front();
  };
  for (int64_t part = 0; part < std::min(parts, kPartsAhead); ++part) {
    begin(first, 0, part);
  }
  for (int64_t part = 0; part < parts; ++part) {
    end(first);
    if (op.phases == 2) {
      begin(second, 1, part);
    }
    if (part + kPartsAhead < parts) {
      begin(first, 0, part + kPartsAhead);
    }
    if (std::ssize(second) > kPartsAhead) {
      end(second);
    }
  }
  while (!second.empty()) {
    end(second);
  }
}

ProcessWorld::ProcessWorld(std::shared_ptr<Connection> connection)
    : connection_(std::move(connection)), rank_(std::make_unique<Rank>(*connection_)) {}
ProcessWorld::~ProcessWorld() { connection_->unwatch(this); }

int32_t ProcessWorld::size() const { return connection_->size(); }

Communicator& ProcessWorld::communicator(int32_t rank) {
  HOCKET_CHECK(rank == connection_->index(), "rank {} is in another process", rank);
  return *rank_;
}

void ProcessWorld::abort(const std::string& reason) { connection_->fail(reason); }

void ProcessWorld::watch(std::function<std::string()> doing,
                         std::function<void(const std::string&)> stop) {
  connection_->watch(this, std::move(doing), std::move(stop));
}

void ProcessWorld::leave() { connection_->unwatch(this); }

int64_t ProcessWorld::peak_message_bytes(int32_t) const {
  return connection_->peak_message_bytes();
}

}  // namespace hocket::comm
