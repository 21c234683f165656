// SPDX-License-Identifier: Apache-2.0
// Interval of a prediction: from the spread and the held-out errors of a profile, or from the
// errors of the cluster file on published steps.
#pragma once

#include "cost/cluster.h"
#include "sim/simulator.h"

namespace hocket::sim {

/// Returns the interval of a step of `step_ns` on the first `ranks` ranks. A cluster file without
/// `accuracy` counts as one that nothing was compared with. Where nodes are of several files, the
/// widest interval is taken.
Interval interval_of(const cost::Cluster& cluster, const ProvenanceShares& provenance,
                     int64_t step_ns, int64_t ranks);

/// Returns the time of the trainer in a step with tasks of `tasks_ns`, on `devices` devices.
int64_t framework_ns(const cost::Framework& framework, int64_t tasks_ns, int64_t devices);

}  // namespace hocket::sim
