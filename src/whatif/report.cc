// SPDX-License-Identifier: Apache-2.0
#include "whatif/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>

#include "base/json_writer.h"
#include "base/text.h"
#include "whatif/causes.h"

namespace hocket::whatif {
namespace {

constexpr size_t kRowsShown = 8;         // steps and kinds in the text
constexpr size_t kColumnsNumbered = 12;  // data-parallel ranks; more are drawn as shades

std::string heat_map(const MeasuredRun& run, const Analysis& found) {
  constexpr std::string_view kShades = " .:-=+*#%@";
  const auto map = worker_map(run, found);
  const bool numbers = found.S_dp.size() <= kColumnsNumbered;
  std::string out = "workers     S_w, the lesser of its stage's and its data-parallel rank's";
  out += numbers ? "\n  pp \\ dp "
                 : fmt::format(" ('{}' 1.0 to '{}' 2.0 and more)\n", kShades[0], kShades.back());
  for (size_t dp = 0; numbers && dp < found.S_dp.size(); ++dp) {
    out += fmt::format("{:>7}", dp);
  }
  out += numbers ? "\n" : "";
  for (size_t stage = 0; stage < map.size(); ++stage) {
    out += fmt::format("{:>9} ", stage);
    for (const double value : map[stage]) {
      const auto shade = static_cast<size_t>(std::clamp((value - 1) * 10, 0.0, 9.0));
      out += !numbers    ? std::string(1, kShades[shade])
             : value > 0 ? fmt::format("{:>7.3f}", value)
                         : fmt::format("{:>7}", "-");
    }
    out += "\n";
  }
  return out;
}

/// Returns the indices of the `kRowsShown` greatest.
std::vector<size_t> greatest(size_t count, const auto& value) {
  std::vector<size_t> order(count);
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return value(a) > value(b); });
  order.resize(std::min(count, kRowsShown));
  return order;
}

std::string fidelity_text(const MeasuredRun& run, const Analysis& found) {
  if (!run.has_starts) {
    return fmt::format("fidelity  replayed {} a step; dependencies: {}\n", human_time(found.T),
                       run.waits_from);
  }
  return fmt::format(
      "fidelity  measured {} a step, replayed {} ({:+.1f} %; launch delays are not replayed); "
      "dependencies: {}\n",
      human_time(found.measured), human_time(found.T), 100 * (found.T / found.measured - 1),
      run.waits_from);
}

std::string causes_text(const MeasuredRun& run, const Analysis& found) {
  std::string out = fmt::format("cause     {}\n", cause_text(run, found));
  bool more_than_all = false;
  for (const CauseFound& cause : found.causes) {
    if (!shows_causes(found) || (!found.loses() && !cause.named)) continue;
    const std::string share =
        found.loses() ? fmt::format("{:.1f} % of the loss", 100 * cause.explains) : "";
    more_than_all = more_than_all || (found.loses() && cause.explains > 1);
    out += fmt::format("  {:<18}{:>21}  {:>9}  {}{}{}\n", to_string(cause.cause), share,
                       human_time(cause.fixed), cause.where, cause.where.empty() ? "" : ": ",
                       evidence_text(cause));
  }
  if (more_than_all) {
    out += fmt::format("  {}\n", kAboveAllNote);
  }
  if (found.causes.empty() || !found.causes[0].named) {
    out += fmt::format("  {}\n", kNotSeen);
  }
  return out;
}

std::string surface_text(const Surface& surface) {
  std::string out = fmt::format(
      "network   f = {} (a step without communication) / step, by how many times wider links are "
      "and "
      "how many times less gradients send\n  links \\ gradients",
      human_time(surface.alone));
  for (const double ratio : surface.ratios) {
    out += fmt::format("{:>7}", fmt::format("1/{:g}", ratio));
  }
  for (size_t row = 0; row < surface.bandwidths.size(); ++row) {
    out += fmt::format("\n{:>19}", fmt::format("x{:g}", surface.bandwidths[row]));
    for (const double f : surface.factor[row]) {
      out += fmt::format("{:>7.3f}", f);
    }
  }
  return out + "\n";
}

void put_slowdowns(JsonWriter& json, std::string_view key, const std::vector<Slowdown>& list) {
  json.key(key).array();
  for (const Slowdown& slowdown : list) {
    json.value(slowdown.mean);
  }
  json.end();
}

/// Writes an object by step.
void put_by_step(JsonWriter& json, std::string_view key, const MeasuredRun& run, const auto& put) {
  json.key(key).object();
  for (size_t step = 0; step < run.steps.size(); ++step) {
    json.key(fmt::format("{}", run.steps[step]));
    put(step);
  }
  json.end();
}

