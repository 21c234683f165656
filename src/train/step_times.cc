// SPDX-License-Identifier: Apache-2.0
#include "train/step_times.h"

#include <algorithm>
#include <cstring>

#include "base/clock.h"
#include "base/file.h"
#include "base/stats.h"
#include "trace/trace_builder.h"

namespace hocket::train {

namespace {

/// Returns the offset of this process's clock to the first one's: 0 on one machine, otherwise the
/// difference right after a barrier, accurate to about the time of a message.
int64_t ns_behind_first(comm::Processes& processes) {
  constexpr int kMeetings = 5;
  const std::string machine = read_file("/proc/sys/kernel/random/boot_id");
  const bool same = processes.broadcast(machine) == machine;
  std::vector<double> differences;
  for (int i = 0; i < kMeetings; ++i) {
    processes.barrier();
    const int64_t now = now_ns();
    const int64_t first = std::stoll(processes.broadcast(std::to_string(now)));
    differences.push_back(static_cast<double>(first - now));
  }
  return same ? 0 : static_cast<int64_t>(median(differences));
}

}  // namespace

int64_t StepTimes::duration_ns() const {
  int64_t first = INT64_MAX, last = 0;
  for (const auto& rank : ranks) {
    for (const runtime::TaskTime& task_time : rank) {
      first = std::min(first, task_time.start_ns);
      last = std::max(last, task_time.end_ns);
    }
  }
  return last - first;
}

StepTimes times_of(const engine::Session& session, int64_t step) {
  StepTimes times{step, {}};
  times.ranks.resize(static_cast<size_t>(session.ranks().world_size()));
  for (const int32_t rank : session.ranks().ids()) {
    times.ranks[static_cast<size_t>(rank)] = session.run().executor(rank).times();
  }
  return times;
}

void gather(comm::Processes& processes, std::vector<StepTimes>* steps) {
  if (processes.size() == 1) return;
  const int64_t behind = ns_behind_first(processes);
  for (StepTimes& step : *steps) {
    // A process has one rank, of its own number.
    std::vector<runtime::TaskTime>& own = step.ranks[static_cast<size_t>(processes.index())];
    for (runtime::TaskTime& time : own) {
      time.start_ns += time.end_ns > 0 ? behind : 0;
      time.end_ns += time.end_ns > 0 ? behind : 0;
    }
    const std::string mine(reinterpret_cast<const char*>(own.data()),
                           own.size() * sizeof(runtime::TaskTime));
    const std::vector<std::string> all = processes.all_gather(mine);
    for (size_t rank = 0; rank < all.size(); ++rank) {
      step.ranks[rank].resize(all[rank].size() / sizeof(runtime::TaskTime));
      std::memcpy(step.ranks[rank].data(), all[rank].data(), all[rank].size());
    }
  }
}

trace::Trace to_trace(const program::Program& program, const std::string& title,
                      std::span<const StepTimes> steps) {
  trace::TraceBuilder builder(program, title, "run");
  int64_t origin = INT64_MAX;
  for (const StepTimes& step : steps) {
    for (const auto& rank : step.ranks) {
      for (const runtime::TaskTime& task_time : rank) {
        if (task_time.end_ns > 0) {
          origin = std::min(origin, task_time.start_ns);
        }
      }
    }
  }
  for (const StepTimes& step : steps) {
    for (size_t r = 0; r < step.ranks.size(); ++r) {
      if (step.ranks[r].empty()) continue;
      std::vector<int64_t> start, end;
      for (const runtime::TaskTime& task_time : step.ranks[r]) {
        start.push_back(task_time.start_ns);
        end.push_back(task_time.end_ns);
      }
      builder.add_step(static_cast<int32_t>(r), static_cast<int32_t>(step.step), start, end,
                       -origin);
    }
  }
  return builder.take();
}

}  // namespace hocket::train
