// SPDX-License-Identifier: Apache-2.0
// Local transport: ranks are threads. A collective is a meeting of its group's members: everybody
// posts pointers, then reads from the others between two barriers, so that the bits depend on rank
// order alone. Sends are eager: the message is copied to the transport.
#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <numeric>

#include "base/error.h"
#include "comm/communicator.h"

namespace hocket::comm {

using graph::DType;
using graph::TensorType;
using program::Kind;

namespace {

/// What one member brings to a collective.
struct Posted {
  const Call* call = nullptr;
};

/// Barrier of one set of ranks. All its collectives come in one lane: in two lanes of a rank, each could
/// take the other's place.
struct Meeting {
  explicit Meeting(program::Lane where) : lane(where) {}
  const program::Lane lane;
  std::mutex mutex;
  std::condition_variable arrived;
  size_t count = 0;
  uint64_t generation = 0;
  std::vector<Posted> posted;
};

template <typename T>
void sum_range(const std::vector<const T*>& from, T* to, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i) {
    T sum = from[0][i];
    for (size_t r = 1; r < from.size(); ++r) sum += from[r][i];
    to[i] = sum;
  }
}

/// Elements before and from `dim` on: a tensor is [outer, inner] blocks for that dim.
std::pair<int64_t, int64_t> blocks(const TensorType& t, int64_t dim) {
  int64_t outer = 1, inner = 1;
  for (int64_t i = 0; i < static_cast<int64_t>(t.dims.size()); ++i)
    (i < dim ? outer : inner) *= t.dims[static_cast<size_t>(i)];
  return {outer, inner};
}

std::string describe(const Kind& kind) {
  std::string text = kind.op + to_string(kind.attrs) + " of";
  for (size_t i = 0; i < kind.in.size() && i < 4; ++i) text += " " + to_string(kind.in[i]);
  return kind.in.size() > 4 ? text + " …" : text;
}

std::string ranks_text(std::span<const int32_t> ranks) {
  std::string text;
  for (int32_t r : ranks) text += (text.empty() ? "" : ",") + std::to_string(r);
  return text;
}

template <typename Fn>
void with_type(DType dtype, Fn fn) {
  switch (dtype) {
    case DType::f32: return fn(float{});
    case DType::f64: return fn(double{});
    case DType::i32: return fn(int32_t{});
    case DType::i64: return fn(int64_t{});
    case DType::bf16: break;
  }
  fail_run("comm", "no local sum of {}", to_string(dtype));
}

}  // namespace

struct LocalWorld::Impl {
  class Rank : public Communicator {
   public:
    Rank(Impl& world, int32_t rank) : world_(world), rank_(rank) {}
    void run(const Call& call) override;

   private:
    void send(const Call& call);
    void recv(const Call& call);
    void barrier(Meeting& m, const Call& call);
    Meeting& meeting(const Call& call);
    void all_reduce(const Call& call, Meeting& m, size_t me);
    void all_gather(const Call& call, Meeting& m);
    void reduce_scatter(const Call& call, Meeting& m, size_t me);
    void size_exchange(const Call& call, Meeting& m, size_t me);
    void all_to_all(const Call& call, Meeting& m, size_t me);

    Impl& world_;
    int32_t rank_;
  };

  struct Mailbox {
    std::deque<std::vector<std::byte>> messages;
  };

  std::chrono::milliseconds timeout;
  std::vector<std::unique_ptr<Rank>> ranks;
  std::mutex mutex;  // guards everything below
  std::condition_variable mail;
  std::map<std::vector<int32_t>, std::unique_ptr<Meeting>> meetings;
  std::map<std::tuple<int32_t, int32_t, int32_t>, Mailbox> boxes;
  int64_t message_bytes = 0, peak_message_bytes = 0;
  bool aborted = false;
  std::string reason;

  void check_abort() {
    if (aborted) throw Error(Error::Kind::kRun, "comm", "stopped: " + reason, Error::Cause::stopped);
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
    // Short naps, so that an abort is noticed without a lock shared by all groups.
    m.arrived.wait_for(lock, std::chrono::milliseconds(50));
    if (m.generation != generation) return;
    {
      std::lock_guard world(world_.mutex);
      world_.check_abort();
    }
    if (std::chrono::steady_clock::now() > deadline)
      fail_run("comm", "{}: {} of {} ranks came within {} s", call.kind->op, m.count,
               call.members.size(), world_.timeout.count() / 1000.0);
  }
}

Meeting& LocalWorld::Impl::Rank::meeting(const Call& call) {
  std::lock_guard lock(world_.mutex);
  world_.check_abort();
  auto& m = world_.meetings[std::vector<int32_t>(call.members.begin(), call.members.end())];
  if (!m) {
    m = std::make_unique<Meeting>(call.lane);
    m->posted.resize(call.members.size());
  }
  if (m->lane != call.lane)
    fail_run("comm", "rank {} came in lane {} to a meeting of ranks {}; expected lane {}, in which they "
                     "met before; try one lane for all collectives of these ranks",
             rank_, to_string(call.lane), ranks_text(call.members), to_string(m->lane));
  return *m;
}

