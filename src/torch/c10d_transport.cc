// SPDX-License-Identifier: Apache-2.0
// Implements: hocket_open_c10d (comm/c10d.h), a transport (transport.h) on c10d. A Gloo process
// group carries the messages, a TCPStore is the shared table, and other groups, of Gloo or NCCL,
// run c10d's collectives (c10d_group.h). This library is loaded when a plan needs it. LibTorch's
// headers bring libraries that conflict with ours (fmt), so of our headers it includes only the
// interface, and it throws std::exception.
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <ATen/ops/from_blob.h>
#include <arpa/inet.h>
#include <c10/util/Logging.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>

#include "base/scheduling.h"
#include "comm/transport.h"
#include "torch/c10d_group.h"
#include "torch/nccl_group.h"

namespace hocket::comm {

namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

at::Tensor bytes_at(void* data, int64_t bytes) {
  return at::from_blob(data, {bytes}, at::TensorOptions().dtype(at::kByte));
}

/// Returns the address of this host on the route to the other one, at which Gloo listens unless the
/// environment names an interface. Empty if unknown.
std::string address_towards(const std::string& host, int32_t port) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found) != 0) return "";
  std::string address;
  for (const addrinfo* at = found; at && address.empty(); at = at->ai_next) {
    const int fd = socket(at->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) continue;
    sockaddr_storage own = {};
    socklen_t length = sizeof own;
    char text[NI_MAXHOST] = {};
    // No packet is sent: connect() on a UDP socket only selects the route.
    if (connect(fd, at->ai_addr, at->ai_addrlen) == 0 &&
        getsockname(fd, reinterpret_cast<sockaddr*>(&own), &length) == 0 &&
        getnameinfo(reinterpret_cast<sockaddr*>(&own), length, text, sizeof text, nullptr, 0,
                    NI_NUMERICHOST) == 0) {
      address = text;
    }
    close(fd);
  }
  freeaddrinfo(found);
  return address;
}

std::shared_ptr<::gloo::transport::Device> device_for(const LaunchInfo& info) {
  if (const char* interface = std::getenv("GLOO_SOCKET_IFNAME"); interface && *interface) {
    return c10d::ProcessGroupGloo::createDeviceForInterface(interface);
  }
  const std::string address = address_towards(info.address, info.port);
  return address.empty() ? c10d::ProcessGroupGloo::createDefaultDevice()
                         : c10d::ProcessGroupGloo::createDeviceForHostname(address);
}

c10::intrusive_ptr<c10d::Store> open_store(const LaunchInfo& info, bool serves,
                                           milliseconds timeout) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(info.port);
  options.isServer = serves;
  options.waitWorkers = false;
  options.timeout = timeout;
  auto store = c10::make_intrusive<c10d::TCPStore>(info.address, options);
  return c10::make_intrusive<c10d::PrefixStore>("hocket/" + std::to_string(info.restarts), store);
}

/// Returns the GPU of a rank on this host: by its local rank, or the only one that the launcher
/// lets it see.
at::Device gpu_of(const LaunchInfo& info) {
  std::string why;
  const int32_t gpus = count_gpus(&why);
  if (gpus == 0) throw std::runtime_error(why);
  return {at::kCUDA, static_cast<c10::DeviceIndex>(info.local_rank % gpus)};
}

/// Key in the table: number of processes with NCCL groups.
constexpr const char* kWithNccl = "processes with nccl";

/// Transport over c10d.
class C10dTransport : public Transport {
 public:
  /// `nccl`: groups for collectives use NCCL.
  C10dTransport(const LaunchInfo& info, milliseconds timeout, bool nccl);
  ~C10dTransport() override;
  int32_t rank() const override { return launch_.rank; }
  int32_t size() const override { return launch_.size; }
  void send(Message message, int32_t to, int32_t tag) override;
  std::unique_ptr<Request> begin_send(Message message, int32_t to, int32_t tag) override;
  std::unique_ptr<Request> receive(void* into, int64_t bytes, int32_t from, int32_t tag) override;
  std::unique_ptr<CollectiveGroup> group(std::span<const int32_t> members) override;
  void abort() override;
  std::shared_ptr<SharedTable> shared_table() override;

