// SPDX-License-Identifier: Apache-2.0
// Predicts one step of a program on a cluster: replays it with durations from a cost model and sums
// up where the time goes, what memory it needs, and where the numbers come from.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cost/cost_model.h"
#include "program/memory.h"
#include "program/program.h"
#include "sim/engine.h"

namespace hocket::sim {

/// A question: what if these tasks were so many times faster?
struct Speedup {
  std::string what;  ///< an op, or "compute" or "communication" for all such tasks
  double times = 1;  ///< above 0
};

struct SimOptions {
  bool all_ranks = false;     ///< replay every rank even where one per kind gives the same answer
  bool record = true;         ///< keep the timeline: needed for the trace and the critical path
  double model_flops = 0;     ///< of the whole step over all ranks (docs/outputs.md); 0: unknown
  int64_t tokens = 0;         ///< of the whole step; 0: unknown
  double price = 0;           ///< US dollars per device and hour; 0: the cluster's
  int64_t memory_budget = 0;  ///< bytes that a rank may take; 0: all that its device has
  /// Of a rank of every class, where the program does not run alone; empty: memory_of(program).
  std::vector<program::Memory> memory;
  std::vector<Speedup> what_if;  ///< questions, each for itself
};

/// Time of all ranks' tasks (without waiting) by where the durations come from, as shares of 1.
struct ProvenanceShares {
  double timed = 0, interpolated = 0, learned = 0, analytic = 0;
  /// Mean relative error to expect (cost::TaskCost::error) of the share of the time that has one.
  double error = 0, judged = 0;
};

/// Tasks of one kind on the critical path. What the longest of them moves is said of communication.
struct PathEntry {
  std::string name = {};  ///< the longest of them, as task_name says, with its rank
  std::string op = {};
  std::string moves = {};   ///< the parameters, or whose gradients; empty: activations
  bool gradients = false;   ///< it moves gradients of them
  int64_t bytes = 0;        ///< payload of a rank; 0: it is no communication
  int64_t group_ranks = 0;  ///< ranks that take part
  bool between_nodes = false;
  int64_t count = 0;
  int64_t ns = 0;
};

/// The answer to a Speedup.
struct WhatIf {
  std::string what;
  double times = 1;
  int64_t step_ns = 0;
  int64_t replayed_tasks = 0;  ///< by the partial replay that answered it
};

struct RankReport {
  int32_t rank = 0;
  int32_t stands = 1;  ///< ranks with the same timeline
  ClassId cls = 0;
  RankTime time;
};

struct SimReport {
  std::string cluster;
  std::string device;  ///< of several kinds all names
  bool calibrated = false;
  graph::DType dtype = graph::DType::f32;  ///< of the matrix products
  int32_t ranks = 0;
  int32_t stages = 0;
  int32_t replayed_ranks = 0;
  int64_t tasks = 0;  ///< of all ranks
  int64_t replayed_tasks = 0;
  int64_t step_ns = 0;
  int64_t tokens = 0;
  double tokens_per_s = 0;
  double model_flops = 0;
  double flops_per_s_per_rank = 0;      ///< model FLOPs
  double peak_flops = 0;                ///< of one rank; of unlike ones the mean
  double mfu = 0;                       ///< 0: unknown
  double price = 0;                     ///< US dollars per device and hour, mean; 0: unknown
  double dollars_per_m_tokens = 0;      ///< US dollars per million tokens; 0: unknown
  std::vector<RankReport> time;         ///< per replayed rank
  std::vector<program::Memory> memory;  ///< planned, of a rank of every class
  /// Per class, of the smallest device that a rank of it has.
  std::vector<int64_t> device_memory;
  program::Kernels kernels = program::Kernels::on_copies;  ///< of its devices
  bool device_is_host = false;  ///< ranks are threads: the device's memory is the host's
  int64_t memory_budget = 0;    ///< bytes of a rank, whatever its device has; 0: there is none
  ProvenanceShares provenance;
  std::vector<PathEntry> path;     ///< the critical path's top five
  int64_t path_ns = 0;             ///< whole critical path
  std::vector<WhatIf> what_if;     ///< in the order of the questions
  std::vector<std::string> notes;  ///< what the reader should know about this prediction

  /// What a rank of a class may take.
  program::MemoryLimits memory_limits(size_t cls) const;
  bool fits() const;  ///< every class's planned memory within its limits
  /// "80 GiB per device", "40 GiB to 80 GiB per device", "10 MiB per rank (cluster.memory_budget)";
  /// empty: unknown.
  std::string memory_limit_text() const;
};

/// Threads per rank that the program's configuration asks for (plan.threads_per_rank); where it
/// says 0 or nothing: the cores of a node divided by its ranks, at least 1.
int64_t threads_per_rank(const Program& program, const cost::Cluster& cluster);

/// Throws Error: more ranks than the cluster has, or a question about tasks that the program lacks
/// (exit code 2), deadlock (exit code 1). `timeline`,
/// if given, receives the replay.
SimReport simulate(const Program& program, const cost::CostModel& costs, const SimOptions& options,
                   Replay* timeline = nullptr);

}  // namespace hocket::sim
