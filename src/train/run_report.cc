// SPDX-License-Identifier: Apache-2.0
#include "train/run_report.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/text.h"
#include "data/baselines.h"
#include "diagnose/report_fill.h"
#include "trace/trace_builder.h"
#include "train/sample.h"

namespace hocket::train {

namespace {

constexpr size_t kKeptSteps = 7;
constexpr int64_t kSettled = 20;  // steps before this one warm caches, pages and clocks

trace::Trace to_trace(const engine::Session& session, const std::string& title, int64_t step,
                        const std::vector<std::vector<runtime::TaskTime>>& times) {
  trace::TraceBuilder builder(session.program(), title, "run");
  int64_t origin = INT64_MAX;
  for (const auto& rank : times)
    for (const auto& t : rank)
      if (t.end_ns > 0) origin = std::min(origin, t.start_ns);
  for (size_t r = 0; r < times.size(); ++r) {
    std::vector<int64_t> start, end;
    for (const auto& t : times[r]) {
      start.push_back(t.start_ns);
      end.push_back(t.end_ns);
    }
    builder.add_step(static_cast<int32_t>(r), static_cast<int32_t>(step), start, end, -origin);
  }
  return builder.take();
}

/// The baselines of a dataset, from the easiest to the hardest; none, with a warning, if they can't
/// be computed.
std::vector<diagnose::Baseline> baselines_of(const data::Dataset& dataset) {
  data::Baselines found;
  try {
    Progress progress;
    found = data::kept_baselines(dataset, {}, [&](const std::string& what) {
      progress.update("baselines, once: " + what);
    });
  } catch (const Error& e) {
    log_warning("the report will have no baselines: {}", e.what());
    return {};
  }
  std::vector<diagnose::Baseline> list;
  if (found.xz_each)
    list.push_back({"xz -9e", *found.xz_each, "each held-out file compressed alone"});
  if (found.xz_one_piece)
    list.push_back({"xz -9e, one piece", *found.xz_one_piece,
                    "all held-out files compressed as one text, so that each is described by those "
                    "before it"});
  if (found.trigram)
    list.push_back(
        {"Witten-Bell trigram", *found.trigram, "over the same tokens and training files"});
  std::sort(list.begin(), list.end(), [](const auto& a, const auto& b) {
    return a.bits_per_byte > b.bits_per_byte;
  });
  return list;
}

}  // namespace

double RunReport::peak_gib(engine::Session& session) const {
  int64_t most = 0;
  for (int32_t r = 0; r < session.run().size(); ++r)
    most = std::max(most, session.run().rank(r).arena_resident_bytes() +
                              session.stores()[static_cast<size_t>(r)].bytes());
  return static_cast<double>(most) / static_cast<double>(1LL << 30);
}

void RunReport::begin(const data::Dataset& dataset, const std::string& command) {
  if (dataset.valid()) baselines_ = baselines_of(dataset);
  command_ = command;
  started_ = fmt::format("{:%Y-%m-%d %H:%M}", fmt::localtime(std::time(nullptr)));
}

void RunReport::after_step(engine::Session& session, int64_t step) {
  if (steps_seen_++ == 0) first_step_ = step;
  // Early steps are replaced by settled ones.
  if (kept_.size() == kKeptSteps) {
    if (kept_.front().step - first_step_ >= kSettled) return;
    kept_.erase(kept_.begin());
  }
  Kept kept{step, {}};
  for (int32_t r = 0; r < session.run().size(); ++r)
    kept.times.push_back(session.run().rank(r).times());
  kept_.push_back(std::move(kept));
}

void RunReport::finish(const engine::Run& run, engine::Session& session, const data::Dataset& dataset,
                       const Prediction& prediction, int64_t steps_done) {
  const std::string& dir = run.config.output.dir;
  diagnose::ReportData report;
  report.title = fmt::format("{}: {:.1f} M parameters learn {}", run.model.family,
                             static_cast<double>(prediction.params) / 1e6, run.config.data.name);
  report.data_name = "held-out " + run.config.data.name;
  report.subtitle = fmt::format("{} · {:.1f} M parameters · {}", run.model.family,
                                static_cast<double>(prediction.params) / 1e6, describe(run));
  report.date = started_;
  report.command = command_;
  report.version = HOCKET_VERSION;
  report.status = fmt::format("finished, {} steps", steps_done);
  const auto& m = run.model;
  report.facts = {
      {"Model",
       {{"family", m.family},
        {"parameters", fmt::format("{:.2f} M, {:.2f} M active",
                                   static_cast<double>(prediction.params) / 1e6,
                                   static_cast<double>(prediction.active_params) / 1e6)},
        {"layers", std::to_string(m.num_layers)},
        {"width", std::to_string(m.hidden_size)},
        {"heads", fmt::format("{} over {} of {}", m.num_heads, m.num_kv_heads, m.head_dim)},
        {"vocabulary", std::to_string(m.vocab_size)}}},
      {"Plan", {{"mesh", describe(run)}, {"check", prediction.check_summary}}},
      {"Data",
       {{"training", fmt::format("{} files, {:.2f} M tokens", dataset.train_stats().files,
                                 static_cast<double>(dataset.train_stats().tokens) / 1e6)},
        {"held out", fmt::format("{} files, {:.2f} M tokens", dataset.valid_stats().files,
                                 static_cast<double>(dataset.valid_stats().tokens) / 1e6)}}}};
  if (m.num_experts > 0)
    report.facts[0].rows.push_back(
        {"experts", fmt::format("{}, {} per token", m.num_experts, m.top_k)});
  diagnose::FactGroup machine{"Machine", {}};
  for (const auto& [key, value] : engine::machine_facts()) machine.rows.push_back({key, value});
  report.facts.push_back(std::move(machine));
  report.parameters = static_cast<double>(prediction.params);
  report.active_parameters = static_cast<double>(prediction.active_params);
  report.flops_per_step = prediction.model_flops;
  report.world = static_cast<int32_t>(run.plan.world());
  if (prediction.peak_flops > 0) report.peak_flops = prediction.peak_flops;
  report.peak_flops_what = "fastest matrix product, timed alone";
  if (prediction.memory_bandwidth > 0) report.memory_bandwidth = prediction.memory_bandwidth;
  if (final_bits_per_byte > 0) report.final_bits_per_byte = final_bits_per_byte;
  report.prediction_provenance = prediction.provenance;
  report.predicted_step_s = prediction.step_s;
  report.settled_step = first_step_ + kSettled;
  report.baselines = baselines_;
  report.metrics = diagnose::load_metrics(dir + "/metrics.jsonl");
  report.config = run.resolved.to_yaml();

  trace::Trace trace;
  if (!kept_.empty()) {
    // Of the settled steps, the one of median duration.
    std::vector<std::pair<int64_t, size_t>> by_time;
    for (size_t i = 0; i < kept_.size(); ++i) {
      int64_t first = INT64_MAX, last = 0;
      for (const auto& rank : kept_[i].times)
        for (const auto& t : rank) first = std::min(first, t.start_ns), last = std::max(last, t.end_ns);
      by_time.push_back({last - first, i});
    }
    std::sort(by_time.begin(), by_time.end());
    const Kept& median = kept_[by_time[by_time.size() / 2].second];
    trace = to_trace(session, report.title, median.step, median.times);
    trace.set_property("program_hash", prediction.certificate.program.hex());
    trace.set_property("reference_hash", prediction.certificate.reference.hex());
    trace.set_property("mesh_hash", prediction.certificate.mesh.hex());
    trace.set_property("config", run.resolved.to_json().dump());
    diagnose::fill_measured(report, trace);
    std::vector<int32_t> ranks_of_event;
    if (run.plan.dp > 1)
      ranks_of_event.assign(prediction.trace.events.size(), static_cast<int32_t>(run.plan.dp));
    diagnose::fill_predicted(report, prediction.trace, ranks_of_event);
    for (int32_t c = 0; c < static_cast<int32_t>(session.program().classes.size()); ++c)
      report.memory.push_back(diagnose::memory_plan_of(session.program(), c, &trace));
    for (int32_t r = session.run().size(); r-- > 0;)
      report.memory[static_cast<size_t>(session.program().class_of(r))].high_water_bytes =
          session.run().rank(r).arena_resident_bytes();
  }
  if (run.config.output.trace) {
    if (!kept_.empty()) trace::write_trace(trace, dir + "/trace.json.gz");
    trace::write_trace(prediction.trace, dir + "/predicted.json.gz");
  }
  diagnose::Sample sample = sample_text(run, session, dataset);
  fmt::print("\nsample ({}):\n{}{}\n\n", sample.how, sample.prompt, sample.text);
  report.samples.push_back(std::move(sample));
  std::error_code ignored;
  for (const auto& [name, what] : std::vector<std::pair<std::string, std::string>>{
           {"metrics.jsonl", "one line per step and validation"},
           {"trace.json.gz", "a measured step; opens in Perfetto (ui.perfetto.dev)"},
           {"predicted.json.gz", "the simulator's step, same schema"},
           {"profile.json", "tasks timed in isolation"},
           {"checkpoints", "opens with Hugging Face transformers"}}) {
    const std::string path = dir + "/" + name;
    if (!std::filesystem::exists(path)) continue;
    auto size = std::filesystem::is_regular_file(path, ignored)
                    ? std::filesystem::file_size(path, ignored) : 0;
    report.files.push_back({name, what, static_cast<int64_t>(size)});
  }
  // With the overrides of `hocket train RUN --set ...`.
  const std::string train = "hocket train ";
  const std::string graph_words =
      command_.starts_with(train) ? command_.substr(train.size()) : run.name;
  report.next = {{"hocket generate " + dir + " --prompt '...'", "text from this model"},
                 {"hocket eval " + dir + " --data " + dataset.folder(), "held-out bits per byte"},
                 {"hocket graph " + graph_words + " --stage program", "the program that ran"}};
  if (run.config.output.report) {
    diagnose::write_report_html(report, dir + "/report.html");
    fmt::print("report   {}/report.html\n", dir);
  }
  for (const auto& b : report.baselines)
    fmt::print("{:<22} {:.4f} bits/byte ({})\n", b.name, b.bits_per_byte, b.what);
  if (final_bits_per_byte > 0)
    fmt::print("{:<22} {:.4f} bits/byte on the same held-out files\n", "this model",
               final_bits_per_byte);
  std::vector<double> settled;
  for (const auto& p : report.metrics.train)
    if (p.step >= report.settled_step) settled.push_back(p.step_s);
  if (!settled.empty()) {
    std::sort(settled.begin(), settled.end());
    const double median = settled[settled.size() / 2];
    fmt::print("step time              {} median, {} predicted before the first step ({:+.1f} %)\n",
               human_time(median), human_time(prediction.step_s),
               100 * (prediction.step_s / median - 1));
  }
  const auto& classes = session.program().classes;
  for (size_t c = 0; c < classes.size(); ++c) {
    int64_t touched = 0;
    for (int32_t r : session.program().ranks_of(static_cast<int32_t>(c)))
      touched = std::max(touched, session.run().rank(r).arena_resident_bytes());
    const int64_t expected = classes[c].expected_bytes;
    fmt::print("{:<22} {} touched, {} planned\n",
               classes.size() == 1 ? "arena" : "arena of " + classes[c].name,
               human_bytes(static_cast<double>(touched)),
               human_bytes(static_cast<double>(expected > 0 ? expected : classes[c].arena_bytes)));
  }
}

}  // namespace hocket::train
