// SPDX-License-Identifier: Apache-2.0
// Result of a plan search, as text and as JSON.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "planner/search.h"

namespace hocket::cli {

/// "296 plans, 0 too large, 156 slower by their bound, 55 simulated".
std::string found_text(const planner::Counts& counts);
/// Returns the search's effort, and whether its best plan is proven to be the best.
std::string ending_text(const planner::SearchResult& result);
/// Returns the `top` best plans, their time by part, and the loss of each against the best.
/// Requires: at least one plan.
std::string table_text(const planner::SearchResult& result, const planner::SearchSpace& space,
                       size_t top);
/// Returns the reason for each choice of the best plan: the fastest simulated plan that differs in
/// that choice alone, and its loss.
std::string why_text(const planner::SearchResult& result, const planner::SearchSpace& space);
/// The best plans with all counts; seconds and bytes (docs/planner.md). `memory`: bytes of a rank.
std::string search_json(const planner::SearchResult& result, const planner::SearchSpace& space,
                        bool calibrated, size_t top, int64_t memory);

}  // namespace hocket::cli
