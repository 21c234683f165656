// SPDX-License-Identifier: Apache-2.0
#include "comm/link_times.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/stats.h"
#include "comm/ops/comm_op.h"
#include "comm/wire.h"

namespace hocket::comm {

namespace {

constexpr int64_t kSmall = 64;

/// One of two ranks between which a link lies.
struct End {
  Communicator& own;
  std::array<int32_t, 2> members;
  bool first;
  int32_t peer() const { return members[first ? 1 : 0]; }
};

/// Messages of one size between a rank and another, which does the same.
class Exchange {
 public:
  Exchange(Communicator& own, int32_t peer, int64_t bytes)
      : own_(own),
        peer_(peer),
        data_(static_cast<size_t>(bytes / 4)),
        send_(program::communication_kind(message(Role::send).id, {}, {type(bytes)}, {})),
        recv_(program::communication_kind(message(Role::receive).id, {}, {}, {type(bytes)})) {}

  void send() { run(send_); }
  void receive() { run(recv_); }

 private:
  static graph::TensorType type(int64_t bytes) { return {graph::DType::f32, {bytes / 4}, 0}; }

  void run(const program::Kind& kind) {
    void* data = data_.data();
    Call call;
    call.kind = &kind;
    (kind.out.empty() ? call.in : call.out) = std::span<void* const>(&data, 1);
    call.peer = peer_;
    call.tag = 0;
    own_.run(call);
  }

  Communicator& own_;
  int32_t peer_;
  std::vector<float> data_;
  program::Kind send_, recv_;
};

/// Seconds of one message: half of a round trip, as clocks of two ranks need not agree. The peer
/// answers.
double there_and_back_s(const End& end, int64_t bytes, int rounds) {
  Exchange exchange(end.own, end.peer(), bytes);
  std::vector<double> times;
  for (int i = 0; i < rounds; ++i) {
    const int64_t begin = now_ns();
    if (end.first) {
      exchange.send();
      exchange.receive();
    } else {
      exchange.receive();
      exchange.send();
    }
    times.push_back(seconds_since(begin) / 2);
  }
  return median(times);
}

/// Seconds of a collective of two members in which either gets so many bytes of the other.
double both_ways_s(const End& end, int64_t bytes, int rounds) {
  const graph::TensorType part{graph::DType::f32, {bytes / 4}, 0};
  const graph::TensorType whole{graph::DType::f32, {bytes / 2}, 0};
  const program::Kind gather = program::communication_kind(
      find("all_gather"), graph::Attrs{{"dim", int64_t{0}}}, {part}, {whole});
  std::vector<float> mine(static_cast<size_t>(bytes / 4)), all(mine.size() * 2);
  void* const in = mine.data();
  void* const out = all.data();
  Call call;
  call.kind = &gather;
  call.in = std::span<void* const>(&in, 1);
  call.out = std::span<void* const>(&out, 1);
  call.members = end.members;
  std::vector<double> times;
  for (int i = 0; i < rounds; ++i) {
    const int64_t begin = now_ns();
    end.own.run(call);
    times.push_back(seconds_since(begin));
  }
  return median(times);
}

}  // namespace

LinkTimes time_local_link() {
  LocalWorld world(2, std::chrono::seconds(20));
  constexpr int64_t kLarge = 4 << 20;
  const auto measure = [&](int32_t rank) {
    const End end{world.communicator(rank), {0, 1}, rank == 0};
    LinkTimes link;
    link.latency_s = there_and_back_s(end, kSmall, 200);
    link.bytes_per_s = static_cast<double>(kLarge) /
                       std::max(1e-9, there_and_back_s(end, kLarge, 20) - link.latency_s);
    return link;
  };
  std::thread other([&] { measure(1); });
  const LinkTimes link = measure(0);
  other.join();
  return link;
}

std::map<std::string, LinkTimes> time_links(World& world, std::span<const int32_t> here,
                                            int64_t ranks_per_node) {
  // Rank 0 is at one end of every link, and decides how long its messages are; who is at neither
  // end only hears of it.
  constexpr int64_t kFewest = 64 << 10, kMost = 16 << 20;
  constexpr double kLong = 0.05;
  Processes& processes = world.processes();
  const auto told_s = [&](double seconds) {
    return std::stod(processes.from_first(fmt::format("{:.17g}", seconds)));
  };
  const int64_t per_node = ranks_per_node > 0 ? ranks_per_node : world.size();
  std::map<std::string, LinkTimes> links;
  const auto is_here = [&](int32_t rank) {
    return std::find(here.begin(), here.end(), rank) != here.end();
  };
  for (const auto& [name, rank] : {std::pair{"intra", int64_t{1}}, std::pair{"inter", per_node}}) {
    if (rank >= world.size() || (name == std::string_view("intra") && per_node == 1)) continue;
    const auto far = static_cast<int32_t>(rank);
    const bool first = is_here(0), takes_part = first || is_here(far);
    const auto measured_s = [&](const auto& how, int64_t bytes, int rounds) {
      return told_s(
          takes_part ? how(End{world.communicator(first ? 0 : far), {0, far}, first}, bytes, rounds)
                     : 0);
    };
    LinkTimes link;
    link.latency_s = measured_s(there_and_back_s, kSmall, 200);
    int64_t bytes = kFewest;
    while (bytes < kMost && measured_s(both_ways_s, bytes, 2) < kLong) {
      bytes *= 4;
    }
    const double seconds = measured_s(both_ways_s, bytes, 5);
    link.bytes_per_s = static_cast<double>(bytes) / std::max(1e-9, seconds - link.latency_s);
    links[name] = link;
  }
  forget_messages();
  return links;
}

}  // namespace hocket::comm
