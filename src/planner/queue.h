// SPDX-License-Identifier: Apache-2.0
// Parts of the search's queue: plans in the order of a penalized estimate, and the corrections of
// estimates that simulated plans give.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <vector>

#include "planner/estimate.h"
#include "planner/search.h"
#include "planner/space.h"

namespace hocket::planner {

/// A plan that may be simulated. The queue is in the order of penalized_s, the smallest first.
struct QueuedPlan {
  PlanCandidate plan;
  float lower_bound_s = 0;
  float lower_bound_any_s = 0;  ///< lower bound over all collective algorithms
  float penalized_s = 0;
  float estimated_s = 0, bytes = 0;  ///< estimated
  uint32_t order = 0;                ///< among those with one penalized_s
  bool replayed = false;             ///< estimated with its schedule replayed
  bool varied = false;               ///< plan.ep_inner is not the one that it was bounded with
  /// Placeholder for the memory-balanced layer assignments, expanded when it reaches the front. Its
  /// bounds are those of all plans of the mesh.
  bool stands_for_layers = false;
};

/// Orders a heap: the smallest penalized estimate first.
struct Later {
  bool operator()(const QueuedPlan& left, const QueuedPlan& right) const {
    return left.penalized_s != right.penalized_s ? left.penalized_s > right.penalized_s
                                                 : left.order > right.order;
  }
};

/// Plans of a mesh with their bounds.
struct BoundedPlans {
  std::vector<QueuedPlan> plans;
  Counts counts;
  std::array<TooLarge, kFamilies> nearest_of;
  /// Drops a plan whose lower bound on memory is above the limit.
  void drop(const PlanCandidate& plan, const Estimate& estimate) {
    ++counts.too_large;
    nearest_of[static_cast<size_t>(family_of(plan))].take(
        {plan, std::max(estimate.bytes, estimate.lower_bound_bytes), estimate.lower_bound_bytes});
  }
  /// Returns whether a plan with this lower bound may be the nearest to fitting of its family.
  bool may_be_nearest(const PlanCandidate& plan, double lower_bound_bytes) const {
    const TooLarge& nearest = nearest_of[static_cast<size_t>(family_of(plan))];
    return nearest.bytes == 0 || lower_bound_bytes <= nearest.bytes;
  }
};

/// Ratios of simulated to estimated time and memory, by which further estimates are corrected. A
/// ratio is the mean of simulated plans of one shape: the same schedule, recomputation, sharding,
/// and numbers of pipeline ranks, expert ranks and sequences of a micro-batch. Else it is that of
/// the same schedule, recomputation and sharding, else 1.
class EstimateCorrection {
 public:
  void record(const PlanCandidate& plan, double ratio) {
    by_shape_[shape_of(plan)].add(ratio);
    by_settings_[settings_of(plan)].add(ratio);
    all_.add(ratio);
  }
  double ratio(const PlanCandidate& plan) const {
    const auto shape = by_shape_.find(shape_of(plan));
    if (shape != by_shape_.end()) return shape->second.mean();
    const auto settings = by_settings_.find(settings_of(plan));
    return settings == by_settings_.end() ? 1 : settings->second.mean();
  }
  /// Returns the ratio over all plans.
  double ratio() const { return all_.count == 0 ? 1 : all_.mean(); }

 private:
  struct Ratios {
    double sum = 0;
    int count = 0;
    void add(double ratio) {
      sum += ratio;
      ++count;
    }
    double mean() const { return sum / count; }
  };
  using Settings = std::array<int, 3>;
  using Shape = std::array<int, 6>;
  static Settings settings_of(const PlanCandidate& plan) {
    return {plan.schedule, static_cast<int>(plan.recompute), static_cast<int>(plan.shard)};
  }
  static Shape shape_of(const PlanCandidate& plan) {
    const auto doublings = [](int32_t number) { return static_cast<int>(std::log2(number)); };
    return {plan.schedule,
            static_cast<int>(plan.recompute),
            static_cast<int>(plan.shard),
            doublings(plan.pp),
            doublings(plan.ep),
            doublings(plan.micro_batch)};
  }
  std::map<Shape, Ratios> by_shape_;
  std::map<Settings, Ratios> by_settings_;
  Ratios all_;
};

}  // namespace hocket::planner
