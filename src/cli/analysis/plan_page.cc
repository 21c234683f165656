// SPDX-License-Identifier: Apache-2.0
#include "cli/analysis/plan_page.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "base/text.h"
#include "cli/analysis/plan_families.h"
#include "cli/analysis/plan_report.h"
#include "diagnose/html_page.h"
#include "diagnose/passes.h"

namespace hocket::cli {

namespace {

using diagnose::escape_html;

constexpr int kTimelineWidth = 1060, kRowHeight = 13;
constexpr size_t kTimelineRows = 16;
/// Passes shorter than this share of the width are not drawn.
constexpr double kMinWidth = 0.25;

constexpr std::string_view kStyle = R"(
.tl { display: block; width: 100%; margin: 6px 0 14px; background: var(--panel); border-radius: 4px; }
.tl .F { fill: #4c86d6; } .tl .B { fill: #4fa96f; } .tl .I { fill: #4fa96f; } .tl .W { fill: #b59a3c; }
.tl .o { fill: #9a6fb8; }
.part-compute { background: #4c86d6; } .part-exposed { background: #c2603a; }
.part-bubble { background: #b59a3c; } .part-idle { background: #9aa5b4; }
.cause { color: var(--soft); margin: 2px 0 0; }
)";

std::string section(const char* id, const std::string& title, const std::string& body) {
  return fmt::format(
      "<section id=\"{0}\" aria-labelledby=\"{0}-h\"><h2 id=\"{0}-h\">{1}</h2>\n{2}"
      "</section>\n",
      id, escape_html(title), body);
}

/// Returns the shares of a step as one bar.
std::string parts_bar(const planner::Outcome& outcome) {
  const std::pair<const char*, double> parts[] = {{"compute", outcome.compute_s},
                                                  {"exposed", outcome.exposed_s},
                                                  {"bubble", outcome.bubble_s},
                                                  {"idle", outcome.idle_s}};
  std::string bar = "<div class=\"stack thin\">";
  for (const auto& [name, seconds] : parts) {
    const double share = 100 * seconds / outcome.step_s;
    bar +=
        fmt::format("<i class=\"part-{0}\" style=\"width:{1:.2f}%\" title=\"{0} {1:.1f} %\"></i>",
                    name, std::max(0.0, share));
  }
  return bar + "</div>";
}

/// Returns the passes of the replayed ranks as a chart, a row for each of at most kTimelineRows.
std::string timeline_svg(const trace::Trace& trace) {
  std::map<int32_t, std::vector<const trace::TraceEvent*>> by_rank;
  int64_t end_ns = 1;
  for (const trace::TraceEvent& event : trace.events) {
    by_rank[event.rank].push_back(&event);
    end_ns = std::max(end_ns, event.end_ns);
  }
  const size_t stride = (by_rank.size() + kTimelineRows - 1) / kTimelineRows;
  const double scale = kTimelineWidth / static_cast<double>(end_ns);
  std::string shapes;
  size_t number = 0;
  int row = 0;
  for (const auto& [rank, events] : by_rank) {
    if (number++ % std::max<size_t>(1, stride) != 0) continue;
    for (const trace::TraceEvent* event : events) {
      const double width = static_cast<double>(event->end_ns - event->start_ns) * scale;
      if (width < kMinWidth) continue;
      const std::string& name = trace.text(event->name);
      const size_t kind = name.find_first_of("FBIW");
      const char letter =
          kind != std::string::npos && name.find_first_of("0123456789") == 0 ? name[kind] : 'o';
      shapes += fmt::format(
          "<rect class=\"{}\" x=\"{:.2f}\" y=\"{}\" width=\"{:.2f}\" height=\"{}\"><title>rank {}: "
          "{}</title></rect>",
          letter, static_cast<double>(event->start_ns) * scale, row * kRowHeight + 1,
          std::max(kMinWidth, width - 0.3), kRowHeight - 2, rank, escape_html(name));
    }
    ++row;
  }
  return fmt::format("<svg class=\"tl\" viewBox=\"0 0 {} {}\" role=\"img\">{}</svg>",
                     kTimelineWidth, row * kRowHeight, shapes);
}

/// Returns a family's heading, bar, timeline and cause.
std::string family_html(const planner::SearchResult& result, const FamilyRow& row,
                        const planner::Trial& trial, const planner::SearchSpace& space) {
  std::string body =
      fmt::format("<h3>{}</h3>", planner::kFamilyNames[static_cast<size_t>(row.family)]);
  const std::string cause = escape_html(cause_text(result, row, space));
  if (!row.best) return body + fmt::format("<p class=\"cause\">{}</p>\n", cause);
  const double loss = row.best->step_s / result.best.front().step_s - 1;
  body += fmt::format("<p><b>{}</b> (interval {}){} · {} · {}</p>",
                      escape_html(step_text(*row.best)), escape_html(interval_text(*row.best)),
                      loss > 0 ? fmt::format(" (+{:.1f} %)", 100 * loss) : " (the best)",
                      human_bytes(static_cast<double>(row.best->bytes)),
                      escape_html(planner::describe(row.best->plan, space)));
  body += parts_bar(*row.best);
  const std::vector<int64_t> shorter = planner::shortened_micro_batches(row.best->plan, space);
  const int64_t all = planner::num_micro_batches(space, row.best->plan);
  const int64_t shown = shorter.empty() ? all : shorter.front();
  body += timeline_svg(diagnose::passes_of(trial.timeline(row.best->plan, space, shown)));
  if (shown < all) {
    body +=
        fmt::format("<p class=\"cap\">The timeline has {} of {} micro-batches.</p>", shown, all);
  }
  return body + (cause.empty() ? "" : fmt::format("<p class=\"cause\">{}</p>", cause)) + "\n";
}

std::string best_table(const planner::SearchResult& result, const planner::SearchSpace& space,
                       size_t top) {
  std::string rows;
  for (size_t i = 0; i < std::min(top, result.best.size()); ++i) {
    const planner::Outcome& outcome = result.best[i];
    rows += fmt::format(
        "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td class=\"barcell\">{}</td>"
        "<td class=\"l\">{}</td></tr>",
        i + 1, escape_html(step_text(outcome)), escape_html(interval_text(outcome)),
        human_bytes(static_cast<double>(outcome.bytes)), parts_bar(outcome),
        escape_html(planner::describe(outcome.plan, space)));
  }
  return fmt::format(
      "<div class=\"tablewrap\"><table class=\"data\"><thead><tr><th></th><th>step"
      "</th><th>interval</th><th>memory</th><th>time by part</th><th class=\"l\">plan</th></tr>"
      "</thead><tbody>{}</tbody></table></div>",
      rows);
}

}  // namespace

std::string plan_page(const planner::SearchResult& result, const planner::Trial& trial,
                      const planner::SearchSpace& space, const std::string& model, size_t top) {
  const planner::Outcome& best = result.best.front();
  diagnose::HtmlPage page;
  page.title = fmt::format("Plans for {} ranks of {}", space.ranks, trial.cluster().name);
  page.style = kStyle;
  page.body = fmt::format(
      "<header><h1>{}</h1><p class=\"sub\">{} · batch {} × {} tokens{}</p><p class=\"lede\">Best: "
      "<b>{}</b> a step with {}.</p><p class=\"sub\">Interval {}: {}.</p><p class=\"sub\">{}</p>"
      "</header>\n",
      escape_html(page.title), escape_html(model), space.global_batch, space.seq_len,
      trial.costs().calibrated() ? "" : " · uncalibrated", human_time(best.step_s),
      escape_html(planner::describe(best.plan, space)), escape_html(interval_text(best)),
      escape_html(best.interval_why), escape_html(ending_text(result)));
  std::string families =
      "<ul class=\"legend\"><li><span class=\"sw part-compute\"></span>compute</li><li><span "
      "class=\"sw part-exposed\"></span>exposed communication</li><li><span class=\"sw "
      "part-bubble\"></span>bubble</li><li><span class=\"sw part-idle\"></span>idle</li></ul>"
      "<p class=\"cap\">Timelines: forward passes blue, backward passes green, weight gradients "
      "yellow, gradients and optimizer purple; gaps are waits.</p>";
  for (const FamilyRow& row : families_of(result)) {
    families += family_html(result, row, trial, space);
  }
  page.body += section("families", "The best of every family", families);
  std::string gains;
  for (const std::string& line : gains_lines(result, space, trial.memory())) {
    gains += fmt::format("<li>{}</li>", escape_html(line));
  }
  page.body += section("bottleneck", "The next bottleneck",
                       gains.empty() ? "<p class=\"missing\">There was no time for it.</p>"
                                     : "<ul>" + gains + "</ul>");
  page.body += section("best", "The best plans", best_table(result, space, top));
  page.body += section("why", "One choice changed",
                       "<pre>" + escape_html(why_text(result, space)) + "</pre>");
  page.body += fmt::format(
      "<footer>Hocket {}. This page is one file: it needs no network and "
      "sends nothing.</footer>\n",
      HOCKET_VERSION);
  page.scripts = {"finishPage();"};
  return diagnose::to_html(page);
}

}  // namespace hocket::cli
