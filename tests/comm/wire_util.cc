// SPDX-License-Identifier: Apache-2.0
#include "tests/comm/wire_util.h"

#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <tuple>

namespace hocket::comm::test {

namespace {

/// What the wires of a world share.
struct Hub {
  std::mutex mutex;
  std::condition_variable changed;
  std::map<std::tuple<int32_t, int32_t, int32_t>, std::deque<Message>> boxes;  // from, to, tag
  std::map<std::string, std::string> notes;
  std::map<int32_t, bool> gone;
};

class ThreadWire : public Wire {
 public:
  ThreadWire(std::shared_ptr<Hub> hub, int32_t rank, int32_t size)
      : hub_(std::move(hub)), rank_(rank), size_(size) {}
  ~ThreadWire() override {
    std::lock_guard lock(hub_->mutex);
    hub_->gone[rank_] = true;
    hub_->changed.notify_all();
  }
  int32_t rank() const override { return rank_; }
  int32_t size() const override { return size_; }

  void send(Message message, int32_t to, int32_t tag) override {
    std::lock_guard lock(hub_->mutex);
    peak_ = std::max(peak_, message.bytes);
    hub_->boxes[{rank_, to, tag}].push_back(std::move(message));
    hub_->changed.notify_all();
  }

  std::unique_ptr<Incoming> receive(void* into, int64_t bytes, int32_t from, int32_t tag) override {
    class Later : public Incoming {
     public:
      Later(ThreadWire& wire, void* into, int64_t bytes, int32_t from, int32_t tag)
          : wire_(wire), into_(into), bytes_(bytes), from_(from), tag_(tag) {}
      Received wait(std::chrono::milliseconds timeout) override {
        return wire_.take(into_, bytes_, from_, tag_, timeout);
      }

     private:
      ThreadWire& wire_;
      void* into_;
      int64_t bytes_;
      int32_t from_, tag_;
    };
    return std::make_unique<Later>(*this, into, bytes, from, tag);
  }

  Received take(void* into, int64_t bytes, int32_t from, int32_t tag,
                std::chrono::milliseconds timeout) {
    std::unique_lock lock(hub_->mutex);
    std::deque<Message>& box = hub_->boxes[{from, rank_, tag}];
    const bool ended = hub_->changed.wait_for(
        lock, timeout, [&] { return aborted_ || !box.empty() || hub_->gone[from]; });
    if (aborted_) return {Received::End::stopped, "stopped"};
    if (!ended) return {Received::End::timed_out, "nothing came"};
    if (box.empty()) return {Received::End::gone, "the other end has gone"};
    const Message message = std::move(box.front());
    box.pop_front();
    if (message.bytes != bytes) return {Received::End::gone, "of another length"};
    std::memcpy(into, message.data.get(), static_cast<size_t>(bytes));
    return {};
  }

  void abort() override {
    std::lock_guard lock(hub_->mutex);
    aborted_ = true;
    hub_->changed.notify_all();
  }
  int64_t peak_message_bytes() const override { return peak_; }

  void note(const std::string& key, const std::string& value) override {
    std::lock_guard lock(hub_->mutex);
    hub_->notes[key] = value;
  }
  std::string note_first(const std::string& key, const std::string& value) override {
    std::lock_guard lock(hub_->mutex);
    return hub_->notes.try_emplace(key, value).first->second;
  }
  std::optional<std::string> noted(const std::string& key) override {
    std::lock_guard lock(hub_->mutex);
    const auto found = hub_->notes.find(key);
    return found == hub_->notes.end() ? std::nullopt : std::optional(found->second);
  }

 private:
  const std::shared_ptr<Hub> hub_;
  const int32_t rank_, size_;
  bool aborted_ = false;
  int64_t peak_ = 0;
};

}  // namespace

std::vector<std::shared_ptr<Connection>> connections(int32_t ranks,
                                                     std::chrono::milliseconds timeout) {
  const auto hub = std::make_shared<Hub>();
  std::vector<std::shared_ptr<Connection>> list;
  for (int32_t rank = 0; rank < ranks; ++rank) {
    list.push_back(
        std::make_shared<Connection>(std::make_unique<ThreadWire>(hub, rank, ranks), timeout));
  }
  return list;
}

}  // namespace hocket::comm::test
