// SPDX-License-Identifier: Apache-2.0
// The page of `hocket whatif --html`: tables whose cells are coloured by slowdown.
#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"
#include "sim/whatif/causes.h"
#include "sim/whatif/report.h"

namespace hocket::sim::whatif {
namespace {

constexpr const char* kHead =
    "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>hocket whatif</title><style>"
    "body{font:14px system-ui,sans-serif;margin:2em;max-width:80em;color:#222}"
    "table{border-collapse:collapse;margin:.5em 0 1.5em}"
    "td,th{padding:2px 6px;text-align:right;font-variant-numeric:tabular-nums;border:1px solid "
    "#fff}"
    "th{font-weight:500;color:#555}td.t{text-align:left}.named{font-weight:600}"
    "</style>\n";

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    out += c == '<'   ? "&lt;"
           : c == '>' ? "&gt;"
           : c == '&' ? "&amp;"
           : c == '"' ? "&quot;"
                      : std::string(1, c);
  }
  return out;
}

/// White at 1, red from 2 on, blue below 1.
std::string cell(double slowdown, const std::string& where) {
  const int off = static_cast<int>(std::clamp(std::abs(slowdown - 1) * 200, 0.0, 170.0));
  const std::string colour = slowdown >= 1 ? fmt::format("rgb(255,{0},{0})", 255 - off)
                                           : fmt::format("rgb({0},{0},255)", 255 - off);
  return fmt::format("<td style=\"background:{}\" title=\"{}: {:.4f}\">{:.3f}</td>", colour,
                     escaped(where), slowdown, slowdown);
}

std::string workers_table(const MeasuredRun& run, const Analysis& found) {
  std::vector<std::vector<double>> map(found.S_dp.size(),
                                       std::vector<double>(found.S_stage.size(), 0));
  for (size_t i = 0; i < run.workers.size(); ++i) {
    const Worker& worker = run.workers[i];
    double& at = map[static_cast<size_t>(worker.replica)][static_cast<size_t>(worker.stage)];
    at = std::max(at, found.S_worker[i]);
  }
  std::string out =
      "<h2>Workers</h2><p>S<sub>w</sub>: the lesser of the slowdowns of a worker's "
      "stage and data-parallel rank.</p><table><tr><th>dp \\ pp</th>";
  for (size_t stage = 0; stage < found.S_stage.size(); ++stage) {
    out += fmt::format("<th>{}</th>", stage);
  }
  for (size_t dp = 0; dp < map.size(); ++dp) {
    out += fmt::format("</tr>\n<tr><th>{}</th>", dp);
    for (size_t stage = 0; stage < map[dp].size(); ++stage) {
      out += cell(map[dp][stage], fmt::format("dp {} pp {}", dp, stage));
    }
  }
  return out + "</tr></table>\n";
}

std::string steps_table(const MeasuredRun& run, const Analysis& found) {
  std::string out =
      "<h2>Steps</h2><p>S of a step, and with only one stage, data-parallel rank or "
      "kind of op as measured.</p><table><tr><th>step</th><th>T</th><th>S</th>";
  const auto heads = [&](const std::vector<Slowdown>& list, const char* what) {
    for (size_t i = 0; i < list.size(); ++i) {
      out += fmt::format("<th>{} {}</th>", what, i);
    }
  };
  heads(found.S_stage, "pp");
  heads(found.S_dp, "dp");
  for (const OpKind& kind : run.kinds) {
    out += fmt::format("<th>{}</th>", escaped(kind.name));
  }
  for (size_t step = 0; step < run.steps.size(); ++step) {
    const std::string name = fmt::format("step {}", run.steps[step]);
    out += fmt::format("</tr>\n<tr><th>{}</th><td>{}</td>{}", run.steps[step],
                       human_time(found.step_T[step]), cell(found.S_step[step], name));
    for (const auto* list : {&found.S_stage, &found.S_dp, &found.S_kind}) {
      for (const Slowdown& slowdown : *list) {
        out += cell(slowdown.by_step[step], name);
      }
    }
  }
  return out + "</tr></table>\n";
}

std::string causes_table(const Analysis& found) {
  std::string out =
      "<h2>Causes</h2><table><tr><th>cause</th><th>of the loss</th><th>step without "
      "it</th><th>where</th><th>evidence</th>";
  bool more_than_all = false;
  for (const CauseFound& cause : found.causes) {
    more_than_all = more_than_all || (found.loses() && cause.explains > 1);
    out += fmt::format(
        "</tr>\n<tr{}><td class=\"t\">{}</td><td>{}</td><td>{}</td><td "
        "class=\"t\">{}</td><td "
        "class=\"t\">{}</td>",
        cause.named ? " class=\"named\"" : "", to_string(cause.cause),
        found.loses() ? fmt::format("{:.1f} %", 100 * cause.explains) : "", human_time(cause.fixed),
        escaped(cause.where), escaped(cause.evidence));
  }
  out += "</tr></table>\n";
  if (!found.loses()) {
    out += fmt::format("<p>Less than {:g} % of a step is lost, of which shares mean nothing.</p>\n",
                       100 * kWorthNaming);
  }
  for (const auto& [told, words] :
       {std::pair(more_than_all, kMoreThanAll),
        std::pair(found.causes.empty() || !found.causes[0].named, kNotSeen)}) {
    out += told ? fmt::format("<p>{}</p>\n", escaped(words)) : "";
  }
  return out;
}

std::string surface_table(const Surface& surface) {
  std::string out = fmt::format(
      "<h2>Network</h2><p>Scaling factor: {} (a step without communication) over the step, by how "
      "many times wider links are and how many times less gradients send.</p><table><tr><th></th>",
      human_time(surface.alone));
  for (const double ratio : surface.ratios) {
    out += fmt::format("<th>1/{:g}</th>", ratio);
  }
  for (size_t row = 0; row < surface.bandwidths.size(); ++row) {
    out += fmt::format("</tr>\n<tr><th>x{:g}</th>", surface.bandwidths[row]);
    for (const double f : surface.factor[row]) {
      out += fmt::format("<td style=\"background:hsl({:.0f} 60% 80%)\">{:.3f}</td>",
                         std::clamp(f, 0.0, 1.0) * 120, f);
    }
  }
  return out + "</tr></table>\n";
}

}  // namespace

std::string to_html(const MeasuredRun& run, const Findings& findings) {
  const Analysis& found = findings.analysis;
  std::string out = kHead;
  out += fmt::format(
      "<h1>What if nothing straggled</h1><p>{}: {} steps, {} workers. A step takes {}, "
      "ideally {}: S = {:.4f}; {}.</p>\n",
      escaped(run.source), run.steps.size(), run.workers.size(), human_time(found.T),
      human_time(found.T_ideal), found.S, loss_text(found));
  for (const std::string& note : run.dropped.notes) {
    out += fmt::format("<p>Dropped: {}</p>\n", escaped(note));
  }
  out += causes_table(found) + workers_table(run, found) + steps_table(run, found);
  for (const ScaledStep& step : findings.scaled) {
    out += fmt::format("<p>What if {}: {} a step, {:.4f}x as fast.</p>\n", escaped(step.text),
                       human_time(step.seconds), found.T / step.seconds);
  }
  return findings.surface ? out + surface_table(*findings.surface) + "</html>\n"
                          : out + "</html>\n";
}

}  // namespace hocket::sim::whatif
