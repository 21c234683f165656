// SPDX-License-Identifier: Apache-2.0
#include "diagnose/report_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <set>
#include <tuple>

#include "base/text.h"
#include "base/utf8.h"

namespace hocket::diagnose {
namespace {

using trace::Trace;
using trace::TraceEvent;

// A growing JSON text. Commas are put by what was written last.
class Out {
 public:
  Out& open(char c) {
    comma();
    text_ += c;
    return *this;
  }
  Out& close(char c) {
    text_ += c;
    return *this;
  }
  Out& key(std::string_view name) {
    value(name);
    text_ += ':';
    return *this;
  }
  Out& value(std::string_view text) {
    comma();
    text_ += '"';
    for (size_t i = 0; i < text.size();) {
      const auto c = static_cast<unsigned char>(text[i]);
      if (c == '"' || c == '\\') {
        text_ += '\\';
        text_ += text[i++];
      } else if (c < 0x20 || c == '<' || c == 0x7F) {
        fmt::format_to(std::back_inserter(text_), "\\u{:04x}", c);
        ++i;
      } else if (c < 0x80) {
        text_ += text[i++];
      } else {
        const size_t n = c < 0xE0 ? 2 : c < 0xF0 ? 3 : 4;
        const bool whole = i + n <= text.size() && is_utf8(text.substr(i, n));
        text_ += whole ? text.substr(i, n) : std::string_view("\\ufffd");
        i += whole ? n : 1;
      }
    }
    text_ += '"';
    return *this;
  }
  Out& value(const char* text) { return value(std::string_view(text)); }
  Out& value(const std::string& text) { return value(std::string_view(text)); }
  Out& value(int64_t number) {
    comma();
    fmt::format_to(std::back_inserter(text_), "{}", number);
    return *this;
  }
  Out& value(double number, int digits = 6) {
    comma();
    if (!std::isfinite(number)) {
      text_ += "null";
    } else if (number == std::floor(number) && std::fabs(number) < 1e15) {
      fmt::format_to(std::back_inserter(text_), "{}", static_cast<int64_t>(number));
    } else {
      fmt::format_to(std::back_inserter(text_), "{:.{}g}", number, digits);
    }
    return *this;
  }
  Out& null() {
    comma();
    text_ += "null";
    return *this;
  }
  template <typename T>
  Out& member(std::string_view name, const T& x) {
    return key(name).value(x);
  }
  std::string take() { return std::move(text_); }

