// SPDX-License-Identifier: Apache-2.0
#include "comm/link_times.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <exception>
#include <semaphore>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/scheduling.h"
#include "base/stats.h"
#include "collectives/comm_op.h"
#include "comm/transport.h"

namespace hocket::comm {

namespace {

/// Bytes of a message that takes only the latency.
constexpr int64_t kSmall = 64;

/// One end of a link between two ranks. Both ends make the same calls.
struct End {
  Communicator& own;
  std::array<int32_t, 2> members;
  bool first;
  int32_t peer() const { return members[first ? 1 : 0]; }
  /// Returns the first end's value, at both ends.
  double shared(double value) const;
  /// Returns the mean of both ends' values.
  double mean(double value) const;
};

/// Sends a message to the other end, or receives one.
void pass(const End& end, bool sends, const graph::TensorType& type, void* data, int32_t tag) {
  const program::Kind kind =
      sends ? program::communication_kind(message(Role::send).id, {}, {type}, {})
            : program::communication_kind(message(Role::receive).id, {}, {}, {type});
  Call call;
  call.kind = &kind;
  (sends ? call.in : call.out) = std::span<void* const>(&data, 1);
  call.peer = end.peer();
  call.tag = tag;
  end.own.run(call);
}

double End::shared(double value) const {
  pass(*this, first, {graph::DType::f64, {1}, 0}, &value, 1);
  return value;
}

double End::mean(double value) const {
  double other = value;
  pass(*this, !first, {graph::DType::f64, {1}, 0}, &other, 1);
  return shared((value + other) / 2);
}

/// Round trip of a message with `bytes`.
class Messages {
 public:
  Messages(const End& end, int64_t bytes)
      : end_(end),
        type_{graph::DType::f32, {bytes / 4}, 0},
        data_(static_cast<size_t>(bytes / 4)) {}

  void run() {
    pass(end_, end_.first, type_, data_.data(), 0);
    pass(end_, !end_.first, type_, data_.data(), 0);
  }

 private:
  const End& end_;
  graph::TensorType type_;
  std::vector<float> data_;
};

/// All-gather in which either end receives `bytes` of the other.
class Gathers {
 public:
  Gathers(const End& end, int64_t bytes)
      : end_(end),
        mine_(static_cast<size_t>(bytes / 4)),
        all_(mine_.size() * 2),
        kind_(program::communication_kind(find("all_gather"), graph::Attrs{{"dim", int64_t{0}}},
                                          {{graph::DType::f32, {bytes / 4}, 0}},
                                          {{graph::DType::f32, {bytes / 2}, 0}})) {}

  void run() {
    void* const in = mine_.data();
    void* const out = all_.data();
    Call call;
    call.kind = &kind_;
    call.in = std::span<void* const>(&in, 1);
    call.out = std::span<void* const>(&out, 1);
    call.members = end_.members;
    end_.own.run(call);
  }

 private:
  const End& end_;
  std::vector<float> mine_, all_;
  program::Kind kind_;
};

/// Returns the median seconds of one round, as measured at the first end.
template <class What>
double median_s(const End& end, What&& what, int rounds) {
  const RunsWhenWoken prompt;
  std::vector<double> times;
  for (int i = 0; i < rounds; ++i) {
    const int64_t begin = now_ns();
    what.run();
    times.push_back(seconds_since(begin));
  }
  return end.shared(median(times));
}

/// Thread that runs a function on request, like a lane of a rank: the requesting thread worked
/// meanwhile, and this one slept.
class LaneThread {
 public:
  explicit LaneThread(std::function<void()> what)
      : what_(std::move(what)), thread_([this] {
          run_when_woken();
          for (begins_.acquire(); !stops_; begins_.acquire()) {
            try {
              what_();
            } catch (...) {
              error_ = std::current_exception();
            }
            ended_.release();
          }
        }) {}
  ~LaneThread() {
    stops_ = true;
    begins_.release();
    thread_.join();
  }
  /// Wakes the thread and returns the seconds until its function has returned.
  double run() {
    const int64_t began = now_ns();
    begins_.release();
    ended_.acquire();
    if (error_) {
      std::rethrow_exception(error_);
    }
    return seconds_since(began);
  }

 private:
  std::function<void()> what_;
  std::binary_semaphore begins_{0}, ended_{0};
  std::atomic<bool> stops_ = false;
  std::exception_ptr error_;
  std::thread thread_;
};

/// Returns the mean seconds of a collective as in a step: each end comes from work, and its lane
/// has slept. It averages both ends, since the one that arrives first waits for the other.
double after_work_s(const End& end, int64_t bytes, const Work& work, int rounds) {
  Gathers gathers(end, bytes);
  LaneThread lane([&] { gathers.run(); });
  constexpr int kPieces = 20;
  double sum = 0;
  for (int i = 0; i < rounds; ++i) {
    for (int piece = 0; piece < kPieces; ++piece) {
      work();
    }
    sum += lane.run();
  }
  return end.mean(sum / rounds);
}

/// Repeats a piece of work in a thread of its own.
class Working {
 public:
  explicit Working(const std::function<Work()>& make)
      : thread_([this, make] {
          const Work work = make();
          while (!stop_) {
            work();
            ++done_;
          }
        }) {}
  ~Working() {
    stop_ = true;
    thread_.join();
  }
  int64_t done() const { return done_; }

