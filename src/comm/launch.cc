// SPDX-License-Identifier: Apache-2.0
#include "comm/launch.h"

#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "base/text.h"

namespace hocket::comm {

namespace {

/// Environment variables by which a launcher describes a process.
struct Launcher {
  const char* name;
  const char *rank, *size, *local_rank, *local_size;
};

// The first launcher with both rank and size set is used: a torchrun-like launcher may itself be
// started by srun.
constexpr Launcher kLaunchers[] = {
    {"a launcher (RANK, WORLD_SIZE)", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
    {"mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {"srun", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE"},
};
constexpr int32_t kDefaultPort = 29500;  // default of torchrun

int32_t number(const Environment& get, const char* name, int64_t least, int64_t most,
               int32_t otherwise) {
  const char* const text = get(name);
  if (!text) return otherwise;
  int64_t value = 0;
  if (!parse_int(text, &value) || value < least || value > most) {
    fail("launcher", "{}={}; expected a number from {} to {}", name, text, least, most);
  }
  return static_cast<int32_t>(value);
}

/// Returns the first host of Slurm's compressed list: node03 for "node[03-05,9],other".
std::string first_host(std::string_view list) {
  const size_t bracket = list.find('[');
  const size_t comma = list.find(',');
  if (bracket == list.npos || comma < bracket) return std::string(list.substr(0, comma));
  const std::string_view inside = list.substr(bracket + 1);
  return std::string(list.substr(0, bracket)) +
         std::string(inside.substr(0, inside.find_first_of(",-]")));
}

/// Returns the tasks of this node (SLURM_NODEID) from Slurm's list of tasks per node, such as
/// "4(x2),3"; at most `all`. Requires: the variable is set.
int32_t tasks_of_node(const Environment& get, const char* name, int32_t all) {
  const std::string_view text = get(name);
  const int32_t node = number(get, "SLURM_NODEID", 0, 1 << 20, 0);
  int64_t left = node;
  for (const std::string& run : split(text, ',')) {
    const size_t times_at = run.find("(x");
    int64_t tasks = 0, times = 1;
    const bool fits =
        parse_int(run.substr(0, times_at), &tasks) && tasks > 0 && tasks <= all &&
        (times_at == run.npos ||
         (run.back() == ')' &&
          parse_int(run.substr(times_at + 2, run.size() - times_at - 3), &times) && times > 0));
    if (!fits) {
      fail("launcher", "{}={}; expected tasks per node, such as 4(x2),3", name, text);
    }
    if (left < times) return static_cast<int32_t>(tasks);
    left -= times;
  }
  fail("launcher", "{}={} lists no node {} (SLURM_NODEID)", name, text, node);
}

/// Returns the number of ranks on this host. srun lists the tasks of all nodes, for the step or the
/// job; the single number per node is set only if the user requested it.
int32_t local_size_of(const Environment& get, const Launcher& launcher, int32_t size) {
  if (std::string_view(launcher.name) == "srun") {
    for (const char* name : {"SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"}) {
      if (get(name)) return tasks_of_node(get, name, size);
    }
  }
  return number(get, launcher.local_size, 1, size, size);
}

/// Returns false for an sbatch script or a salloc shell, which run alone though Slurm sets the
/// variables of rank 0: their step has no number, or a number beyond those of srun.
bool starts_ranks(const Environment& get, const Launcher& launcher) {
  if (std::string_view(launcher.name) != "srun") return true;
  constexpr int64_t kFirstSpecialStep = 0xfffffff0;
  const char* const step = get("SLURM_STEP_ID");
  int64_t number = 0;
  return step && parse_int(step, &number) && number < kFirstSpecialStep;
}

std::string address_of(const Environment& get, const Launcher& launcher) {
  if (const char* given = get("MASTER_ADDR")) return given;
  if (std::string_view(launcher.name) == "srun") {
    for (const char* name : {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"}) {
      if (const char* list = get(name)) return first_host(list);
    }
  }
  return "";
}

}  // namespace

LaunchInfo launch_info(const Environment& get) {
  LaunchInfo info;
  for (const Launcher& launcher : kLaunchers) {
    if (!get(launcher.rank) || !get(launcher.size)) continue;
    if (!starts_ranks(get, launcher)) continue;
    info.size = number(get, launcher.size, 1, 1 << 20, 1);
    info.rank = number(get, launcher.rank, 0, info.size - 1, 0);
    info.launcher = launcher.name;
    if (info.size > 1) {
      info.local_size = local_size_of(get, launcher, info.size);
      info.local_rank = number(get, launcher.local_rank, 0, info.size - 1, info.rank);
    }
    info.address = address_of(get, launcher);
    info.port = number(get, "MASTER_PORT", 1, 65535, kDefaultPort);
    info.restarts = number(get, "TORCHELASTIC_RESTART_COUNT", 0, 1 << 30, 0);
    const char* const table = get("TORCHELASTIC_USE_AGENT_STORE");
    info.has_table = table && std::string_view(table) == "True";
    if (info.address.empty()) {
      // Ranks on a single host need no address.
      if (info.local_size != info.size) {
        fail("launcher",
             "{} started rank {} of {} on several hosts, and MASTER_ADDR is not set; expected the "
             "address of the host of rank 0",
             launcher.name, info.rank, info.size);
      }
      info.address = "127.0.0.1";
    }
    return info;
  }
  return info;
}

namespace {

bool& common_error() {
  static bool noted = false;
  return noted;
}

}  // namespace

void mark_common_error() { common_error() = true; }
bool is_common_error() { return common_error(); }

const LaunchInfo& launch_info() {
  static const LaunchInfo info = launch_info([](const char* name) -> const char* {
    const char* const value = std::getenv(name);
    return value && *value ? value : nullptr;
  });
  return info;
}

}  // namespace hocket::comm
