// SPDX-License-Identifier: Apache-2.0
#include "diagnose/report_fill.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "base/error.h"
#include "base/stats.h"
#include "base/text.h"
#include "collectives/comm_op.h"
#include "program/buffer_contents.h"

namespace hocket::diagnose {
namespace {

using program::BufferKind;
using program::kNone;
using program::Phase;
using trace::Trace;
using trace::TraceEvent;

struct Span {
  int64_t begin = INT64_MAX, end = INT64_MIN;
  void add(int64_t b, int64_t e) {
    begin = std::min(begin, b);
    end = std::max(end, e);
  }
};

std::map<int32_t, Span> steps_of(const Trace& trace) {
  std::map<int32_t, Span> steps;
  for (const TraceEvent& event : trace.events) {
    if (event.step != kNone) {
      steps[event.step].add(event.start_ns, event.end_ns);
    }
  }
  return steps;
}

// Returns the events of one step, with its begin as time zero.
Trace one_step(const Trace& trace, int32_t step, const Span& span) {
  Trace out = trace;
  out.steps = {step};
  out.memory.clear();
  std::erase_if(out.events, [&](const TraceEvent& event) { return event.step != step; });
  for (TraceEvent& event : out.events) {
    event.start_ns -= span.begin;
    event.end_ns -= span.begin;
  }
  for (const trace::TraceMemory& sample : trace.memory) {
    if (sample.t_ns < span.begin || sample.t_ns > span.end) continue;
    out.memory.push_back(sample);
    out.memory.back().t_ns -= span.begin;
  }
  return out;
}

struct Sums {
  double calls = 0, seconds = 0, flops = 0, bytes = 0, waiting = 0;
  std::map<uint16_t, double> lanes;
};

std::map<std::string, Sums> sums_of(const Trace& trace, std::span<const int32_t> weights) {
  std::map<std::string, Sums> sums;
  for (size_t i = 0; i < trace.events.size(); ++i) {
    const TraceEvent& event = trace.events[i];
    if (event.step == kNone) continue;
    const double weight = i < weights.size() ? weights[i] : 1;
    Sums& s = sums[trace.text(event.kind)];
    s.calls += weight;
    s.seconds += weight * 1e-9 * static_cast<double>(event.end_ns - event.start_ns);
    s.waiting += weight * 1e-9 * static_cast<double>(event.waited_ns);
    s.flops += weight * event.flops;
    s.bytes += weight * static_cast<double>(event.bytes);
    s.lanes[event.lane] += weight;
  }
  return sums;
}

std::string main_lane(const Trace& trace, const Sums& s) {
  const auto most =
      std::max_element(s.lanes.begin(), s.lanes.end(),
                       [](const auto& a, const auto& b) { return a.second < b.second; });
  return most == s.lanes.end() ? "" : trace.lanes[most->first];
}

}  // namespace

void fill_measured(ReportData& report, const Trace& trace) {
  // The step shown is the one of median duration, so that neither the first nor a disturbed step
  // represents the run. The table by kind is the mean over all steps and ranks.
  const std::map<int32_t, Span> steps = steps_of(trace);
  if (steps.empty()) return;
  std::vector<std::pair<int64_t, int32_t>> by_length;
  int64_t total = 0;
  for (const auto& [step, span] : steps) {
    by_length.push_back({span.end - span.begin, step});
    total += span.end - span.begin;
  }
  const size_t middle = by_length.size() / 2;
  std::nth_element(by_length.begin(), by_length.begin() + static_cast<int64_t>(middle),
                   by_length.end());
  const int32_t shown = by_length[middle].second;
  report.step = one_step(trace, shown, steps.at(shown));
  report.kinds_steps = static_cast<int64_t>(steps.size());
  report.kinds_step_s = 1e-9 * static_cast<double>(total) / static_cast<double>(steps.size());

  const double share = 1.0 / (static_cast<double>(steps.size()) * std::max(1, trace.num_ranks));
  report.kinds.clear();
  for (const auto& [kind, s] : sums_of(trace, {})) {
    report.kinds.push_back({kind, main_lane(trace, s), s.calls * share, s.seconds * share,
                            s.flops * share, s.bytes * share, kMissing});
  }
  std::sort(report.kinds.begin(), report.kinds.end(),
            [](const KindTime& a, const KindTime& b) { return a.seconds > b.seconds; });
}

void fill_predicted(ReportData& report, const Trace& trace,
                    std::span<const int32_t> ranks_of_event) {
  // The table by kind is the mean over ranks, like the measured one. A trace may show one rank for
  // several: its events then count for the number of ranks that it stands for.
  HOCKET_CHECK(ranks_of_event.empty() || ranks_of_event.size() == trace.events.size(),
               "{} weights for {} events", ranks_of_event.size(), trace.events.size());
  const std::map<int32_t, Span> steps = steps_of(trace);
  if (steps.empty()) return;
  report.predicted = one_step(trace, steps.begin()->first, steps.begin()->second);
  double ranks = trace.num_ranks;
  if (ranks_of_event.empty()) {
    std::set<int32_t> present;
    for (const TraceEvent& event : trace.events) {
      present.insert(event.rank);
    }
    ranks = static_cast<double>(present.size());
  }
  const double share = 1.0 / (static_cast<double>(steps.size()) * std::max(1.0, ranks));
  for (const auto& entry : sums_of(trace, ranks_of_event)) {
    const std::string& kind = entry.first;
    const Sums& s = entry.second;
    auto row = std::find_if(report.kinds.begin(), report.kinds.end(),
                            [&](const KindTime& kind_time) { return kind_time.kind == kind; });
    if (row == report.kinds.end()) {
      report.kinds.push_back({kind, main_lane(trace, s), s.calls * share, kMissing, s.flops * share,
                              s.bytes * share, kMissing});
      row = report.kinds.end() - 1;
    }
    row->predicted_seconds = s.seconds * share;
    if (comm::find(kind) != comm::Id::none) {
      row->waiting = s.waiting * share;
    }
  }
}

/// Returns the seconds of a step by the run's metrics: the median of the settled steps, or the
/// traced time if there are none.
static double measured_step_s(const ReportData& report) {
  std::vector<double> settled;
  for (const TrainPoint& point : report.metrics.train) {
    if (point.step >= report.settled_step) {
      settled.push_back(point.step_s);
    }
  }
  return settled.empty() ? report.kinds_step_s : median(std::move(settled));
}

/// Returns "step 27 (183 ms)" or "3 traced steps (183 ms on average)".
static std::string traced_text(const ReportData& report) {
  const std::string seconds = human_time(report.kinds_step_s);
  if (report.kinds_steps > 1) {
    return fmt::format("{} traced steps ({} on average)", report.kinds_steps, seconds);
  }
  if (report.step.events.empty()) return fmt::format("the traced step ({})", seconds);
  return fmt::format("step {} ({})", report.step.events.front().step, seconds);
}

std::string blame(const ReportData& report, double least) {
  // The run's steps against the prediction give the direction of the difference; the traced steps
  // show where it arises. If these differ in the other direction, they explain nothing. Figures of
  // kinds are means over the ranks of the same steps. Extra time in the compute lane lengthens the
  // step; the rest of the difference is communication and waiting.
  const double run = measured_step_s(report) - report.predicted_step_s;
  const double step = report.kinds_step_s - report.predicted_step_s;
  const double much = least * report.predicted_step_s;
  if (!(std::abs(run) >= much) || !std::isfinite(step)) return "";
  if (step * run <= 0 || std::abs(step) < much) {
    return fmt::format("nothing in the trace of {}", traced_text(report));
  }
  const KindTime* most = nullptr;
  double compute = 0;
  for (const KindTime& kind : report.kinds) {
    const double longer = kind.seconds - kind.predicted_seconds;
    if (kind.lane != "compute" || !(std::abs(longer) > 0)) continue;
    compute += longer;
    // Only kinds that differ in the direction of the step count.
    if (longer * step > 0 &&
        (!most || std::abs(longer) > std::abs(most->seconds - most->predicted_seconds))) {
      most = &kind;
    }
  }
  if (most && compute / step >= 0.5) {
    return fmt::format("mostly {}: {} in {}, {} predicted", most->kind, human_time(most->seconds),
                       traced_text(report), human_time(most->predicted_seconds));
  }
  return fmt::format("{} outside of computation in {}: communication and waiting",
                     human_time(std::abs(step - compute)), traced_text(report));
}

void fill_simulated(ReportData& report, const Trace& trace,
                    std::span<const int32_t> ranks_of_event) {
  report.simulated = true;
  report.kinds.clear();
  fill_predicted(report, trace, ranks_of_event);
  for (KindTime& kind : report.kinds) {
    const comm::Id communication = comm::find(kind.kind);
    const bool moves = communication != comm::Id::none;
    kind.seconds = kind.predicted_seconds - (moves ? kind.waiting : 0);
    kind.predicted_seconds = kMissing;
    if (moves && comm::op(communication).role == comm::Role::receive) {
      kind.bytes = 0;  // the rate of a message is counted at its sender
    }
  }
  std::sort(report.kinds.begin(), report.kinds.end(),
            [](const KindTime& a, const KindTime& b) { return a.seconds > b.seconds; });
  report.kinds_steps = 1;
  report.kinds_step_s = report.predicted_step_s;
}

namespace {

/// Mapping of planned offsets to drawn ones, which omits gaps between the pages that are meant to
/// be used.
class Pages {
 public:
  explicit Pages(std::vector<program::Range> pages) : pages_(std::move(pages)) {
    for (const program::Range& range : pages_) {
      begin_.push_back(begin_.back() + range.end - range.begin);
    }
  }
  int64_t drawn(int64_t offset) const {
    const auto after =
        std::upper_bound(pages_.begin(), pages_.end(), offset,
                         [](int64_t at, const program::Range& range) { return at < range.begin; });
    if (after == pages_.begin()) return 0;
    const auto i = static_cast<size_t>(after - pages_.begin()) - 1;
    return begin_[i] + offset - pages_[i].begin;
  }

