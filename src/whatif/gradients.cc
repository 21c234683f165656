// SPDX-License-Identifier: Apache-2.0
#include "whatif/gradients.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>

#include "base/config.h"
#include "base/error.h"
#include "base/text.h"

namespace hocket::whatif {
namespace {

/// A table of gradients as it is written.
struct TableRow {
  std::string name;
  double bytes = 0;
  std::optional<double> ready, gap;
  void fields(Fields& visit) {
    visit("name", name, "name of the parameter");
    visit("bytes", bytes, "bytes of the gradient").unit(Unit::bytes).min(0).required();
    visit("ready", ready, "time at which the gradient is made, from the start of the step")
        .unit(Unit::seconds)
        .min(0);
    visit("gap", gap, "time since the gradient before, in place of ready")
        .unit(Unit::seconds)
        .min(0);
  }
};
struct Table {
  double step = 0, start = 0;
  std::optional<double> backward;
  std::vector<TableRow> gradients;
  void fields(Fields& visit) {
    visit("step", step, "time of a step of one rank").unit(Unit::seconds).min(0).required();
    visit("start", start, "time at which the backward pass begins, for the first gap")
        .unit(Unit::seconds)
        .min(0);
    visit("backward", backward,
          "time at which the backward pass ends (default: with the last gradient)")
        .unit(Unit::seconds)
        .min(0);
    visit("gradients", gradients, "gradients, in the order in which they are made");
  }
};

/// Gradient all-reduces of known bytes, by number of ranks in the group.
struct Sums {
  std::vector<GroupId> groups;  ///< of the run
  double bytes = 0;             ///< of all
};

int64_t ranks_of(const MeasuredRun& run, const Group& group) {
  return std::ssize(group.ops) * (group.across_replicas ? run.replicas : 1);
}

/// Returns the size of group that moves most bytes, and its all-reduces.
std::pair<int64_t, Sums> most_sums(const MeasuredRun& run, std::vector<std::string>* notes) {
  std::map<int64_t, Sums> by_ranks;
  int64_t all = 0;
  for (GroupId id = 0; id < run.groups.size(); ++id) {
    const Group& group = run.groups[id];
    const Op& op = run.ops[group.ops[0]];
    if (run.kind(group.ops[0]).traffic != Traffic::gradients) continue;
    ++all;
    if (op.bytes == 0) continue;
    Sums& sums = by_ranks[ranks_of(run, group)];
    sums.groups.push_back(id);
    sums.bytes += op.bytes;
  }
  if (by_ranks.empty()) {
    fail("hocket whatif --bottleneck",
         "the trace {}; expected gradients summed over ranks, with their bytes; try a trace of "
         "hocket, a PyTorch profile, or a table of gradients (docs/whatif.md)",
         all == 0 ? "has no gradient all-reduces" : "has no bytes for its gradient all-reduces");
  }
  const auto most = std::max_element(
      by_ranks.begin(), by_ranks.end(),
      [](const auto& a, const auto& b) { return a.second.bytes < b.second.bytes; });
  const int64_t others = all - std::ssize(most->second.groups);
  if (others > 0) {
    notes->push_back(fmt::format(
        "{} stay as measured: their bytes are not known, or other numbers of ranks than {} sum",
        counted(others, "sum"), most->first));
  }
  if (most->first == 1) {
    notes->push_back(
        "the trace has one rank of each gradient all-reduce: the number of ranks and "
        "their bandwidth are unknown");
  }
  return {most->first, most->second};
}

}  // namespace

Gradients gradients_of(const MeasuredRun& run, Replayer* replayer) {
  // Gives gradient all-reduces no time: each gradient is ready when its all-reduce could begin.
  // Groups of ranks are distinguished by their first rank.
  Gradients found;
  const auto [ranks, sums] = most_sums(run, &found.notes);
  found.ranks = ranks;
  found.measured_step = replayer->mean(run.duration);
  std::vector<double> alone = run.duration;
  double sent = 0, taken = 0;
  for (const GroupId group : sums.groups) {
    for (const OpId op : run.groups[group].ops) {
      for (SampleId sample = 0; sample < run.samples(); ++sample) {
        double& seconds = alone[run.at(op, sample)];
        sent += run.ops[op].bytes;
        taken += seconds;
        seconds = 0;
      }
    }
  }
  const double n = ranks;
  found.bus_bandwidth = taken > 0 && ranks > 1 ? 2 * (n - 1) / n * sent / taken : 0;
  found.step = replayer->mean(alone);
  const std::vector<double> ends = replayer->ends(alone);
  for (StepIndex step = 0; step < run.steps.size(); ++step) {
    std::map<std::pair<PatternWorkerId, ReplicaId>, GradientLog> logs;  // by first rank
    BackwardStep row;
    for (const GroupId id : sums.groups) {
      const Group& group = run.groups[id];
      const Op& op = run.ops[group.ops[0]];
      const int32_t replicas = group.across_replicas ? 1 : run.replicas;
      for (ReplicaId replica = 0; replica < replicas; ++replica) {
        const double ready = ends[run.at(group.ops[0], run.sample(step, replica))];
        logs[{op.worker, replica}].gradients.push_back({static_cast<double>(op.bytes), ready});
        row.backward = std::max(row.backward, ready);
      }
    }
    for (auto& [first, log] : logs) {
      std::stable_sort(log.gradients.begin(), log.gradients.end(),
                       [](const Gradient& a, const Gradient& b) { return a.ready < b.ready; });
      row.logs.push_back(std::move(log));
    }
    found.steps.push_back(std::move(row));
  }
  return found;
}

Gradients read_gradients(const std::string& path) {
  Table table;
  read_config(table, path);
  if (table.gradients.empty()) fail(path, "has no gradients; expected one or more");
  GradientLog log;
  double before = table.start;
  for (size_t i = 0; i < table.gradients.size(); ++i) {
    const TableRow& row = table.gradients[i];
    if (row.ready.has_value() == row.gap.has_value()) {
      fail(path, "gradients[{}] has {} of ready and gap; expected one", i,
           row.gap.has_value() ? "both" : "none");
    }
    const double ready = row.ready ? *row.ready : before + *row.gap;
    if (ready < before && i > 0) {
      fail(path, "gradients[{}] is ready at {}, before the one above it; expected their order", i,
           human_time(ready));
    }
    log.gradients.push_back({row.bytes, ready});
    before = ready;
  }
  Gradients found;
  found.step = table.step;
  const double backward = table.backward.value_or(before);
  if (backward < before || table.step < backward) {
    fail(path,
         "a step of {} with a backward pass until {} and a last gradient at {}; expected these to "
         "end in that order, the gradient first",
         human_time(table.step), human_time(backward), human_time(before));
  }
  found.steps.push_back({{std::move(log)}, backward});
  return found;
}

}  // namespace hocket::whatif
