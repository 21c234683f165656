// SPDX-License-Identifier: Apache-2.0
#include "tests/comm/transport_util.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <tuple>

#include "base/bytes.h"
#include "collectives/parts.h"

namespace hocket::comm::test {

namespace {

/// Posted receive.
struct Asked {
  void* into = nullptr;
  int64_t bytes = 0;
  bool whole = false, wrong = false;
  bool given_up = false;  ///< its memory may be gone
};

/// State shared by the transports of a world.
struct Hub {
  /// Queue of one (sender, receiver, tag): unreceived messages or unmatched receives, in order.
  struct Box {
    std::deque<Message> messages;
    std::deque<std::shared_ptr<Asked>> asked;

    void match() {
      while (!messages.empty() && !asked.empty()) {
        Asked& first = *asked.front();
        if (first.given_up) {
          asked.pop_front();
          continue;
        }
        first.wrong = messages.front().bytes != first.bytes;
        first.whole = !first.wrong;
        if (first.whole) {
          copy_bytes(first.into, messages.front().data.get(), first.bytes);
        }
        messages.pop_front();
        asked.pop_front();
      }
    }
  };
  std::mutex mutex;
  std::condition_variable changed;
  std::map<std::tuple<int32_t, int32_t, int32_t>, Box> boxes;  // from, to, tag
  std::map<std::string, std::string> entries;
  std::map<int32_t, bool> gone;
  std::shared_ptr<std::atomic<bool>> silent;  ///< silences the table; null: never
};

/// Table that delays its answers while it is silent.
class HubTable : public SharedTable {
 public:
  explicit HubTable(std::shared_ptr<Hub> hub) : hub_(std::move(hub)) {}
  int32_t holder() const override { return 0; }
  void set(const std::string& key, const std::string& value) override {
    const auto lock = answering();
    hub_->entries[key] = value;
  }
  std::string set_if_absent(const std::string& key, const std::string& value) override {
    const auto lock = answering();
    return hub_->entries.try_emplace(key, value).first->second;
  }
  std::optional<std::string> get(const std::string& key) override {
    const auto lock = answering();
    const auto found = hub_->entries.find(key);
    return found == hub_->entries.end() ? std::nullopt : std::optional(found->second);
  }

 private:
  std::unique_lock<std::mutex> answering() {
    std::unique_lock lock(hub_->mutex);
    while (hub_->silent && *hub_->silent) {
      hub_->changed.wait_for(lock, std::chrono::milliseconds(10));
    }
    return lock;
  }
  const std::shared_ptr<Hub> hub_;
};

class ThreadTransport : public Transport {
 public:
  ThreadTransport(std::shared_ptr<Hub> hub, int32_t rank, int32_t size)
      : hub_(std::move(hub)), rank_(rank), size_(size) {}
  ~ThreadTransport() override {
    std::lock_guard lock(hub_->mutex);
    hub_->gone[rank_] = true;
    hub_->changed.notify_all();
  }
  int32_t rank() const override { return rank_; }
  int32_t size() const override { return size_; }

  void send(Message message, int32_t to, int32_t tag) override {
    std::lock_guard lock(hub_->mutex);
    Hub::Box& box = hub_->boxes[{rank_, to, tag}];
    box.messages.push_back(std::move(message));
    box.match();
    hub_->changed.notify_all();
  }

  std::unique_ptr<Request> begin_send(Message message, int32_t to, int32_t tag) override {
    class Gone : public Request {
      WaitResult wait(std::chrono::milliseconds) override { return {}; }
    };
    send(std::move(message), to, tag);
    return std::make_unique<Gone>();
  }

  std::unique_ptr<Request> receive(void* into, int64_t bytes, int32_t from, int32_t tag) override {
    class Later : public Request {
     public:
      Later(ThreadTransport& transport, std::shared_ptr<Asked> asked, int32_t from)
          : transport_(transport), asked_(std::move(asked)), from_(from) {}
      ~Later() override {
        std::lock_guard lock(transport_.hub_->mutex);
        asked_->given_up = true;
      }
      WaitResult wait(std::chrono::milliseconds timeout) override {
        return transport_.wait(*asked_, from_, timeout);
      }

     private:
      ThreadTransport& transport_;
      const std::shared_ptr<Asked> asked_;
      int32_t from_;
    };
    const auto asked = std::make_shared<Asked>(Asked{into, bytes});
    std::lock_guard lock(hub_->mutex);
    Hub::Box& box = hub_->boxes[{from, rank_, tag}];
    box.asked.push_back(asked);
    box.match();
    return std::make_unique<Later>(*this, asked, from);
  }

  WaitResult wait(const Asked& asked, int32_t from, std::chrono::milliseconds timeout) {
    std::unique_lock lock(hub_->mutex);
    const bool ended = hub_->changed.wait_for(
        lock, timeout, [&] { return aborted_ || asked.whole || asked.wrong || hub_->gone[from]; });
    if (aborted_) return {WaitResult::End::stopped, "stopped"};
    if (!ended) return {WaitResult::End::timed_out, "nothing came"};
    if (asked.wrong) return {WaitResult::End::disconnected, "of another length"};
    if (!asked.whole) return {WaitResult::End::disconnected, "the other end has gone"};
    return {};
  }

  WaitResult take(void* into, int64_t bytes, int32_t from, int32_t tag,
                  std::chrono::milliseconds timeout) {
    return receive(into, bytes, from, tag)->wait(timeout);
  }

  std::unique_ptr<CollectiveGroup> group(std::span<const int32_t> members) override;