 private:
  /// Message in memory that c10d may still read.
  struct PendingSend {
    Message message;
    c10::intrusive_ptr<c10d::Work> work;
  };
  /// Pending messages to one rank, which complete in order, and the thread that releases them.
  struct Queue {
    std::deque<PendingSend> messages;
    std::condition_variable sent;
    std::thread let_go;
  };
  class ReceiveRequest;
  class SendRequest;
  void await_all();
  void keep(PendingSend message, int32_t to);
  void let_go(Queue& queue);
  c10::intrusive_ptr<c10d::ProcessGroupGloo> create_gloo_group(
      const std::string& name, int rank, int size, const c10::intrusive_ptr<c10d::Store>& store);
  void expect_agreement();

  const LaunchInfo launch_;
  const milliseconds timeout_;
  const at::Device collectives_device_;
  std::shared_ptr<::gloo::transport::Device> device_;
  // The group uses one connection to the store and the table another: an operation that waits
  // occupies its connection.
  c10::intrusive_ptr<c10d::Store> group_store_, table_store_;
  c10::intrusive_ptr<c10d::ProcessGroupGloo> group_;

  mutable std::mutex mutex_;                ///< guards calls of the group, and the members below
  std::map<int32_t, Queue> pending_sends_;  ///< by destination rank
  std::set<c10d::Work*> waited_for_;        ///< receives, and sends with a waiting thread
  bool aborted_ = false, ending_ = false;
  PendingCollectives collectives_;
};

C10dTransport::C10dTransport(const LaunchInfo& info, milliseconds timeout, bool nccl)
    : launch_(info),
      timeout_(timeout),
      collectives_device_(nccl ? gpu_of(info) : at::Device(at::kCPU)),
      device_(device_for(info)) {
  // Rank 0's host has the store, unless the launcher does. Then all ranks connect to each other.
  group_store_ = open_store(info, info.rank == 0 && !info.has_table, timeout);
  table_store_ = open_store(info, false, timeout);
  table_store_->add(kWithNccl, nccl ? 1 : 0);
  await_all();
  group_ = create_gloo_group("gloo", info.rank, info.size, group_store_);
  expect_agreement();
}

/// Checks that all processes use the same backend for collectives. All have registered by now; a
/// minority would wait for the others.
void C10dTransport::expect_agreement() {
  const int64_t with = table_store_->add(kWithNccl, 0);
  if (with == 0 || with == launch_.size) return;
  group_->barrier()->wait();  // nobody exits, and the store with it, before all have read it
  throw std::runtime_error(std::to_string(with) + " of the " + std::to_string(launch_.size) +
                           " processes would use NCCL, the others Gloo: hosts differ; try "
                           "plan.ranks: gloo, or nccl, for all");
}

/// Waits at the store until every rank has registered. A group would wait for twice the time, and
/// not name the missing ranks.
void C10dTransport::await_all() {
  const auto key = [](int32_t rank) { return "here/" + std::to_string(rank); };
  std::vector<std::string> all;
  for (int32_t rank = 0; rank < launch_.size; ++rank) {
    all.push_back(key(rank));
  }
  group_store_->set(key(launch_.rank), "here");
  try {
    group_store_->wait(all, timeout_);
  } catch (const std::exception&) {
    std::string away;
    for (int32_t rank = 0; rank < launch_.size; ++rank) {
      if (!group_store_->check({key(rank)})) {
        away += (away.empty() ? "rank " : ", rank ") + std::to_string(rank);
      }
    }
    throw std::runtime_error(away + " did not connect within " +
                             std::to_string(timeout_.count() / 1000) + " s (plan.timeout_s)");
  }
}

/// Creates a Gloo group with this name; blocks until its members have come.
c10::intrusive_ptr<c10d::ProcessGroupGloo> C10dTransport::create_gloo_group(
    const std::string& name, int rank, int size, const c10::intrusive_ptr<c10d::Store>& store) {
  // The group's own timeout is longer than ours, so that our wait fails first and can name the
  // reason. The group's threads inherit the scheduling of this thread.
  const RunsWhenWoken prompt;
  auto options = c10d::ProcessGroupGloo::Options::create(timeout_ * 2);
  options->devices.push_back(device_);
  options->threads = 1;  // for collectives, which run one after another
  return c10::make_intrusive<c10d::ProcessGroupGloo>(
      c10::make_intrusive<c10d::PrefixStore>(name, store), rank, size, options);
}

