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
#include "collectives/comm_op.h"
#include "collectives/exchange.h"
#include "collectives/implementation.h"
#include "comm/members.h"
#include "comm/transport_collectives.h"

namespace hocket::comm {

namespace {

/// Tag bits. Collectives have kCollective, messages do not. Every second collective of a group has
/// kSecond too, so that messages of consecutive ones are not confused.
constexpr int32_t kCollective = 1 << 30;
constexpr int32_t kSecond = 1 << 29;

/// Returns the bytes that a message puts on the links (Call::traffic).
int64_t on_links(const Call& call, int64_t bytes) {
  return call.traffic == 1 ? bytes : std::llround(static_cast<double>(bytes) * call.traffic);
}

/// Allocates a message with room for `bytes`, plus zeroed padding for Call::traffic.
Message message_of(const Call& call, int64_t bytes) {
  Message message(on_links(call, bytes));
  std::memset(message.data.get() + bytes, 0, static_cast<size_t>(message.bytes - bytes));
  return message;
}

bool is_collective(const Op& op) { return op.role == Role::collective || op.role == Role::between; }

}  // namespace

class ProcessWorld::Rank : public Communicator {
 public:
  Rank(Connection& connection, Collectives collectives)
      : connection_(connection), rank_(connection.index()), collectives_(collectives) {}
  void run(const Call& call, const NextCall& next) override;
  /// Returns the scratch bytes of the transport's collectives in all lanes.
  int64_t scratch_bytes() const;

 private:
  class Part;
  class Exchange;
  bool runs_here(const Call& call, const Op& op) const;
  void exchange(const Call& call, const NextCall& next);
  void by_transport(const Call& call, const Op& op);
  void warn_no_counterpart(const Call& call, const Op& op);
  int32_t tag_of(const Call& call);
  int32_t next_tag_of(const Call& call);

