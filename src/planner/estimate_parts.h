// SPDX-License-Identifier: Apache-2.0
// Shared parts of the Estimator's sources.
#pragma once

#include <array>
#include <vector>

#include "planner/estimate.h"

namespace hocket::planner {

/// Seconds and bytes of one layer on one rank, per micro-batch. `least`: lower bound over layouts.
struct Estimator::Layer {
  std::array<double, kParts> seconds{}, least{};
  double least_reductions_s = 0;  ///< of the all-reduces that a forward pass waits for
  double kept = 0, least_kept = 0;
  double whole = 0;               ///< kept without recompute
  double dense = 0, experts = 0;  ///< bytes of a rank's parameters, nothing split among replicas
  double tied = 0;                ///< and of its copies of the embedding's
};

struct Estimator::Prices {
  std::vector<Layer> layers;  // by type
};

struct Estimator::Groups {
  cost::GroupShape tp, cp, etp, replicas, expert_replicas;
  cost::GroupShape ends;            ///< of the pipeline
  cost::GroupShape ep, ep_inner;    ///< where rows go first, and then, if not in one step
  cost::GroupShape inside, across;  ///< replicas of one shard.group, and those that have one part
};

/// Slow-down of ranks, by pipeline position, relative to the fastest device with equal sequences;
/// and the largest replica's share of sequences relative to the mean.
struct Estimator::Pace {
  std::vector<double> times;
  double most = 1;
};

/// Share of a forward pass's kept bytes that weight gradients need later: gradients of linear
/// outputs, some of which are freed on use.
inline constexpr double kOutputGradients = 0.15;

}  // namespace hocket::planner
