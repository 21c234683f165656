// SPDX-License-Identifier: Apache-2.0
#include "diagnose/timeline_json.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "diagnose/passes.h"

namespace hocket::diagnose {
namespace {

using trace::Trace;
using trace::TraceEvent;

/// Returns the number of events per rank.
std::map<int32_t, size_t> events_by_rank(const Trace& trace) {
  std::map<int32_t, size_t> per_rank;
  for (const TraceEvent& event : trace.events) {
    ++per_rank[event.rank];
  }
  return per_rank;
}

/// Returns the first ranks, up to `limit` events in all; at least one.
std::set<int32_t> first_ranks(const Trace& trace, size_t limit) {
  std::set<int32_t> shown;
  size_t used = 0;
  for (const auto& [rank, n] : events_by_rank(trace)) {
    used += n;
    if (!shown.empty() && used > limit) break;
    shown.insert(rank);
  }
  return shown;
}

/// Returns every n-th rank within the limits, so that all stages are included.
std::set<int32_t> spread_ranks(const Trace& trace, const ReportLimits& limits) {
  const std::map<int32_t, size_t> per_rank = events_by_rank(trace);
  const size_t too_many = std::max(trace.events.size() / std::max<size_t>(1, limits.events),
                                   (per_rank.size() - 1) / std::max<size_t>(1, limits.ranks));
  std::set<int32_t> shown;
  size_t i = 0;
  for (const auto& [rank, n] : per_rank) {
    if (i++ % (too_many + 1) == 0) {
      shown.insert(rank);
    }
  }
  return shown;
}

// Writes one step as tracks of (gap, duration, type, micro-batch), for the ranks that are shown.
void put_timeline(JsonWriter& out, const Trace& trace, const std::set<int32_t>& shown,
                  size_t limit) {
  std::map<std::pair<int32_t, uint16_t>, std::vector<const TraceEvent*>> tracks;
  for (const TraceEvent& event : trace.events) {
    tracks[{event.rank, event.lane}].push_back(&event);
  }
  const std::map<int32_t, size_t> per_rank = events_by_rank(trace);
  int64_t until = INT64_MAX;  // a single rank with too many events is cut in time
  if (shown.size() == 1 && per_rank.at(*shown.begin()) > limit) {
    std::vector<int64_t> starts;
    for (const TraceEvent& event : trace.events) {
      if (event.rank == *shown.begin()) {
        starts.push_back(event.start_ns);
      }
    }
    std::nth_element(starts.begin(), starts.begin() + static_cast<int64_t>(limit), starts.end());
    until = starts[limit];
  }

  using Type = std::tuple<trace::StringId, trace::StringId, trace::StringId, trace::StringId,
                          int64_t, double>;
  std::map<Type, int64_t> types;
  std::vector<Type> list;
  out.member("source", trace.source == "run" ? "run" : "simulation");
  out.member("step", trace.steps.empty() ? -1 : trace.steps[0]);
  out.member("ranks", per_rank.size());
  out.member("shown", shown.size());
  out.member("cut", until != INT64_MAX);
  out.key("lanes").array();
  for (const std::string& lane : trace.lanes) {
    out.value(lane);
  }
  out.end().key("tracks").array();
  for (auto& [where, events] : tracks) {
    if (!shown.contains(where.first)) continue;
    std::sort(events.begin(), events.end(), [](const TraceEvent* a, const TraceEvent* b) {
      return a->start_ns != b->start_ns ? a->start_ns < b->start_ns : a->end_ns < b->end_ns;
    });
    out.object().member("r", where.first);
    out.member("l", trace.lanes[where.second]).key("e").array();
    int64_t now = 0;
    for (const TraceEvent* event : events) {
      if (event->start_ns >= until) break;
      const Type type{event->name ? event->name : event->kind,
                      event->kind,
                      event->phase,
                      event->layer,
                      event->bytes,
                      event->flops};
      const auto [at, added] = types.try_emplace(type, static_cast<int64_t>(list.size()));
      if (added) {
        list.push_back(type);
      }
      out.value(event->start_ns - now).value(event->end_ns - event->start_ns).value(at->second);
      out.value(event->micro_batch);
      now = event->end_ns;
    }
    out.end().end();
  }
  out.end().key("types").array();
  for (const auto& [name, kind, phase, layer, bytes, flops] : list) {
    out.array().value(trace.text(name)).value(trace.text(kind)).value(trace.text(phase));
    out.value(trace.text(layer)).value(bytes).value(flops).end();
  }
  out.end();
}

}  // namespace

void put_timelines(JsonWriter& out, const ReportData& report, const ReportLimits& limits) {
  std::vector<const Trace*> traces;
  bool draw_passes = false;
  for (const Trace* trace : {&report.step, &report.predicted}) {
    if (trace->events.empty()) continue;
    traces.push_back(trace);
    draw_passes = draw_passes || trace->events.size() > limits.events ||
                  std::any_of(trace->events.begin(), trace->events.end(),
                              [](const TraceEvent& event) { return event.stage > 0; });
  }
  out.key("timelines").array();
  for (const Trace* trace : traces) {
    out.object();
    put_timeline(out, *trace, first_ranks(*trace, limits.events), limits.events);
    const Trace passes = draw_passes ? passes_of(*trace) : Trace();
    if (!passes.events.empty()) {
      out.key("passes").object();
      put_timeline(out, passes, spread_ranks(passes, limits), limits.events);
      out.end();
    }
    out.end();
  }
  out.end();
}

}  // namespace hocket::diagnose