void put_causes(JsonWriter& json, const Analysis& found) {
  const bool named = !found.causes.empty() && found.causes[0].named;
  json.key("cause");
  if (named) {
    json.value(to_string(found.causes[0].cause));
  } else {
    json.null();
  }
  json.key("causes").array();
  for (const CauseFound& cause : found.causes) {
    json.object()
        .member("cause", to_string(cause.cause))
        .member("where", cause.where)
        .member("T_fixed", cause.fixed)
        .member("gain", cause.gain)
        .member("explains", found.loses() ? cause.explains : std::nan(""))
        .member("evidence", cause.evidence)
        .member("doubt", cause.doubt)
        .end();
  }
  json.end();
}

void put_workers(JsonWriter& json, const MeasuredRun& run, const Analysis& found) {
  json.key("workers").array();
  for (size_t i = 0; i < run.workers.size(); ++i) {
    json.object()
        .member("rank", run.workers[i].rank)
        .member("dp", run.workers[i].replica)
        .member("stage", run.workers[i].stage)
        .member("S", found.S_worker[i])
        .end();
  }
  json.end();
}

void put_what_if(JsonWriter& json, const Findings& findings) {
  if (!findings.scaled.empty()) {
    json.key("scaled").array();
    for (const ScaledStep& step : findings.scaled) {
      json.object()
          .member("scale", step.text)
          .member("T", step.seconds)
          .member("speedup", findings.analysis.T / step.seconds)
          .end();
    }
    json.end().member("scaled_note", kNoIntervalNote);
  }
  if (findings.surface) {
    const Surface& surface = *findings.surface;
    json.key("surface").object();
    json.member("T_without_communication", surface.alone)
        .member("bandwidth", surface.bandwidths)
        .member("compression", surface.ratios)
        .member("T", surface.seconds)
        .member("scaling_factor", surface.factor)
        .end();
  }
  if (findings.bottleneck) {
    json.key("bottleneck");
    put(*findings.bottleneck, &json);
  }
}

}  // namespace

std::vector<std::vector<double>> worker_map(const MeasuredRun& run, const Analysis& found) {
  std::vector<std::vector<double>> map(found.S_stage.size(),
                                       std::vector<double>(found.S_dp.size(), 0));
  for (size_t i = 0; i < run.workers.size(); ++i) {
    double& cell = map[run.workers[i].stage][run.workers[i].replica];
    cell = std::max(cell, found.S_worker[i]);
  }
  return map;
}

std::string cause_text(const MeasuredRun& run, const Analysis& found) {
  if (!found.causes.empty() && found.causes[0].named) {
    const CauseFound& cause = found.causes[0];
    return fmt::format(
        "{}{}{}: without it {} a step, {:.2f}x as fast (interval {:.2f} to {:.2f}: 15 injected "
        "faults were within {:g}){}",
        to_string(cause.cause), cause.where.empty() ? "" : ", ", cause.where,
        human_time(cause.fixed), cause.gain, cause.gain - kGainError, cause.gain + kGainError,
        kGainError,
        found.S < kStragglingSlowdown
            ? "; S does not show it, since the ideal, a mean or median of measured times, "
              "includes it"
            : "");
  }
  if (run.clocks_apart) return "none is named: clocks of ranks are apart";
  if (found.is_far_off()) {
    return fmt::format(
        "none is named: the replay is off by {:+.0f} % of the measured step, more than "
        "{:g} %, so it cannot explain the step: records may be missing",
        100 * found.off, 100 * kMaxReplayError);
  }
  if (found.S >= kStragglingSlowdown) {
    const bool doubted =
        std::any_of(found.causes.begin(), found.causes.end(), [](const CauseFound& cause) {
          return !cause.doubt.empty() && cause.explains >= kMainCauseShare;
        });
    return doubted ? "none is named: the trace's own steps confirm no cause that the replay finds"
                   : "no cause below explains half of the loss";
  }
  return found.loses()
             ? fmt::format("none: S is below {}", kStragglingSlowdown)
             : fmt::format("none: less than {:g} % of a step is lost, nothing worth naming",
                           100 * kMinNamedShare);
}

std::string evidence_text(const CauseFound& cause) {
  return cause.doubt.empty() ? cause.evidence
                             : fmt::format("{}; not confirmed: {}", cause.evidence, cause.doubt);
}

std::string host_text(const Analysis& found) {
  if (!found.is_behind()) return "";
  return fmt::format(
      "is behind: if it took no time, {} a step, {:.2f}x as fast; devices wait for launches "
      "(graphs, larger kernels, or fewer waits of the host shorten that)",
      human_time(found.T_without_host), found.T / found.T_without_host);
}

bool shows_causes(const Analysis& found) {
  return found.S >= kStragglingSlowdown || (!found.causes.empty() && found.causes[0].named);
}

std::string size_text(const MeasuredRun& run) {
  return fmt::format("{}, {}", counted(std::ssize(run.steps), "step"),
                     counted(std::ssize(run.workers), "worker"));
}

std::string loss_text(const Analysis& found) {
  if (!found.loses())
    return fmt::format("less than {:g} % of the time is lost", 100 * kMinNamedShare);
  return fmt::format("{:.1f} % of the time is lost; M_S {}, M_W {:.3f}", 100 * (1 - 1 / found.S),
                     std::isnan(found.M_S) ? "unknown (the last stage is missing)"
                                           : fmt::format("{:.3f}", found.M_S),
                     found.M_W);
}

