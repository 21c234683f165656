// SPDX-License-Identifier: Apache-2.0
#include "planner/bottleneck.h"

#include <algorithm>
#include <utility>

#include "base/stop.h"
#include "run/compile.h"
#include "sim/simulator.h"

namespace hocket::planner {

namespace {

/// Applies a change to the devices of every type.
template <class Change>
void for_devices(cost::Cluster* cluster, const Change& change) {
  change(cluster->device);
  for (cost::NodeGroup& nodes : cluster->heterogeneous_nodes) {
    change(nodes.device);
  }
}

void raise_arithmetic(cost::Device& device) {
  cost::Peak& peak = device.peak;
  for (cost::Rate* rate : {&peak.f4, &peak.f8, &peak.bf16, &peak.f32, &peak.f64}) {
    rate->value *= kImprovement;
  }
}

void raise_memory(cost::Device& device) { device.memory_bandwidth.value *= kImprovement; }

void shorten_launches(cost::Device& device) {
  for (cost::Seconds* seconds : {&device.launch, &device.host_launch, &device.host_launch_expert}) {
    seconds->value /= kImprovement;
  }
}

/// Raises the bandwidth of links inside nodes, or between them, with the switches and the measured
/// times of their groups.
void raise_links(cost::Cluster* cluster, bool inside) {
  const auto raise = [&](cost::Links& links) {
    cost::Link& link = inside ? links.intra : links.inter;
    link.bandwidth.value *= kImprovement;
    for (cost::Curve* curve : {&link.short_messages, &link.tree, &link.direct, &link.message}) {
      curve->bandwidth.value *= kImprovement;
    }
  };
  raise(cluster->links);
  for (cost::NodeGroup& nodes : cluster->heterogeneous_nodes) {
    raise(nodes.links);
  }
  for (cost::SwitchLevel& level : cluster->topology.levels) {
    if ((level.devices < cluster->devices_per_node) == inside) {
      level.bandwidth.value *= kImprovement;
    }
  }
  for (cost::MeasuredTimes& times : cluster->measured) {
    for (double& us : times.us) {
      us /= (times.nodes == 1) == inside ? kImprovement : 1;
    }
  }
}

}  // namespace

std::vector<BetterResource> better_resources(const Trial& trial) {
  const cost::Cluster& cluster = trial.cluster();
  const bool has_inside = cluster.devices_per_node > 1, has_network = cluster.nodes > 1;
  std::vector<BetterResource> found;
  if (trial.profile()) {
    found.push_back({"kernels", cluster, cost::scaled(*trial.profile(), kImprovement, 1)});
    found.push_back({"links", cluster, cost::scaled(*trial.profile(), 1, kImprovement)});
    return found;
  }
  const auto add = [&](const char* name) -> cost::Cluster* {
    return &found.emplace_back(BetterResource{name, cluster, std::nullopt}).cluster;
  };
  for_devices(add("arithmetic"), raise_arithmetic);
  for_devices(add("memory bandwidth"), raise_memory);
  if (cluster.device.launch.value + cluster.device.host_launch.value > 0) {
    for_devices(add("kernel launches"), shorten_launches);
  }
  if (has_inside) {
    raise_links(add("links inside nodes"), true);
  }
  if (has_network) {
    raise_links(add("network"), false);
  }
  return found;
}

std::vector<double> steps_with(const Trial& trial, const PlanCandidate& plan,
                               const SearchSpace& space, const std::vector<BetterResource>& better,
                               const std::function<bool()>& stop) {
  const int64_t all = num_micro_batches(space, plan);
  std::vector<int64_t> counts = shortened_micro_batches(plan, space);
  counts.resize(std::min<size_t>(2, counts.size()));
  if (counts.empty()) {
    counts = {all};
  }
  std::vector<std::vector<double>> steps;  // by number of micro-batches
  const StopWhen given_up(stop);
  try {
    for (const int64_t count : counts) {
      const engine::Run run = trial.run_of(plan, space, count);
      const engine::Compiled compiled = engine::compile(run);
      std::vector<double>& here = steps.emplace_back();
      const auto add = [&](const cost::Cluster& cluster,
                           const std::optional<cost::Profile>& profile) {
        const cost::CostModel costs(cluster, profile,
                                    sim::threads_per_rank(compiled.program, cluster),
                                    engine::collectives_of(run));
        sim::SimOptions options;
        options.record = false;
        here.push_back(
            static_cast<double>(sim::simulate(compiled.program, costs, options).step_ns) * 1e-9);
      };
      add(trial.cluster(), trial.profile());
      for (const BetterResource& resource : better) {
        add(resource.cluster, resource.profile);
      }
    }
  } catch (const Stopped&) {
    return {};
  }
  std::vector<double> seconds = steps.back();
  for (size_t i = 0; i < seconds.size() && counts.size() > 1; ++i) {
    const double slope = (steps[1][i] - steps[0][i]) / static_cast<double>(counts[1] - counts[0]);
    seconds[i] += slope * static_cast<double>(all - counts[1]);
  }
  return seconds;
}

}  // namespace hocket::planner
