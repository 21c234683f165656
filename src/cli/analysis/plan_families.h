// SPDX-License-Identifier: Apache-2.0
// The best plan of every family beside the best of all, and the next bottleneck, of a plan search.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "planner/search.h"
#include "planner/usual.h"

namespace hocket::cli {

/// Simulated plans of a family.
struct FamilyRow {
  planner::Family family{};
  const planner::Outcome* best = nullptr;  ///< null: none fits
  /// A plan that does not fit: the fastest that is faster than `best`; without `best` the one that
  /// takes the least memory. Null: there is none.
  const planner::Outcome* too_large = nullptr;
  planner::TooLarge dropped;  ///< without simulated plans: the dropped one nearest to fitting
  planner::FamilyRest rest;
  int64_t simulated = 0;
};
/// Returns the families that have plans, the fastest first; those without a simulated plan that
/// fits are the last. Requires: `result` outlives them.
std::vector<FamilyRow> families_of(const planner::SearchResult& result);

/// Returns where a plan loses time against the best one, largest part first: "+1.2 s bubble, -300
/// ms compute".
std::string loss_text(const planner::Outcome& best, const planner::Outcome& other);
/// Returns the cause of a family's distance to the best plan: parts of the step, recomputation,
/// memory; without a plan that fits, what is known of the others. Empty for the best plan.
std::string cause_text(const planner::SearchResult& result, const FamilyRow& row,
                       const planner::SearchSpace& space);
/// Returns "estimated to take 74.2 GiB (74.1 GiB at least)" for a dropped plan, "estimated to take
/// 74.2 GiB" for one that is left.
std::string estimate_text(const planner::TooLarge& plan);
/// Returns "1 min 48 s", with "+- 0.2 %" for an extrapolated step.
std::string step_text(const planner::Outcome& outcome);

/// Returns "1 min 20 s to 2 min 5 s", between which a real step is expected; "none" without one.
std::string interval_text(const planner::Outcome& outcome);
/// The same as JSON, seconds and the grounds; without ends where there is none.
nlohmann::json interval_json(const planner::Outcome& outcome);

/// Returns the table of families.
std::string families_text(const planner::SearchResult& result, const planner::SearchSpace& space);

/// Returns the saving by 10 % more of each resource, largest first; at last that of memory, from
/// the simulated plans that would fit then. `memory`: bytes of a rank.
std::vector<std::string> gains_lines(const planner::SearchResult& result,
                                     const planner::SearchSpace& space, int64_t memory);

/// The same as JSON: a list of families, and shares of the step by resource.
nlohmann::json families_json(const planner::SearchResult& result,
                             const planner::SearchSpace& space);
nlohmann::json gains_json(const planner::SearchResult& result, int64_t memory);

}  // namespace hocket::cli
