// SPDX-License-Identifier: Apache-2.0
#include "engine/memory.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <fstream>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "comm/launch.h"

namespace hocket::engine {

int64_t available_memory() {
  std::ifstream file("/proc/meminfo");
  for (std::string key; file >> key; file.ignore(1 << 10, '\n')) {
    int64_t kib = 0;
    if (key == "MemAvailable:" && file >> kib) return kib * 1024;
  }
  return 0;
}

namespace {

std::string size_text(int64_t bytes) { return human_bytes(static_cast<double>(bytes)); }

/// The setting that takes most off `need`, of one rank of the program.
const char* remedy(const program::Program& program, const program::Memory& need) {
  const int64_t state = need.persistent + need.inputs_outputs;
  const bool trains = program.purpose.empty();
  if (trains && state < need.total() / 2) {
    return "plan.recompute: full, a smaller plan.micro_batch or train.seq_len";
  }
  return trains ? "plan.shard, a larger plan.tp or plan.pp" : "a larger plan.tp or plan.pp";
}

/// Returns the remedy for all ranks of a machine.
const char* remedy_of_all(const engine::Run& run, const program::Program& program,
                          const program::Memory& need) {
  const int64_t state = need.persistent + need.inputs_outputs;
  if (state < need.total() / 2) return remedy(program, need);
  return run.plan.dp > run.plan.ep ? "a smaller plan.dp" : "a smaller model";
}

/// Returns [first, last + 1) of the ranks on this machine: all, or with ranks as processes those
/// launched here, which are consecutive.
std::pair<int32_t, int32_t> ranks_here(const engine::Run& run, int32_t ranks) {
  const comm::LaunchInfo& launch = comm::launch_info();
  const bool processes = run.ranks != engine::Ranks::local;
  const int32_t first = processes ? launch.rank - launch.local_rank : 0;
  const int32_t count = processes ? launch.local_size : ranks;
  return {first, std::min(first + count, ranks)};
}

/// Returns the number of local ranks per class.
std::vector<int64_t> count_ranks_here(const engine::Run& run, const program::Program& program) {
  const auto [first, end] = ranks_here(run, program.num_ranks());
  std::vector<int64_t> ranks(program.classes.size());
  for (int32_t rank = first; rank < end; ++rank) {
    ++ranks[program.class_of(rank)];
  }
  return ranks;
}

/// Addresses that this process may have, in bytes.
int64_t available_addresses() {
  rlimit limit{};
  if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) {
    return program::kMaxAddresses;
  }
  return static_cast<int64_t>(std::min<rlim_t>(limit.rlim_cur, program::kMaxAddresses));
}

/// Arenas are reserved in full, whatever they take of memory: a budget does not change that. Ranks
/// that are threads share one process.
void require_addresses(const engine::Run& run, const program::Program& program) {
  const std::vector<int64_t> here = count_ranks_here(run, program);
  const bool in_one_process = run.ranks == engine::Ranks::local;
  double need = 0;
  for (size_t c = 0; c < here.size(); ++c) {
    const auto of_rank = static_cast<double>(program::addresses_of(program.classes[c]));
    need = in_one_process ? need + static_cast<double>(here[c]) * of_rank
                          : std::max(need, here[c] > 0 ? of_rank : 0);
  }
  const auto have = static_cast<double>(available_addresses());
  if (need <= have) return;
  fail(
      run.name,
      "{} would reserve {} of addresses; a process here has {} (2^47 bytes, or less by ulimit -v); "
      "try a smaller plan.micro_batch or train.seq_len, or `hocket graph --finish` for a program "
      "that was edited",
      in_one_process ? "the ranks" : "a rank", human_bytes(need), human_bytes(have));
}

}  // namespace

void require_memory(const engine::Run& run, const program::Program& program) {
  require_memory(run, program, program::memory_of(program));
}

