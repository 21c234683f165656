// SPDX-License-Identifier: Apache-2.0
#include "train/metrics.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/json.h"
#include "base/json_writer.h"
#include "base/text.h"
#include "graph/names.h"

namespace hocket::train {

static constexpr double kGib = 1 << 30;

double StepMetrics::load_max_over_mean() const {
  double worst = 0;
  for (const LayerLoad& layer : expert_load) {
    int64_t sum = 0, most = 0;
    for (int64_t tokens : layer.tokens) {
      sum += tokens;
      most = std::max(most, tokens);
    }
    const double mean =
        static_cast<double>(std::max<int64_t>(sum, 1)) / static_cast<double>(layer.tokens.size());
    worst = std::max(worst, static_cast<double>(most) / mean);
  }
  return worst;
}

std::vector<LayerLoad> expert_load(const engine::Session& session) {
  std::vector<LayerLoad> load;
  for (graph::TensorId id : session.graph().outputs) {
    const graph::Tensor& tensor = session.graph().tensor(id);
    if (!tensor.name.starts_with(graph::names::kCountsOf)) continue;
    std::vector<int64_t> sum(static_cast<size_t>(tensor.type.numel()), 0);
    for (int32_t m = 0; m < session.program().num_micro_batches; ++m) {
      const auto part = session.collect_as<int64_t>(tensor.name, m);
      for (size_t e = 0; e < sum.size(); ++e) {
        sum[e] += part[e];
      }
    }
    load.push_back({tensor.layer, std::move(sum)});
  }
  return load;
}

std::string to_line(const StepMetrics& metrics) {
  const auto world = static_cast<double>(metrics.world);
  JsonWriter line;
  line.object()
      .member("step", metrics.step)
      .member("time_s", metrics.time_s)
      .member("tokens", metrics.tokens_seen)
      .member("train/loss", metrics.loss)
      .member("train/grad_norm", metrics.grad_norm)
      .member("train/lr", metrics.lr);
  if (metrics.skipped > 0) {
    line.member("train/skipped", metrics.skipped);
  }
  for (const auto& [name, value] : metrics.values) {
    line.member(name, value);
  }
  line.member("perf/step_s", metrics.step_s);
  // Updates by rewards are of different sizes, and have neither a prediction nor a count of FLOPs.
  if (metrics.predicted_step_s > 0) {
    line.member("perf/predicted_step_s", metrics.predicted_step_s);
  }
  line.member("perf/tokens_per_s_per_device", metrics.tokens_per_s() / world);
  if (metrics.flops_per_s() > 0) {
    line.member("perf/tflops_per_device", metrics.flops_per_s() / world / 1e12);
  }
  // Unknown until a profile has timed a product; a model without experts has no load.
  if (metrics.peak_flops > 0) {
    line.member("perf/mfu", metrics.flops_per_s() / world / metrics.peak_flops);
  }
  if (metrics.probe_flops > 0) {
    line.member("perf/probe_gflops", metrics.probe_flops / 1e9);
  }
  if (metrics.emulated) {
    line.member("device", "emulated");
  }
  line.member("memory/peak_gib", static_cast<double>(metrics.peak_bytes) / kGib)
      .member("memory/planned_gib", static_cast<double>(metrics.planned_bytes) / kGib);
  if (!metrics.expert_load.empty()) {
    std::vector<int64_t> layers;
    std::vector<std::vector<int64_t>> load;
    for (const LayerLoad& layer : metrics.expert_load) {
      layers.push_back(layer.layer);
      load.push_back(layer.tokens);
    }
    line.member("moe/load_max_over_mean", metrics.load_max_over_mean())
        .member("moe/layers", layers)
        .member("moe/load", load);
  }
  return line.end().take();
}

std::string to_line(const std::vector<HeldOut>& sets, int64_t step, double time_s, bool final) {
  JsonWriter line;
  line.object().member("step", step).member("time_s", time_s);
  bool complete = true;
  for (const HeldOut& set : sets) {
    const std::string group = set.name.empty() ? "eval/" : "eval/" + set.name + "/";
    line.member(group + "loss", set.loss());
    if (set.bytes > 0) {
      line.member(group + "bits_per_byte", set.bits_per_byte());
    }
    for (const auto& [name, value] : set.values) {
      line.member(group + name, value);
    }
    complete = complete && set.complete();
  }
  return line.member("eval/complete", complete).member("eval/final", final).end().take();
}

std::string progress_text(const StepMetrics& metrics, int64_t steps, double eta_s,
                          const std::string& held_out) {
  std::string text = fmt::format("step {}/{}  loss {:.4f}  {:.0f} tok/s", metrics.step, steps,
                                 metrics.loss, metrics.tokens_per_s());
  if (metrics.step < steps) {
    constexpr double kLongest = 100 * 24 * 3600.0;
    text += "  ETA " + (eta_s > kLongest ? "more than 100 days" : human_time(eta_s));
  }
  text += fmt::format("  step {} (predicted {})", human_time(metrics.step_s),
                      human_time(metrics.predicted_step_s));
  if (!metrics.expert_load.empty()) {
    text += fmt::format("  experts max/mean {:.2f}", metrics.load_max_over_mean());
  }
  text += fmt::format("  {:.1f} GFLOP/s", metrics.flops_per_s() / 1e9);
  if (metrics.skipped > 0) {
    text += "  skipped " + counted(metrics.skipped, "step");
  }
  if (!held_out.empty()) {
    text += "  " + held_out;
  }
  return text;
}

std::string evaluation_text(const std::vector<HeldOut>& sets, int64_t step, double seconds) {
  std::string text = fmt::format("step {}:", step);
  for (const HeldOut& set : sets) {
    text +=
        fmt::format("{} {} loss {:.4f}", &set == &sets.front() ? "" : ";", set.title(), set.loss());
    if (set.bytes > 0) {
      text += fmt::format(", {:.4f} bits/byte", set.bits_per_byte());
    }
    for (const auto& [name, value] : set.values) {
      text += fmt::format(", {} {:.4f}", name, value);
    }
    text += fmt::format(" ({}{})", set.read_text(),
                        &set == &sets.back() ? ", " + human_time(seconds) : "");
  }
  return text;
}

void MetricsFile::append(const std::string& line) {
  FileWriter out(path_, FileWriter::Mode::append);
  out.write(line + "\n");
  out.close();
  if (events_) {
    events_->append(line);
  }
}

void MetricsFile::begin_after(int64_t step) {
  remove_after(step);
  if (has_events_) {
    events_.emplace(folder_, step);
  }
}

/// Removes the lines of steps after `step`, and a partial line; 0: all lines.
void MetricsFile::remove_after(int64_t step) const {
  if (step == 0) return write_file_atomic(path_, "");
  if (!file_exists(path_)) return;
  const std::string text = read_file(path_);
  std::string kept;
  int64_t number = 0;
  for (const auto& line : split(text, '\n')) {
    ++number;
    const auto json = nlohmann::json::parse(line, nullptr, false);
    if (!json.is_object()) continue;
    const JsonView in(json, fmt::format("{}:{}", path_, number));
    if (in.get_int("step") <= step) {
      kept.append(line).append("\n");
    }
  }
  if (kept != text) {
    write_file_atomic(path_, kept);
  }
}

namespace {

/// Returns the last line of a file; discarded: there is none.
nlohmann::json last_line(const std::string& path) {
  const std::string text = file_exists(path) ? read_file(path) : "";
  return nlohmann::json::parse(split(trim(text), '\n').back(), nullptr, false);
}

}  // namespace

bool MetricsFile::ends_with_evaluation() const {
  const nlohmann::json last = last_line(path_);
  return last.is_object() && last.contains("eval/final");
}

bool MetricsFile::ends_with_final_evaluation() const {
  const nlohmann::json last = last_line(path_);
  // Runs of earlier versions always took all at the end, and only there.
  const char* key = last.contains("eval/final") ? "eval/final" : "eval/complete";
  return last.is_object() && last.value(key, nlohmann::json()) == true;
}

}  // namespace hocket::train
