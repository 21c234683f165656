// SPDX-License-Identifier: Apache-2.0
// The next bottleneck of a plan: its step on the same cluster with one resource 10 % better.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "planner/trial.h"

namespace hocket::planner {

/// Factor by which a resource is better.
inline constexpr double kBetter = 1.1;
/// Simulations that the gains take: of five resources, and of the plan as it is.
inline constexpr double kResources = 6;

/// A resource, and the cluster and profile that have more of it.
struct BetterResource {
  std::string name;  ///< "arithmetic", "links inside nodes"
  cost::Cluster cluster;
  std::optional<cost::Profile> profile;
};
/// Returns the resources that a plan may use: arithmetic, memory bandwidth, kernel launches, links
/// inside nodes and between them, where the cluster has them. With a profile, which does not
/// tell arithmetic from memory: kernels, and links.
std::vector<BetterResource> better_resources(const Trial& trial);

}  // namespace hocket::planner
