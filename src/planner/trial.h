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

namespace hocket::planner {

/// Returns "KEY=VALUE" of the run's keys, without searched ones and those that fit one mesh only.
std::vector<std::string> kept_keys(const engine::Run& run);

/// Result of a trial. Seconds are of a step, averaged over ranks.
struct Outcome {
  PlanCandidate plan;
  std::string refused;  ///< why there is no such program; empty: there is
  double step_s = 0;
  double compute_s = 0, exposed_s = 0, bubble_s = 0, idle_s = 0;
  double mfu = 0;     ///< 0: unknown
  int64_t bytes = 0;  ///< planned memory of the rank that takes most
  bool fits = false;
  bool good() const { return refused.empty() && fits; }
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
  /// True if forward passes wait for the sums that they make over tp.
  bool blocking() const;
  double bucket_bytes() const;

  /// The run under a plan. Error: there is no such plan.
  engine::Run run_of(const PlanCandidate& plan, const SearchSpace& space) const;
  /// Safe from several threads. `stop` is asked all the while (base/stop.h): true gives it up, and
  /// nothing comes of it.
  std::optional<Outcome> simulate(const PlanCandidate& plan, const SearchSpace& space,
                                  const std::function<bool()>& stop) const;

 private:
  int64_t threads() const;
  std::vector<double> speed_of_device_types(const ModelTable& table) const;
  void balance_layers(const LayerCosts& costs, SearchSpace* space) const;
  void deal_samples(const LayerCosts& costs, SearchSpace* space) const;

  engine::Run base_;
  std::vector<std::string> kept_;  // "KEY=VALUE" of the run
  std::optional<cost::Profile> profile_;
  cost::Cluster cluster_;
  int64_t ranks_, memory_;
};

/// Returns a run.yaml of a run's keys, with `comment` above it, line by line.
std::string run_text(const engine::Run& run, const std::string& comment);

}  // namespace hocket::planner
