// SPDX-License-Identifier: Apache-2.0
#include "comm/process_world.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <deque>
#include <set>

#include "base/bytes.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/log.h"
#include "comm/members.h"
#include "comm/ops/comm_op.h"
#include "comm/ops/exchange.h"
#include "comm/ops/transport.h"
#include "comm/transport_collectives.h"

namespace hocket::comm {

namespace {

/// Tags of collectives have this bit, those of messages do not.
constexpr int32_t kCollective = 1 << 30;

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

}  // namespace

class ProcessWorld::Rank : public Communicator {
 public:
  Rank(Connection& connection, Collectives collectives)
      : connection_(connection), rank_(connection.index()), collectives_(collectives) {}
  void run(const Call& call) override;
  /// Of the transport's collectives, in all lanes.
  int64_t scratch_bytes() const;

 private:
  class Part;
  void exchange(const Call& call, const Op& op);
  void by_transport(const Call& call, const Op& op);
  void tell_ours(const Call& call, const Op& op);
  int32_t tag_of(const Call& call);

  Connection& connection_;
  const int32_t rank_;
  const Collectives collectives_;
  std::array<ScratchSpace, program::kNumLanes>
      scratch_;  ///< of every lane, which alone uses its own
  std::mutex mutex_;
  std::map<int32_t, std::vector<int32_t>> groups_;  ///< by tag; guarded by mutex_
  std::set<comm::Id> told_;                         ///< guarded by mutex_
};

void ProcessWorld::Rank::run(const Call& call) {
  HOCKET_CHECK(is_communication(*call.kind), "{} involves no other rank", call.kind->op);
  const Op& op = comm::op(call.kind->communication);
  if (op.role == Role::collective || op.role == Role::between) {
    if (collectives_ == Collectives::own) return exchange(call, op);
    if (by_transport_among(op, call.kind->attrs, call.kind->in, std::ssize(call.members)) !=
        ByTransport::none) {
      return by_transport(call, op);
    }
    tell_ours(call, op);
    return exchange(call, op);
  }
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

void ProcessWorld::Rank::by_transport(const Call& call, const Op& op) {
  Team& team = connection_.team(call.members, tag_of(call));
  run_by_transport(call, op, rank_, team, scratch_[place_of(call.lane)],
                   [&](Incoming& collective) { connection_.wait(collective, call.members); });
}

int64_t ProcessWorld::Rank::scratch_bytes() const {
  int64_t bytes = 0;
  for (const ScratchSpace& space : scratch_) {
    bytes += space.bytes();
  }
  return bytes;
}

/// Says once of an op that c10d has none.
void ProcessWorld::Rank::tell_ours(const Call& call, const Op& op) {
  std::lock_guard lock(mutex_);
  if (!told_.insert(op.id).second) return;
  log_warning("plan.collectives is c10d, which has no counterpart of {}: ours does it",
              program::types_text(*call.kind));
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
  /// What comes from another member: in memory of which every slice is read where it lies, or is
  /// given out when it is there.
  struct Arrival {
    std::vector<Slice> slices;
    Message packed;  ///< null: right where it is read
    bool given_out = false;
    std::unique_ptr<Incoming> incoming;
  };
  Rank& rank_;
  const Call& call_;
  const Op& op_;
  const int phase_;
  const int32_t tag_;
  Members members_;
  const size_t n_, me_;
  std::vector<Arrival> arrivals_;
};

ProcessWorld::Rank::Part::Part(Rank& rank, const Call& call, const Op& op, int phase, int64_t part,
                               int64_t parts)
    : rank_(rank),
      call_(call),
      op_(op),
      phase_(phase),
      tag_(rank.tag_of(call)),
      members_(call, op, rank.rank_, part, parts),
      n_(members_.size()),
      me_(members_.me()),
      arrivals_(n_) {}

void ProcessWorld::Rank::Part::send() {
  const Together all = members_.together();
  for (size_t step = 1; step < n_; ++step) {
    const size_t other = (me_ + step) % n_;
    const std::vector<Slice> slices = op_.reads(all, me_, other, phase_);
    Message message = message_of(call_, total(slices));
    std::byte* at = message.data.get();
    for (const Slice& slice : slices) {
      copy_bytes(at, place(members_.of(me_), slice), slice.bytes);
      at += slice.bytes;
    }
    rank_.connection_.send(std::move(message), call_.members[other], tag_);
  }
}

void ProcessWorld::Rank::Part::expect() {
  const Together all = members_.together();
  for (size_t step = 1; step < n_; ++step) {
    const size_t other = (me_ + n_ - step) % n_;
    Arrival& arrival = arrivals_[other];
    arrival.slices = op_.reads(all, other, me_, phase_);
    const int64_t bytes = on_links(call_, total(arrival.slices));
    arrival.packed = Message(bytes);
    arrival.given_out = !is_read_packed(arrival.slices, call_.kind->in, call_.kind->out);
    if (arrival.given_out) {
      members_.expect(other, arrival.slices);
    } else {
      std::byte* at = arrival.packed.data.get();
      for (const Slice& slice : arrival.slices) {
        members_.set(other, slice, at);
        at += slice.bytes;
      }
    }
    arrival.incoming =
        rank_.connection_.expect(arrival.packed.data.get(), bytes, call_.members[other], tag_);
  }
}

void ProcessWorld::Rank::Part::run() {
  for (size_t step = 1; step < n_; ++step) {
    const size_t other = (me_ + n_ - step) % n_;
    Arrival& arrival = arrivals_[other];
    rank_.connection_.wait(arrival.incoming.get(), call_.members[other]);
    if (!arrival.given_out) continue;
    const std::byte* at = arrival.packed.data.get();
    for (const Slice& slice : arrival.slices) {
      copy_bytes(place(members_.of(other), slice), at, slice.bytes);
      at += slice.bytes;
    }
  }
  op_.run(members_.together(), me_, phase_);
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

ProcessWorld::ProcessWorld(std::shared_ptr<Connection> connection, Collectives collectives)
    : connection_(std::move(connection)),
      rank_(std::make_unique<Rank>(*connection_, collectives)) {}
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
  return connection_->peak_message_bytes() + rank_->scratch_bytes();
}

}  // namespace hocket::comm
