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

/// Factor by which a resource is better. With more, another resource becomes the bottleneck on the
/// way, which hides the gain. With less, a gain is as small as the jumps of a step whose tasks
/// change their order. The key gains_of_ten_percent and the texts of the report state this number.
inline constexpr double kImprovement = 1.1;

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

/// Returns the seconds of a plan's step as the cluster is, and then with each of the resources.
/// Long steps are extrapolated from two numbers of micro-batches; a program is compiled once for
/// all. Returns nothing if `stop` became true. Requires: the plan has a program.
std::vector<double> steps_with(const Trial& trial, const PlanCandidate& plan,
                               const SearchSpace& space, const std::vector<BetterResource>& better,
                               const std::function<bool()>& stop);

}  // namespace hocket::planner
