// SPDX-License-Identifier: Apache-2.0
#include "engine/emulate.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "collectives/comm_op.h"
#include "cost/cost_model.h"
#include "run/describe.h"
#include "run/machine.h"

namespace hocket::engine {

namespace {

using program::ClassId;
using program::Kind;
using program::Program;
using program::Task;
using program::TaskId;

/// Throws Error unless the tasks of the two programs differ only in the sizes of tensors.
void expect_same_tasks(const Run& run, const Program& program, const Program& emulated) {
  const auto differ = [&](const std::string& what, const std::string& here,
                          const std::string& there) {
    fail(
        run.name,
        "the run of emulate.set is another program: {} {}; expected {}, as in the run itself: the "
        "same tasks, of larger tensors; try the same plan and layers, and buckets that part at the "
        "same places (plan.bucket_mib)",
        what, there, here);
  };
  const auto count = [](size_t number) { return std::to_string(number); };
  if (program.classes.size() != emulated.classes.size()) {
    differ("classes of ranks:", count(program.classes.size()), count(emulated.classes.size()));
  }
  for (size_t c = 0; c < program.classes.size(); ++c) {
    const ClassId cls = c;
    const std::vector<Task>& tasks = program.classes[cls].tasks;
    const std::vector<Task>& others = emulated.classes[cls].tasks;
    for (size_t i = 0; i < std::min(tasks.size(), others.size()); ++i) {
      const bool same = program.kind(tasks[i]).op == emulated.kind(others[i]).op &&
                        tasks[i].lane == others[i].lane && tasks[i].tag == others[i].tag &&
                        tasks[i].micro_batch == others[i].micro_batch;
      if (!same) {
        differ(fmt::format("task {} of class {} is", i, c),
               program::task_name(program, cls, TaskId(i)),
               program::task_name(emulated, cls, TaskId(i)));
      }
    }
    if (tasks.size() != others.size()) {
      differ(fmt::format("tasks of class {}:", c), count(tasks.size()), count(others.size()));
    }
  }
}

/// Returns the ratio of the emulated communication's bytes to those of the run's own.
double traffic_of(const Run& run, const std::string& name, const Kind& kind, const Kind& emulated) {
  if (kind.bytes == emulated.bytes) return 1;
  if (kind.bytes <= 0 || emulated.bytes < kind.bytes) {
    fail(run.name,
         "{} of the run of emulate.set moves {} bytes; expected at least the {} of the run itself, "
         "which computes with them; try larger sizes in emulate.set, or a smaller run",
         name, emulated.bytes, kind.bytes);
  }
  return static_cast<double>(emulated.bytes) / static_cast<double>(kind.bytes);
}

}  // namespace

cost::CostModel emulated_costs(const Run& run) {
  const EmulateSection& emulate = run.config.emulate;
  const cost::Cluster cluster = cluster_of(run, emulate.cluster);
  std::optional<cost::Profile> profile;
  if (!emulate.profile.empty()) {
    profile = cost::read_profile(emulate.profile);
    if (const std::string why = mismatch(*profile, cluster, kernels_here()); !why.empty()) {
      fail(emulate.profile, "the profile {}; expected one of the devices of {}", why,
           emulate.cluster);
    }
  }
  const int64_t threads = run.config.plan.threads_per_rank;
  return {cluster, profile, std::max<int64_t>(1, threads), collectives_of(run)};
}

Run emulated_run(const Run& run) {
  std::vector<std::string> overrides = {fmt::format("plan.dp={}", run.plan.dp)};
  const std::vector<std::string>& set = run.config.emulate.set;
  overrides.insert(overrides.end(), set.begin(), set.end());
  Run emulated = parse_run(run.resolved.to_json_text(), run.name + ": emulate.set", overrides);
  // The passes of a program that was given as text have been applied.
  emulated.config.plan.passes = run.config.plan.passes;
  return emulated;
}

std::shared_ptr<const runtime::EmulatedDevice> emulate(const Run& run,
                                                       const program::Program& program) {
  if (!run.config.emulate.on()) return nullptr;
  const cost::CostModel costs = emulated_costs(run);
  const Program other = compile(emulated_run(run)).program;
  expect_same_tasks(run, program, other);
  // Collectives between classes, in order: all members must pad by the same factor.
  std::map<std::tuple<program::GroupId, program::Lane, size_t>, double> meetings;
  auto emulated = std::make_shared<runtime::EmulatedDevice>();
  const cost::Cluster& cluster = costs.cluster();
  emulated->others.assign(cluster.num_device_types() - 1,
                          {program.classes.size(), std::vector<int64_t>()});
  for (int32_t rank = 0; rank < program.num_ranks() && !cluster.heterogeneous_nodes.empty();
       ++rank) {
    emulated->device_type_of_rank.push_back(cluster.device_type_of(rank));
  }
  for (size_t c = 0; c < program.classes.size(); ++c) {
    const ClassId cls = c;
    std::vector<runtime::EmulatedDevice::Task>& list = emulated->tasks.emplace_back();
    std::map<std::pair<program::GroupId, program::Lane>, size_t> met;
    for (size_t i = 0; i < program.classes[cls].tasks.size(); ++i) {
      const Task& task = other.classes[cls].tasks[i];
      const Kind& kind = other.kind(task);
      const auto name = [&] { return program::task_name(other, cls, TaskId(i)); };
      runtime::EmulatedDevice::Task as;
      int64_t longest_ns = 0;  // on any device type
      if (program::is_communication(kind)) {
        as.traffic = traffic_of(run, name(), program.kind(program.classes[cls].tasks[i]), kind);
        if (task.group != program::kNone && other.crosses_classes(other.groups[task.group])) {
          const size_t which = met[{task.group, task.lane}]++;
          const auto known = meetings.try_emplace({task.group, task.lane, which}, as.traffic).first;
          if (known->second != as.traffic) {
            fail(
                run.name,
                "{} has {:.3f} times the bytes of the run itself, and {:.3f} times on other ranks; "
                "expected the same factor on all ranks of a collective; try sizes that divide "
                "evenly",
                name(), as.traffic, known->second);
          }
        }
      } else {
        as.min_ns = longest_ns = costs.work(kind, task.accumulate.bits(), 0, task.lane).ns;
      }
      for (size_t other = 0; other < emulated->others.size(); ++other) {
        const bool held = !program::is_communication(kind);
        const int64_t ns =
            held ? costs.work(kind, task.accumulate.bits(), other + 1, task.lane).ns : 0;
        emulated->others[other][c].push_back(ns);
        longest_ns = std::max(longest_ns, ns);
      }
      if (static_cast<double>(longest_ns) * 1e-9 >= run.config.plan.timeout_s) {
        fail(run.name,
             "{} would be held for {}; expected less than plan.timeout_s, {:g} s; try a faster "
             "emulate.cluster, or a longer plan.timeout_s",
             name(), human_time(static_cast<double>(longest_ns) * 1e-9), run.config.plan.timeout_s);
      }
      list.push_back(as);
    }
  }
  return emulated;
}

std::string emulation_text(const Run& run) {
  if (!run.config.emulate.on()) return "";
  const EmulateSection& emulate = run.config.emulate;
  const cost::CostModel costs = emulated_costs(run);
  const Run emulated = emulated_run(run);
  return fmt::format(
      "emulated: tasks take the times of {}, {} tokens a micro-batch and rank, on {} "
      "({}); not measured compute{}",
      describe(emulated.model),
      emulated.plan.sequences() * emulated.config.train.seq_len / emulated.plan.dp,
      costs.cluster().device.name, emulate.profile.empty() ? emulate.cluster : emulate.profile,
      run.ranks == Ranks::local ? "; ranks are threads, no byte crosses a link"
                                : "; its message bytes, padded, go through the links");
}

HeldTime held_time(const Session& session) {
  HeldTime time;
  const std::shared_ptr<const runtime::EmulatedDevice>& emulated = session.emulated();
  if (!emulated) return time;
  for (int32_t rank : session.ranks().ids()) {
    const std::vector<runtime::TaskTime>& times = session.run().executor(rank).times();
    const size_t cls = session.program().class_of(rank).value();
    for (size_t i = 0; i < emulated->tasks[cls].size(); ++i) {
      const int64_t min_ns = emulated->min_ns(rank, cls, i);
      if (min_ns == 0) continue;
      const int64_t took = times[i].end_ns - times[i].start_ns;
      time.held_s += static_cast<double>(min_ns) * 1e-9;
      time.over_s += static_cast<double>(std::max<int64_t>(0, took - min_ns)) * 1e-9;
    }
  }
  return time;
}

}  // namespace hocket::engine