 private:
  void comma() {
    if (text_.empty()) return;
    const char c = text_.back();
    if (c != '{' && c != '[' && c != ':') text_ += ',';
  }
  std::string text_;
};

std::string shortened(const std::string& text, size_t limit) {
  if (text.size() <= limit) return text;
  return text.substr(0, limit) + fmt::format("\n... ({} bytes more)", text.size() - limit);
}

double median(std::vector<double> values) {
  std::erase_if(values, [](double x) { return !std::isfinite(x); });
  if (values.empty()) return kMissing;
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return (values[(n - 1) / 2] + values[n / 2]) / 2;
}

double quantile(std::vector<double> values, double q) {
  std::erase_if(values, [](double x) { return !std::isfinite(x); });
  if (values.empty()) return kMissing;
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(q * static_cast<double>(values.size() - 1) + 0.5)];
}

// Training columns; runs of `stride` steps become one point: the last step and time, the mean of
// the rest, and the median of step times, which pauses would spoil.
void put_train(Out& out, const std::vector<TrainPoint>& points, size_t stride) {
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
  out.key("train").open('{').member("n",
                                    static_cast<int64_t>((points.size() + stride - 1) / stride));
  out.key("step").open('[');
  pieces([&](size_t, size_t e) { out.value(points[e - 1].step); });
  out.close(']');
  for (const auto& [name, field] :
       {std::pair{"time", &TrainPoint::time_s}, std::pair{"tokens", &TrainPoint::tokens}}) {
    out.key(name).open('[');
    pieces([&, f = field](size_t, size_t e) { out.value(points[e - 1].*f, 7); });
    out.close(']');
  }
  for (const auto& [name, field] : fields) {
    out.key(name).open('[');
    pieces([&, n = std::string_view(name), f = field](size_t b, size_t e) {
      std::vector<double> values;
      for (size_t i = b; i < e; ++i) {
        if (std::isfinite(points[i].*f)) values.push_back(points[i].*f);
      }
      double sum = 0;
      for (const double x : values) sum += x;
      const double mean = values.empty() ? kMissing : sum / static_cast<double>(values.size());
      out.value(n == "step_s" ? median(values) : mean, 5);
    });
    out.close(']');
  }
  out.close('}');
}

void put_load(Out& out, const std::vector<LoadPoint>& all, size_t limit) {
  if (all.empty()) return void(out.key("load").null());
  const size_t layers = all.back().load.size(), experts = all.back().load[0].size();
  std::vector<const LoadPoint*> fit;  // of the model's final shape
  for (const LoadPoint& p : all) {
    if (p.load.size() == layers && p.load[0].size() == experts) fit.push_back(&p);
  }
  const size_t most = std::clamp<size_t>(limit / std::max<size_t>(1, layers * experts), 2, 60);
  std::vector<const LoadPoint*> kept;
  const size_t n = std::min(most, fit.size());
  for (size_t i = 0; i < n; ++i) {
    kept.push_back(fit[n == 1 ? fit.size() - 1 : i * (fit.size() - 1) / (n - 1)]);
  }
  out.key("load").open('{').member("layers", static_cast<int64_t>(layers));
  out.member("experts", static_cast<int64_t>(experts)).key("steps").open('[');
  for (const LoadPoint* p : kept) out.value(p->step);
  out.close(']').key("v").open('[');
  for (const LoadPoint* p : kept) {
    out.open('[');
    for (const std::vector<double>& row : p->load) {
      double sum = 0;
      for (const double x : row) sum += std::isfinite(x) ? x : 0;
      const double mean = sum / static_cast<double>(experts);
      for (const double x : row) out.value(mean > 0 ? x / mean : kMissing, 3);
    }
    out.close(']');
  }
  out.close(']').close('}');
}

// One step as tracks of (gap, duration, type, micro-batch), whole ranks first to last.
void put_timeline(Out& out, const Trace& trace, size_t limit) {
  std::map<std::pair<int32_t, uint16_t>, std::vector<const TraceEvent*>> tracks;
  std::map<int32_t, size_t> per_rank;
  for (const TraceEvent& e : trace.events) {
    tracks[{e.rank, e.lane}].push_back(&e);
    ++per_rank[e.rank];
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
    for (const TraceEvent& e : trace.events) {
      if (e.rank == last_rank) starts.push_back(e.start_ns);
    }
    std::nth_element(starts.begin(), starts.begin() + static_cast<int64_t>(limit), starts.end());
    until = starts[limit];
  }

  using Type =
      std::tuple<trace::StringId, trace::StringId, trace::StringId, int32_t, int64_t, double>;
  std::map<Type, int64_t> types;
  std::vector<Type> list;
  out.open('{').member("source", trace.source == "run" ? "run" : "simulation");
  out.member("step", static_cast<int64_t>(trace.steps.empty() ? -1 : trace.steps[0]));
  out.member("ranks", static_cast<int64_t>(per_rank.size()));
  out.member("shown", static_cast<int64_t>(shown));
  out.member("cut", static_cast<int64_t>(until != INT64_MAX));
  out.key("lanes").open('[');
  for (const std::string& lane : trace.lanes) out.value(lane);
  out.close(']').key("tracks").open('[');
  for (auto& [where, events] : tracks) {
    if (where.first > last_rank) continue;
    std::sort(events.begin(), events.end(), [](const TraceEvent* a, const TraceEvent* b) {
      return a->start_ns != b->start_ns ? a->start_ns < b->start_ns : a->end_ns < b->end_ns;
    });
    out.open('{').member("r", static_cast<int64_t>(where.first));
    out.member("l", trace.lanes[where.second]).key("e").open('[');
    int64_t now = 0;
    for (const TraceEvent* e : events) {
      if (e->start_ns >= until) break;
      const Type type{e->name ? e->name : e->kind, e->kind, e->phase, e->layer, e->bytes, e->flops};
      const auto [at, added] = types.try_emplace(type, static_cast<int64_t>(list.size()));
      if (added) list.push_back(type);
      out.value(e->start_ns - now).value(e->end_ns - e->start_ns).value(at->second);
      out.value(static_cast<int64_t>(e->micro_batch));
      now = e->end_ns;
    }
    out.close(']').close('}');
  }
  out.close(']').key("types").open('[');
  for (const auto& [name, kind, phase, layer, bytes, flops] : list) {
    out.open('[').value(trace.text(name)).value(trace.text(kind)).value(trace.text(phase));
    out.value(static_cast<int64_t>(layer)).value(bytes).value(flops).close(']');
  }
  out.close(']').close('}');
}

void put_memory(Out& out, const std::vector<MemoryPlan>& plans, size_t limit) {
  // All blocks if they fit into the limit; else each plan gets an equal share of it, and keeps the
  // blocks that matter most to the eye: the largest in bytes x lifetime.
  size_t total = 0;
  for (const MemoryPlan& plan : plans) total += plan.blocks.size();
  out.key("memory").open('[');
  for (const MemoryPlan& plan : plans) {
    std::vector<const MemoryBlock*> blocks;
    for (const MemoryBlock& b : plan.blocks) blocks.push_back(&b);
    const size_t most = total <= limit ? blocks.size() : limit / plans.size();
    if (blocks.size() > most) {
      std::stable_sort(blocks.begin(), blocks.end(),
                       [](const MemoryBlock* a, const MemoryBlock* b) {
                         return static_cast<double>(a->bytes) * (a->end - a->begin) >
                                static_cast<double>(b->bytes) * (b->end - b->begin);
                       });
      blocks.resize(most);
    }
    out.open('{').member("name", plan.name).member("in_tasks", int64_t{plan.in_tasks});
    out.member("arena", plan.arena_bytes).member("high_water", plan.high_water_bytes);
    out.member("budget", plan.budget_bytes);
    out.member("dropped", static_cast<int64_t>(plan.blocks.size() - blocks.size()));
    out.key("persistent").open('[');
    for (const auto& [name, bytes] : plan.persistent) {
      out.open('[').value(name).value(bytes).close(']');
    }
    out.close(']').key("blocks").open('[');
    for (const MemoryBlock* b : blocks) {
      out.open('[').value(b->name).value(b->kind).value(b->begin).value(b->end);
      out.value(b->offset).value(b->bytes).close(']');
    }
    out.close(']').close('}');
  }
  out.close(']');
}

void put_numbers(Out& out, const ReportData& r) {
  std::vector<double> settled;
  for (const TrainPoint& p : r.metrics.train) {
    if (p.step >= r.settled_step) settled.push_back(p.step_s);
  }
  out.key("num").open('{');
  for (const auto& [name, value] : std::initializer_list<std::pair<const char*, double>>{
           {"params", r.parameters},
           {"active", r.active_parameters},
           {"flops_per_step", r.flops_per_step},
           {"peak_flops", r.peak_flops},
           {"bandwidth", r.memory_bandwidth},
           {"final_bpb", r.final_bits_per_byte},
           {"predicted_step_s", r.predicted_step_s},
           {"step_median", median(settled)},
           {"step_p10", quantile(settled, .1)},
           {"step_p90", quantile(settled, .9)},
           {"kinds_step_s", r.kinds_step_s}}) {
    out.key(name).value(value);
  }
  out.member("world", static_cast<int64_t>(r.world)).member("settled", r.settled_step);
  out.member("kinds_steps", r.kinds_steps).member("peak_what", r.peak_flops_what);
  out.member("provenance", r.prediction_provenance).close('}');
}

}  // namespace

