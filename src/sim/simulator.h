// SPDX-License-Identifier: Apache-2.0
// Prediction of one step of a program on a cluster: a replay with durations from a cost model,
// summarised as a breakdown of time, planned memory and the provenance of the numbers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cost/cost_model.h"
#include "program/memory.h"
#include "program/program.h"
#include "sim/engine.h"

namespace hocket::sim {

/// A what-if question: the step if the named tasks were faster by a factor.
struct Speedup {
  std::string what;  ///< an op, or "compute" or "communication" for all such tasks
  double times = 1;  ///< above 0
};

struct SimOptions {
  bool all_ranks = false;     ///< replay every rank even where one per group gives the same answer
  bool record = true;         ///< keep the timeline: needed for the trace and the critical path
  double model_flops = 0;     ///< of the whole step over all ranks (docs/outputs.md); 0: unknown
  int64_t tokens = 0;         ///< of the whole step; 0: unknown
  double price = 0;           ///< US dollars per device and hour; 0: the cluster's
  int64_t memory_budget = 0;  ///< bytes that a rank may take; 0: all of its device
  /// Memory of a rank per class, for a program that does not run alone; empty: memory_of(program).
  std::vector<program::Memory> memory;
  std::vector<Speedup> what_if;  ///< questions, each answered independently
};

/// Task time of all ranks (waiting excluded) by provenance of the durations, as fractions of 1.
struct ProvenanceShares {
  double timed = 0, interpolated = 0, learned = 0, analytic = 0;
  /// Mean relative error to expect (cost::TaskCost::error), and the fraction of the time that has
  /// one.
  double error = 0, judged = 0;
};

/// Tasks of one kind on the critical path. The payload of the longest is given for communication.
struct PathEntry {
  std::string name = {};  ///< longest of them, named by task_name, with its rank
  std::string op = {};
  std::string moves = {};   ///< parameters, themselves or as gradients; empty: activations
  bool gradients = false;   ///< it moves the gradients of `moves`
  int64_t bytes = 0;        ///< payload of a rank; 0: not a communication
  int64_t group_ranks = 0;  ///< ranks that take part
  bool between_nodes = false;
  int64_t count = 0;
  int64_t ns = 0;
};

/// Answer to a Speedup.
struct WhatIf {
  std::string what;
  double times = 1;
  int64_t step_ns = 0;
  int64_t replayed_tasks = 0;  ///< by the partial replay that computed it
};

/// Times of a step between which the real one is expected, and where the two come from.
struct Interval {
  int64_t low_ns = 0, high_ns = 0;
  std::string why;     ///< a clause for people
  bool timed = false;  ///< from timings of a profile; else from published steps
  bool given() const { return high_ns > 0; }
};

struct RankReport {
  int32_t rank = 0;
  int32_t multiplicity = 1;  ///< number of ranks with this timeline
  ClassId cls = 0;
  RankTime time;
};

struct SimReport {
  std::string cluster;
  std::string device;  ///< of several types, all names
  bool calibrated = false;
  graph::DType dtype = graph::DType::f32;  ///< of the matrix products
  int32_t ranks = 0;
  int32_t stages = 0;
  int32_t replayed_ranks = 0;
  int64_t tasks = 0;  ///< of all ranks
  int64_t replayed_tasks = 0;
  int64_t step_ns = 0;
  int64_t framework_ns = 0;  ///< of step_ns: time of the trainer that no task shows
  Interval interval;
  int64_t tokens = 0;
  double tokens_per_s = 0;
  double model_flops = 0;
  double flops_per_s_per_rank = 0;      ///< model FLOPs
  double peak_flops = 0;                ///< per rank; mean for heterogeneous devices
  double mfu = 0;                       ///< 0: unknown
  double price = 0;                     ///< US dollars per device and hour, mean; 0: unknown
  double dollars_per_m_tokens = 0;      ///< US dollars per million tokens; 0: unknown
  std::vector<RankReport> time;         ///< per replayed rank
  std::vector<program::Memory> memory;  ///< planned, of a rank of every class
  /// Memory that a plan may take, per class, of the smallest device among its ranks, in bytes.
  std::vector<int64_t> device_memory;
  int64_t memory_reserve = 0;         ///< bytes kept beside plans: device.reserve, framework.logits
  std::vector<int64_t> logits_bytes;  ///< of a trainer (Framework::logits), beyond a class's plan
  std::vector<int64_t> memory_with_reserve;  ///< bytes of a device that a rank of every class takes
  int64_t whole_memory = 0;  ///< bytes of the smallest device, with the reserve; 0: unknown
  program::Kernels kernels = program::Kernels::on_copies;  ///< of its devices
  bool device_is_host = false;  ///< ranks are threads: the device's memory is the host's
  int64_t memory_budget = 0;    ///< bytes per rank, on any device; 0: no budget
  ProvenanceShares provenance;
  std::vector<PathEntry> path;     ///< the critical path's top five
  int64_t path_ns = 0;             ///< whole critical path
  std::vector<WhatIf> what_if;     ///< in the order of the questions
  std::vector<std::string> notes;  ///< facts that the reader needs to judge this prediction

  /// Returns the memory limits of a rank of the class.
  program::MemoryLimits memory_limits(size_t cls) const;
  bool fits() const;  ///< planned memory of every class is within its limits
  /// Returns "80 GiB per device", "40 GiB to 80 GiB per device" or "10 MiB per rank
  /// (cluster.memory_budget)"; empty if unknown.
  std::string memory_limit_text() const;
};

/// Returns the threads per rank that the program's configuration requests (plan.threads_per_rank).
/// If that is 0 or absent: the cores of a node divided by its ranks, at least 1.
int64_t threads_per_rank(const Program& program, const cost::Cluster& cluster);

/// Simulates one step. Throws Error with exit code 2 if the program has more ranks than the
/// cluster, or lacks tasks that a question names; with exit code 1 on a deadlock. `timeline`, if
/// given, receives the replay.
SimReport simulate(const Program& program, const cost::CostModel& costs, const SimOptions& options,
                   Replay* timeline = nullptr);

}  // namespace hocket::sim
