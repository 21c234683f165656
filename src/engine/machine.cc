// SPDX-License-Identifier: Apache-2.0
#include "engine/machine.h"

#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string_view>
#include <thread>

namespace hocket::engine {

std::map<std::string, std::string> machine_facts() {
  std::map<std::string, std::string> facts;
  std::ifstream cpu("/proc/cpuinfo");
  for (std::string line; std::getline(cpu, line);) {
    if (line.rfind("model name", 0) == 0) {
      facts["cpu"] = line.substr(line.find(':') + 2);
      break;
    }
  }
  facts["cores"] = std::to_string(std::thread::hardware_concurrency());
  utsname name{};
  if (uname(&name) == 0) {
    facts["kernel"] = name.release;
  }
  return facts;
}

namespace {

constexpr std::string_view kThisMachine =
#include "engine/local.yaml.inc"
    ;

/// A cluster of this machine's cores and memory, with the constants of `described`.
cost::Cluster on_this_machine(cost::Cluster described, const Run& run) {
  const double memory =
      static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE));
  const int64_t world = run.plan.world();
  described.nodes = 1;
  described.devices_per_node = world;
  described.cores_per_node = std::max(1u, std::thread::hardware_concurrency());
  described.device.memory = {memory / static_cast<double>(world), "this machine's, shared evenly"};
  // What a plan puts into the network's queue goes through memory, too.
  described.links.inter = described.links.intra;
  return described;
}

}  // namespace

cost::Cluster cluster_of(const Run& run, const std::string& file) {
  if (file.empty()) return local_cluster(run);
  cost::Cluster cluster = cost::read_cluster(file);
  return cluster.this_machine ? on_this_machine(std::move(cluster), run) : cluster;
}

cost::Cluster local_cluster(const Run& run) {
  return on_this_machine(cost::parse_cluster(kThisMachine, "configs/clusters/local.yaml"), run);
}

}  // namespace hocket::engine
