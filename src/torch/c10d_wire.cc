// SPDX-License-Identifier: Apache-2.0
// Bytes through c10d: its Gloo process group carries the messages, its TCPStore is the table of
// notes. What it makes is loaded when a plan needs it (comm/c10d.h). It sees LibTorch, whose
// headers bring others of the same names as ours (fmt), and so of ours the interface alone: what
// goes wrong is a std::exception.
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <ATen/ops/from_blob.h>
#include <arpa/inet.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <mutex>
#include <set>
#include <thread>

#include "comm/wire.h"

namespace hocket::comm {

namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

at::Tensor bytes_at(void* data, int64_t bytes) {
  return at::from_blob(data, {bytes}, at::TensorOptions().dtype(at::kByte));
}

/// The address of this host from which the other one is reached: what Gloo listens at, unless the
/// environment names an interface. Empty: none is known.
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
    // No packet is sent: the kernel only chooses the way.
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

std::shared_ptr<::gloo::transport::Device> device_for(const Place& place) {
  if (const char* interface = std::getenv("GLOO_SOCKET_IFNAME"); interface && *interface) {
    return c10d::ProcessGroupGloo::createDeviceForInterface(interface);
  }
  const std::string address = address_towards(place.address, place.port);
  return address.empty() ? c10d::ProcessGroupGloo::createDefaultDevice()
                         : c10d::ProcessGroupGloo::createDeviceForHostname(address);
}

c10::intrusive_ptr<c10d::Store> open_store(const Place& place, bool serves, milliseconds timeout) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(place.port);
  options.isServer = serves;
  options.waitWorkers = false;
  options.timeout = timeout;
  auto store = c10::make_intrusive<c10d::TCPStore>(place.address, options);
  return c10::make_intrusive<c10d::PrefixStore>("hocket/" + std::to_string(place.restarts), store);
}

class C10dWire : public Wire {
 public:
  C10dWire(const Place& place, milliseconds timeout);
  ~C10dWire() override;
  int32_t rank() const override { return place_.rank; }
  int32_t size() const override { return place_.size; }
  void send(Message message, int32_t to, int32_t tag) override;
  std::unique_ptr<Incoming> receive(void* into, int64_t bytes, int32_t from, int32_t tag) override;
  void abort() override;
  int64_t peak_message_bytes() const override;
  void note(const std::string& key, const std::string& value) override;
  std::string note_first(const std::string& key, const std::string& value) override;
  std::optional<std::string> noted(const std::string& key) override;

 private:
  /// A message that c10d may still read.
  struct Outgoing {
    Message message;
    c10::intrusive_ptr<c10d::Work> work;
  };
  class C10dIncoming;
  void let_go();

  const Place place_;
  // The group uses one connection to the table, the notes another: an operation that waits holds
  // its connection.
  c10::intrusive_ptr<c10d::Store> table_, notes_;
  std::mutex notes_mutex_;
  c10::intrusive_ptr<c10d::ProcessGroupGloo> group_;

  mutable std::mutex mutex_;  ///< guards calls of the group, and what follows
  std::condition_variable sent_;
  std::deque<Outgoing> outgoing_;
  std::set<c10d::Work*> receives_;
  int64_t held_ = 0, peak_ = 0;  ///< bytes of messages
  bool aborted_ = false, ending_ = false;
  std::thread let_go_;
};

C10dWire::C10dWire(const Place& place, milliseconds timeout) : place_(place) {
  // The host of rank 0 has the table, unless the launcher does. Everybody then connects to
  // everybody.
  table_ = open_store(place, place.rank == 0 && !place.has_table, timeout);
  notes_ = open_store(place, false, timeout);
  auto options = c10d::ProcessGroupGloo::Options::create(timeout * 2);
  options->devices.push_back(device_for(place));
  options->threads = 1;  // for collectives of its own, which are not used
  group_ = c10::make_intrusive<c10d::ProcessGroupGloo>(
      c10::make_intrusive<c10d::PrefixStore>("gloo", table_), place.rank, place.size, options);
  let_go_ = std::thread([this] { let_go(); });
}

