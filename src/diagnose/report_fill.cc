// SPDX-License-Identifier: Apache-2.0
#include "diagnose/report_fill.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/error.h"

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

// The events of one step, its begin as time zero.
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
  double calls = 0, seconds = 0, flops = 0, bytes = 0;
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
  // The step that is shown is the one of median length, so that neither the first nor a disturbed
  // one stands for the run. The table by kind is the mean over all steps and ranks.
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
  std::sort(
      report.kinds.begin(), report.kinds.end(),
      [](const KindTime& kind_time, const KindTime& b) { return kind_time.seconds > b.seconds; });
}

void fill_predicted(ReportData& report, const Trace& trace,
                    std::span<const int32_t> ranks_of_event) {
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
  }
}

MemoryPlan memory_plan_of(const program::Program& program, int32_t cls_id, const Trace* times) {
  const program::RankClass& cls = program.classes[static_cast<size_t>(cls_id)];
  const size_t n = cls.tasks.size();
  MemoryPlan plan;
  plan.name = program.classes.size() == 1 ? "every rank" : fmt::format("stage {}", cls.stage);
  plan.planned = program::memory_of(program)[static_cast<size_t>(cls_id)];
  const std::vector<program::Range> pages = program::planned_pages(program, cls_id);
  // Where an offset is drawn: gaps between the pages that are meant to be used are left out.
  std::vector<int64_t> drawn_begin{0};
  for (const program::Range& range : pages) {
    drawn_begin.push_back(drawn_begin.back() + range.end - range.begin);
  }
  const auto drawn = [&](int64_t offset) {
    const auto after =
        std::upper_bound(pages.begin(), pages.end(), offset,
                         [](int64_t at, const program::Range& range) { return at < range.begin; });
    if (after == pages.begin()) return int64_t{0};
    const auto i = static_cast<size_t>(after - pages.begin()) - 1;
    return drawn_begin[i] + offset - pages[i].begin;
  };

  std::vector<double> begin(n), end(n);
  size_t timed = 0;
  if (times != nullptr && !times->events.empty()) {
    std::vector<bool> seen(n);
    int32_t rank = kNone;
    for (const TraceEvent& event : times->events) {
      if (rank == kNone && program.class_of(event.rank) == cls_id) {
        rank = event.rank;
      }
      if (event.rank != rank || event.task >= n || seen[event.task]) continue;
      seen[event.task] = true;
      ++timed;
      begin[event.task] = 1e-9 * static_cast<double>(event.start_ns);
      end[event.task] = 1e-9 * static_cast<double>(event.end_ns);
    }
  }
  plan.in_tasks = timed != n;
  if (plan.in_tasks) {
    for (size_t i = 0; i < n; ++i) {
      begin[i] = static_cast<double>(i);
      end[i] = static_cast<double>(i + 1);
    }
  }

  // A buffer's first writer names it; it lives from its first use to its last.
  struct Life {
    int32_t maker = kNone;
    double begin = 0, end = -1;
    Phase first = Phase::forward, last = Phase::forward;
  };
  std::vector<Life> lives(cls.buffers.size());
  const auto use = [&](program::BufferId id, size_t i) {
    Life& life = lives[static_cast<size_t>(id)];
    const Phase phase = cls.tasks[i].phase;
    if (life.end < 0) {
      life.begin = begin[i];
      life.end = end[i];
      life.first = life.last = phase;
    }
    life.begin = std::min(life.begin, begin[i]);
    life.end = std::max(life.end, end[i]);
    life.first = std::min(life.first, phase);
    life.last = std::max(life.last, phase);
  };
  for (size_t i = 0; i < n; ++i) {
    for (const program::BufferId input : cls.tasks[i].in) {
      use(input, i);
    }
    for (const program::BufferId output : cls.tasks[i].out) {
      use(output, i);
      int32_t& maker = lives[static_cast<size_t>(output)].maker;
      if (maker == kNone) {
        maker = static_cast<int32_t>(i);
      }
    }
  }

  const auto describe = [&](size_t i) {
    const program::Task& task = cls.tasks[i];
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
  };
  std::map<std::string, int64_t> persistent;
  for (size_t b = 0; b < cls.buffers.size(); ++b) {
    const program::Buffer& buffer = cls.buffers[b];
    const int64_t bytes =
        buffer.expected_bytes != kNone ? buffer.expected_bytes : buffer.type.bytes();
    if (buffer.kind == BufferKind::persistent) {
      persistent[buffer.name.rfind("exp_avg", 0) == 0 ? "optimizer state" : "parameters"] +=
          program::whole_pages(bytes);
      continue;
    }
    const Life& life = lives[b];
    if (buffer.kind != BufferKind::step || buffer.offset == kNone || life.end < 0) continue;
    const size_t kind = life.first == Phase::forward     ? (life.last == Phase::forward ? 1 : 0)
                        : life.first == Phase::optimizer ? 4
                        : life.last == Phase::backward   ? 2
                                                         : 3;
    plan.blocks.push_back({life.maker == kNone
                               ? std::string("buffer")
                               : "output of " + describe(static_cast<size_t>(life.maker)),
                           kMemoryKinds[kind], life.begin, life.end, drawn(buffer.offset), bytes});
  }
  for (size_t i = 0; i < n; ++i) {
    const program::Task& task = cls.tasks[i];
    if (task.workspace == kNone) continue;
    plan.blocks.push_back({"workspace of " + describe(i), "workspace", begin[i], end[i],
                           drawn(task.workspace), program.kind(task).workspace});
  }
  // Parameters before what the optimizer keeps.
  for (const char* name : {"parameters", "optimizer state"}) {
    if (persistent.count(name)) {
      plan.persistent.push_back({name, persistent[name]});
    }
  }
  return plan;
}

}  // namespace hocket::diagnose
