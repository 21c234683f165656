// SPDX-License-Identifier: Apache-2.0
// The page of `hocket plan --html`.
#pragma once

#include <string>

#include "planner/search.h"

namespace hocket::cli {

/// Returns a self-contained page about a search. It has the best plan of every family with its time
/// by part, its timeline and its distance to the best. It also has the next bottleneck and the best
/// plans. A long step has the timeline of a shortened one. Requires: at least one plan.
std::string plan_page(const planner::SearchResult& result, const planner::Trial& trial,
                      const planner::SearchSpace& space, const std::string& model, size_t top);

}  // namespace hocket::cli
