// SPDX-License-Identifier: Apache-2.0
#include "run/machine.h"

#include <sys/utsname.h>
#include <unistd.h>

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <iterator>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#ifndef HOCKET_SIM_ONLY
#include "kernels/backend.h"
#endif

namespace hocket::engine {

std::map<std::string, std::string> machine_facts() {
  std::map<std::string, std::string> facts;
  std::ifstream file("/proc/cpuinfo");
  const std::string cpuinfo{std::istreambuf_iterator<char>(file), {}};
  utsname name{};
  HOCKET_CHECK(uname(&name) == 0, "uname cannot fail");
  facts["cpu"] = cpu_name(cpuinfo, name.machine);
  facts["cores"] = std::to_string(std::thread::hardware_concurrency());
  facts["kernel"] = name.release;
  return facts;
}

std::string cpu_name(std::string_view cpuinfo, std::string_view architecture) {
  // Lines are "key : value", for each processor again; a machine may have several kinds of cores.
  std::vector<std::string> parts = {std::string(architecture)};
  for (const std::string& line : split(cpuinfo, '\n')) {
    const size_t colon = std::min(line.find(':'), line.size());
    const std::string_view key = trim(std::string_view(line).substr(0, colon));
    const std::string value(trim(std::string_view(line).substr(std::min(colon + 1, line.size()))));
    if (key == "model name" && !value.empty()) return value;
    if (key == "CPU implementer" || key == "CPU part") {
      const std::string part = fmt::format("{} {}", key.substr(std::strlen("CPU ")), value);
      if (std::find(parts.begin(), parts.end(), part) == parts.end()) {
        parts.push_back(part);
      }
    }
  }
  return join(parts, ", ");
}

std::string kernels_here() {
#ifdef HOCKET_SIM_ONLY
  return "";
#else
  return kernels::cpu_backend()->describe();
#endif
}

std::string mismatch(const cost::Profile& profile, const cost::Cluster& cluster,
                     const std::string& kernels) {
  std::string why = cost::mismatch(profile, cluster);
  if (!why.empty() || !cluster.this_machine) return why;
  const auto fact = [&](const char* name) {
    const auto it = profile.machine.find(name);
    return it == profile.machine.end() ? "" : it->second;
  };
  const std::string cpu = fact("cpu");
  const std::string here = machine_facts()["cpu"];
  if (cpu != here) {
    return fmt::format("was taken on {}; this is {}", cpu.empty() ? "an unknown CPU" : cpu, here);
  }
  const std::string timed = fact("backend");
  if (!kernels.empty() && timed != kernels) {
    return fmt::format("was taken with {}; this program runs {}",
                       timed.empty() ? "unknown kernels" : "the kernels '" + timed + "'",
                       "'" + kernels + "'");
  }
  return "";
}

namespace {

constexpr std::string_view kThisMachine =
#include "run/local.yaml.inc"
    ;

/// Returns a cluster of this machine's cores and memory, with the constants of `described`: one
/// node, or for ranks that are processes one per host, all equal.
cost::Cluster on_this_machine(cost::Cluster described, const Run& run) {
  const double memory =
      static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE));
  const int64_t world = run.plan.world();
  const int64_t per_node = run.ranks != Ranks::local && run.plan.ranks_per_node > 0
                               ? std::min(run.plan.ranks_per_node, world)
                               : world;
  described.nodes = (world + per_node - 1) / per_node;
  described.devices_per_node = per_node;
  described.cores_per_node = std::max(1u, std::thread::hardware_concurrency());
  described.device.memory = {memory / static_cast<double>(per_node),
                             "this machine's, shared evenly"};
  // Ranks of a host share its link to the others.
  described.topology.adapters_per_node = described.nodes > 1 ? 1 : 0;
  // Transfers in the network's lane go through memory, too.
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
