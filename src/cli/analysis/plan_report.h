// SPDX-License-Identifier: Apache-2.0
// What a search for a plan found, as text and as JSON.
#pragma once

#include <cstddef>
#include <string>

#include "planner/search.h"

namespace hocket::cli {

/// "296 plans, 0 too large, 156 slower by their bound, 55 simulated".
std::string found_text(const planner::Counts& counts);
/// What the search did, and whether its best is the best there is.
std::string ending_text(const planner::SearchResult& result);
/// The `top` best plans, where their time goes, and where each loses against the best one, of which
/// there is one at least.
std::string table_text(const planner::SearchResult& result, const planner::Space& space,
                       size_t top);
/// Why each choice of the best plan is as it is: of the simulated plans that differ from it in that
/// alone the fastest, and what it loses.
std::string why_text(const planner::SearchResult& result, const planner::Space& space);
/// The best plans with all counts; seconds and bytes (docs/planner.md).
std::string search_json(const planner::SearchResult& result, const planner::Space& space,
                        bool calibrated, size_t top);

}  // namespace hocket::cli