void LocalWorld::Impl::Rank::run(const Call& call) {
  if (call.kind->op == "send") return send(call);
  if (call.kind->op == "recv") return recv(call);
  Meeting& m = meeting(call);
  const size_t me = static_cast<size_t>(
      std::find(call.members.begin(), call.members.end(), rank_) - call.members.begin());
  HOCKET_CHECK(me < call.members.size(), "rank {} is not in its group", rank_);
  m.posted[me].call = &call;
  barrier(m, call);
  for (size_t i = 0; i < call.members.size(); ++i) {
    const Kind* other = m.posted[i].call->kind;
    if (other != call.kind && (other->op != call.kind->op || other->attrs != call.kind->attrs ||
                               other->in != call.kind->in || other->out != call.kind->out))
      fail_run("comm", "rank {} came with {} to a meeting where rank {} came with {}",
               call.members[i], describe(*other), rank_, describe(*call.kind));
  }
  if (call.kind->op == "all_reduce") {
    all_reduce(call, m, me);
  } else if (call.kind->op == "all_gather") {
    all_gather(call, m);
  } else if (call.kind->op == "reduce_scatter") {
    reduce_scatter(call, m, me);
  } else if (call.kind->op == "size_exchange") {
    size_exchange(call, m, me);
  } else if (call.kind->op == "all_to_all") {
    all_to_all(call, m, me);
  } else {
    fail_run("comm", "unknown communication {}", call.kind->op);
  }
  barrier(m, call);
}

void LocalWorld::Impl::Rank::all_reduce(const Call& call, Meeting& m, size_t me) {
  const int64_t n = static_cast<int64_t>(call.members.size());
  auto chunk = [&](int64_t numel, int64_t i) { return numel * i / n; };
  // First everybody sums one chunk over all inputs, in rank order …
  for (size_t b = 0; b < call.in.size(); ++b)
    with_type(call.kind->in[b].dtype, [&](auto zero) {
      using T = decltype(zero);
      const int64_t numel = call.kind->in[b].numel(), i = static_cast<int64_t>(me);
      std::vector<const T*> from;
      for (const Posted& p : m.posted) from.push_back(static_cast<const T*>(p.call->in[b]));
      sum_range(from, static_cast<T*>(call.out[b]), chunk(numel, i), chunk(numel, i + 1));
    });
  barrier(m, call);
  // … then collects the other chunks.
  for (size_t b = 0; b < call.in.size(); ++b) {
    const int64_t numel = call.kind->in[b].numel(), size = size_of(call.kind->in[b].dtype);
    for (size_t j = 0; j < call.members.size(); ++j) {
      if (j == me) continue;
      const int64_t begin = chunk(numel, static_cast<int64_t>(j)) * size;
      const int64_t end = chunk(numel, static_cast<int64_t>(j) + 1) * size;
      std::memcpy(static_cast<std::byte*>(call.out[b]) + begin,
                  static_cast<const std::byte*>(m.posted[j].call->out[b]) + begin,
                  static_cast<size_t>(end - begin));
    }
  }
}

void LocalWorld::Impl::Rank::all_gather(const Call& call, Meeting& m) {
  const TensorType& part = call.kind->in[0];
  auto [outer, inner] = blocks(part, call.kind->attrs.i("dim"));
  const size_t row = static_cast<size_t>(inner * size_of(part.dtype));
  auto* to = static_cast<std::byte*>(call.out[0]);
  for (int64_t o = 0; o < outer; ++o)
    for (const Posted& p : m.posted) {
      std::memcpy(to, static_cast<const std::byte*>(p.call->in[0]) + static_cast<size_t>(o) * row,
                  row);
      to += row;
    }
}

void LocalWorld::Impl::Rank::reduce_scatter(const Call& call, Meeting& m, size_t me) {
  const TensorType& part = call.kind->out[0];
  const auto shape = blocks(part, call.kind->attrs.i("dim"));
  const int64_t outer = shape.first, inner = shape.second;  // clang 14 captures no bindings
  const int64_t n = static_cast<int64_t>(call.members.size());
  with_type(part.dtype, [&](auto zero) {
    using T = decltype(zero);
    for (int64_t o = 0; o < outer; ++o) {
      std::vector<const T*> from;
      const int64_t at = (o * n + static_cast<int64_t>(me)) * inner;
      for (const Posted& p : m.posted) from.push_back(static_cast<const T*>(p.call->in[0]) + at);
      sum_range(from, static_cast<T*>(call.out[0]) + o * inner, 0, inner);
    }
  });
}

void LocalWorld::Impl::Rank::size_exchange(const Call& call, Meeting& m, size_t me) {
  const int64_t experts = call.kind->in[0].dims[0];
  const int64_t local = experts / static_cast<int64_t>(call.members.size());
  auto* sizes = static_cast<int64_t*>(call.out[0]);
  auto* counts = static_cast<int64_t*>(call.out[1]);
  std::fill(counts, counts + local, 0);
  for (size_t s = 0; s < m.posted.size(); ++s) {
    const auto* from = static_cast<const int64_t*>(m.posted[s].call->in[0]);
    std::copy(from, from + experts, sizes + static_cast<int64_t>(s) * experts);
    for (int64_t e = 0; e < local; ++e) counts[e] += from[static_cast<int64_t>(me) * local + e];
  }
}