std::string report_json(const ReportData& r, const ReportLimits& limits) {
  // One object with everything the page draws, in the order in which it draws it. Whatever can grow
  // with the run is bounded by `limits`: curves are thinned by a stride, timelines and memory
  // blocks cut to the longest, texts shortened; the page says what was left out.
  Out out;
  out.open('{').member("title", r.title).member("subtitle", r.subtitle).member("date", r.date);
  out.member("command", r.command).member("version", r.version).member("status", r.status);
  out.member("data_name", r.data_name);
  out.key("facts").open('[');
  for (const FactGroup& group : r.facts) {
    out.open('{').member("title", group.title).key("rows").open('[');
    for (const auto& [name, value] : group.rows) {
      out.open('[').value(name).value(value).close(']');
    }
    out.close(']').close('}');
  }
  out.close(']');
  put_numbers(out, r);
  out.key("baselines").open('[');
  for (const Baseline& b : r.baselines) {
    out.open('{').member("name", b.name).member("bpb", b.bits_per_byte).member("what", b.what);
    out.close('}');
  }
  out.close(']');

  const size_t stride = std::max<size_t>(
      1, (r.metrics.train.size() + limits.points - 1) / std::max<size_t>(1, limits.points));
  put_train(out, r.metrics.train, stride);
  out.member("thinned", static_cast<int64_t>(stride));
  out.key("eval").open('{');
  const auto evals = [&](const char* name, const auto& field, int digits) {
    out.key(name).open('[');
    const auto& all = r.metrics.eval;
    const size_t step = std::max<size_t>(1, all.size() / std::max<size_t>(1, limits.points));
    for (size_t i = (all.empty() ? 0 : (all.size() - 1) % step); i < all.size(); i += step) {
      out.value(static_cast<double>(field(all[i])), digits);
    }
    out.close(']');
  };
  evals(
      "step", [](const EvalPoint& p) { return p.step; }, 9);
  evals(
      "time", [](const EvalPoint& p) { return p.time_s; }, 7);
  evals(
      "loss", [](const EvalPoint& p) { return p.loss; }, 6);
  evals(
      "bpb", [](const EvalPoint& p) { return p.bits_per_byte; }, 6);
  out.close('}');
  put_load(out, r.metrics.load, limits.load_values);

  out.key("kinds").open('[');
  for (const KindTime& k : r.kinds) {
    out.open('[').value(k.kind).value(k.lane).value(k.calls).value(k.seconds).value(k.flops);
    out.value(k.bytes).value(k.predicted_seconds).close(']');
  }
  out.close(']').key("timelines").open('[');
  if (!r.step.events.empty()) put_timeline(out, r.step, limits.events);
  if (!r.predicted.events.empty()) put_timeline(out, r.predicted, limits.events);
  out.close(']');
  put_memory(out, r.memory, limits.blocks);

  out.key("samples").open('[');
  for (const Sample& s : r.samples) {
    out.open('{').member("prompt", shortened(s.prompt, limits.text));
    out.member("text", shortened(s.text, limits.text)).member("how", s.how).close('}');
  }
  out.close(']').member("config", shortened(r.config, limits.text)).key("files").open('[');
  for (const ReportFile& f : r.files) {
    out.open('{').member("name", f.name).member("what", f.what).member("bytes", f.bytes).close('}');
  }
  out.close(']').key("next").open('[');
  for (const Command& c : r.next) {
    out.open('{').member("command", c.command).member("what", c.what).close('}');
  }
  out.close(']').key("notes").open('[');
  for (const std::string& note : r.notes) out.value(note);
  out.close(']').close('}');
  return out.take();
}

}  // namespace hocket::diagnose
