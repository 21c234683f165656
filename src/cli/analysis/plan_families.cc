// SPDX-License-Identifier: Apache-2.0
#include "cli/analysis/plan_families.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/text.h"
#include "planner/bottleneck.h"

namespace hocket::cli {

namespace {

/// Parts of a loss below this share of it are not printed.
constexpr double kShownShare = 0.05;
/// A gain below this share of the step is none.
constexpr double kNoGain = 5e-4;

std::string memory_text(const planner::Outcome& outcome) {
  return human_bytes(static_cast<double>(outcome.bytes));
}

}  // namespace

std::string loss_text(const planner::Outcome& best, const planner::Outcome& other) {
  std::vector<std::pair<double, const char*>> parts = {
      {other.compute_s - best.compute_s, "compute"},
      {other.exposed_s - best.exposed_s, "exposed communication"},
      {other.bubble_s - best.bubble_s, "bubble"},
      {other.idle_s - best.idle_s, "idle"}};
  std::sort(parts.begin(), parts.end(),
            [](const auto& left, const auto& right) { return left.first > right.first; });
  const double least = kShownShare * std::max(1e-12, other.step_s - best.step_s);
  std::vector<std::string> words;
  for (const auto& [seconds, what] : parts) {
    if (seconds > least) {
      words.push_back(fmt::format("+{} {}", human_time(seconds), what));
    } else if (seconds < -least) {
      words.push_back(fmt::format("-{} {}", human_time(-seconds), what));
    }
  }
  return join(words, ", ");
}

std::vector<FamilyRow> families_of(const planner::SearchResult& result) {
  std::array<FamilyRow, planner::kFamilies> rows{};
  const auto row_of = [&](const planner::Outcome& outcome) -> FamilyRow& {
    FamilyRow& row = rows[static_cast<size_t>(planner::family_of(outcome.plan))];
    ++row.simulated;
    return row;
  };
  for (const planner::Outcome& outcome : result.best) {
    FamilyRow& row = row_of(outcome);
    row.best = row.best ? row.best : &outcome;
  }
  for (const planner::Outcome& outcome : result.over_memory) {
    FamilyRow& row = row_of(outcome);
    const planner::Outcome* const other = row.too_large;
    if (row.best && outcome.step_s >= row.best->step_s) continue;
    const bool is_better =
        !other || (row.best ? outcome.step_s < other->step_s : outcome.bytes < other->bytes);
    row.too_large = is_better ? &outcome : other;
  }
  std::vector<FamilyRow> found;
  for (size_t family = 0; family < rows.size(); ++family) {
    FamilyRow& row = rows[family];
    row.family = static_cast<planner::Family>(family);
    row.rest = result.rest_of[family];
    if (row.simulated == 0) {
      row.dropped = result.nearest_of[family];
    }
    const bool has_others = row.rest.left > 0 || row.rest.slower > 0 || row.rest.is_unseen;
    if (row.simulated > 0 || row.dropped.bytes > 0 || has_others) {
      found.push_back(row);
    }
  }
  std::stable_sort(found.begin(), found.end(), [](const FamilyRow& left, const FamilyRow& right) {
    if (!left.best || !right.best) return left.best != nullptr && right.best == nullptr;
    return left.best->step_s < right.best->step_s;
  });
  return found;
}

std::string estimate_text(const planner::TooLarge& plan) {
  const std::string bound = plan.lower_bound_bytes > 0
                                ? fmt::format(" ({} at least)", human_bytes(plan.lower_bound_bytes))
                                : "";
  return fmt::format("estimated to take {}{}", human_bytes(plan.bytes), bound);
}

namespace {

/// Returns what is known of a family without a simulated plan that fits.
std::string untried_text(const FamilyRow& row, const planner::SearchSpace& space) {
  std::vector<std::string> parts;
  if (row.too_large) {
    parts.push_back(fmt::format("none of {} simulated fits; the nearest takes {}: {}",
                                row.simulated, memory_text(*row.too_large),
                                planner::describe(row.too_large->plan, space)));
  } else if (row.simulated > 0) {
    parts.push_back(fmt::format("none of {} simulated has a program", row.simulated));
  }
  const planner::FamilyRest& rest = row.rest;
  if (rest.step_s > 0) {
    parts.push_back(
        fmt::format("{} not tried, of which the most promising is estimated to take {} "
                    "in {}: {}",
                    counted(rest.left, "plan"), human_time(rest.step_s), human_bytes(rest.bytes),
                    planner::describe(rest.plan, space)));
  } else if (rest.is_unseen) {
    parts.push_back(std::string(parts.empty() ? "not tried: " : "") +
                    "there was no time to look at all of its meshes");
  } else if (rest.slower > 0) {
    parts.push_back(
        fmt::format("{} slower than the best by their bound", counted(rest.slower, "plan")));
  }
  if (row.dropped.bytes > 0 && rest.step_s == 0) {
    parts.push_back(fmt::format("{}of those too large the nearest is {}: {}",
                                parts.empty() ? "none simulated; " : "", estimate_text(row.dropped),
                                planner::describe(row.dropped.plan, space)));
  }
  return join(parts, "; ");
}

}  // namespace

std::string cause_text(const planner::SearchResult& result, const FamilyRow& row,
                       const planner::SearchSpace& space) {
  if (!row.best) return untried_text(row, space);
  const planner::Outcome& best = result.best.front();
  if (row.best->plan == best.plan) return "";
  std::string text = loss_text(best, *row.best);
  if (row.best->plan.recompute != best.plan.recompute) {
    text += fmt::format("{}recompute {} for {}", text.empty() ? "" : "; ",
                        planner::to_string(row.best->plan.recompute),
                        planner::to_string(best.plan.recompute));
  }
  if (row.too_large) {
    text +=
        fmt::format("{}with {} it would take {} ({}): {}", text.empty() ? "" : "; ",
                    memory_text(*row.too_large), human_time(row.too_large->step_s),
                    interval_text(*row.too_large), planner::describe(row.too_large->plan, space));
  }
  return text;
}

std::string step_text(const planner::Outcome& outcome) {
  std::string text = human_time(outcome.step_s);
  if (outcome.extrapolated) {
    text += fmt::format(" +-{:.1f} %", 100 * outcome.error_s / outcome.step_s);
  }
  return text;
}

std::string interval_text(const planner::Outcome& outcome) {
  if (!outcome.has_interval()) return "none";
  return fmt::format("{} to {}", human_time(outcome.low_s()), human_time(outcome.high_s()));
}

nlohmann::json interval_json(const planner::Outcome& outcome) {
  nlohmann::json interval = {{"why", outcome.interval_why}};
  if (outcome.has_interval()) {
    interval["low_s"] = outcome.low_s();
    interval["high_s"] = outcome.high_s();
  }
  return interval;
}

std::string families_text(const planner::SearchResult& result, const planner::SearchSpace& space) {
  std::string text = fmt::format("\n{:<16}  {:>18}  {:>23}  {:>9}  {:>10}  {}\n", "family", "step",
                                 "interval", "to best", "memory", "best plan");
  const double best_s = result.best.front().step_s;
  for (const FamilyRow& row : families_of(result)) {
    const char* const name = planner::kFamilyNames[static_cast<size_t>(row.family)];
    const std::string cause = cause_text(result, row, space);
    if (!row.best) {
      text += fmt::format("{:<16}  {}\n", name, cause);
      continue;
    }
    const double loss = row.best->step_s / best_s - 1;
    text +=
        fmt::format("{:<16}  {:>18}  {:>23}  {:>9}  {:>10}  {}\n", name, step_text(*row.best),
                    interval_text(*row.best), loss == 0 ? "" : fmt::format("+{:.1f} %", 100 * loss),
                    memory_text(*row.best), planner::describe(row.best->plan, space));
    if (!cause.empty()) {
      text += fmt::format("{:<16}  {}\n", "", cause);
    }
  }
  return text;
}

namespace {

/// Returns the fastest simulated plan that would fit into 10 % more memory, if it is faster than
/// the best one; null: none is.
const planner::Outcome* best_with_more(const planner::SearchResult& result, int64_t memory) {
  const planner::Outcome* fastest = nullptr;
  for (const planner::Outcome& outcome : result.over_memory) {
    const bool fits =
        static_cast<double>(outcome.bytes) <= planner::kImprovement * static_cast<double>(memory);
    if (fits && (!fastest || outcome.step_s < fastest->step_s)) {
      fastest = &outcome;
    }
  }
  const double gainful_s = result.best.front().step_s * (1 - kNoGain);
  return fastest && fastest->step_s < gainful_s ? fastest : nullptr;
}

}  // namespace

std::vector<std::string> gains_lines(const planner::SearchResult& result,
                                     const planner::SearchSpace& space, int64_t memory) {
  std::vector<planner::Gain> gains = result.gains;
  std::stable_sort(gains.begin(), gains.end(),
                   [](const auto& left, const auto& right) { return left.share > right.share; });
  if (gains.empty()) return {};  // there was no time for them
  const double percent = 100 * (planner::kImprovement - 1);
  std::vector<std::string> lines;
  for (const planner::Gain& gain : gains) {
    const std::string saved =
        gain.share < kNoGain ? "no gain" : fmt::format("-{:.1f} %", 100 * gain.share);
    lines.push_back(fmt::format("{:.0f} % more of {:<20} {}", percent, gain.resource, saved));
  }
  const planner::Outcome* const larger = best_with_more(result, memory);
  const std::string saved =
      larger ? fmt::format("-{:.1f} %: {}", 100 * (1 - larger->step_s / result.best.front().step_s),
                           planner::describe(larger->plan, space))
             : "no gain: no simulated plan that would fit then is faster";
  lines.push_back(fmt::format("{:.0f} % more of {:<20} {}", percent, "memory", saved));
  return lines;
}

nlohmann::json families_json(const planner::SearchResult& result,
                             const planner::SearchSpace& space) {
  nlohmann::json list = nlohmann::json::array();
  for (const FamilyRow& row : families_of(result)) {
    nlohmann::json one = {{"family", planner::kFamilyNames[static_cast<size_t>(row.family)]},
                          {"simulated", row.simulated},
                          {"left", row.rest.left},
                          {"cause", cause_text(result, row, space)}};
    if (row.best) {
      one["step_s"] = row.best->step_s;
      one["interval"] = interval_json(*row.best);
      one["memory_bytes"] = row.best->bytes;
      one["plan"] = planner::describe(row.best->plan, space);
    }
    list.push_back(std::move(one));
  }
  return list;
}

nlohmann::json gains_json(const planner::SearchResult& result, int64_t memory) {
  nlohmann::json gains = nlohmann::json::object();
  for (const planner::Gain& gain : result.gains) {
    gains[gain.resource] = gain.share;
  }
  if (!result.gains.empty()) {
    const planner::Outcome* const larger = best_with_more(result, memory);
    gains["memory"] = larger ? 1 - larger->step_s / result.best.front().step_s : 0.0;
  }
  return gains;
}

}  // namespace hocket::cli
