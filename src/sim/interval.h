// SPDX-License-Identifier: Apache-2.0
// Interval of a prediction: from the spread and the held-out errors of a profile, or from the
// errors of the cluster file on published steps.
#pragma once

#include <cstdint>

#include "cost/cluster.h"
#include "sim/simulator.h"

namespace hocket::sim {

/// Step of which an interval is asked: one of `ns` on the first `ranks` ranks.
struct JudgedStep {
  int64_t ns = 0, ranks = 1;
  bool has_experts = false;
};

/// Returns whether a program has products of experts.
bool has_experts(const Program& program);

/// Returns the interval of a step. A cluster file without `accuracy` counts as one that nothing was
/// compared with. Ends are wider for steps unlike those of `accuracy`: on another device, with
/// experts, on many more ranks. Where nodes are of several files, the widest interval is taken.
Interval interval_of(const cost::Cluster& cluster, const ProvenanceShares& provenance,
                     const JudgedStep& step);

/// Returns the interval of a collective of `ns` on a group. It is that of the errors of the links,
/// if those that the group uses have some of groups as large, else that of a step.
Interval interval_of_collective(const cost::Cluster& cluster, const cost::GroupShape& shape,
                                const JudgedStep& step);

/// Returns the time of the trainer in a step with tasks of `tasks_ns`, on `devices` devices.
int64_t framework_ns(const cost::Framework& framework, int64_t tasks_ns, int64_t devices);

}  // namespace hocket::sim
