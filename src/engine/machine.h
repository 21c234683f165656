// SPDX-License-Identifier: Apache-2.0
// The machine that this process runs on: facts about it, and the cluster that local ranks see.
#pragma once

#include <map>
#include <string>

#include "cost/cluster.h"
#include "engine/config.h"

namespace hocket::engine {

/// The cluster that a run is predicted on: that of a cluster file, or this machine if there is
/// none. One that says `this_machine` gets its cores and its memory, shared by the run's ranks.
cost::Cluster cluster_of(const Run& run, const std::string& file);
/// This machine as configs/clusters/local.yaml describes it: the constants of that file.
cost::Cluster local_cluster(const Run& run);

/// CPU, cores, kernel: what identifies this machine in profiles and reports.
std::map<std::string, std::string> machine_facts();

}  // namespace hocket::engine
