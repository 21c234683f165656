// SPDX-License-Identifier: Apache-2.0
// The machine that this process runs on: facts about it, and the cluster that local ranks see.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "cost/cluster.h"
#include "cost/profile.h"
#include "run/config.h"

namespace hocket::engine {

/// The cluster that a run is predicted on: that of a cluster file, or this machine if there is
/// none. One that says `this_machine` gets its cores and its memory, shared by the run's ranks.
cost::Cluster cluster_of(const Run& run, const std::string& file);
/// This machine as configs/clusters/local.yaml describes it: the constants of that file.
cost::Cluster local_cluster(const Run& run);

/// Returns CPU, cores and kernel, which identify this machine in profiles and reports.
std::map<std::string, std::string> machine_facts();
/// The CPU as the text of /proc/cpuinfo names it: its model name; where there is none, as mostly on
/// 64-bit Arm, "aarch64, implementer 0x41, part 0xd0c"; at the least the architecture.
std::string cpu_name(std::string_view cpuinfo, std::string_view architecture);

/// The kernels that this process runs, as a profile names them; empty in a build that has none.
/// Throws Error if this processor, or HOCKET_CPU, asks for others than there are.
std::string kernels_here();
/// Why a profile's times are not those of a cluster's devices, as a clause: "was taken on ...";
/// empty if they are. A cluster that is this machine has this CPU and runs `kernels` (empty: any):
/// times of others say nothing of it.
std::string mismatch(const cost::Profile& profile, const cost::Cluster& cluster,
                     const std::string& kernels);

}  // namespace hocket::engine
