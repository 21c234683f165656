// SPDX-License-Identifier: Apache-2.0
#include "engine/machine.h"

#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <thread>

namespace hocket::engine {

std::map<std::string, std::string> machine_facts() {
  std::map<std::string, std::string> facts;
  std::ifstream cpu("/proc/cpuinfo");
  for (std::string line; std::getline(cpu, line);)
    if (line.rfind("model name", 0) == 0) {
      facts["cpu"] = line.substr(line.find(':') + 2);
      break;
    }
  facts["cores"] = std::to_string(std::thread::hardware_concurrency());
  utsname name{};
  if (uname(&name) == 0) facts["kernel"] = name.release;
  return facts;
}

cost::Cluster local_cluster(const Run& run) {
  cost::Cluster c;
  c.name = "this machine";
  c.about = "local ranks: threads that share the cores";
  c.devices_per_node = run.plan.world();
  c.cores_per_node = std::max(1u, std::thread::hardware_concurrency());
  c.device.name = "core";
  // Stand-ins until a profile replaces them; see docs/simulate.md.
  const double memory = static_cast<double>(sysconf(_SC_PHYS_PAGES)) *
                        static_cast<double>(sysconf(_SC_PAGESIZE));
  c.device.memory = {memory / static_cast<double>(run.plan.world()), "this machine's, shared evenly"};
  c.device.memory_bandwidth = {10e9, "assumed"};
  c.device.peak = {{50e9, "assumed"}, {50e9, "assumed"}, {25e9, "assumed"}};
  c.device.efficiency = {{0.8, "assumed"}, {0.4, "assumed"}, {0.8, "assumed"}};
  for (cost::Link* l : {&c.links.intra, &c.links.inter})
    *l = {{20e-6, "assumed"}, {5e9, "assumed"}, {1.0, "assumed"}};
  return c;
}

}  // namespace hocket::engine