C10dWire::~C10dWire() {
  {
    std::lock_guard lock(mutex_);
    ending_ = true;
    if (aborted_) {
      for (const Outgoing& message : outgoing_) {
        message.work->abort();
      }
    }
    sent_.notify_all();
  }
  let_go_.join();
}

/// Messages are kept until they are gone, in the order in which they were sent.
void C10dWire::let_go() {
  std::unique_lock lock(mutex_);
  for (;;) {
    sent_.wait(lock, [&] { return ending_ || !outgoing_.empty(); });
    if (outgoing_.empty()) return;
    const c10::intrusive_ptr<c10d::Work> work = outgoing_.front().work;
    lock.unlock();
    try {
      work->wait();
    } catch (const std::exception&) {
      // Who does not get it says so.
    }
    lock.lock();
    held_ -= outgoing_.front().message.bytes;
    outgoing_.pop_front();
  }
}

void C10dWire::send(Message message, int32_t to, int32_t tag) {
  std::vector<at::Tensor> tensors = {bytes_at(message.data.get(), message.bytes)};
  std::lock_guard lock(mutex_);
  if (aborted_) return;
  held_ += message.bytes;
  peak_ = std::max(peak_, held_);
  outgoing_.push_back({std::move(message), group_->send(tensors, to, tag)});
  sent_.notify_one();
}

class C10dWire::C10dIncoming : public Incoming {
 public:
  C10dIncoming(C10dWire& wire, void* into, int64_t bytes, int32_t from, int32_t tag) : wire_(wire) {
    std::vector<at::Tensor> tensors = {bytes_at(into, bytes)};
    std::lock_guard lock(wire_.mutex_);
    if (wire_.aborted_) return;
    try {
      work_ = wire_.group_->recv(tensors, from, tag);
      wire_.receives_.insert(work_.get());
    } catch (const std::exception& error) {
      failed_ = error.what();
    }
  }
  ~C10dIncoming() override {
    std::lock_guard lock(wire_.mutex_);
    wire_.receives_.erase(work_.get());
  }
  Received wait(milliseconds timeout) override {
    if (!failed_.empty()) return {Received::End::gone, failed_};
    if (!work_) return {Received::End::stopped, "stopped"};
    const auto begin = steady_clock::now();
    try {
      if (work_->wait(timeout)) return {};
      return {Received::End::stopped, "stopped"};
    } catch (const std::exception& error) {
      const bool late = steady_clock::now() - begin >= timeout;
      return {late ? Received::End::timed_out : Received::End::gone, error.what()};
    }
  }

 private:
  C10dWire& wire_;
  c10::intrusive_ptr<c10d::Work> work_;  ///< null: the wire was aborted, or it failed
  std::string failed_;
};

std::unique_ptr<Incoming> C10dWire::receive(void* into, int64_t bytes, int32_t from, int32_t tag) {
  return std::make_unique<C10dIncoming>(*this, into, bytes, from, tag);
}

void C10dWire::abort() {
  std::lock_guard lock(mutex_);
  aborted_ = true;
  for (c10d::Work* work : receives_) {
    work->abort();
  }
}

int64_t C10dWire::peak_message_bytes() const {
  std::lock_guard lock(mutex_);
  return peak_;
}

void C10dWire::note(const std::string& key, const std::string& value) {
  std::lock_guard lock(notes_mutex_);
  notes_->set(key, value);
}

std::string C10dWire::note_first(const std::string& key, const std::string& value) {
  std::lock_guard lock(notes_mutex_);
  return notes_->compareSet(key, "", value);
}

std::optional<std::string> C10dWire::noted(const std::string& key) {
  std::lock_guard lock(notes_mutex_);
  if (!notes_->check({key})) return std::nullopt;
  return notes_->get_to_str(key);
}

}  // namespace

/// As comm/c10d.cc knows it.
extern "C" Wire* hocket_open_c10d(const Place& place, milliseconds timeout) {
  return new C10dWire(place, timeout);
}

}  // namespace hocket::comm
