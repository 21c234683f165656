// SPDX-License-Identifier: Apache-2.0
#include "cli/analysis/plan_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>
#include <utility>
#include <vector>

#include "base/text.h"
#include "cli/analysis/plan_families.h"

namespace hocket::cli {

namespace {

/// Choices of a plan by key; keys that only go together are one choice.
struct Chosen {
  std::string value;  ///< plans with the same one have chosen the same
  std::string set;    ///< "KEY=VALUE", one after the other
};
std::map<std::string, Chosen> choices_of(const planner::Outcome& outcome,
                                         const planner::SearchSpace& space) {
  std::map<std::string, Chosen> choices;
  for (const std::string& assignment : planner::assignments(outcome.plan, space)) {
    std::string key = assignment.substr(0, assignment.find('='));
    if (key == "plan.dp_samples") continue;
    if (key.starts_with("plan.shard.")) {
      key = "plan.shard";
    } else if (key == "plan.reduce_scatter" || key == "plan.all_gather") {
      key = "plan.all_reduce";
    } else if (key == "plan.cp_order") {
      key = "plan.cp_comm_type";
    }
    Chosen& chosen = choices[key];
    chosen.set += (chosen.set.empty() ? "" : " ") + assignment;
    chosen.value = chosen.set;
  }
  // The sequences of a micro-batch, and their distribution over replicas by speed, are two choices.
  const std::vector<int64_t> each = planner::samples(space, outcome.plan);
  const bool distributed = outcome.plan.sequences > 0;
  const std::string set = distributed ? fmt::format("plan.dp_samples=[{}]", fmt::join(each, ", "))
                                      : fmt::format("plan.micro_batch={}", each.front());
  const int64_t all = std::accumulate(each.begin(), each.end(), int64_t{0});
  choices["plan.micro_batch"] = {std::to_string(all), set};
  choices["plan.dp_samples"] = {distributed ? "distributed" : "even", set};
  return choices;
}

/// Returns the only choice in which a plan differs from the best one, and its replacement ("without
/// plan.ep_inner=8"). Returns two empty texts if several choices differ.
std::pair<std::string, std::string> only_change(const planner::Outcome& best,
                                                const planner::Outcome& other,
                                                const planner::SearchSpace& space) {
  const std::map<std::string, Chosen> here = choices_of(best, space);
  const std::map<std::string, Chosen> there = choices_of(other, space);
  std::vector<std::pair<std::string, std::string>> changes;
  for (const auto& [key, chosen] : here) {
    const auto at = there.find(key);
    if (at == there.end()) {
      changes.emplace_back(key, "without " + chosen.set);
    } else if (at->second.value != chosen.value) {
      changes.emplace_back(key, "with " + at->second.set);
    }
  }
  for (const auto& [key, chosen] : there) {
    if (here.count(key) == 0) {
      changes.emplace_back(key, "with " + chosen.set);
    }
  }
  return changes.size() == 1 ? changes.front() : std::pair<std::string, std::string>();
}

nlohmann::json json_of(const planner::Outcome& outcome, const planner::SearchSpace& space) {
  nlohmann::json keys = nlohmann::json::object();
  for (const std::string& assignment : planner::assignments(outcome.plan, space)) {
    const size_t equal = assignment.find('=');
    keys[assignment.substr(0, equal)] = assignment.substr(equal + 1);
  }
  return {{"step_s", outcome.step_s},
          {"interval", interval_json(outcome)},
          {"extrapolated", outcome.extrapolated},
          {"error_s", outcome.error_s},
          {"compute_s", outcome.compute_s},
          {"exposed_communication_s", outcome.exposed_s},
          {"bubble_s", outcome.bubble_s},
          {"idle_s", outcome.idle_s},
          {"mfu", outcome.mfu},
          {"memory_bytes", outcome.bytes},
          {"plan", planner::describe(outcome.plan, space)},
          {"set", keys}};
}

}  // namespace

std::string found_text(const planner::Counts& counts) {
  return fmt::format("{} plans, {} too large, {} slower by their bound, {} simulated",
                     human_count(static_cast<double>(counts.plans)),
                     human_count(static_cast<double>(counts.too_large)),
                     human_count(static_cast<double>(counts.slower)), counts.simulated);
}

std::string ending_text(const planner::SearchResult& result) {
  const planner::Counts& counts = result.counts;
  std::string text = fmt::format("{} in {} ({} of it for bounds)", found_text(counts),
                                 human_time(result.seconds), human_time(result.bounding_s));
  if (counts.over_memory + counts.refused > 0) {
    text += fmt::format("; of the simulated {} too large, {} without a program", counts.over_memory,
                        counts.refused);
  }
  if (counts.extrapolated > 0) {
    text += fmt::format("; {} extrapolated from fewer micro-batches", counts.extrapolated);
  }
  if (result.complete) {
    if (result.best.empty()) return text + "; nothing is left";
    return text + "; nothing is left: no plan of the space is faster" +
           (result.best.front().plan.pp > 1 ? ", nor the best one with a layer on another stage"
                                            : "");
  }
  const std::string left = human_count(static_cast<double>(counts.left));
  if (counts.meshes_left > 0 && counts.meshes_left == counts.meshes) {
    // The first phase looks at usual plans of all meshes alone.
    text += fmt::format("; {} of the usual plans left, and all others of {} meshes not looked at",
                        left, counts.meshes);
  } else if (counts.meshes_left > 0) {
    text += fmt::format("; {} left, and {} of {} meshes not looked at", left, counts.meshes_left,
                        counts.meshes);
  } else {
    text += fmt::format("; {} left", left);
  }
  return text + " when " + result.ended;
}

std::string table_text(const planner::SearchResult& result, const planner::SearchSpace& space,
                       size_t top) {
  std::string text =
      fmt::format("{:>3}  {:>18}  {:>23}  {:>8}  {:>8}  {:>8}  {:>8}  {:>10}  {}\n", "", "step",
                  "interval", "compute", "exposed", "bubble", "idle", "memory", "plan");
  const planner::Outcome& best = result.best.front();
  for (size_t i = 0; i < std::min(top, result.best.size()); ++i) {
    const planner::Outcome& row = result.best[i];
    const auto share = [&](double seconds) {
      return fmt::format("{:.1f} %", 100 * seconds / row.step_s);
    };
    text += fmt::format("{:>3}  {:>18}  {:>23}  {:>8}  {:>8}  {:>8}  {:>8}  {:>10}  {}\n", i + 1,
                        step_text(row), interval_text(row), share(row.compute_s),
                        share(row.exposed_s), share(row.bubble_s), share(row.idle_s),
                        human_bytes(static_cast<double>(row.bytes)),
                        planner::describe(row.plan, space));
    if (i > 0) {
      text += fmt::format("{:>3}  {:>18}  {}\n", "",
                          fmt::format("+{:.2f} %", 100 * (row.step_s / best.step_s - 1)),
                          loss_text(best, row));
    }
  }
  return text + fmt::format("interval of the first: {}\n", best.interval_why);
}

std::string why_text(const planner::SearchResult& result, const planner::SearchSpace& space) {
  std::string text;
  const planner::Outcome& best = result.best.front();
  std::set<std::string> shown;
  for (const planner::Outcome& other : result.best) {
    const auto [key, change] = only_change(best, other, space);
    if (key.empty() || !shown.insert(key).second) continue;
    const std::string loss = loss_text(best, other);
    text += fmt::format("{:8} {:+.2f} % {}{}\n", text.empty() ? "why" : "",
                        100 * (other.step_s / best.step_s - 1), change,
                        loss.empty() ? "" : ": " + loss);
  }
  return text.empty() ? "" : "\n" + text;
}

std::string search_json(const planner::SearchResult& result, const planner::SearchSpace& space,
                        bool calibrated, size_t top, int64_t memory) {
  const planner::Counts& counts = result.counts;
  nlohmann::json best = nlohmann::json::array();
  for (size_t i = 0; i < std::min(top, result.best.size()); ++i) {
    best.push_back(json_of(result.best[i], space));
  }
  const nlohmann::json all = {{"best", best},
                              {"families", families_json(result, space)},
                              {"gains_of_ten_percent", gains_json(result, memory)},
                              {"calibrated", calibrated},
                              {"complete", result.complete},
                              {"ended", result.ended},
                              {"lower_bound_s", result.lower_bound_s},
                              {"least_s", result.lower_bound_s},  // the former name of the key
                              {"seconds", result.seconds},
                              {"bounding_s", result.bounding_s},
                              {"counts",
                               {{"plans", counts.plans},
                                {"too_large", counts.too_large},
                                {"slower", counts.slower},
                                {"simulated", counts.simulated},
                                {"extrapolated", counts.extrapolated},
                                {"over_memory", counts.over_memory},
                                {"refused", counts.refused},
                                {"left", counts.left},
                                {"meshes", counts.meshes},
                                {"meshes_left", counts.meshes_left}}}};
  return all.dump(2);
}

}  // namespace hocket::cli