C10dTransport::~C10dTransport() {
  {
    std::lock_guard lock(mutex_);
    ending_ = true;
    for (auto& [to, queue] : pending_sends_) {
      for (const PendingSend& message : queue.messages) {
        if (aborted_) {
          message.work->abort();
        }
      }
      queue.sent.notify_all();
    }
  }
  for (auto& [to, queue] : pending_sends_) {
    queue.let_go.join();
  }
}

/// Releases messages to a rank once they are delivered, in the order in which they were sent.
void C10dTransport::let_go(Queue& queue) {
  std::unique_lock lock(mutex_);
  for (;;) {
    queue.sent.wait(lock, [&] { return ending_ || !queue.messages.empty(); });
    if (queue.messages.empty()) return;
    const c10::intrusive_ptr<c10d::Work> work = queue.messages.front().work;
    lock.unlock();
    try {
      work->wait();
    } catch (const std::exception&) {
      // The receiver reports the error.
    }
    lock.lock();
    queue.messages.pop_front();
  }
}

void C10dTransport::send(Message message, int32_t to, int32_t tag) {
  std::vector<at::Tensor> tensors = {bytes_at(message.data.get(), message.bytes)};
  std::lock_guard lock(mutex_);
  if (aborted_) return;
  const RunsWhenWoken prompt;
  keep({std::move(message), group_->send(tensors, to, tag)}, to);
}

/// Keeps a message until it is delivered. Requires: mutex_ is held.
void C10dTransport::keep(PendingSend message, int32_t to) {
  Queue& queue = pending_sends_[to];
  if (!queue.let_go.joinable()) {
    queue.let_go = std::thread([this, &queue] { let_go(queue); });
  }
  queue.messages.push_back(std::move(message));
  queue.sent.notify_one();
}

namespace {

/// Waits for a receive or send, and returns its outcome.
WaitResult ended(c10d::Work& work, milliseconds timeout) {
  const auto begin = steady_clock::now();
  try {
    if (work.wait(timeout)) return {};
    return {WaitResult::End::stopped, "stopped"};
  } catch (const std::exception& error) {
    const bool late = steady_clock::now() - begin >= timeout;
    return {late ? WaitResult::End::timed_out : WaitResult::End::disconnected, error.what()};
  }
}

}  // namespace

/// Pending send. If it is destroyed without wait(), the transport keeps the message until c10d has
/// finished with it.
class C10dTransport::SendRequest : public Request {
 public:
  SendRequest(C10dTransport& transport, Message message, int32_t to, int32_t tag)
      : transport_(transport), to_(to) {
    std::vector<at::Tensor> tensors = {bytes_at(message.data.get(), message.bytes)};
    std::lock_guard lock(transport_.mutex_);
    if (transport_.aborted_) return;
    const RunsWhenWoken prompt;
    message_ = {std::move(message), transport_.group_->send(tensors, to, tag)};
    transport_.waited_for_.insert(message_.work.get());
  }
  ~SendRequest() override {
    std::lock_guard lock(transport_.mutex_);
    transport_.waited_for_.erase(message_.work.get());
    if (message_.work && !gone_) {
      transport_.keep(std::move(message_), to_);
    }
  }
  WaitResult wait(milliseconds timeout) override {
    if (!message_.work) return {WaitResult::End::stopped, "stopped"};
    const WaitResult result = ended(*message_.work, timeout);
    gone_ = result.end == WaitResult::End::completed;
    return result;
  }

 private:
  C10dTransport& transport_;
  const int32_t to_;
  PendingSend message_;  ///< no work: the transport was aborted
  bool gone_ = false;
};

std::unique_ptr<Request> C10dTransport::begin_send(Message message, int32_t to, int32_t tag) {
  return std::make_unique<SendRequest>(*this, std::move(message), to, tag);
}