std::string to_text(const MeasuredRun& run, const Findings& findings) {
  // Prints the input, the replay's accuracy, the loss, its location, its cause, and the results of
  // hypotheses.
  const Analysis& found = findings.analysis;
  std::string out =
      fmt::format("trace     {}: {} (dp {}, pp {}), {} ops\n", run.source, size_text(run),
                  found.S_dp.size(), found.S_stage.size(), run.num_ops());
  if (!run.stand_for.empty()) {
    out += fmt::format("ranks     {}\n", run.stand_for);
  }
  for (const std::string& note : run.dropped.notes) {
    out += fmt::format("dropped   {}\n", note);
  }
  if (run.dropped.events > 0) {
    out += fmt::format("dropped   {} in all, {}\n", counted(run.dropped.events, "event"),
                       counted(run.dropped.steps, "step"));
  }
  out += fidelity_text(run, found);
  out += fmt::format("slowdown  S {:.4f}: T {}, ideal {}; {}\n", found.S, human_time(found.T),
                     human_time(found.T_ideal), loss_text(found));
  out += causes_text(run, found);
  const std::string host = host_text(found);
  out += host.empty() ? "" : fmt::format("host      {}\n", host);
  out += heat_map(run, found);
  out += "stages      ";
  for (const Slowdown& stage : found.S_stage) {
    out += fmt::format("{:.4f} ", stage.mean);
  }
  out += "\nops         S with only this as measured\n";
  for (const size_t kind :
       greatest(run.kinds.size(), [&](size_t i) { return found.S_kind[i].mean; })) {
    out += fmt::format("  {:<32}{:.4f}\n", run.kinds[kind].name, found.S_kind[kind].mean);
  }
  out += "steps       slowest\n";
  for (const size_t step : greatest(run.steps.size(), [&](size_t i) { return found.S_step[i]; })) {
    out += fmt::format("  {:<8}S {:.4f}  T {}\n", run.steps[step], found.S_step[step],
                       human_time(found.step_T[step]));
  }
  for (const ScaledStep& step : findings.scaled) {
    out += fmt::format("what if   {}: {} a step, {:.4f}x as fast\n", step.text,
                       human_time(step.seconds), found.T / step.seconds);
  }
  if (!findings.scaled.empty()) {
    out += fmt::format("          {}\n", kNoIntervalNote);
  }
  out += findings.surface ? surface_text(*findings.surface) : "";
  return findings.bottleneck ? out + to_text(*findings.bottleneck) : out;
}

std::string to_json(const MeasuredRun& run, const Findings& findings) {
  const Analysis& found = findings.analysis;
  JsonWriter json;
  json.object();
  json.member("format", run.source)
      .member("dependencies", run.waits_from)
      .member("stand_for", run.stand_for)
      .member("dp", found.S_dp.size())
      .member("pp", found.S_stage.size())
      .member("ops", run.num_ops())
      .member("T_measured", run.has_starts ? found.measured : std::nan(""))
      .member("T", found.T)
      .member("T_ideal", found.T_ideal)
      .member("S", found.S)
      .member("waste", 1 - 1 / found.S);
  put_by_step(json, "S_step", run, [&](size_t step) { json.value(found.S_step[step]); });
  put_slowdowns(json, "S_stage", found.S_stage);
  put_slowdowns(json, "S_dp", found.S_dp);
  json.key("S_op").object();
  for (size_t kind = 0; kind < run.kinds.size(); ++kind) {
    json.member(run.kinds[kind].name, found.S_kind[kind].mean);
  }
  json.end();
  json.member("M_S", found.M_S)
      .member("M_W", found.M_W)
      .member("T_without_last_stage", found.T_without_last_stage)
      .member("T_without_slowest_workers", found.T_without_slowest)
      .member("T_without_host", found.T_without_host > 0 ? found.T_without_host : std::nan(""))
      .member("forward_backward_correlation", found.correlation);
  put_causes(json, found);
  put_by_step(json, "T_step", run, [&](size_t step) { json.value(found.step_T[step]); });
  put_by_step(json, "T_measured_step", run, [&](size_t step) {
    json.value(run.has_starts ? found.step_measured[step] : std::nan(""));
  });
  for (const auto& [key, list] :
       {std::pair("S_stage_step", &found.S_stage), std::pair("S_dp_step", &found.S_dp)}) {
    put_by_step(json, key, run, [&, slowdowns = list](size_t step) {
      json.array();
      for (const Slowdown& slowdown : *slowdowns) {
        json.value(slowdown.by_step[step]);
      }
      json.end();
    });
  }
  put_workers(json, run, found);
  put_what_if(json, findings);
  json.key("dropped").object();
  json.member("events", run.dropped.events)
      .member("steps", run.dropped.steps)
      .member("notes", run.dropped.notes)
      .end();
  return json.end().take();
}

}  // namespace hocket::whatif
