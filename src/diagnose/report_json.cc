// SPDX-License-Identifier: Apache-2.0
#include "diagnose/report_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <set>
#include <utility>

#include "base/json_writer.h"
#include "base/stats.h"
#include "collectives/comm_op.h"
#include "diagnose/html_page.h"
#include "diagnose/timeline_json.h"
#include "ops/op.h"

namespace hocket::diagnose {
namespace {

std::string shortened(const std::string& text, size_t limit) {
  if (text.size() <= limit) return text;
  return text.substr(0, limit) + fmt::format("\n... ({} bytes more)", text.size() - limit);
}

// Writes the training columns. Runs of `stride` steps become one point: the last step and time, the
// mean of other values, and the median of step times, which pauses would distort.
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
  std::vector<const LoadPoint*> fit;  // points of the model's final shape
  for (const LoadPoint& point : all) {
    if (point.load.size() == layers && point.load[0].size() == experts) {
      fit.push_back(&point);
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
  for (const LoadPoint* point : kept) {
    out.value(point->step);
  }
  out.end().key("v").array();
  for (const LoadPoint* point : kept) {
    out.array();
    for (const std::vector<double>& row : point->load) {
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

void put_memory(JsonWriter& out, const std::vector<MemoryPlan>& plans, size_t limit) {
  // All blocks are kept if they fit into the limit. Otherwise each plan gets an equal share and
  // keeps the blocks that are largest on the page, by bytes x lifetime.
  size_t total = 0;
  for (const MemoryPlan& plan : plans) {
    total += plan.blocks.size();
  }
  out.key("memory").array();
  for (const MemoryPlan& plan : plans) {
    std::vector<const MemoryBlock*> blocks;
    for (const MemoryBlock& block : plan.blocks) {
      blocks.push_back(&block);
    }
    const size_t most = total <= limit ? blocks.size() : limit / plans.size();
    if (blocks.size() > most) {
      std::stable_sort(blocks.begin(), blocks.end(),
                       [](const MemoryBlock* a, const MemoryBlock* b) {
                         return static_cast<double>(a->bytes) * (a->end - a->begin) >
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
    for (const MemoryBlock* block : blocks) {
      out.array().value(block->name).value(block->category).value(block->begin).value(block->end);
      out.value(block->offset).value(block->bytes).end();
    }
    out.end().end();
  }
  out.end();
}

/// Writes the numbers that the page computes with. NaN, which JSON lacks, becomes null: unknown.
void put_numbers(JsonWriter& out, const ReportData& report) {
  const StepsThatCount steps =
      steps_that_count(report.metrics, report.first_step, report.settled_step);
  out.key("num").object();
  for (const auto& [name, value] : std::initializer_list<std::pair<const char*, double>>{
           {"params", report.parameters},
           {"active", report.active_parameters},
           {"flops_per_step", report.flops_per_step},
           {"peak_flops", report.peak_flops},
           {"bandwidth", report.memory_bandwidth},
           {"final_bpb", report.final_bits_per_byte},
           {"predicted_step_s", report.predicted_step_s},
           {"dollars_per_m_tokens", report.dollars_per_m_tokens},
           {"speed_ratio", report.speed_ratio},
           {"speed_moved", report.speed_moved},
           {"step_median", median(steps.seconds)},
           {"step_p10", quantile(steps.seconds, .1)},
           {"step_p90", quantile(steps.seconds, .9)},
           {"kinds_step_s", report.kinds_step_s}}) {
    out.key(name).value(value);
  }
  out.member("world", report.world).member("settled", report.settled_step);
  out.member("speed_settled", steps.settled).member("steps_counted", steps.seconds.size());
  out.member("tokens_per_step", report.tokens_per_step);
  out.member("kinds_steps", report.kinds_steps).member("peak_what", report.peak_flops_what);
  out.member("provenance", report.prediction_provenance).end();
}

void put_ranks(JsonWriter& out, const std::vector<RankShare>& ranks, size_t limit) {
  out.key("ranks").array();
  for (size_t i = 0; i < std::min(ranks.size(), limit); ++i) {
    const RankShare& rank = ranks[i];
    out.array().value(rank.name).value(rank.compute).value(rank.exposed);
    out.value(rank.bubble).value(rank.idle).end();
  }
  out.end().member("ranks_left_out", ranks.size() - std::min(ranks.size(), limit));
}

void put_facts(JsonWriter& out, const std::vector<FactGroup>& facts) {
  out.key("facts").array();
  for (const FactGroup& group : facts) {
    out.object().member("title", group.title).key("rows").array();
    for (const auto& [name, value] : group.rows) {
      out.array().value(name).value(value).end();
    }
    out.end().end();
  }
  out.end();
}

void put_baselines(JsonWriter& out, const std::vector<Baseline>& baselines) {
  out.key("baselines").array();
  for (const Baseline& baseline : baselines) {
    out.object().member("name", baseline.name).member("bpb", baseline.bits_per_byte);
    out.member("what", baseline.what).end();
  }
  out.end();
}

// Writes at most `limit` evaluations or so: every second, third, ..., with the last one included.
void put_evals(JsonWriter& out, const std::vector<EvalPoint>& all, size_t limit) {
  const size_t stride = std::max<size_t>(1, all.size() / std::max<size_t>(1, limit));
  const auto column = [&](const char* name, const auto& field, int digits) {
    out.key(name).array();
    for (size_t i = all.empty() ? 0 : (all.size() - 1) % stride; i < all.size(); i += stride) {
      out.value(static_cast<double>(all[i].*field), digits);
    }
    out.end();
  };
  out.key("eval").object();
  column("step", &EvalPoint::step, 9);
  column("time", &EvalPoint::time_s, 7);
  column("loss", &EvalPoint::loss, 6);
  column("bpb", &EvalPoint::bits_per_byte, 6);
  std::set<std::string> names;
  for (const EvalPoint& point : all) {
    for (const auto& [name, set] : point.sets) {
      names.insert(name);
    }
  }
  out.key("sets").array();
  for (const std::string& name : names) {
    out.object().member("name", name);
    for (const auto& [key, field] : {std::pair{"loss", &EvalPoint::Set::loss},
                                     std::pair{"bpb", &EvalPoint::Set::bits_per_byte}}) {
      out.key(key).array();
      for (size_t i = (all.size() - 1) % stride; i < all.size(); i += stride) {
        const auto found = all[i].sets.find(name);
        out.value(found == all[i].sets.end() ? kMissing : found->second.*field, 6);
      }
      out.end();
    }
    out.end();
  }
  out.end().end();
}

// Writes the colour family of every op, and the table of time by kind of task.
void put_kinds(JsonWriter& out, const std::vector<KindTime>& kinds) {
  out.key("families").object();
  for (const ops::Op* op : ops::all()) {
    out.member(op->name, to_string(op->family));
  }
  for (const comm::Op* op : comm::all()) {
    out.member(op->name, "communication");
  }
  out.end().key("kinds").array();
  for (const KindTime& kind : kinds) {
    out.array().value(kind.kind).value(kind.lane).value(kind.calls).value(kind.seconds);
    out.value(kind.flops).value(kind.bytes).value(kind.predicted_seconds).value(kind.waiting).end();
  }
  out.end();
}

/// Writes sequences of the training data, and how long all are. Texts share the limit.
void put_data(JsonWriter& out, const ReportData& report, size_t limit) {
  const size_t each = limit / std::max<size_t>(1, report.examples.size());
  out.key("examples").array();
  for (const DataExample& example : report.examples) {
    out.object().member("place", example.place).member("tokens", example.tokens);
    out.member("trained", example.trained).key("parts").array();
    size_t left = each;
    for (const auto& [trained, text] : example.parts) {
      if (left == 0) break;
      out.array().value(trained ? 1 : 0).value(shortened(text, left)).end();
      left -= std::min(left, text.size());
    }
    out.end().end();
  }
  out.end().member("lengths_text", report.lengths_text).key("lengths").array();
  for (const LengthCount& bucket : report.lengths) {
    out.array().value(bucket.most).value(bucket.count).end();
  }
  out.end();
}

// Writes texts and lists of texts: samples, configuration, files, next commands.
void put_texts(JsonWriter& out, const ReportData& report, size_t limit) {
  out.key("samples").array();
  for (const Sample& sample : report.samples) {
    out.object().member("prompt", shortened(sample.prompt, limit));
    out.member("text", shortened(sample.text, limit)).member("how", sample.sampling);
    out.member("language", sample.language).member("when", sample.when).end();
  }
  out.end();
  put_data(out, report, limit);
  out.member("config", shortened(report.config, limit)).key("files").array();
  for (const ReportFile& file : report.files) {
    out.object().member("name", file.name).member("what", file.what);
    out.member("bytes", file.bytes).end();
  }
  out.end().key("next").array();
  for (const Command& command : report.next) {
    out.object().member("command", command.command).member("what", command.what).end();
  }
  out.end().member("notes", report.notes);
}

}  // namespace

std::string report_json(const ReportData& report, const ReportLimits& limits) {
  // One object with all data of the page, in the order in which it is drawn. Everything that grows
  // with the run is bounded by `limits`: curves are thinned by a stride, timelines and memory
  // blocks cut to the longest, texts shortened. The page lists the omissions.
  JsonWriter out({.digits = 6});
  out.object().member("title", report.title).member("subtitle", report.subtitle);
  out.member("date", report.date).member("command", report.command);
  out.member("version", report.version).member("status", report.status);
  out.member("data_name", report.data_name);
  out.member("simulated", report.simulated);
  put_ranks(out, report.ranks, limits.ranks);
  put_facts(out, report.facts);
  put_numbers(out, report);
  put_baselines(out, report.baselines);
  const size_t stride = std::max<size_t>(
      1, (report.metrics.train.size() + limits.points - 1) / std::max<size_t>(1, limits.points));
  put_train(out, report.metrics.train, stride);
  out.member("thinned", stride);
  put_evals(out, report.metrics.eval, limits.points);
  put_load(out, report.metrics.load, limits.load_values);
  put_kinds(out, report.kinds);
  put_timelines(out, report, limits);
  put_memory(out, report.memory, limits.blocks);
  put_texts(out, report, limits.text);
  return safe_in_script(out.end().take());
}

}  // namespace hocket::diagnose