/// Pending receive.
class C10dTransport::ReceiveRequest : public Request {
 public:
  ReceiveRequest(C10dTransport& transport, void* into, int64_t bytes, int32_t from, int32_t tag)
      : transport_(transport) {
    std::vector<at::Tensor> tensors = {bytes_at(into, bytes)};
    std::lock_guard lock(transport_.mutex_);
    if (transport_.aborted_) return;
    const RunsWhenWoken prompt;
    try {
      work_ = transport_.group_->recv(tensors, from, tag);
      transport_.waited_for_.insert(work_.get());
    } catch (const std::exception& error) {
      failed_ = error.what();
    }
  }
  ~ReceiveRequest() override {
    std::lock_guard lock(transport_.mutex_);
    transport_.waited_for_.erase(work_.get());
  }
  WaitResult wait(milliseconds timeout) override {
    if (!failed_.empty()) return {WaitResult::End::disconnected, failed_};
    if (!work_) return {WaitResult::End::stopped, "stopped"};
    return ended(*work_, timeout);
  }

 private:
  C10dTransport& transport_;
  c10::intrusive_ptr<c10d::Work> work_;  ///< null: aborted, or failed to post
  std::string failed_;
};

std::unique_ptr<Request> C10dTransport::receive(void* into, int64_t bytes, int32_t from,
                                                int32_t tag) {
  return std::make_unique<ReceiveRequest>(*this, into, bytes, from, tag);
}

void C10dTransport::abort() {
  {
    std::lock_guard lock(mutex_);
    aborted_ = true;
    for (c10d::Work* work : waited_for_) {
      work->abort();
    }
  }
  collectives_.stop();
}

/// Makes a group with a connection to the store of its own, since all lanes may create groups at
/// the same time.
std::unique_ptr<CollectiveGroup> C10dTransport::group(std::span<const int32_t> members) {
  std::string name = "group";
  int rank = -1;
  for (size_t i = 0; i < members.size(); ++i) {
    name += "/" + std::to_string(members[i]);
    if (members[i] == launch_.rank) {
      rank = static_cast<int>(i);
    }
  }
  const int size = static_cast<int>(members.size());
  const c10::intrusive_ptr<c10d::Store> store = open_store(launch_, false, timeout_);
  if (!collectives_device_.is_cuda()) {
    return c10d_group(create_gloo_group(name, rank, size, store), collectives_device_,
                      collectives_);
  }
  const auto own = c10::make_intrusive<c10d::PrefixStore>("nccl/" + name, store);
  return c10d_group(nccl_group(own, rank, size, collectives_device_, timeout_ * 2),
                    collectives_device_, collectives_);
}

/// Shared table on a store of c10d.
class StoreTable : public SharedTable {
 public:
  StoreTable(c10::intrusive_ptr<c10d::Store> store, int32_t holder)
      : store_(std::move(store)), holder_(holder) {}
  int32_t holder() const override { return holder_; }
  void set(const std::string& key, const std::string& value) override { store_->set(key, value); }
  std::string set_if_absent(const std::string& key, const std::string& value) override {
    return store_->compareSet(key, "", value);
  }
  std::optional<std::string> get(const std::string& key) override {
    if (!store_->check({key})) return std::nullopt;
    return store_->get_to_str(key);
  }

 private:
  const c10::intrusive_ptr<c10d::Store> store_;
  const int32_t holder_;
};

std::shared_ptr<SharedTable> C10dTransport::shared_table() {
  return std::make_shared<StoreTable>(table_store_, launch_.has_table ? -1 : 0);
}

}  // namespace

/// Entry points for comm/c10d.cc: the version of the interface comm/transport.h, and the transport.
extern "C" const char* hocket_transport() { return HOCKET_TRANSPORT; }
extern "C" Transport* hocket_open_c10d(const LaunchInfo& info, milliseconds timeout, bool nccl) {
  c10::initLogging();  // reads TORCH_CPP_LOG_LEVEL
  return new C10dTransport(info, timeout, nccl);
}

extern "C" int32_t hocket_count_gpus(std::string* why_none) { return count_gpus(why_none); }

}  // namespace hocket::comm
