// SPDX-License-Identifier: Apache-2.0
// Implements: LocalWorld (communicator.h): ranks are threads. In a collective, every member posts
// its pointers and then reads from the others between two barriers, so that the bits depend on the
// rank order alone. Sends are eager: the message is copied into the transport.
#include <algorithm>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <numeric>

#include "base/bytes.h"
#include "base/error.h"
#include "collectives/comm_op.h"
#include "comm/communicator.h"

namespace hocket::comm {

using program::Kind;

namespace {

/// Barrier of one set of ranks. All of its collectives must be in one lane: collectives in two
/// lanes could be matched with each other.
struct Meeting {
  explicit Meeting(program::Lane where) : lane(where) {}
  const program::Lane lane;
  std::mutex mutex;
  std::condition_variable arrived;
  size_t count = 0;
  uint64_t generation = 0;
  std::vector<const Kind*> kinds;  // kind and operands of each member
  std::vector<Operands> operands;
};

std::string describe(const Kind& kind) {
  std::string text = kind.op + to_string(kind.attrs) + " of";
  for (size_t i = 0; i < kind.in.size() && i < 4; ++i) {
    text += " " + to_string(kind.in[i]);
  }
  return kind.in.size() > 4 ? text + " …" : text;
}

std::string ranks_text(std::span<const int32_t> ranks) {
  std::string text;
  for (int32_t rank : ranks) {
    text += (text.empty() ? "" : ",") + std::to_string(rank);
  }
  return text;
}

}  // namespace

struct LocalWorld::Impl {
  class Rank : public Communicator {
   public:
    Rank(Impl& world, int32_t rank) : world_(world), rank_(rank) {}
    void run(const Call& call, const NextCall& next) override;

   private:
    void send(const Call& call);
    void recv(const Call& call);
    void barrier(Meeting& m, const Call& call);
    Meeting& meeting(const Call& call);

    Impl& world_;
    int32_t rank_;
  };

  /// Queue of messages from one sender to one receiver with one tag; only that receiver waits on
  /// it.
  struct Mailbox {
    std::deque<std::vector<std::byte>> messages;
    std::condition_variable came;
  };

  std::chrono::milliseconds timeout;
  std::vector<std::unique_ptr<Rank>> ranks;
  std::mutex mutex;  // guards the members below
  std::map<std::vector<int32_t>, std::unique_ptr<Meeting>> meetings;
  std::map<std::tuple<int32_t, int32_t, int32_t>, Mailbox> boxes;
  std::vector<int64_t> message_bytes, peak_message_bytes;  // by sender
  bool aborted = false;
  std::string reason;

