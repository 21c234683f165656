// SPDX-License-Identifier: Apache-2.0
// What the sources of the Estimator have in common.
#pragma once

#include <array>
#include <vector>

#include "planner/estimate.h"

namespace hocket::planner {

/// Seconds and bytes of one layer on one rank, per micro-batch. `least`: what no layout goes below.
struct Estimator::Layer {
  std::array<double, kParts> seconds{}, least{};
  double least_sums = 0;  ///< seconds of the sums that a forward pass waits for
  double kept = 0, least_kept = 0;
  double whole = 0;               ///< kept without recompute
  double dense = 0, experts = 0;  ///< bytes of a rank's parameters, nothing split among replicas
  double tied = 0;                ///< and of its copies of the embedding's
};

struct Estimator::Prices {
  std::vector<Layer> layers;  // by kind
};

struct Estimator::Groups {
  cost::GroupShape tp, cp, etp, replicas, expert_replicas;
  cost::GroupShape ends;            ///< of the pipeline
  cost::GroupShape ep, ep_inner;    ///< where rows go first, and then, if not in one step
  cost::GroupShape inside, across;  ///< replicas of one shard.group, and those that have one part
};

/// How many times as long ranks take as the fastest device would with as many sequences as the
/// others, by their place in the pipeline; and how many times as many the replica with most has.
struct Estimator::Pace {
  std::vector<double> times;
  double most = 1;
};

/// Of what a forward pass keeps, the gradients that products of weights need later on are about as
/// much: those of the outputs of linear layers, some of which are freed when they are used.
inline constexpr double kOutputGradients = 0.15;

}  // namespace hocket::planner