 private:
  std::atomic<bool> stop_ = false;
  std::atomic<int64_t> done_ = 0;
  std::thread thread_;
};

/// Measures how work and collectives of `bytes` slow each other down. Both ends work all the time,
/// in pieces much shorter than a collective. The lanes sleep between two collectives, so each must
/// be scheduled onto a busy core.
void time_beside(const End& end, int64_t bytes, double alone_s, const std::function<Work()>& work,
                 int max_rounds, LinkTimes* link) {
  constexpr double kSeconds = 0.6;
  constexpr auto kGap = std::chrono::milliseconds(5);
  Gathers gathers(end, bytes);
  LaneThread lane([&] { gathers.run(); });
  const Working working(work);
  struct Rate {
    int64_t pieces = 0;
    double seconds = 0;
    double value() const { return static_cast<double>(pieces) / std::max(seconds, 1e-9); }
  };
  const auto add_to = [&](Rate* rate, const auto& meanwhile) {
    const int64_t before = working.done(), begin = now_ns();
    meanwhile();
    rate->seconds += seconds_since(begin);
    rate->pieces += working.done() - before;
  };
  end.shared(0);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  end.shared(0);
  const int rounds = std::clamp(static_cast<int>(kSeconds / alone_s), 3, max_rounds);
  Rate in_gaps, beside;        // alternating, so that both see the same state of the machine
  const RunsWhenWoken prompt;  // both ends leave a gap at the same time
  for (int i = 0; i < rounds; ++i) {
    add_to(&in_gaps, [&] { std::this_thread::sleep_for(kGap); });
    add_to(&beside, [&] { lane.run(); });
  }
  const double slower = in_gaps.value() / std::max(beside.value(), 0.1 * in_gaps.value());
  link->compute_slowdown = end.mean(std::max(1.0, slower));
  link->collective_slowdown = std::max(1.0, end.mean(beside.seconds / rounds) / alone_s);
}

LinkTimes time_link(const End& end, const std::function<Work()>& make_work, int max_repeats) {
  const int max_rounds = std::clamp(max_repeats, 3, 100);
  // Measures messages and collectives, each with few bytes and with enough to make the latency
  // negligible.
  constexpr int64_t kMinBytes = 64 << 10, kMaxBytes = 16 << 20;
  constexpr double kLongSeconds = 0.02;
  LinkTimes link;
  int64_t bytes = kMinBytes;
  while (bytes < kMaxBytes && median_s(end, Gathers(end, bytes), 2) < kLongSeconds) {
    bytes *= 4;
  }
  const auto rate = [&](double seconds, double latency_s) {
    return static_cast<double>(bytes) / std::max(1e-9, seconds - latency_s);
  };
  link.latency_s = median_s(end, Messages(end, kSmall), max_rounds) / 2;
  link.bytes_per_s = rate(median_s(end, Messages(end, bytes), 3) / 2, link.latency_s);
  // Collectives follow work, as in a step.
  const Work work = make_work();
  link.collective_latency_s = after_work_s(end, kSmall, work, std::min(40, max_rounds));
  const double seconds = after_work_s(end, bytes, work, std::min(4, max_rounds));
  link.collective_bytes_per_s = rate(seconds, link.collective_latency_s);
  // Beside work, with a size that is common in steps.
  const int64_t common = std::min<int64_t>(bytes, 1 << 20);
  const double alone_s = after_work_s(end, common, work, std::min(8, max_rounds));
  time_beside(end, common, alone_s, make_work, max_rounds, &link);
  return link;
}

}  // namespace

LinkTimes time_local_link(const std::function<Work()>& work, int max_repeats) {
  LocalWorld world(2, std::chrono::seconds(20));
  const auto measure = [&](int32_t rank) {
    const End end{world.communicator(rank), {0, 1}, rank == 0};
    return time_link(end, work, max_repeats);
  };
  std::thread other([&] { measure(1); });
  const LinkTimes link = measure(0);
  other.join();
  return link;
}

std::map<std::string, LinkTimes> time_links(World& world, std::span<const int32_t> here,
                                            int64_t ranks_per_node,
                                            const std::function<Work()>& work, int max_repeats) {
  // Rank 0 is one end of every link; processes at neither end receive the result.
  Processes& processes = world.processes();
  const int64_t per_node = ranks_per_node > 0 ? ranks_per_node : world.size();
  const auto is_here = [&](int32_t rank) {
    return std::find(here.begin(), here.end(), rank) != here.end();
  };
  std::map<std::string, LinkTimes> links;
  for (const auto& [name, rank] : {std::pair{"intra", int64_t{1}}, std::pair{"inter", per_node}}) {
    if (rank >= world.size() || (name == std::string_view("intra") && per_node == 1)) continue;
    const auto far = static_cast<int32_t>(rank);
    const bool first = is_here(0);
    LinkTimes link;
    if (first || is_here(far)) {
      link = time_link({world.communicator(first ? 0 : far), {0, far}, first}, work, max_repeats);
    }
    for (double* of :
         {&link.latency_s, &link.bytes_per_s, &link.collective_latency_s,
          &link.collective_bytes_per_s, &link.compute_slowdown, &link.collective_slowdown}) {
      *of = std::stod(processes.broadcast(fmt::format("{:.17g}", *of)));
    }
    links[name] = link;
  }
  release_pooled_messages();
  return links;
}

}  // namespace hocket::comm
