// SPDX-License-Identifier: Apache-2.0
#include "comm/process_world.h"

#include <algorithm>
#include <cstring>

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

/// The operands of another member, as far as they came: memory of this process, as long as what is
/// read of them.
class Copies {
 public:
  Copies(size_t inputs, size_t outputs) : in_(inputs), out_(outputs) {}
  /// Sizes are the same on all members.
  void set_in(size_t operand, void* data) { in_[operand] = data; }
  /// Makes room for what comes.
  void expect(const std::vector<Slice>& slices) {
    std::map<std::pair<bool, size_t>, int64_t> ends;
    for (const Slice& slice : slices) {
      int64_t& end = ends[{slice.out, slice.operand}];
      end = std::max(end, slice.begin + slice.bytes);
    }
    for (const auto& [operand, end] : ends) {
      memory_.emplace_back(end);
      (operand.first ? out_ : in_)[operand.second] = memory_.back().data.get();
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
  void exchange(const Call& call, const Op& op);
  void send(const Operands& mine, const std::vector<Slice>& slices, int32_t to, int32_t tag);
  void receive(const Operands& theirs, const std::vector<Slice>& slices, int32_t from,
               int32_t tag);
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
    connection_.receive(call.out[0], call.kind->out[0].bytes(), call.peer, call.tag);
    return;
  }
  Message message(call.kind->in[0].bytes());
  std::memcpy(message.data.get(), call.in[0], static_cast<size_t>(message.bytes));
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

/// In every phase this member sends to each other one what that reads of it, brings what it reads of
/// others to where it would lie there, and then does its own part. What it sends is copied first:
/// its operands may change at once.
void ProcessWorld::Rank::exchange(const Call& call, const Op& op) {
  const program::Kind& kind = *call.kind;
  const size_t n = call.members.size();
  const size_t me = static_cast<size_t>(std::find(call.members.begin(), call.members.end(), rank_) -
                                        call.members.begin());
  HOCKET_CHECK(me < n, "rank {} is not in its group", rank_);
  // A member that gives in a transfer has an input, one that takes has none.
  std::vector<Copies> copies;
  copies.reserve(n);
  std::vector<Operands> members;
  for (size_t i = 0; i < n; ++i) {
    copies.emplace_back(std::max<size_t>(call.in.size(), 1), call.out.size());
    if (op.needs_sizes) {
      copies[i].set_in(1, call.in[1]);
    }
    members.push_back(i == me ? Operands{call.in, call.out} : copies[i].operands());
  }
  const Together all{&kind.attrs, kind.in, kind.out, members, call.copies, call.given};
  const int32_t tag = tag_of(call);
  for (int phase = 0; phase < op.phases; ++phase) {
    for (size_t step = 1; step < n; ++step) {
      const size_t other = (me + step) % n;
      send(members[me], op.reads(all, me, other, phase), call.members[other], tag);
    }
    for (size_t step = 1; step < n; ++step) {
      const size_t other = (me + n - step) % n;
      const std::vector<Slice> slices = op.reads(all, other, me, phase);
      copies[other].expect(slices);
      receive(members[other], slices, call.members[other], tag);
    }
    op.run(all, me, phase);
  }
}

void ProcessWorld::Rank::send(const Operands& mine, const std::vector<Slice>& slices, int32_t to,
                              int32_t tag) {
  Message message(total(slices));
  std::byte* at = message.data.get();
  for (const Slice& slice : slices) {
    std::memcpy(at, place(mine, slice), static_cast<size_t>(slice.bytes));
    at += slice.bytes;
  }
  if (message.bytes > 0) {
    connection_.send(std::move(message), to, tag);
  }
}

void ProcessWorld::Rank::receive(const Operands& theirs, const std::vector<Slice>& slices,
                                 int32_t from, int32_t tag) {
  if (slices.size() == 1) {
    connection_.receive(place(theirs, slices[0]), slices[0].bytes, from, tag);
    return;
  }
  const Message message(total(slices));
  connection_.receive(message.data.get(), message.bytes, from, tag);
  const std::byte* at = message.data.get();
  for (const Slice& slice : slices) {
    std::memcpy(place(theirs, slice), at, static_cast<size_t>(slice.bytes));
    at += slice.bytes;
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
