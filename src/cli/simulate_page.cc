// SPDX-License-Identifier: Apache-2.0
#include "cli/simulate_page.h"

#include <fmt/format.h>

#include <utility>
#include <vector>

#include "base/text.h"
#include "diagnose/report.h"
#include "diagnose/report_fill.h"
#include "run/describe.h"
#include "sim/report_text.h"
#include "sim/sim_trace.h"

namespace hocket::cli {

namespace {

double seconds(int64_t ns) { return static_cast<double>(ns) * 1e-9; }

diagnose::FactGroup cluster_facts(const sim::SimReport& report) {
  diagnose::FactGroup facts{"Cluster", {{"name", report.cluster}, {"device", report.device}}};
  facts.rows.push_back(
      {"ranks", fmt::format("{}, {} of them replayed", report.ranks, report.replayed_ranks)});
  if (const std::string memory = report.memory_limit_text(); !memory.empty()) {
    facts.rows.push_back(
        {"memory", fmt::format("{}: {}", memory, report.fits() ? "fits" : "DOES NOT FIT")});
  }
  if (report.price > 0) {
    facts.rows.push_back({"price", fmt::format("${:g} per device and hour", report.price)});
  }
  return facts;
}

diagnose::FactGroup path_facts(const sim::SimReport& report) {
  diagnose::FactGroup facts{"Critical path", {}};
  for (const sim::PathEntry& entry : report.path) {
    facts.rows.push_back(
        {entry.op, fmt::format("{} in {}; longest: {}", human_time(seconds(entry.ns)),
                               counted(entry.count, "task"), sim::longest_text(entry))});
  }
  return facts;
}

/// Returns, for every event, the number of ranks that its rank stands for.
std::vector<int32_t> ranks_of_events(const trace::Trace& trace, const sim::SimReport& report) {
  std::vector<int32_t> multiplicity(static_cast<size_t>(report.ranks), 1);
  for (const sim::RankReport& rank : report.time) {
    multiplicity[static_cast<size_t>(rank.rank)] = rank.multiplicity;
  }
  std::vector<int32_t> list;
  for (const trace::TraceEvent& event : trace.events) {
    list.push_back(multiplicity[static_cast<size_t>(event.rank)]);
  }
  return list;
}

}  // namespace

std::string simulate_page(const engine::Run& run, const engine::Compiled& compiled,
                          const sim::SimReport& report, const sim::Replay& replay) {
  const program::Program& program = compiled.program;
  const trace::Trace trace = sim::to_trace(program, replay);
  diagnose::ReportData page;
  page.title = fmt::format("A step of {}, predicted", run.model.family);
  page.subtitle = fmt::format("{} · {}", engine::describe(run), report.cluster);
  page.command = fmt::format("hocket simulate {}", run.name);
  page.version = HOCKET_VERSION;
  page.status = report.fits() ? "" : "DOES NOT FIT in memory";
  page.facts = {
      {"Model", {{"what", engine::describe(run.model)}}},
      {"Plan", {{"mesh", engine::describe(run)}, {"tasks", std::to_string(report.tasks)}}},
      cluster_facts(report),
      path_facts(report)};
  page.world = report.ranks;
  page.predicted_step_s = seconds(report.step_ns);
  page.prediction_provenance = sim::provenance_text(report);
  page.tokens_per_step = report.tokens;
  if (report.model_flops > 0) {
    page.flops_per_step = report.model_flops;
    page.peak_flops = report.peak_flops;
    page.peak_flops_what = fmt::format("peak of {}", report.device);
  }
  if (report.dollars_per_m_tokens > 0) {
    page.dollars_per_m_tokens = report.dollars_per_m_tokens;
  }
  diagnose::fill_simulated(page, trace, ranks_of_events(trace, report));
  for (const sim::RankReport& rank : report.time) {
    std::string name = fmt::format("{} ({})", rank.rank, program.classes[rank.cls].name);
    if (rank.multiplicity > 1) {
      name += fmt::format(" x{}", rank.multiplicity);
    }
    page.ranks.push_back({std::move(name), seconds(rank.time.compute_ns),
                          seconds(rank.time.exposed_ns), seconds(rank.time.bubble_ns),
                          seconds(rank.time.idle_ns)});
  }
  for (size_t cls = 0; cls < program.classes.size(); ++cls) {
    page.memory.push_back(diagnose::memory_plan_of(program, cls, &trace, report.kernels));
    page.memory[cls].planned = report.memory[cls];
  }
  page.config = run.resolved.to_yaml();
  page.notes = report.notes;
  page.notes.push_back("Not modelled: " + join(sim::not_modelled(), "; ") + ".");
  return diagnose::report_html(page);
}

}  // namespace hocket::cli