void require_memory(const engine::Run& run, const program::Program& program,
                    const std::vector<program::Memory>& planned) {
  // A budget is per rank, and stands for its future device. Without one the ranks are threads, and
  // all of them together must fit into this machine's free memory.
  require_addresses(run, program);
  if (const auto& budget = run.config.cluster.memory_budget) {
    const program::MemoryLimits limits{.budget = static_cast<int64_t>(*budget)};
    for (size_t c = 0; c < planned.size(); ++c) {
      if (!limits.exceeded_by(planned[c])) continue;
      fail(run.name,
           "a rank of {} would need {} of memory ({}); cluster.memory_budget allows {}; try "
           "{}, or a larger budget",
           program::stage_name(program.classes[c]), size_text(planned[c].total()),
           program::parts_text(planned[c]), human_bytes(*budget), remedy(program, planned[c]));
    }
    return;
  }
  const std::vector<int64_t> here = count_ranks_here(run, program);
  program::Memory all;
  for (size_t c = 0; c < planned.size(); ++c) {
    const int64_t ranks = here[c];
    all.persistent += ranks * planned[c].persistent;
    all.inputs_outputs += ranks * planned[c].inputs_outputs;
    all.step_buffers += ranks * planned[c].step_buffers;
    all.messages += ranks * planned[c].messages;
    all.evaluation += ranks * planned[c].evaluation;
    all.host += ranks * planned[c].host;
  }
  const int64_t have = available_memory();
  const auto excess =
      program::MemoryLimits{.device = have, .device_is_host = true}.exceeded_by(all);
  if (!excess) return;
  fail(run.name,
       "{} on this machine would need {} of memory ({}); it has free {}; try {}, or set "
       "cluster.memory_budget (per rank) to go on nonetheless",
       counted(std::accumulate(here.begin(), here.end(), int64_t{0}), "rank"),
       size_text(excess->needed), program::parts_text(all), size_text(have),
       remedy_of_all(run, program, all));
}

std::string why_too_large(const engine::Run& run, const std::vector<int64_t>& by_rank) {
  if (const auto& budget = run.config.cluster.memory_budget) {
    const int64_t most = *std::max_element(by_rank.begin(), by_rank.end());
    if (static_cast<double>(most) <= *budget) return "";
    return fmt::format("a rank would need {} of memory; cluster.memory_budget allows {}",
                       size_text(most), human_bytes(*budget));
  }
  const auto [first, end] = ranks_here(run, static_cast<int32_t>(by_rank.size()));
  const int64_t need = std::accumulate(by_rank.begin() + first, by_rank.begin() + end, int64_t{0});
  const int64_t have = available_memory();
  if (have <= 0 || need <= have) return "";
  return fmt::format("{} on this machine would need {} of memory; it has free {}",
                     counted(end - first, "rank"), size_text(need), size_text(have));
}

int64_t most_planned(const std::vector<program::Memory>& planned) {
  int64_t most = 0;
  for (const program::Memory& memory : planned) {
    most = std::max(most, memory.total());
  }
  return most;
}

void MemoryWatch::after_step(const engine::Session& session,
                             const std::vector<program::Memory>& planned) {
  const auto& budget = run_.config.cluster.memory_budget;
  for (int32_t r : session.ranks().ids()) {
    const program::Memory taken = session.ranks().measured(r);
    const program::Memory& plan = planned[session.program().class_of(r)];
    most_ = std::max(most_, taken.total());
    if (budget && static_cast<double>(taken.total()) > *budget) {
      fail_run("train",
               "rank {} takes {} of memory ({}); cluster.memory_budget allows {}, and {} were "
               "planned; routing is less even than that counts on; try {}, or a larger budget",
               r, size_text(taken.total()), program::parts_text(taken), human_bytes(*budget),
               size_text(plan.total()), remedy(session.program(), taken));
    }
    if (warned_ || taken.with_host() <= plan.with_host()) continue;
    warned_ = true;
    const bool filled_up =
        run_.config.emulate.on() && taken.total() - taken.messages <= plan.total() - plan.messages;
    log_warning(
        "rank {} takes {} of memory ({}), {} more than planned ({}): {}; nothing was dropped", r,
        size_text(taken.total()), program::parts_text(taken),
        size_text(taken.with_host() - plan.with_host()), program::parts_text(plan),
        filled_up ? "messages are padded to the emulated bytes (emulate.cluster)"
                  : "routing is less even than ragged buffers count on");
  }
}

}  // namespace hocket::engine