 private:
  std::vector<program::Range> pages_;
  std::vector<int64_t> begin_{0};  ///< drawn begin of each
};

/// Times of a class's tasks, in seconds of a measured step. If a task is missing from that, in
/// tasks: the i-th from i to i + 1.
struct Clock {
  std::vector<double> begin, end;
  bool in_tasks = false;
};

Clock clock_of(const program::Program& program, program::ClassId cls, const Trace* times) {
  const size_t count = program.classes[cls].tasks.size();
  Clock clock;
  clock.begin.resize(count);
  clock.end.resize(count);
  size_t timed = 0;
  if (times != nullptr) {
    std::vector<bool> seen(count);
    int32_t rank = kNone;  // first rank of the class in the trace
    for (const TraceEvent& event : times->events) {
      if (rank == kNone && program.class_of(event.rank) == cls) {
        rank = event.rank;
      }
      if (event.rank != rank || event.task >= count || seen[event.task]) continue;
      seen[event.task] = true;
      ++timed;
      clock.begin[event.task] = 1e-9 * static_cast<double>(event.start_ns);
      clock.end[event.task] = 1e-9 * static_cast<double>(event.end_ns);
    }
  }
  clock.in_tasks = timed != count;
  if (clock.in_tasks) {
    for (size_t i = 0; i < count; ++i) {
      clock.begin[i] = static_cast<double>(i);
      clock.end[i] = static_cast<double>(i + 1);
    }
  }
  return clock;
}

/// Lifetime of a buffer, from its first use to its last; its first writer names it.
struct Lifetime {
  int32_t maker = kNone;
  double begin = 0, end = -1;  ///< never used: end < 0
  Phase first = Phase::forward, last = Phase::forward;

