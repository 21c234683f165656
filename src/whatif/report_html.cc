// SPDX-License-Identifier: Apache-2.0
// Implements: report_html (report.h). The page of `hocket whatif --html`: tables with cells
// coloured by slowdown.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/text.h"
#include "whatif/causes.h"
#include "whatif/report.h"

namespace hocket::whatif {
namespace {

constexpr size_t kColumnsLabelled = 24;  // data-parallel ranks; more are colours alone

constexpr const char* kHead =
    "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>hocket whatif</title><style>"
    "body{font:14px system-ui,sans-serif;margin:2em;max-width:80em;color:#222}"
    "table{border-collapse:collapse;margin:.5em 0 1.5em}"
    "td,th{padding:2px 6px;text-align:right;font-variant-numeric:tabular-nums;border:1px solid "
    "#fff}"
    "th{font-weight:500;color:#555}td.t{text-align:left}.named{font-weight:600}"
    ".wide{overflow-x:auto}.wide td{min-width:.5em}"
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

/// Returns a cell: white at 1, red from 2 on, blue below 1, empty where there is no slowdown. Its
/// number is its title, and its text if `number`.
std::string cell(double slowdown, const std::string& where, bool number) {
  if (slowdown <= 0) return "<td></td>";
  const int off = static_cast<int>(std::clamp(std::abs(slowdown - 1) * 200, 0.0, 170.0));
  const std::string colour = slowdown >= 1 ? fmt::format("rgb(255,{0},{0})", 255 - off)
                                           : fmt::format("rgb({0},{0},255)", 255 - off);
  return fmt::format("<td style=\"background:{}\" title=\"{}: {:.4f}\">{}</td>", colour,
                     escaped(where), slowdown, number ? fmt::format("{:.3f}", slowdown) : "");
}

/// Makes a table scroll where it is wider than the page.
std::string scrolled(const std::string& table) {
  return fmt::format("<div class=\"wide\"><table>{}</table></div>\n", table);
}

std::string workers_table(const MeasuredRun& run, const Analysis& found) {
  const auto map = worker_map(run, found);
  const bool numbers = found.S_dp.size() <= kColumnsLabelled;
  std::string out = "<tr><th>pp \\ dp</th>";
  for (size_t dp = 0; numbers && dp < found.S_dp.size(); ++dp) {
    out += fmt::format("<th>{}</th>", dp);
  }
  for (size_t stage = 0; stage < map.size(); ++stage) {
    out += fmt::format("</tr>\n<tr><th>{}</th>", stage);
    for (size_t dp = 0; dp < map[stage].size(); ++dp) {
      out += cell(map[stage][dp], fmt::format("dp {} pp {}", dp, stage), numbers);
    }
  }
  return "<h2>Workers</h2><p>S<sub>w</sub>: the lesser of the slowdowns of a worker's stage and "
         "data-parallel rank.</p>" +
         scrolled(out + "</tr>");
}

/// Column of a step table: the part left as measured.
struct Column {
  std::string name;
  const Slowdown* slowdown;
};

/// Returns whether a column of it would show anything but 1.000.
bool has_effect(const Slowdown& slowdown) {
  return std::any_of(slowdown.by_step.begin(), slowdown.by_step.end(),
                     [](double value) { return std::abs(value - 1) >= 0.0005; });
}

std::string steps_table(const MeasuredRun& run, const Analysis& found) {
  std::vector<Column> columns;
  int64_t without_effect = 0;
  const auto add = [&](std::string name, const Slowdown& slowdown) {
    if (has_effect(slowdown)) {
      columns.push_back({std::move(name), &slowdown});
    } else {
      ++without_effect;
    }
  };
  for (size_t stage = 0; stage < found.S_stage.size(); ++stage) {
    add(fmt::format("pp {}", stage), found.S_stage[stage]);
  }
  for (size_t dp = 0; dp < found.S_dp.size(); ++dp) {
    add(fmt::format("dp {}", dp), found.S_dp[dp]);
  }
  for (size_t kind = 0; kind < run.kinds.size(); ++kind) {
    add(run.kinds[kind].name, found.S_kind[kind]);
  }
  std::string table = "<tr><th>step</th><th>T</th><th>S</th>";
  for (const Column& column : columns) {
    table += fmt::format("<th>{}</th>", escaped(column.name));
  }
  for (size_t step = 0; step < run.steps.size(); ++step) {
    const std::string name = fmt::format("step {}", run.steps[step]);
    table += fmt::format("</tr>\n<tr><th>{}</th><td>{}</td>{}", run.steps[step],
                         human_time(found.step_T[step]), cell(found.S_step[step], name, true));
    for (const Column& column : columns) {
      table += cell(column.slowdown->by_step[step], name + ", " + column.name, true);
    }
  }
  const std::string left_out =
      without_effect > 0
          ? fmt::format(" Left out: {} of 1.000 in every step.", counted(without_effect, "column"))
          : "";
  return fmt::format(
      "<h2>Steps</h2><p>S of a step, and with only one stage, data-parallel rank or kind of op as "
      "measured.{}</p>{}",
      left_out, scrolled(table + "</tr>"));
}

std::string causes_part(const MeasuredRun& run, const Analysis& found) {
  std::string out =
      fmt::format("<h2>Causes</h2><p>Cause: {}.</p>\n", escaped(cause_text(run, found)));
  if (const std::string host = host_text(found); !host.empty()) {
    out += fmt::format("<p>The host {}.</p>\n", escaped(host));
  }
  if (!shows_causes(found)) return out + fmt::format("<p>{}</p>\n", escaped(kNotSeen));
  out +=
      "<table><tr><th>cause</th><th>of the loss</th><th>step without it</th><th>where</th>"
      "<th>evidence</th>";
  bool more_than_all = false;
  for (const CauseFound& cause : found.causes) {
    more_than_all = more_than_all || (found.loses() && cause.explains > 1);
    out += fmt::format(
        "</tr>\n<tr{}><td class=\"t\">{}</td><td>{}</td><td>{}</td><td "
        "class=\"t\">{}</td><td "
        "class=\"t\">{}</td>",
        cause.named ? " class=\"named\"" : "", to_string(cause.cause),
        found.loses() ? fmt::format("{:.1f} %", 100 * cause.explains) : "", human_time(cause.fixed),
        escaped(cause.where), escaped(evidence_text(cause)));
  }
  out += "</tr></table>\n";
  if (!found.loses()) {
    out += fmt::format("<p>Less than {:g} % of a step is lost: shares of that mean nothing.</p>\n",
                       100 * kMinNamedShare);
  }
  for (const auto& [shown, words] :
       {std::pair(more_than_all, kAboveAllNote),
        std::pair(found.causes.empty() || !found.causes[0].named, kNotSeen)}) {
    out += shown ? fmt::format("<p>{}</p>\n", escaped(words)) : "";
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
      "<h1>What if nothing straggled</h1><p>{}: {}. A step takes {}, ideally {}: S = {:.4f}; "
      "{}.</p>\n",
      escaped(run.source), size_text(run), human_time(found.T), human_time(found.T_ideal), found.S,
      loss_text(found));
  if (!run.stand_for.empty()) {
    out += fmt::format("<p>Ranks: {}.</p>\n", escaped(run.stand_for));
  }
  for (const std::string& note : run.dropped.notes) {
    out += fmt::format("<p>Dropped: {}</p>\n", escaped(note));
  }
  out += causes_part(run, found) + workers_table(run, found) + steps_table(run, found);
  for (const ScaledStep& step : findings.scaled) {
    out += fmt::format("<p>What if {}: {} a step, {:.4f}x as fast.</p>\n", escaped(step.text),
                       human_time(step.seconds), found.T / step.seconds);
  }
  if (!findings.scaled.empty()) {
    out += fmt::format("<p>{}</p>\n", kNoIntervalNote);
  }
  if (findings.surface) {
    out += surface_table(*findings.surface);
  }
  if (findings.bottleneck) {
    out += fmt::format(
        "<h2>Is the network the bottleneck?</h2><div class=\"wide\"><pre>{}</pre></div>\n",
        escaped(to_text(*findings.bottleneck)));
  }
  return out + "</html>\n";
}

}  // namespace hocket::whatif
