// SPDX-License-Identifier: Apache-2.0
// The machine that this process runs on: facts about it, and the cluster that local ranks see.
#pragma once

#include <map>
#include <string>

#include "cost/cluster.h"
#include "engine/config.h"

namespace hocket::engine {

/// The cluster that local ranks run on: this machine's cores shared by the ranks.
cost::Cluster local_cluster(const Run& run);

/// CPU, cores, kernel: what identifies this machine in profiles and reports.
std::map<std::string, std::string> machine_facts();

}  // namespace hocket::engine