  void use(const Clock& clock, size_t task, Phase phase) {
    if (end < 0) {
      begin = clock.begin[task];
      end = clock.end[task];
      first = phase;
      last = phase;
    }
    begin = std::min(begin, clock.begin[task]);
    end = std::max(end, clock.end[task]);
    first = std::min(first, phase);
    last = std::max(last, phase);
  }
  const char* memory_category() const {
    if (first == Phase::forward) return kMemoryCategories[last == Phase::forward ? 1 : 0];
    if (first == Phase::optimizer) return kMemoryCategories[4];
    return kMemoryCategories[last == Phase::backward ? 2 : 3];
  }
};

std::vector<Lifetime> lives_of(const program::RankClass& cls, const Clock& clock) {
  std::vector<Lifetime> lives(cls.buffers.size());
  for (size_t i = 0; i < cls.tasks.size(); ++i) {
    const program::Task& task = cls.tasks[i];
    for (const program::BufferId input : task.in) {
      lives[cls.root(input)].use(clock, i, task.phase);
    }
    for (const program::BufferId output : task.out) {
      Lifetime& life = lives[cls.root(output)];
      life.use(clock, i, task.phase);
      if (life.maker == kNone) {
        life.maker = static_cast<int32_t>(i);
      }
    }
  }
  return lives;
}

/// Returns a text such as "linear, L3, micro-batch 0".
std::string describe(const program::Program& program, const program::Task& task) {
  std::string text = program.kind(task).op;
  const std::string place = graph::layer_name(task.layer, program.num_layers);
  if (task.phase < Phase::grad && !place.empty() && !text.starts_with(place)) {
    text += ", " + place;
  }
  if (task.micro_batch >= 0) {
    text += fmt::format(", micro-batch {}", task.micro_batch);
  }
  if (task.recompute) {
    text += ", recomputed";
  }
  return text;
}

/// Returns the planned bytes of a buffer; for a ragged one, the expected bytes.
int64_t planned_bytes(const program::Buffer& buffer) {
  return buffer.expected_bytes != kNone ? buffer.expected_bytes : buffer.type.bytes();
}

}  // namespace

MemoryPlan memory_plan_of(const program::Program& program, program::ClassId cls_id,
                          const Trace* times, program::Kernels kernels) {
  // A block is a rectangle: from the first use of a buffer to the last, over its planned bytes.
  // Workspaces are blocks for the time of their task. Buffers that live through all steps are
  // summed up.
  const program::RankClass& cls = program.classes[cls_id];
  const Pages pages(program::planned_pages(program, cls_id, program::Space::device, kernels));
  const Clock clock = clock_of(program, cls_id, times);
  const std::vector<Lifetime> lives = lives_of(cls, clock);
  MemoryPlan plan;
  plan.name = program.classes.size() == 1 ? "every rank" : program::stage_name(cls);
  plan.planned = program::memory_of(program, kernels)[cls_id];
  plan.in_tasks = clock.in_tasks;
  std::map<std::string, int64_t> persistent;
  const std::map<std::string, std::string> belongs = program.parameters_of_tensors();
  for (size_t b = 0; b < cls.buffers.size(); ++b) {
    const program::Buffer& buffer = cls.buffers[b];
    if (buffer.kind == BufferKind::persistent) {
      const std::string first = program::tensors_of(buffer.name, buffer.slots)[0];
      persistent[belongs.contains(first) ? "optimizer state" : "parameters"] +=
          program::whole_pages(planned_bytes(buffer));
      continue;
    }
    const Lifetime& life = lives[b];
    if (buffer.kind != BufferKind::step || buffer.offset == kNone || life.end < 0) continue;
    const std::string name =
        life.maker == kNone ? "buffer" : "output of " + describe(program, cls.tasks[life.maker]);
    plan.blocks.push_back({name, life.memory_category(), life.begin, life.end,
                           pages.drawn(buffer.offset), planned_bytes(buffer)});
  }
  const std::vector<int64_t> workspaces = program::workspaces(program, kernels);
  for (size_t i = 0; i < cls.tasks.size(); ++i) {
    const program::Task& task = cls.tasks[i];
    const bool on_host = program::workspace_space(task.lane) == program::Space::host;
    const int64_t workspace = workspaces[task.kind.value()];
    if (task.workspace == kNone || on_host || workspace == 0) continue;
    plan.blocks.push_back({"workspace of " + describe(program, task), "workspace", clock.begin[i],
                           clock.end[i], pages.drawn(task.workspace), workspace});
  }
  // Parameters come before optimizer states.
  for (const char* name : {"parameters", "optimizer state"}) {
    if (persistent.contains(name)) {
      plan.persistent.push_back({name, persistent[name]});
    }
  }
  return plan;
}

}  // namespace hocket::diagnose
