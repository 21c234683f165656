// SPDX-License-Identifier: Apache-2.0
#include "train/run_report.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <filesystem>
#include <set>
#include <sstream>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/stats.h"
#include "base/text.h"
#include "data/baselines.h"
#include "diagnose/report_fill.h"
#include "engine/emulate.h"
#include "train/report_data.h"
#include "train/sample.h"

namespace hocket::train {

namespace {

constexpr size_t kKeptSteps = 7;  // steps with traces; the median one is shown
constexpr double kNamedSpeedChange =
    0.1;  // relative change of a machine's speed above which it is named
constexpr int64_t kSettledAfter = 20;  // steps before that warm caches, pages and clocks

/// The baselines that output.baselines asks for, from the easiest to the hardest; none, with a
/// warning, if they can't be computed.
std::vector<diagnose::Baseline> baselines_of(const engine::OutputSection& output,
                                             const data::Dataset& dataset) {
  const std::string& wanted = output.baselines;
  const bool all = wanted == "all" || (wanted == "auto" && output.report);
  if (dataset.valid() == nullptr || (!all && wanted != "trigram")) return {};
  data::Baselines found;
  try {
    Progress progress;
    found = data::kept_baselines(dataset, {.xz = all}, [&](const std::string& what) {
      progress.update("baselines, once: " + what);
    });
  } catch (const Error& error) {
    log_warning("the report will have no baselines: {}", error.what());
    return {};
  }
  std::vector<diagnose::Baseline> list;
  if (found.xz_each) {
    list.push_back({"xz -9e", *found.xz_each, "each held-out file compressed alone"});
  }
  if (found.xz_one_piece) {
    list.push_back({"xz -9e, one piece", *found.xz_one_piece,
                    "all held-out files compressed as one text, so that each is described by those "
                    "before it"});
  }
  if (found.trigram) {
    list.push_back(
        {"Witten-Bell trigram", *found.trigram, "over the same tokens and training files"});
  }
  std::sort(list.begin(), list.end(),
            [](const auto& a, const auto& b) { return a.bits_per_byte > b.bits_per_byte; });
  return list;
}

/// Returns "c++" if most files with telling suffixes are C or C++. Standard headers have no suffix,
/// so those do not count.
std::string language_of(const data::Dataset& dataset) {
  const std::set<std::string> suffixes = {"c", "cc", "cpp", "cxx", "cu",
                                          "h", "hh", "hpp", "hxx", "tcc"};
  int64_t cpp = 0, other = 0;
  for (const data::Corpus::File& file : dataset.files()) {
    const std::string name = file_name(file.path);
    const size_t dot = name.find_last_of('.');
    if (dot == name.npos || dot == 0) continue;
    ++(suffixes.contains(name.substr(dot + 1)) ? cpp : other);
  }
  return cpp > other ? "c++" : "";
}

std::string millions(double count) { return fmt::format("{:.2f} M", count / 1e6); }

}  // namespace

void RunReport::begin(const std::string& command, const std::string& began_with) {
  if (data_.texts()) {
    baselines_ = baselines_of(run_.config.output, *data_.texts());
  }
  command_ = command;
  began_with_ = began_with;
  started_ = fmt::format("{:%Y-%m-%d %H:%M}", fmt::localtime(std::time(nullptr)));
}

void RunReport::after_step(const engine::Session& session, int64_t step) {
  if (steps_seen_++ == 0) {
    first_step_ = step;
  }
  // Early steps are replaced by settled ones.
  if (kept_.size() == kKeptSteps) {
    if (kept_.front().step - first_step_ >= kSettledAfter) return;
    kept_.erase(kept_.begin());
  }
  kept_.push_back(times_of(session, step));
}

void RunReport::finish(engine::Programs& programs, int64_t steps_done) {
  gather_all(programs);
  if (programs.ranks().processes().index() != 0) {
    draw_sample(programs, "");
    return;
  }
  write(programs, fmt::format("finished, {}", counted(steps_done, "step")), true);
}

void RunReport::finish_stopped(engine::Programs& programs, int64_t steps_done, int64_t steps) {
  if (steps_done == 0) return;  // nothing happened that could be shown
  gather_all(programs);
  if (programs.ranks().processes().index() != 0) return;
  write(programs, fmt::format("stopped after step {} of {}", steps_done, steps), false);
}

void RunReport::finish_failed(engine::Programs& programs, int64_t steps_done, const Error& error) {
  comm::Processes& processes = programs.ranks().processes();
  if (processes.index() != 0) return;
  try {
    if (processes.size() == 1) {
      gather_all(programs);
    } else {
      kept_.clear();
      measured_.assign(programs.compiled().program.classes.size(), {});
    }
    write(programs, fmt::format("failed after step {}: {}", steps_done, error.what()), false);
  } catch (const Error& other) {
    log_debug("no report of the run that failed: {}", other.what());
  }
}

void RunReport::gather_all(engine::Programs& programs) {
  gather_memory(programs.compiled().program, programs.ranks());
  gather(programs.ranks().processes(), &kept_);
}

/// Writes the page: the run, its step, its results.
void RunReport::write(engine::Programs& programs, const std::string& status, bool draws_sample) {
  const program::Program& program = programs.compiled().program;
  const std::string& dir = run_.config.output.dir;
  diagnose::ReportData report = describe_run(status);
  trace::Trace measured;
  if (!kept_.empty()) {
    measured = median_step(program, report.title);
    fill_step(report, program, measured);
  }
  if (run_.config.output.trace) {
    write_traces(measured);
  }
  if (std::optional<diagnose::Sample> first = kept_sample(dir, sample_prompt(run_, data_))) {
    report.samples.push_back(std::move(*first));
  }
  if (draws_sample) {
    if (std::optional<diagnose::Sample> sample = draw_sample(programs, "")) {
      report.samples.push_back(std::move(*sample));
    }
  }
  describe_data(data_, run_.config.train.seq_len, &report);
  report.files = list_files();
  report.next = next_commands();
  if (run_.config.output.report) {
    diagnose::write_report_html(report, dir + "/report.html");
    fmt::print("report   {}/report.html\n", dir);
  }
  print_summary(report, program);
}

/// Draws and prints it, all processes together; nothing where none is wanted, or can be had.
std::optional<diagnose::Sample> RunReport::draw_sample(engine::Programs& programs,
                                                       const std::string& when) const {
  if (!prediction_.no_sample.empty()) return std::nullopt;
  diagnose::Sample sample = sample_text(run_, programs, data_);
  sample.language = data_.texts() ? language_of(*data_.texts()) : "";
  sample.when = when;
  fmt::print("\nsample{}{} ({}):\n{}{}\n\n", when.empty() ? "" : " ", when, sample.sampling,
             printable(sample.prompt), printable(sample.text));
  return sample;
}

void RunReport::draw_first(engine::Programs& first) {
  const std::optional<diagnose::Sample> sample = draw_sample(first, "before training");
  if (sample && first.ranks().processes().index() == 0) {
    keep_sample(run_.config.output.dir, *sample);
  }
}

/// Gathers the memory of all ranks, the largest per class.
void RunReport::gather_memory(const program::Program& program, const runtime::LocalRanks& ranks) {
  measured_.assign(program.classes.size(), {});
  std::string mine;
  for (int32_t rank : ranks.ids()) {
    const program::Memory memory = ranks.measured(rank);
    mine += fmt::format("{} {} {} {} {} {} {}\n", rank, memory.persistent, memory.inputs_outputs,
                        memory.step_buffers, memory.messages, memory.evaluation, memory.host);
  }
  for (const std::string& text : ranks.processes().all_gather(mine)) {
    std::istringstream in(text);
    program::Memory memory;
    for (int32_t rank = 0; in >> rank >> memory.persistent >> memory.inputs_outputs >>
                           memory.step_buffers >> memory.messages >> memory.evaluation >>
                           memory.host;) {
      program::Memory& most = measured_[program.class_of(rank)];
      if (memory.total() > most.total()) {
        most = memory;
      }
    }
  }
}

/// Everything that does not come from a traced step.
diagnose::ReportData RunReport::describe_run(const std::string& status) const {
  const models::ModelConfig& config = run_.model;
  const auto params = static_cast<double>(prediction_.params);
  const auto active = static_cast<double>(prediction_.active_params);
  diagnose::ReportData report;
  report.title = fmt::format("{}: {:.1f} M parameters learn {}", config.family, params / 1e6,
                             run_.config.data.name);
  report.subtitle =
      fmt::format("{} · {:.1f} M parameters · {}", config.family, params / 1e6, describe(run_));
  report.date = started_;
  report.command = command_;
  report.version = HOCKET_VERSION;
  report.status = status;

  diagnose::FactGroup model{
      "Model",
      {{"family", config.family},
       {"parameters", fmt::format("{}, {} active", millions(params), millions(active))},
       {"layers", std::to_string(config.num_layers)},
       {"width", std::to_string(config.hidden_size)},
       {"heads",
        fmt::format("{} over {} of {}", config.num_heads, config.num_kv_heads, config.head_dim)},
       {"vocabulary", std::to_string(config.vocab_size)}}};
  if (config.num_experts > 0) {
    model.rows.push_back(
        {"experts", fmt::format("{}, {} per token", config.num_experts, config.top_k)});
  }
  if (!began_with_.empty()) {
    model.rows.push_back({"weights at first", began_with_});
  }
  diagnose::FactGroup machine{"Machine", {}};
  for (const auto& [key, value] : engine::machine_facts()) {
    machine.rows.push_back({key, value});
  }
  report.facts = {
      std::move(model),
      {"Plan", {{"mesh", describe(run_)}, {"check", prediction_.check_summary}}},
      {"Data", {{"training", data_.training_text()}, {"held out", data_.held_out_text()}}},
      std::move(machine)};

  report.data_name = "held-out " + run_.config.data.name;
  report.parameters = params;
  report.active_parameters = active;
  report.flops_per_step = prediction_.model_flops;
  report.world = static_cast<int32_t>(run_.plan.world());
  if (prediction_.peak_flops > 0) {
    report.peak_flops = prediction_.peak_flops;
  }
  report.peak_flops_what = "fastest matrix product, timed alone";
  if (prediction_.memory_bandwidth > 0) {
    report.memory_bandwidth = prediction_.memory_bandwidth;
  }
  if (final_ && final_->bytes > 0) {
    report.final_bits_per_byte = final_->bits_per_byte();
    if (!final_->complete()) {
      report.notes.push_back("The evaluation at the end read " + final_->read_text() +
                             "; the baselines are of all held-out files.");
    }
  }
  if (run_.config.emulate.on()) {
    report.notes.push_back("The device is " + engine::emulation_text(run_) + ".");
  }
  report.baselines = baselines_;
  report.prediction_provenance = prediction_.provenance;
  report.predicted_step_s = prediction_.step_s;
  report.first_step = first_step_;
  report.settled_step = first_step_ + kSettledAfter;
  report.metrics = diagnose::load_metrics(run_.config.output.dir + "/metrics.jsonl");
  const diagnose::StepsThatCount steps =
      diagnose::steps_that_count(report.metrics, report.first_step, report.settled_step);
  const diagnose::MachineSpeed speed = diagnose::speed_of(report.metrics, steps.from_step);
  report.speed_moved = speed.moved;
  if (prediction_.probe_flops > 0) {
    report.speed_ratio = speed.gflops * 1e9 / prediction_.probe_flops;
  }
  report.config = run_.resolved.to_yaml();
  return report;
}

/// Returns the kept step of median duration.
trace::Trace RunReport::median_step(const program::Program& program,
                                    const std::string& title) const {
  std::vector<const StepTimes*> by_time;
  for (const StepTimes& kept : kept_) {
    by_time.push_back(&kept);
  }
  std::stable_sort(by_time.begin(), by_time.end(), [](const StepTimes* a, const StepTimes* b) {
    return a->duration_ns() < b->duration_ns();
  });
  trace::Trace trace = to_trace(program, title, {by_time[by_time.size() / 2], 1});
  trace.set_property("program_hash", prediction_.certificate.program.hex());
  trace.set_property("reference_hash", prediction_.certificate.reference.hex());
  trace.set_property("mesh_hash", prediction_.certificate.mesh.hex());
  trace.set_property("config", run_.resolved.to_json_text());
  if (run_.config.emulate.on()) {
    trace.set_property("device", engine::emulation_text(run_));
  }
  return trace;
}

void RunReport::fill_step(diagnose::ReportData& report, const program::Program& program,
                          const trace::Trace& measured) const {
  diagnose::fill_measured(report, measured);
  // The simulator replays one rank of each class, which stands for all with its stages.
  std::vector<int32_t> ranks_of_event;
  if (const int64_t alike = run_.plan.world() / run_.plan.pp; alike > 1) {
    ranks_of_event.assign(prediction_.trace.events.size(), static_cast<int32_t>(alike));
  }
  diagnose::fill_predicted(report, prediction_.trace, ranks_of_event);
  for (size_t cls = 0; cls < program.classes.size(); ++cls) {
    report.memory.push_back(diagnose::memory_plan_of(program, cls, &measured));
    report.memory[cls].planned = prediction_.memory[cls];
    report.memory[cls].measured = measured_[cls];
  }
}

void RunReport::write_traces(const trace::Trace& measured) const {
  const std::string& dir = run_.config.output.dir;
  if (!measured.events.empty()) {
    trace::write_trace(measured, dir + "/trace.json.gz");
  }
  trace::write_trace(prediction_.trace, dir + "/predicted.json.gz");
}

std::vector<diagnose::ReportFile> RunReport::list_files() const {
  std::vector<diagnose::ReportFile> files;
  for (const auto& [name, what] : std::vector<std::pair<std::string, std::string>>{
           {"metrics.jsonl", "one line per step and validation"},
           {"trace.json.gz", "a measured step; opens in Perfetto (ui.perfetto.dev)"},
           {"predicted.json.gz", "the simulator's step, same schema"},
           {"profile.json", "tasks timed in isolation"},
           {"checkpoints", "opens with Hugging Face transformers"}}) {
    const std::string path = run_.config.output.dir + "/" + name;
    if (!file_exists(path)) continue;
    files.push_back({name, what, is_directory(path) ? 0 : file_size(path)});
  }
  return files;
}

std::vector<diagnose::Command> RunReport::next_commands() const {
  const std::string dir = shell_quoted(run_.config.output.dir);
  // With the overrides of `hocket train RUN --set ...`.
  const std::string train = "hocket train ";
  const std::string graph_words =
      command_.starts_with(train) ? command_.substr(train.size()) : shell_quoted(run_.name);
  std::vector<diagnose::Command> next{
      {"hocket generate " + dir + " --prompt '...'", "text from this model"},
      {"hocket graph " + graph_words + " --stage program", "the program that ran"}};
  if (data_.texts()) {
    next.insert(next.begin() + 1, {"hocket eval " + dir + " --data " + shell_quoted(data_.name()),
                                   "held-out bits per byte"});
  }
  return next;
}

/// Prints the last lines on the terminal: held-out figures, step time, memory.
void RunReport::print_summary(const diagnose::ReportData& report,
                              const program::Program& program) const {
  for (const diagnose::Baseline& baseline : report.baselines) {
    fmt::print("{:<22} {:.4f} bits/byte ({})\n", baseline.name, baseline.bits_per_byte,
               baseline.what);
  }
  if (final_ && final_->bytes > 0) {
    fmt::print("{:<22} {:.4f} bits/byte on {}\n", "this model", final_->bits_per_byte(),
               final_->complete() ? "the same held-out files" : final_->read_text());
  }
  print_step_time(report);
  for (size_t c = 0; c < measured_.size(); ++c) {
    // A resumed run without new steps has measured none.
    const std::string measured =
        steps_seen_ == 0 ? ""
                         : human_bytes(static_cast<double>(measured_[c].total())) + " measured, ";
    fmt::print("{:<22} {}{} planned per rank\n",
               measured_.size() == 1 ? "memory" : "memory of " + program.classes[c].name, measured,
               human_bytes(static_cast<double>(prediction_.memory[c].total())));
  }
}

/// Prints the measured beside the predicted step time.
void RunReport::print_step_time(const diagnose::ReportData& report) const {
  const diagnose::StepsThatCount steps =
      diagnose::steps_that_count(report.metrics, report.first_step, report.settled_step);
  if (steps.seconds.empty()) {
    fmt::print("step time              {} predicted; no step was run to compare with\n",
               human_time(prediction_.step_s));
    return;
  }
  const double middle = median(steps.seconds);
  fmt::print("step time              {} median, {} predicted before the first step ({:+.1f} %)\n",
             human_time(middle), human_time(prediction_.step_s),
             100 * (prediction_.step_s / middle - 1));
  if (!steps.settled) {
    fmt::print(
        "                       of {}: the speed had not settled, for which {} are left out\n",
        counted(static_cast<int64_t>(steps.seconds.size()), "step"),
        counted(kSettledAfter, "step"));
  }
  if (std::isfinite(report.speed_ratio)) {
    const double equal = middle * report.speed_ratio;
    fmt::print(
        "at equal speed         {} ({:+.1f} %): a fixed product runs at {:.2f} of its rate "
        "when the tasks were timed\n",
        human_time(equal), 100 * (prediction_.step_s / equal - 1), report.speed_ratio);
  }
  if (report.speed_moved > kNamedSpeedChange) {
    fmt::print("                       the machine's speed moved by {:.0f} % during the run\n",
               100 * report.speed_moved);
  }
  if (const std::string most = diagnose::blame(report); !most.empty()) {
    fmt::print("{:<22} {}\n", "they part by", most);
  }
}

}  // namespace hocket::train
