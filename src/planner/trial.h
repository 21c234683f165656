// SPDX-License-Identifier: Apache-2.0
// A plan tried out: the program that `train` would run under it, and its simulated step.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cost/cluster.h"
#include "cost/cost_model.h"
#include "cost/profile.h"
#include "graph/graph.h"
#include "planner/model_table.h"
#include "planner/space.h"
#include "run/config.h"
#include "trace/trace.h"

namespace hocket::planner {

/// Returns "KEY=VALUE" of the run's keys, without searched ones and those that fit one mesh only.
std::vector<std::string> kept_keys(const engine::Run& run);

/// Result of a trial. Seconds are of a step, averaged over ranks.
struct Outcome {
  PlanCandidate plan;
  std::string refused;  ///< why there is no such program; empty: there is
  double step_s = 0;
  /// The step was simulated with fewer micro-batches, and extrapolated. `error_s`: bound on the
  /// error of `step_s` (docs/planner.md).
  bool extrapolated = false;
  double error_s = 0;
  double whole_s = 0;  ///< seconds that a simulation of the whole step takes
  /// Ends of the interval of the step over the predicted one (sim/interval.h), and their grounds.
  /// 0: there is none, as timings spread too much.
  double low = 0, high = 0;
  std::string interval_why;
  double compute_s = 0, exposed_s = 0, bubble_s = 0, idle_s = 0;
  double mfu = 0;  ///< 0: unknown
  /// Planned memory of the rank that takes most, with the logits of the trainer that no task has
  /// (cost::Framework::logits).
  int64_t bytes = 0;
  int64_t input_bytes = 0;  ///< part of it that is proportional to the micro-batches
  bool fits = false;
  bool good() const { return refused.empty() && fits; }
  bool has_interval() const { return high > 0; }
  /// Seconds between which a real step is expected: beyond the error of an extrapolation, too.
  double low_s() const { return low * (step_s - error_s); }
  double high_s() const { return high * (step_s + error_s); }
};

/// A run without the searched keys, and the basis of its prediction.
class Trial {
 public:
  /// `run`: the target; its searched_keys() are ignored. `cluster_file`: empty for this machine.
  /// `ranks`: of every plan. Throws Error if the cluster has fewer.
  Trial(const engine::Run& run, const std::string& cluster_file,
        std::optional<cost::Profile> profile, int64_t ranks);

  /// The limits of a search; `given`: searched keys that are fixed.
  SearchSpace space(std::map<std::string, std::string> given) const;
  const cost::Cluster& cluster() const { return cluster_; }
  /// Bytes that a rank may take.
  int64_t memory() const { return memory_; }
  /// The single-device graph of training one sequence.
  graph::Graph graph() const;
  /// Prices tasks as every plan of the search has them.
  cost::CostModel costs() const;
  /// Returns whether forward passes wait for the sums that they make over tp.
  bool blocking() const;
  double bucket_bytes() const;

  /// Run under a plan. Throws Error if there is no such plan.
  engine::Run run_of(const PlanCandidate& plan, const SearchSpace& space) const;
  /// The same with another number of micro-batches, and a batch to match.
  engine::Run run_of(const PlanCandidate& plan, const SearchSpace& space,
                     int64_t micro_batches) const;
  /// Simulates a step. May be called concurrently. `stop` is called all the while (base/stop.h); if
  /// it returns true, nothing is returned.
  std::optional<Outcome> simulate(const PlanCandidate& plan, const SearchSpace& space,
                                  const std::function<bool()>& stop) const;
  /// Simulates steps of shortened_micro_batches() and extrapolates all figures linearly. The last
  /// step is omitted if the plan is slower than `enough_s` without it. The same as simulate() where
  /// a step is short.
  std::optional<Outcome> extrapolate(const PlanCandidate& plan, const SearchSpace& space,
                                     double enough_s, const std::function<bool()>& stop) const;
  /// Returns the timeline of a step with this number of micro-batches. Throws Error if there is no
  /// such program.
  trace::Trace timeline(const PlanCandidate& plan, const SearchSpace& space,
                        int64_t micro_batches) const;
  const std::optional<cost::Profile>& profile() const { return profile_; }

 private:
  std::optional<Outcome> simulate_micro_batches(const PlanCandidate& plan, const SearchSpace& space,
                                                int64_t micro_batches,
                                                const std::function<bool()>& stop) const;
  int64_t threads() const;
  std::vector<double> speed_of_device_types(const ModelTable& table) const;
  void balance_layers(const LayerCosts& costs, SearchSpace* space) const;
  void distribute_samples(const LayerCosts& costs, SearchSpace* space) const;

  engine::Run base_;
  std::vector<std::string> kept_;  // "KEY=VALUE" of the run
  std::optional<cost::Profile> profile_;
  cost::Cluster cluster_;
  int64_t ranks_, memory_;
};

/// Returns the length of a plan's program: passes of its micro-batches through layers. A pass is
/// longer by every eight ranks of a ring of keys, and by every 16 stages.
double program_passes(const PlanCandidate& plan, const SearchSpace& space, int64_t micro_batches);
/// Returns three numbers of micro-batches in equal steps, from which longer steps of a plan are
/// extrapolated: two, three and four times its pipeline ranks. Empty: its own step is short, or not
/// much longer.
std::vector<int64_t> shortened_micro_batches(const PlanCandidate& plan, const SearchSpace& space);

}  // namespace hocket::planner
