// SPDX-License-Identifier: Apache-2.0
#include "diagnose/report_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <set>
#include <tuple>

#include "base/json_writer.h"
#include "base/stats.h"
#include "comm/ops/comm_op.h"
#include "ops/op.h"

namespace hocket::diagnose {
namespace {

using trace::Trace;
using trace::TraceEvent;

std::string shortened(const std::string& text, size_t limit) {
  if (text.size() <= limit) return text;
  return text.substr(0, limit) + fmt::format("\n... ({} bytes more)", text.size() - limit);
}

// Training columns; runs of `stride` steps become one point: the last step and time, the mean of
// the rest, and the median of step times, which pauses would spoil.
void put_train(JsonWriter& out, const std::vector<TrainPoint>& points, size_t stride) {
  using Field = double TrainPoint::*;
  const std::vector<std::pair<const char*, Field>> fields = {
      {"loss", &TrainPoint::loss},
      {"grad", &TrainPoint::grad_norm},
      {"lr", &TrainPoint::lr},
      {"tps", &TrainPoint::tokens_per_s},
      {"tflops", &TrainPoint::tflops},
      {"mfu", &TrainPoint::mfu},
      {"pred", &TrainPoint::predicted_step_s},
      {"peak", &TrainPoint::peak_gib},
      {"bal", &TrainPoint::load_max_over_mean},
      {"step_s", &TrainPoint::step_s}};
  const auto pieces = [&](const std::function<void(size_t, size_t)>& each) {
    for (size_t i = 0; i < points.size(); i += stride) {
      each(i, std::min(i + stride, points.size()));
    }
  };
  out.key("train").object().member("n", (points.size() + stride - 1) / stride);
  out.key("step").array();
  pieces([&](size_t, size_t e) { out.value(points[e - 1].step); });
  out.end();
  for (const auto& [name, field] :
       {std::pair{"time", &TrainPoint::time_s}, std::pair{"tokens", &TrainPoint::tokens}}) {
    out.key(name).array();
    pieces([&, f = field](size_t, size_t e) { out.value(points[e - 1].*f, 7); });
    out.end();
  }
  for (const auto& [name, field] : fields) {
    out.key(name).array();
    pieces([&, text = std::string_view(name), f = field](size_t b, size_t e) {
      std::vector<double> values;
      for (size_t i = b; i < e; ++i) {
        if (std::isfinite(points[i].*f)) {
          values.push_back(points[i].*f);
        }
      }
      double sum = 0;
      for (const double x : values) {
        sum += x;
      }
      const double mean = values.empty() ? kMissing : sum / static_cast<double>(values.size());
      out.value(text == "step_s" ? median(values) : mean, 5);
    });
    out.end();
  }
  out.end();
}

void put_load(JsonWriter& out, const std::vector<LoadPoint>& all, size_t limit) {
  if (all.empty()) return void(out.key("load").null());
  const size_t layers = all.back().load.size(), experts = all.back().load[0].size();
  std::vector<const LoadPoint*> fit;  // of the model's final shape
  for (const LoadPoint& load_point : all) {
    if (load_point.load.size() == layers && load_point.load[0].size() == experts) {
      fit.push_back(&load_point);
    }
  }
  const size_t most = std::clamp<size_t>(limit / std::max<size_t>(1, layers * experts), 2, 60);
  std::vector<const LoadPoint*> kept;
  const size_t n = std::min(most, fit.size());
  for (size_t i = 0; i < n; ++i) {
    kept.push_back(fit[n == 1 ? fit.size() - 1 : i * (fit.size() - 1) / (n - 1)]);
  }
  out.key("load").object().member("layers", layers);
  out.member("experts", experts).key("numbers").array();
  for (size_t i = 0; i < layers; ++i) {
    out.value(i < all.back().layers.size() ? all.back().layers[i] : static_cast<int64_t>(i));
  }
  out.end().key("steps").array();
  for (const LoadPoint* load_point : kept) {
    out.value(load_point->step);
  }
  out.end().key("v").array();
  for (const LoadPoint* load_point : kept) {
    out.array();
    for (const std::vector<double>& row : load_point->load) {
      double sum = 0;
      for (const double x : row) {
        sum += std::isfinite(x) ? x : 0;
      }
      const double mean = sum / static_cast<double>(experts);
      for (const double x : row) {
        out.value(mean > 0 ? x / mean : kMissing, 3);
      }
    }
    out.end();
  }
  out.end().end();
}

// One step as tracks of (gap, duration, type, micro-batch), whole ranks first to last.
void put_timeline(JsonWriter& out, const Trace& trace, size_t limit) {
  std::map<std::pair<int32_t, uint16_t>, std::vector<const TraceEvent*>> tracks;
  std::map<int32_t, size_t> per_rank;
  for (const TraceEvent& event : trace.events) {
    tracks[{event.rank, event.lane}].push_back(&event);
    ++per_rank[event.rank];
  }
  size_t used = 0, shown = 0;
  int32_t last_rank = -1;
  for (const auto& [rank, n] : per_rank) {
    if (shown > 0 && used + n > limit) break;
    used += n;
    last_rank = rank;
    ++shown;
  }
  int64_t until = INT64_MAX;  // a single rank with too many events is cut in time
  if (used > limit) {
    std::vector<int64_t> starts;
    for (const TraceEvent& event : trace.events) {
      if (event.rank == last_rank) {
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
  out.object().member("source", trace.source == "run" ? "run" : "simulation");
  out.member("step", trace.steps.empty() ? -1 : trace.steps[0]);
  out.member("ranks", per_rank.size());
  out.member("shown", shown);
  out.member("cut", until != INT64_MAX);
  out.key("lanes").array();
  for (const std::string& lane : trace.lanes) {
    out.value(lane);
  }
  out.end().key("tracks").array();
  for (auto& [where, events] : tracks) {
    if (where.first > last_rank) continue;
    std::sort(events.begin(), events.end(), [](const TraceEvent* event, const TraceEvent* b) {
      return event->start_ns != b->start_ns ? event->start_ns < b->start_ns
                                            : event->end_ns < b->end_ns;
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
  out.end().end();
}

void put_memory(JsonWriter& out, const std::vector<MemoryPlan>& plans, size_t limit) {
  // All blocks if they fit into the limit; else each plan gets an equal share of it, and keeps the
  // blocks that matter most to the eye: the largest in bytes x lifetime.
  size_t total = 0;
  for (const MemoryPlan& plan : plans) {
    total += plan.blocks.size();
  }
  out.key("memory").array();
  for (const MemoryPlan& plan : plans) {
    std::vector<const MemoryBlock*> blocks;
    for (const MemoryBlock& memory_block : plan.blocks) {
      blocks.push_back(&memory_block);
    }
    const size_t most = total <= limit ? blocks.size() : limit / plans.size();
    if (blocks.size() > most) {
      std::stable_sort(blocks.begin(), blocks.end(),
                       [](const MemoryBlock* memory_block, const MemoryBlock* b) {
                         return static_cast<double>(memory_block->bytes) *
                                    (memory_block->end - memory_block->begin) >
                                static_cast<double>(b->bytes) * (b->end - b->begin);
                       });
      blocks.resize(most);
    }
    out.object().member("name", plan.name).member("in_tasks", plan.in_tasks);
    out.member("step", plan.planned.step_buffers)
        .member("step_measured", plan.measured.step_buffers);
    out.member("planned", plan.planned.total()).member("measured", plan.measured.total());
    out.member("dropped", plan.blocks.size() - blocks.size());
    out.key("persistent").array();
    std::vector<std::pair<std::string, int64_t>> lasting = plan.persistent;
    lasting.push_back({"inputs and outputs", plan.planned.inputs_outputs});
    lasting.push_back({"messages", plan.planned.messages});
    lasting.push_back({"evaluation", plan.planned.evaluation});
    for (const auto& [name, bytes] : lasting) {
      if (bytes > 0) {
        out.array().value(name).value(bytes).end();
      }
    }
    out.end().key("blocks").array();
    for (const MemoryBlock* memory_block : blocks) {
      out.array()
          .value(memory_block->name)
          .value(memory_block->kind)
          .value(memory_block->begin)
          .value(memory_block->end);
      out.value(memory_block->offset).value(memory_block->bytes).end();
    }
    out.end().end();
  }
  out.end();
}

void put_numbers(JsonWriter& out, const ReportData& report) {
  std::vector<double> settled;
  for (const TrainPoint& train_point : report.metrics.train) {
    if (train_point.step >= report.settled_step) {
      settled.push_back(train_point.step_s);
    }
  }
  out.key("num").object();
  for (const auto& [name, value] : std::initializer_list<std::pair<const char*, double>>{
           {"params", report.parameters},
           {"active", report.active_parameters},
           {"flops_per_step", report.flops_per_step},
           {"peak_flops", report.peak_flops},
           {"bandwidth", report.memory_bandwidth},
           {"final_bpb", report.final_bits_per_byte},
           {"predicted_step_s", report.predicted_step_s},
           {"step_median", median(settled)},
           {"step_p10", quantile(settled, .1)},
           {"step_p90", quantile(settled, .9)},
           {"kinds_step_s", report.kinds_step_s}}) {
    out.key(name).value(value);
  }
  out.member("world", report.world).member("settled", report.settled_step);
  out.member("kinds_steps", report.kinds_steps).member("peak_what", report.peak_flops_what);
  out.member("provenance", report.prediction_provenance).end();
}

}  // namespace

std::string report_json(const ReportData& report, const ReportLimits& limits) {
  // One object with everything the page draws, in the order in which it draws it. Whatever can grow
  // with the run is bounded by `limits`: curves are thinned by a stride, timelines and memory
  // blocks cut to the longest, texts shortened; the page says what was left out.
  JsonWriter out({.digits = 6});
  out.object()
      .member("title", report.title)
      .member("subtitle", report.subtitle)
      .member("date", report.date);
  out.member("command", report.command)
      .member("version", report.version)
      .member("status", report.status);
  out.member("data_name", report.data_name);
  out.key("facts").array();
  for (const FactGroup& group : report.facts) {
    out.object().member("title", group.title).key("rows").array();
    for (const auto& [name, value] : group.rows) {
      out.array().value(name).value(value).end();
    }
    out.end().end();
  }
  out.end();
  put_numbers(out, report);
  out.key("baselines").array();
  for (const Baseline& baseline : report.baselines) {
    out.object()
        .member("name", baseline.name)
        .member("bpb", baseline.bits_per_byte)
        .member("what", baseline.what);
    out.end();
  }
  out.end();

  const size_t stride = std::max<size_t>(
      1, (report.metrics.train.size() + limits.points - 1) / std::max<size_t>(1, limits.points));
  put_train(out, report.metrics.train, stride);
  out.member("thinned", stride);
  out.key("eval").object();
  const auto evals = [&](const char* name, const auto& field, int digits) {
    out.key(name).array();
    const auto& all = report.metrics.eval;
    const size_t step = std::max<size_t>(1, all.size() / std::max<size_t>(1, limits.points));
    for (size_t i = (all.empty() ? 0 : (all.size() - 1) % step); i < all.size(); i += step) {
      out.value(static_cast<double>(field(all[i])), digits);
    }
    out.end();
  };
  evals(
      "step", [](const EvalPoint& eval_point) { return eval_point.step; }, 9);
  evals(
      "time", [](const EvalPoint& eval_point) { return eval_point.time_s; }, 7);
  evals(
      "loss", [](const EvalPoint& eval_point) { return eval_point.loss; }, 6);
  evals(
      "bpb", [](const EvalPoint& eval_point) { return eval_point.bits_per_byte; }, 6);
  out.end();
  put_load(out, report.metrics.load, limits.load_values);

  out.key("families").object();
  for (const ops::Op* op : ops::all()) {
    out.member(op->name, to_string(op->family));
  }
  for (const comm::Op* op : comm::all()) {
    out.member(op->name, "communication");
  }
  out.end().key("kinds").array();
  for (const KindTime& kind_time : report.kinds) {
    out.array()
        .value(kind_time.kind)
        .value(kind_time.lane)
        .value(kind_time.calls)
        .value(kind_time.seconds)
        .value(kind_time.flops);
    out.value(kind_time.bytes).value(kind_time.predicted_seconds).end();
  }
  out.end().key("timelines").array();
  if (!report.step.events.empty()) {
    put_timeline(out, report.step, limits.events);
  }
  if (!report.predicted.events.empty()) {
    put_timeline(out, report.predicted, limits.events);
  }
  out.end();
  put_memory(out, report.memory, limits.blocks);

  out.key("samples").array();
  for (const Sample& sample : report.samples) {
    out.object().member("prompt", shortened(sample.prompt, limits.text));
    out.member("text", shortened(sample.text, limits.text)).member("how", sample.how);
    out.member("language", sample.language).end();
  }
  out.end().member("config", shortened(report.config, limits.text)).key("files").array();
  for (const ReportFile& report_file : report.files) {
    out.object()
        .member("name", report_file.name)
        .member("what", report_file.what)
        .member("bytes", report_file.bytes)
        .end();
  }
  out.end().key("next").array();
  for (const Command& c : report.next) {
    out.object().member("command", c.command).member("what", c.what).end();
  }
  out.end().key("notes").array();
  for (const std::string& note : report.notes) {
    out.value(note);
  }
  out.end().end();
  // Inside <script>, only a '<' could end the data; it occurs in strings alone.
  const std::string text = out.take();
  std::string safe;
  for (const char c : text) {
    if (c == '<') {
      safe += "\\u003c";
    } else {
      safe += c;
    }
  }
  return safe;
}

}  // namespace hocket::diagnose
