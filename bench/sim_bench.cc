// SPDX-License-Identifier: Apache-2.0
// Simulator speed: tasks per second of a synthetic 1F1B pipeline step with data parallelism
// (compute chain, transfers between stages, one all-reduce per layer in the backward pass).
#include <benchmark/benchmark.h>

#include <string>
#include <vector>

#include "program/program.h"
#include "sim/engine.h"

namespace hocket::sim {
namespace {

using program::Lane;
using program::Task;

/// Durations by kind index: no look-up cost of its own.
class KindDurations : public Durations {
 public:
  explicit KindDurations(const Program& p) : p_(p) {}
  int64_t work_ns(program::ClassId cls, TaskId t) override {
    return 1000 + 37 * p_.classes[cls].tasks[t].kind.value();
  }
  int32_t shape_of(std::span<const int32_t>) override { return 0; }
  int64_t transfer_ns(program::ClassId cls, TaskId t, int32_t) override { return work_ns(cls, t); }

 private:
  const Program& p_;
};

/// `pp` stages of `layers` layers of 12 tasks forward and 24 backward, `mb` micro-batches.
Program pipeline(int32_t pp, int32_t dp, int32_t layers, int32_t mb) {
  Program p;
  p.roles = {{"all", {{{"pp", pp}, {"dp", dp}}}}};
  p.num_micro_batches = mb;
  std::vector<program::KindId> ops;
  for (int k = 0; k < 36; ++k) {
    program::Kind kind;
    kind.op = "op" + std::to_string(k);
    ops.push_back(p.intern(kind));
  }
  const auto kind_of = [&](const char* op) {
    program::Kind kind;
    kind.op = op;
    return p.intern(kind);
  };
  const auto send = kind_of("send"), recv = kind_of("recv"), reduce = kind_of("all_reduce");
  program::Group group;
  group.axes = {1};
  const auto dp_group = p.intern(group);
  for (int32_t s = 0; s < pp; ++s) {
    program::RankClass c;
    c.box = program::Box::at(0, s);
    c.name = "stage" + std::to_string(s);
    const auto add = [&](program::KindId kind, Lane lane, std::vector<TaskId> deps) {
      Task t;
      t.kind = kind;
      t.lane = lane;
      t.stage = s;
      t.deps = std::move(deps);
      c.tasks.push_back(std::move(t));
      return c.tasks.size() - 1;
    };
    const auto message = [&](bool out, int32_t peer, int32_t tag, std::vector<TaskId> deps) {
      const TaskId t = add(out ? send : recv, out ? Lane::inter : Lane::inter_rx, std::move(deps));
      c.tasks[size_t(t)].peer_axis = 0;
      c.tasks[size_t(t)].peer = peer;
      c.tasks[size_t(t)].tag = tag;
      return t;
    };
    const auto forward = [&](int32_t m) {
      std::vector<TaskId> first;
      if (s > 0) {
        first = {message(false, -1, 2 * m, {})};
      }
      TaskId last = 0;
      for (int32_t l = 0; l < layers; ++l) {
        for (int k = 0; k < 12; ++k) {
          last = add(ops[size_t(k)], Lane::compute, l + k == 0 ? first : std::vector<TaskId>{});
        }
      }
      if (s + 1 < pp) {
        message(true, +1, 2 * m, {last});
      }
    };
    const auto backward = [&](int32_t m) {
      std::vector<TaskId> first;
      if (s + 1 < pp) {
        first = {message(false, +1, 2 * m + 1, {})};
      }
      TaskId last = 0;
      for (int32_t l = 0; l < layers; ++l) {
        for (int k = 12; k < 36; ++k) {
          last =
              add(ops[size_t(k)], Lane::compute, l == 0 && k == 12 ? first : std::vector<TaskId>{});
        }
        if (m == mb - 1) {
          c.tasks[size_t(add(reduce, Lane::intra, {last}))].group = dp_group;
        }
      }
      if (s > 0) {
        message(true, -1, 2 * m + 1, {last});
      }
    };
    const int32_t warm = std::min(mb, pp - 1 - s);
    for (int32_t m = 0; m < warm; ++m) {
      forward(m);
    }
    for (int32_t m = warm; m < mb; ++m) {
      forward(m);
      backward(m - warm);
    }
    for (int32_t m = mb - warm; m < mb; ++m) {
      backward(m);
    }
    p.classes.push_back(std::move(c));
  }
  return p;
}

void simulate(benchmark::State& state, bool all_ranks, bool record, int32_t cores) {
  const Program p =
      pipeline(static_cast<int32_t>(state.range(0)), static_cast<int32_t>(state.range(1)), 25, 32);
  KindDurations durations(p);
  ReplayOptions options{.all_ranks = all_ranks, .record = record};
  if (cores > 0) {
    options.cores_per_node = cores;
    options.devices_per_node = p.num_ranks();
  }
  int64_t tasks = 0;
  for (auto _ : state) {
    const Replay r = replay(p, durations, options);
    benchmark::DoNotOptimize(r.end_ns);
    tasks += r.num_tasks;
  }
  state.counters["tasks/s"] = benchmark::Counter(double(tasks), benchmark::Counter::kIsRate);
  state.counters["tasks"] = double(tasks) / double(state.iterations());
}

BENCHMARK_CAPTURE(simulate, one_rank_per_stage, false, true, 0)
    ->Args({1, 1})
    ->Args({4, 8})
    ->Args({16, 64})
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(simulate, all_ranks, true, true, 0)
    ->Args({4, 8})
    ->Args({8, 32})
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(simulate, all_ranks_time_only, true, false, 0)
    ->Args({4, 8})
    ->Args({8, 32})
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(simulate, shared_cores, true, true, 8)
    ->Args({4, 2})
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace hocket::sim
