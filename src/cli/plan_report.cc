// SPDX-License-Identifier: Apache-2.0
#include "cli/plan_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "base/text.h"

namespace hocket::cli {

namespace {

/// Where a plan loses against the best one, the greatest part first.
std::string loss_text(const plan::Outcome& best, const plan::Outcome& other) {
  std::vector<std::pair<double, const char*>> parts = {
      {other.compute_s - best.compute_s, "compute"},
      {other.exposed_s - best.exposed_s, "exposed communication"},
      {other.idle_s - best.idle_s, "idle"}};
  std::sort(parts.begin(), parts.end(),
            [](const auto& left, const auto& right) { return left.first > right.first; });
  std::vector<std::string> words;
  for (const auto& [seconds, what] : parts) {
    if (seconds > 0.05 * std::max(1e-12, other.step_s - best.step_s)) {
      words.push_back(fmt::format("+{} {}", human_time(seconds), what));
    } else if (seconds < -0.05 * std::max(1e-12, other.step_s - best.step_s)) {
      words.push_back(fmt::format("-{} {}", human_time(-seconds), what));
    }
  }
  return join(words, ", ");
}

nlohmann::json json_of(const plan::Outcome& outcome, const plan::Space& space) {
  nlohmann::json keys = nlohmann::json::object();
  for (const std::string& assignment : plan::assignments(outcome.choice, space)) {
    const size_t equal = assignment.find('=');
    keys[assignment.substr(0, equal)] = assignment.substr(equal + 1);
  }
  return {{"step_s", outcome.step_s},
          {"compute_s", outcome.compute_s},
          {"exposed_communication_s", outcome.exposed_s},
          {"idle_s", outcome.idle_s},
          {"mfu", outcome.mfu},
          {"memory_bytes", outcome.bytes},
          {"plan", plan::describe(outcome.choice, space)},
          {"set", keys}};
}

}  // namespace

std::string found_text(const plan::Counts& counts) {
  return fmt::format("{} plans, {} too large, {} slower by their bound, {} simulated",
                     human_count(static_cast<double>(counts.plans)),
                     human_count(static_cast<double>(counts.too_large)),
                     human_count(static_cast<double>(counts.slower)), counts.simulated);
}

std::string ending_text(const plan::SearchResult& result) {
  const plan::Counts& counts = result.counts;
  std::string text = fmt::format("{} in {} ({} of it for bounds)", found_text(counts),
                                 human_time(result.seconds), human_time(result.bounding_s));
  if (counts.over_memory + counts.refused > 0) {
    text += fmt::format("; of the simulated {} too large, {} without a program", counts.over_memory,
                        counts.refused);
  }
  if (result.complete) {
    return text + "; nothing is left" +
           (result.best.empty() ? "" : ": no plan of the space is faster");
  }
  text += fmt::format("; {} left", human_count(static_cast<double>(counts.left)));
  if (counts.meshes_left > 0) {
    text += fmt::format(", and {} of {} meshes not looked at", counts.meshes_left, counts.meshes);
  }
  return text + " when " + result.ended;
}

std::string table_text(const plan::SearchResult& result, const plan::Space& space, size_t top) {
  std::string text = fmt::format("{:>3}  {:>11}  {:>8}  {:>8}  {:>8}  {:>10}  {}\n", "", "step",
                                 "compute", "exposed", "idle", "memory", "plan");
  const plan::Outcome& best = result.best.front();
  for (size_t i = 0; i < std::min(top, result.best.size()); ++i) {
    const plan::Outcome& row = result.best[i];
    const auto share = [&](double seconds) {
      return fmt::format("{:.1f} %", 100 * seconds / row.step_s);
    };
    text += fmt::format("{:>3}  {:>11}  {:>8}  {:>8}  {:>8}  {:>10}  {}\n", i + 1,
                        human_time(row.step_s), share(row.compute_s), share(row.exposed_s),
                        share(row.idle_s), human_bytes(static_cast<double>(row.bytes)),
                        plan::describe(row.choice, space));
    if (i > 0) {
      text += fmt::format("{:>3}  {:>11}  {}\n", "",
                          fmt::format("+{:.2f} %", 100 * (row.step_s / best.step_s - 1)),
                          loss_text(best, row));
    }
  }
  return text;
}

std::string search_json(const plan::SearchResult& result, const plan::Space& space, size_t top) {
  const plan::Counts& counts = result.counts;
  nlohmann::json best = nlohmann::json::array();
  for (size_t i = 0; i < std::min(top, result.best.size()); ++i) {
    best.push_back(json_of(result.best[i], space));
  }
  const nlohmann::json all = {{"best", best},
                              {"complete", result.complete},
                              {"ended", result.ended},
                              {"least_s", result.least_s},
                              {"seconds", result.seconds},
                              {"bounding_s", result.bounding_s},
                              {"counts",
                               {{"plans", counts.plans},
                                {"too_large", counts.too_large},
                                {"slower", counts.slower},
                                {"simulated", counts.simulated},
                                {"over_memory", counts.over_memory},
                                {"refused", counts.refused},
                                {"left", counts.left},
                                {"meshes", counts.meshes},
                                {"meshes_left", counts.meshes_left}}}};
  return all.dump(2);
}

}  // namespace hocket::cli