  void check_abort() {
    if (aborted) {
      throw Error(Error::Kind::kRun, "comm", "stopped: " + reason, Error::Cause::stopped);
    }
  }
};

void LocalWorld::Impl::Rank::barrier(Meeting& m, const Call& call) {
  std::unique_lock lock(m.mutex);
  const uint64_t generation = m.generation;
  if (++m.count == call.members.size()) {
    m.count = 0;
    ++m.generation;
    m.arrived.notify_all();
    return;
  }
  auto deadline = std::chrono::steady_clock::now() + world_.timeout;
  while (m.generation == generation) {
    // Wakes up every 50 ms, so that an abort is noticed without a lock shared by all groups.
    m.arrived.wait_for(lock, std::chrono::milliseconds(50));
    if (m.generation != generation) return;
    {
      std::lock_guard world(world_.mutex);
      world_.check_abort();
    }
    if (std::chrono::steady_clock::now() > deadline) {
      fail_run("comm", "{}: {} of {} ranks arrived within {} s", call.kind->op, m.count,
               call.members.size(), world_.timeout.count() / 1000.0);
    }
  }
}

Meeting& LocalWorld::Impl::Rank::meeting(const Call& call) {
  std::lock_guard lock(world_.mutex);
  world_.check_abort();
  auto& m = world_.meetings[std::vector<int32_t>(call.members.begin(), call.members.end())];
  if (!m) {
    m = std::make_unique<Meeting>(call.lane);
    m->kinds.resize(call.members.size());
    m->operands.resize(call.members.size());
  }
  if (m->lane != call.lane) {
    fail_run("comm",
             "rank {} used lane {} for a collective of ranks {}; expected lane {}, as before; try "
             "one lane for all collectives of these ranks",
             rank_, to_string(call.lane), ranks_text(call.members), to_string(m->lane));
  }
  return *m;
}

void LocalWorld::Impl::Rank::run(const Call& call, const NextCall& /*next*/) {
  // In a collective, every member posts its operands and waits for the others. A member that finds
  // another op or other types there throws before it reads anything. Then each executes its part,
  // phase by phase, and returns only when all are done, because others read its operands until
  // then.
  HOCKET_CHECK(is_communication(*call.kind), "{} involves no other rank", call.kind->op);
  const Op& op = comm::op(call.kind->communication);
  if (op.role == Role::send) return send(call);
  if (op.role == Role::receive) return recv(call);
  Meeting& m = meeting(call);
  const size_t me = static_cast<size_t>(std::find(call.members.begin(), call.members.end(), rank_) -
                                        call.members.begin());
  HOCKET_CHECK(me < call.members.size(), "rank {} is not in its group", rank_);
  m.kinds[me] = call.kind;
  m.operands[me] = {call.in, call.out};
  barrier(m, call);
  for (size_t i = 0; i < call.members.size(); ++i) {
    const Kind* other = m.kinds[i];
    if (other != call.kind && !program::may_meet(*other, *call.kind)) {
      fail_run("comm", "mismatched collectives: rank {} called {}; rank {} called {}",
               call.members[i], describe(*other), rank_, describe(*call.kind));
    }
  }
  const CollectiveArgs all{&call.kind->attrs, call.kind->in, call.kind->out, m.operands,
                           call.copies};
  for (int phase = 0; phase < op.phases; ++phase) {
    op.run(all, me, phase);
    barrier(m, call);
  }
}

void LocalWorld::Impl::Rank::send(const Call& call) {
  const size_t bytes = static_cast<size_t>(call.kind->in[0].bytes());
  const auto* data = static_cast<const std::byte*>(call.in[0]);
  std::vector<std::byte> message(data, data + bytes);
  std::lock_guard lock(world_.mutex);
  world_.check_abort();
  Mailbox& box = world_.boxes[{rank_, call.peer, call.tag}];
  box.messages.push_back(std::move(message));
  int64_t& held = world_.message_bytes[rank_];
  held += static_cast<int64_t>(bytes);
  int64_t& peak = world_.peak_message_bytes[rank_];
  peak = std::max(peak, held);
  box.came.notify_one();
}

void LocalWorld::Impl::Rank::recv(const Call& call) {
  // Messages of one sender with one tag arrive in order. A message is taken under the lock and
  // copied outside of it; until then it counts as held by the transport.
  const size_t bytes = static_cast<size_t>(call.kind->out[0].bytes());
  std::vector<std::byte> message;
  {
    std::unique_lock lock(world_.mutex);
    Mailbox& box = world_.boxes[{call.peer, rank_, call.tag}];
    const bool came = box.came.wait_for(lock, world_.timeout,
                                        [&] { return !box.messages.empty() || world_.aborted; });
    world_.check_abort();
    if (!came) {
      fail_run("comm", "recv: nothing from rank {} within {} s", call.peer,
               world_.timeout.count() / 1000.0);
    }
    message = std::move(box.messages.front());
    box.messages.pop_front();
  }
  if (message.size() != bytes) {
    fail_run("comm", "recv: rank {} sent {} bytes; expected {}", call.peer, message.size(), bytes);
  }
  copy_bytes(call.out[0], message.data(), static_cast<int64_t>(bytes));
  std::lock_guard lock(world_.mutex);
  world_.message_bytes[call.peer] -= static_cast<int64_t>(bytes);
}

LocalWorld::LocalWorld(int32_t ranks, std::chrono::milliseconds timeout)
    : impl_(std::make_unique<Impl>()) {
  impl_->timeout = timeout;
  impl_->message_bytes.assign(static_cast<size_t>(ranks), 0);
  impl_->peak_message_bytes.assign(static_cast<size_t>(ranks), 0);
  for (int32_t rank = 0; rank < ranks; ++rank) {
    impl_->ranks.push_back(std::make_unique<Impl::Rank>(*impl_, rank));
  }
}
LocalWorld::~LocalWorld() = default;

int32_t LocalWorld::size() const { return static_cast<int32_t>(impl_->ranks.size()); }

Communicator& LocalWorld::communicator(int32_t rank) { return *impl_->ranks[rank]; }

void LocalWorld::abort(const std::string& reason) {
  std::lock_guard lock(impl_->mutex);
  if (!impl_->aborted) {
    impl_->reason = reason;
  }
  impl_->aborted = true;
  for (auto& [key, box] : impl_->boxes) {
    box.came.notify_all();
  }
}

int64_t LocalWorld::peak_message_bytes(int32_t rank) const {
  std::lock_guard lock(impl_->mutex);
  return impl_->peak_message_bytes[rank];
}

Processes& alone() {
  class Alone : public Processes {
   public:
    int32_t size() const override { return 1; }
    int32_t index() const override { return 0; }
    std::vector<std::string> all_gather(const std::string& mine) override { return {mine}; }
    std::vector<std::string> exchange(std::vector<std::string> given) override { return given; }
  };
  static Alone alone;
  return alone;
}

}  // namespace hocket::comm