void LocalWorld::Impl::Rank::all_to_all(const Call& call, Meeting& m, size_t me) {
  const TensorType& rows = call.kind->in[0];
  const TensorType& sizes_type = call.kind->in[1];
  const int64_t n = sizes_type.dims[0], experts = sizes_type.dims[1], local = experts / n;
  const auto* sizes = static_cast<const int64_t*>(call.in[1]);  // the same on every member
  auto size = [&](int64_t source, int64_t e) { return sizes[source * experts + e]; };
  const int64_t row_bytes = rows.row_size() * size_of(rows.dtype);
  auto* to = static_cast<std::byte*>(call.out[0]);
  int64_t written = 0;
  const int64_t limit = call.kind->out[0].max_rows();
  auto pull = [&](int64_t member, int64_t from_row, int64_t count) {
    if (written + count > limit)
      fail_run("comm", "all_to_all receives more than the {} rows of its buffer", limit);
    std::memcpy(to + written * row_bytes,
                static_cast<const std::byte*>(m.posted[static_cast<size_t>(member)].call->in[0]) +
                    from_row * row_bytes,
                static_cast<size_t>(count * row_bytes));
    written += count;
  };
  const int64_t i = static_cast<int64_t>(me);
  if (call.kind->attrs.i("from") == 1) {
    // To the experts: my experts' rows from every source, in (expert, source) order.
    std::vector<int64_t> at(static_cast<size_t>(n), 0);  // row in the source
    for (int64_t s = 0; s < n; ++s)
      for (int64_t e = 0; e < i * local; ++e) at[static_cast<size_t>(s)] += size(s, e);
    for (int64_t e = i * local; e < (i + 1) * local; ++e)
      for (int64_t s = 0; s < n; ++s) {
        pull(s, at[static_cast<size_t>(s)], size(s, e));
        at[static_cast<size_t>(s)] += size(s, e);
      }
  } else {
    // Back to the tokens: my rows from every expert's owner.
    for (int64_t e = 0; e < experts; ++e) {
      const int64_t owner = e / local;
      int64_t at = 0;
      for (int64_t f = owner * local; f < e; ++f)
        for (int64_t s = 0; s < n; ++s) at += size(s, f);
      for (int64_t s = 0; s < i; ++s) at += size(s, e);
      pull(owner, at, size(i, e));
    }
  }
}

void LocalWorld::Impl::Rank::send(const Call& call) {
  const size_t bytes = static_cast<size_t>(call.kind->in[0].bytes());
  const auto* data = static_cast<const std::byte*>(call.in[0]);
  std::vector<std::byte> message(data, data + bytes);
  std::lock_guard lock(world_.mutex);
  world_.check_abort();
  world_.boxes[{rank_, call.peer, call.tag}].messages.push_back(std::move(message));
  world_.message_bytes += static_cast<int64_t>(bytes);
  world_.peak_message_bytes = std::max(world_.peak_message_bytes, world_.message_bytes);
  world_.mail.notify_all();
}

void LocalWorld::Impl::Rank::recv(const Call& call) {
  const size_t bytes = static_cast<size_t>(call.kind->out[0].bytes());
  std::vector<std::byte> message;
  {
    std::unique_lock lock(world_.mutex);
    auto& box = world_.boxes[{call.peer, rank_, call.tag}];
    bool came = world_.mail.wait_for(lock, world_.timeout,
                                     [&] { return !box.messages.empty() || world_.aborted; });
    world_.check_abort();
    if (!came)
      fail_run("comm", "recv: nothing from rank {} within {} s", call.peer,
               world_.timeout.count() / 1000.0);
    message = std::move(box.messages.front());
    box.messages.pop_front();
    world_.message_bytes -= static_cast<int64_t>(message.size());
  }
  if (message.size() != bytes)
    fail_run("comm", "recv: rank {} sent {} bytes; expected {}", call.peer, message.size(), bytes);
  std::memcpy(call.out[0], message.data(), bytes);
}

LocalWorld::LocalWorld(int32_t ranks, std::chrono::milliseconds timeout)
    : impl_(std::make_unique<Impl>()) {
  impl_->timeout = timeout;
  for (int32_t r = 0; r < ranks; ++r)
    impl_->ranks.push_back(std::make_unique<Impl::Rank>(*impl_, r));
}
LocalWorld::~LocalWorld() = default;

Communicator& LocalWorld::communicator(int32_t rank) {
  return *impl_->ranks[static_cast<size_t>(rank)];
}

void LocalWorld::abort(const std::string& reason) {
  std::lock_guard lock(impl_->mutex);
  if (!impl_->aborted) impl_->reason = reason;
  impl_->aborted = true;
  impl_->mail.notify_all();
}

int64_t LocalWorld::peak_message_bytes() const {
  std::lock_guard lock(impl_->mutex);
  return impl_->peak_message_bytes;
}

}  // namespace hocket::comm
