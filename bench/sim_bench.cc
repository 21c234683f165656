// SPDX-License-Identifier: Apache-2.0
// Simulator speed: tasks per second of a synthetic 1F1B pipeline step with data parallelism
// (compute chain, transfers between stages, one all-reduce per layer in the backward pass).
#include <benchmark/benchmark.h>

#include <map>
#include <string>
#include <vector>

#include "cost/network.h"
#include "program/program.h"
#include "sim/engine.h"
#include "sim/partial.h"

namespace hocket::sim {
namespace {

using program::Lane;
using program::Task;

/// Durations by kind index, and of transfers by shape: no look-up cost of their own.
class KindDurations : public Durations {
 public:
  explicit KindDurations(const Program& p) : p_(p) {}
  int64_t work_ns(program::ClassId cls, TaskId t) override {
    return 1000 + 37 * p_.classes[cls].tasks[t].kind.value();
  }
  ShapeId shape_of(std::span<const int32_t>) override { return 0; }
  int64_t transfer_ns(program::ClassId cls, TaskId t, ShapeId shape) override {
    return work_ns(cls, t) + 13 * shape.value();
  }

 private:
  const Program& p_;
};

/// The same on nodes of 8 with an adapter per device, of which every transfer takes all: sums of
/// gradients share them with what comes from the stage before. `skewed`: messages have one of seven
/// shapes, drawn for every rank, so that no pipeline is like another and no rank stands for
/// another.
class LinkDurations : public KindDurations {
 public:
  LinkDurations(const Program& p, bool skewed) : KindDurations(p), network_(cluster(p)) {
    for (size_t block = 0; block < 2; ++block) {
      demand_.share[block] = 1;
    }
    demand_.bytes_per_s = 50e9;
    skewed_ = skewed;
  }
  ShapeId shape_of(std::span<const int32_t> ranks) override {
    return skewed_ ? static_cast<int32_t>(uint32_t(ranks[0]) * 2654435761u >> 16) % 7 : 0;
  }
  const cost::Network* network() const override { return &network_; }
  const Demand& demand(program::ClassId cls, TaskId t, ShapeId shape) override {
    const int64_t ns = transfer_ns(cls, t, shape);
    const auto [it, fresh] = demands_.try_emplace(ns, demand_);
    it->second.data_ns = ns;
    return it->second;
  }

 private:
  static cost::Cluster cluster(const Program& p) {
    cost::Cluster c;
    c.name = "bench";
    c.devices_per_node = 8;
    c.nodes = (p.num_ranks() + 7) / 8;
    c.links.intra.bandwidth.value = 450e9;
    c.links.inter.bandwidth.value = 50e9;
    return c;
  }
  cost::Network network_;
  Demand demand_;
  bool skewed_ = false;
  std::map<int64_t, Demand> demands_;
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
      const TaskId t =
          add(out ? send : recv, out ? Lane::inter_tx : Lane::inter_rx, std::move(deps));
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

/// Links that transfers share: args are pp, dp, layers of a stage and micro-batches.
void simulate_links(benchmark::State& state, bool all_ranks, bool skewed) {
  const Program p =
      pipeline(static_cast<int32_t>(state.range(0)), static_cast<int32_t>(state.range(1)),
               static_cast<int32_t>(state.range(2)), static_cast<int32_t>(state.range(3)));
  LinkDurations durations(p, skewed);
  int64_t tasks = 0;
  size_t ranks = 0;
  for (auto _ : state) {
    const Replay r = replay(p, durations, {.all_ranks = all_ranks, .record = false});
    benchmark::DoNotOptimize(r.end_ns);
    tasks += r.num_tasks;
    ranks = r.ranks.size();
  }
  state.counters["tasks/s"] = benchmark::Counter(double(tasks), benchmark::Counter::kIsRate);
  state.counters["tasks"] = double(tasks) / double(state.iterations());
  state.counters["replayed ranks"] = double(ranks);
}

/// Cost of a question after a replay: a kind of task twice as fast. Either the first kind, which
/// moves everything, or the gradient all-reduces at the end of the step.
void partial(benchmark::State& state, bool sums) {
  const Program p = pipeline(8, 32, 25, 32);
  KindDurations durations(p);
  PartialReplay replay(p, durations, {.all_ranks = true});
  std::vector<double> factors(p.kinds.size(), 1.0);
  for (size_t kind = 0; kind < p.kinds.size(); ++kind) {
    factors[kind] = p.kinds[kind].op == (sums ? "all_reduce" : "op0") ? 2 : 1;
  }
  int64_t tasks = 0;
  for (auto _ : state) {
    tasks += replay.faster(factors).tasks;
  }
  state.counters["tasks"] = double(tasks) / double(state.iterations());
  state.counters["of"] = double(replay.full().num_tasks);
}
BENCHMARK_CAPTURE(partial, everything, false)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(partial, sums_of_gradients, true)->Unit(benchmark::kMillisecond);

BENCHMARK_CAPTURE(simulate_links, one_rank_per_stage, false, false)
    ->Args({4, 8, 25, 32})
    ->Args({16, 768, 6, 32})
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(simulate_links, all_ranks, true, false)
    ->Args({4, 8, 25, 32})
    ->Args({8, 32, 25, 32})
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(simulate_links, skewed, false, true)
    ->Args({16, 768, 6, 32})
    ->Unit(benchmark::kMillisecond)
    ->Iterations(1);

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