  Connection& connection_;
  const int32_t rank_;
  const Collectives collectives_;
  // By lane; only the lane itself uses its entry.
  std::array<ScratchSpace, program::kNumLanes> scratch_;
  std::array<std::unique_ptr<Exchange>, program::kNumLanes>
      begun_;  ///< early parts of the lane's next call
  std::mutex mutex_;
  std::map<int32_t, std::vector<int32_t>> groups_;  ///< members by tag; guarded by mutex_
  std::map<int32_t, bool>
      is_second_;              ///< by tag, the bit of its next collective; guarded by mutex_
  std::set<comm::Id> warned_;  ///< ops with a printed warning; guarded by mutex_
};

void ProcessWorld::Rank::run(const Call& call, const NextCall& next) {
  HOCKET_CHECK(is_communication(*call.kind), "{} involves no other rank", call.kind->op);
  const Op& op = comm::op(call.kind->communication);
  if (runs_here(call, op)) {
    if (collectives_ != Collectives::own) {
      warn_no_counterpart(call, op);
    }
    return exchange(call, next);
  }
  if (is_collective(op)) return by_transport(call, op);
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

/// Returns whether the call runs here by its record; false for messages, and for collectives of
/// c10d.
bool ProcessWorld::Rank::runs_here(const Call& call, const Op& op) const {
  if (!is_collective(op)) return false;
  return collectives_ == Collectives::own ||
         by_transport_among(op, call.kind->attrs, call.kind->in, std::ssize(call.members)) ==
             ByTransport::none;
}

void ProcessWorld::Rank::by_transport(const Call& call, const Op& op) {
  CollectiveGroup& group = connection_.group(call.members, tag_of(call));
  run_by_transport(call, op, rank_, group, scratch_[place_of(call.lane)],
                   [&](Request& collective) { connection_.wait(collective, call.members); });
}

int64_t ProcessWorld::Rank::scratch_bytes() const {
  int64_t bytes = 0;
  for (const ScratchSpace& space : scratch_) {
    bytes += space.bytes();
  }
  return bytes;
}

/// Warns, once per op, that c10d has no counterpart.
void ProcessWorld::Rank::warn_no_counterpart(const Call& call, const Op& op) {
  std::lock_guard lock(mutex_);
  if (!warned_.insert(op.id).second) return;
  log_warning("plan.collectives is c10d, which has no counterpart of {}; using Hocket's own",
              program::types_text(*call.kind));
}

/// Returns a tag for the group, equal on all of its ranks. Groups that share two ranks need
/// distinct tags, since their collectives may be in different lanes.
int32_t ProcessWorld::Rank::tag_of(const Call& call) {
  const std::vector<int32_t> members(call.members.begin(), call.members.end());
  const std::string_view bytes(reinterpret_cast<const char*>(members.data()),
                               members.size() * sizeof(int32_t));
  const auto number = static_cast<int32_t>(hash64(bytes) & (kSecond - 1));
  const int32_t tag = kCollective | number;
  std::lock_guard lock(mutex_);
  const auto [known, fresh] = groups_.try_emplace(tag, members);
  if (known->second != members) {
    fail_run("comm", "hash collision: two groups of ranks have tag {}; try another order of ranks",
             number);
  }
  return tag;
}

/// Returns the tag of the group's next collective: all members begin the same ones in the same
/// order.
int32_t ProcessWorld::Rank::next_tag_of(const Call& call) {
  const int32_t tag = tag_of(call);
  std::lock_guard lock(mutex_);
  bool& second = is_second_[tag];
  second = !second;
  return second ? tag : tag | kSecond;
}

/// One part of one phase of a collective: sends to each other member, receives from each, and then
/// runs this member's part of the op on the received slices.
class ProcessWorld::Rank::Part {
 public:
  Part(Rank& rank, const Call& call, const Op& op, int32_t tag, int phase, int64_t part,
       int64_t parts);
  /// Sends the slices that others read. They are copied, so the operands may change at once.
  void send();
  /// Posts the receives of the slices that are read of others.
  void post_receives();
  /// Waits for the receives, runs the part, and waits until its sends are delivered. The last wait
  /// matters: a kernel that waits for the call takes the core, and unsent data would wait for the
  /// next scheduler tick, some ms: the time of a whole collective.
  void run();

 private:
  /// Receive from another member. Its slices are read in place, or scattered once they are there.
  struct Arrival {
    std::vector<Slice> slices;
    Message packed;  ///< received bytes, slice after slice
    bool given_out = false;
    std::unique_ptr<Request> request;
  };
  Rank& rank_;
  const Call& call_;
  const Op& op_;
  const int phase_;
  const int32_t tag_;
  Members members_;
  const size_t n_, me_;
  std::vector<Arrival> arrivals_;
  std::vector<std::unique_ptr<Request>> sends_;  // by member
};

ProcessWorld::Rank::Part::Part(Rank& rank, const Call& call, const Op& op, int32_t tag, int phase,
                               int64_t part, int64_t parts)
    : rank_(rank),
      call_(call),
      op_(op),
      phase_(phase),
      tag_(tag),
      members_(call, op, rank.rank_, part, parts),
      n_(members_.size()),
      me_(members_.me()),
      arrivals_(n_),
      sends_(n_) {}

void ProcessWorld::Rank::Part::send() {
  const CollectiveArgs all = members_.args();
  for (size_t step = 1; step < n_; ++step) {
    const size_t other = (me_ + step) % n_;
    const std::vector<Slice> slices = op_.reads(all, me_, other, phase_);
    Message message = message_of(call_, total(slices));
    std::byte* at = message.data.get();
    for (const Slice& slice : slices) {
      copy_bytes(at, address_of(members_.of(me_), slice), slice.bytes);
      at += slice.bytes;
    }
    sends_[other] = rank_.connection_.begin_send(std::move(message), call_.members[other], tag_);
  }
}

void ProcessWorld::Rank::Part::post_receives() {
  const CollectiveArgs all = members_.args();
  for (size_t step = 1; step < n_; ++step) {
    const size_t other = (me_ + n_ - step) % n_;
    Arrival& arrival = arrivals_[other];
    arrival.slices = op_.reads(all, other, me_, phase_);
    const int64_t bytes = on_links(call_, total(arrival.slices));
    arrival.packed = Message(bytes);
    arrival.given_out = !is_read_packed(arrival.slices, call_.kind->in, call_.kind->out);
    if (arrival.given_out) {
      members_.allocate(other, arrival.slices);
    } else {
      std::byte* at = arrival.packed.data.get();
      for (const Slice& slice : arrival.slices) {
        members_.set(other, slice, at);
        at += slice.bytes;
      }
    }
    arrival.request = rank_.connection_.begin_receive(arrival.packed.data.get(), bytes,
                                                      call_.members[other], tag_);
  }
}

void ProcessWorld::Rank::Part::run() {
  for (size_t step = 1; step < n_; ++step) {
    const size_t other = (me_ + n_ - step) % n_;
    Arrival& arrival = arrivals_[other];
    rank_.connection_.wait(arrival.request.get(), call_.members[other]);
    if (!arrival.given_out) continue;
    const std::byte* at = arrival.packed.data.get();
    for (const Slice& slice : arrival.slices) {
      copy_bytes(address_of(members_.of(other), slice), at, slice.bytes);
      at += slice.bytes;
    }
  }
  op_.run(members_.args(), me_, phase_);
  for (size_t other = 0; other < n_; ++other) {
    rank_.connection_.wait(sends_[other].get(), call_.members[other]);
  }
}

/// Collective in progress, part by part: the result of a first-phase part is sent on while later
/// parts arrive. All members make the same steps in the same order, so that messages with one tag
/// are matched correctly.
class ProcessWorld::Rank::Exchange {
 public:
  Exchange(Rank& rank, const Call& call);
  const Call& call() const { return call_; }
  bool has_begun_all() const { return begun_ == parts_; }
  /// Returns the number of parts begun and not ended, and the number that the plan has memory for.
  int64_t on_way() const { return std::ssize(first_) + std::ssize(second_); }
  int64_t most_on_way() const { return std::min(parts_, most_parts_on_way(op_)); }
  /// Begins the next part and sends the slices that others read. Returns false if there is none, or
  /// if the maximum is in flight.
  bool begin();
  /// Ends the oldest part of one phase, alternating between phases; returns false if all have
  /// ended.
  bool end();

 private:
  void add(std::deque<Part>& list, int phase, int64_t part);

  Rank& rank_;
  const Call& call_;
  const Op& op_;
  const int32_t tag_;
  const int64_t parts_;
  int64_t begun_ = 0, summed_ = 0;  ///< parts with the first phase begun, and ended
  std::deque<Part> first_, second_;
};

ProcessWorld::Rank::Exchange::Exchange(Rank& rank, const Call& call)
    : rank_(rank),
      call_(call),
      op_(comm::op(call.kind->communication)),
      tag_(rank.next_tag_of(call)),
      parts_(parts_among(
          op_, on_links(call, op_.payload(call.kind->attrs, call.kind->in, call.kind->out)),
          std::ssize(call.members))) {
  HOCKET_CHECK(op_.phases <= 2, "{} has {} phases", op_.name, op_.phases);
}

void ProcessWorld::Rank::Exchange::add(std::deque<Part>& list, int phase, int64_t part) {
  list.emplace_back(rank_, call_, op_, tag_, phase, part, parts_);
  // Receives are posted before sends: a posted receive lets the peer send at once, and its
  // notification would otherwise queue behind our data.
  list.back().post_receives();
  list.back().send();
}

bool ProcessWorld::Rank::Exchange::begin() {
  if (has_begun_all() || begun_ - summed_ == kPartsAhead) return false;
  add(first_, 0, begun_++);
  return true;
}

bool ProcessWorld::Rank::Exchange::end() {
  const bool is_behind = std::ssize(second_) > kPartsAhead;
  if (!first_.empty() && !is_behind) {
    first_.front().run();
    first_.pop_front();
    if (op_.phases == 2) {
      add(second_, 1, summed_);
    }
    ++summed_;
    return true;
  }
  if (second_.empty()) return false;
  second_.front().run();
  second_.pop_front();
  return true;
}

/// Runs the call. Once all of its parts have begun, parts of the next call take the slots of ended
/// ones. So the links stay busy while the last parts arrive.
void ProcessWorld::Rank::exchange(const Call& call, const NextCall& next) {
  std::unique_ptr<Exchange>& ahead = begun_[place_of(call.lane)];
  const std::unique_ptr<Exchange> now =
      ahead ? std::move(ahead) : std::make_unique<Exchange>(*this, call);
  HOCKET_CHECK(&now->call() == &call, "another call was begun in this lane");
  const auto begin_next = [&] {
    if (!ahead) {
      const Call* following = next ? next() : nullptr;
      if (!following || !runs_here(*following, comm::op(following->kind->communication))) return;
      ahead = std::make_unique<Exchange>(*this, *following);
    }
    ahead->begin();
  };
  do {
    while (now->begin()) {
    }
    const int64_t on_way = now->on_way() + (ahead ? ahead->on_way() : 0);
    if (now->has_begun_all() && on_way < now->most_on_way()) {
      begin_next();
    }
  } while (now->end());
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