  void abort() override {
    std::lock_guard lock(hub_->mutex);
    aborted_ = true;
    hub_->changed.notify_all();
  }

  std::shared_ptr<SharedTable> shared_table() override { return std::make_shared<HubTable>(hub_); }

 private:
  const std::shared_ptr<Hub> hub_;
  const int32_t rank_, size_;
  bool aborted_ = false;
};

/// Tag of messages of groups.
constexpr int32_t kGroupTag = 0x7fffff00;

/// Collectives from messages, reduced in the order of the members: every rank sends all of its data
/// to each other one at once, and computes its part in wait().
class ThreadGroup : public CollectiveGroup {
 public:
  ThreadGroup(ThreadTransport& transport, std::span<const int32_t> members)
      : transport_(transport), members_(members.begin(), members.end()) {
    const auto at = std::find(members_.begin(), members_.end(), transport.rank());
    me_ = static_cast<size_t>(at - members_.begin());
  }

  std::unique_ptr<Request> all_reduce(Scratch data, ReduceType type, bool max) override {
    return reduce(data, data, 0, type, max);
  }
  std::unique_ptr<Request> reduce_scatter(Scratch in, Scratch out, ReduceType type,
                                          bool max) override {
    return reduce(in, out, static_cast<int64_t>(me_) * out.bytes, type, max);
  }
  std::unique_ptr<Request> all_gather(Scratch in, Scratch out) override {
    const std::vector<int64_t> same(members_.size(), in.bytes);
    for (size_t i = 0; i < members_.size(); ++i) {
      send(i, in, 0, in.bytes);
    }
    return take(out, same);
  }
  std::unique_ptr<Request> all_to_all(Scratch in, std::span<const int64_t> bytes_to, Scratch out,
                                      std::span<const int64_t> bytes_from) override {
    int64_t begin = 0;
    for (size_t i = 0; i < members_.size(); ++i) {
      send(i, in, begin, bytes_to[i]);
      begin += bytes_to[i];
    }
    return take(out, {bytes_from.begin(), bytes_from.end()});
  }

 private:
  class Later : public Request {
   public:
    explicit Later(std::function<WaitResult(std::chrono::milliseconds)> run)
        : run_(std::move(run)) {}
    WaitResult wait(std::chrono::milliseconds timeout) override { return run_(timeout); }

   private:
    std::function<WaitResult(std::chrono::milliseconds)> run_;
  };

  void send(size_t to, const Scratch& from, int64_t begin, int64_t bytes) {
    Message message(bytes);
    if (bytes > 0) {
      copy_bytes(message.data.get(), from.data + begin, bytes);
    }
    transport_.send(std::move(message), members_[to], kGroupTag);
  }

  /// Concatenates the data of all members.
  std::unique_ptr<Request> take(Scratch out, std::vector<int64_t> bytes) {
    return std::make_unique<Later>([this, out, bytes](std::chrono::milliseconds timeout) {
      std::byte* into = out.data;
      for (size_t i = 0; i < members_.size(); ++i) {
        const WaitResult received =
            transport_.take(into, bytes[i], members_[i], kGroupTag, timeout);
        if (received.end != WaitResult::End::completed) return received;
        into += bytes[i];
      }
      return WaitResult{};
    });
  }

  /// Reduces over all members the part of `in` from `begin` on that fits into `out`.
  std::unique_ptr<Request> reduce(Scratch in, Scratch out, int64_t begin, ReduceType type,
                                  bool max) {
    const auto n = static_cast<int64_t>(members_.size());
    const auto all = std::make_shared<Message>(n * in.bytes);
    std::unique_ptr<Request> gathered = all_gather(in, {all, all->data.get(), all->bytes});
    return std::make_unique<Later>([=, size = in.bytes,
                                    gathered = std::shared_ptr<Request>(std::move(gathered))](
                                       std::chrono::milliseconds timeout) {
      WaitResult received = gathered->wait(timeout);
      if (received.end != WaitResult::End::completed) return received;
      constexpr graph::DType kTypes[] = {graph::DType::f32, graph::DType::f64, graph::DType::bf16,
                                         graph::DType::f16, graph::DType::i32, graph::DType::i64};
      const graph::DType dtype = kTypes[static_cast<size_t>(type)];
      std::vector<const void*> parts;
      for (int64_t i = 0; i < n; ++i) {
        parts.push_back(all->data.get() + i * size + begin);
      }
      comm::reduce(max ? graph::Monoid::max : graph::Monoid::sum, dtype, parts, 0,
                   out.bytes / graph::size_of(dtype), out.data);
      return received;
    });
  }

  ThreadTransport& transport_;
  const std::vector<int32_t> members_;
  size_t me_ = 0;
};

std::unique_ptr<CollectiveGroup> ThreadTransport::group(std::span<const int32_t> members) {
  return std::make_unique<ThreadGroup>(*this, members);
}

}  // namespace

std::vector<std::shared_ptr<Connection>> connections(
    int32_t ranks, std::chrono::milliseconds timeout,
    const std::shared_ptr<std::atomic<bool>>& silent) {
  const auto hub = std::make_shared<Hub>();
  hub->silent = silent;
  std::vector<std::shared_ptr<Connection>> list;
  for (int32_t rank = 0; rank < ranks; ++rank) {
    list.push_back(
        std::make_shared<Connection>(std::make_unique<ThreadTransport>(hub, rank, ranks), timeout));
  }
  return list;
}

}  // namespace hocket::comm::test
