// SPDX-License-Identifier: Apache-2.0
// The search for the plan with the shortest simulated step. The best usual plans of every family
// are simulated first. Then every plan of the space is bounded, plans that cannot fit into memory
// are dropped, and the rest is simulated in the order of an estimate; plans that cannot beat the
// best are pruned. The search ends when no plan is left, and then its best plan is that of the
// whole space, or when its time is up.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "planner/trial.h"
#include "planner/usual.h"

namespace hocket::planner {

/// Progress of a search. At the end every plan is in one of too_large, slower, simulated and left.
struct Counts {
  int64_t plans = 0;      ///< looked at
  int64_t too_large = 0;  ///< dropped: their lower bound on memory is above the limit
  int64_t slower = 0;     ///< pruned: their lower bound on time is above the best
  int64_t simulated = 0;
  int64_t extrapolated = 0;  ///< of the simulated ones: from fewer micro-batches
  int64_t over_memory = 0;   ///< of the simulated ones
  int64_t refused = 0;       ///< of the simulated ones: there is no such program
  int64_t left = 0;          ///< neither pruned nor simulated at the end
  int64_t meshes = 0;        ///< of the space
  int64_t meshes_left = 0;   ///< meshes without visited plans
};

struct SearchOptions {
  double time_limit_s = 60;  ///< 0: none
  double spent_s = 0;        ///< part of the limit that the caller has already used
  int threads = 0;           ///< 0: one per core
  /// The caller draws the timeline of the best plan of every family afterwards, within the limit.
  bool draws_families = false;
  /// Returns seconds, from any moment on, in place of the steady clock; for tests.
  std::function<double()> clock = nullptr;
  /// No bounds: every plan of the space is simulated, for tests.
  bool everything = false;
  std::function<bool()> stop = nullptr;  ///< true ends the search with the best so far
  /// Called now and then, by the thread that searches. `best`: null before there is one. `ended`:
  /// why it ends, if it goes on until there is a first plan; else empty.
  std::function<void(const Counts&, const Outcome* best, const std::string& ended)> progress =
      nullptr;
};

/// A plan that takes more memory than there is, or may do so.
struct TooLarge {
  PlanCandidate plan;
  double bytes = 0;              ///< planned, or of an untried plan estimated; 0: there is none
  double lower_bound_bytes = 0;  ///< 0: there is none above the limit
  /// Becomes the other one if that takes less.
  void take(const TooLarge& other);
};

/// Plans of a family that were not simulated.
struct FamilyRest {
  int64_t left = 0;
  int64_t slower = 0;       ///< pruned by their bound on time
  bool is_unseen = false;   ///< a mesh of the family was not looked at
  PlanCandidate plan = {};  ///< the most promising of those left
  double step_s = 0;        ///< estimated for `plan`; 0: there is none
  double bytes = 0;         ///< estimated for `plan`
};

/// Share of the best step that a resource saves if it is 10 % better.
struct Gain {
  std::string resource;
  double share = 0;
};

struct SearchResult {
  Counts counts;
  bool complete = false;             ///< no plan of the space is faster than the best one
  std::string ended;                 ///< why it is not complete: "the time is up", ..
  std::vector<Outcome> best;         ///< good ones, the fastest first
  std::vector<Outcome> over_memory;  ///< simulated ones that do not fit
  std::vector<Gain> gains;           ///< of the best plan; empty: there was no time for them
  /// The dropped plan with the least estimated memory; none if that was simulated.
  TooLarge nearest;
  std::array<TooLarge, kFamilies> nearest_of;  ///< of all dropped plans of every family
  TooLarge nearest_untried;                    ///< of the plans left
  TooLarge nearest_simulated;                  ///< of the simulated ones
  std::array<FamilyRest, kFamilies> rest_of;
  /// Bytes of parameters and optimizer states, on all ranks together. No plan has less.
  double state_bytes = 0;
  std::map<std::string, int64_t> refusals;  ///< why there is no program: how often
  double seconds = 0;                       ///< that the search took
  double bounding_s = 0;                    ///< part of it for bounds
  double lower_bound_s = 0;  ///< no plan of the space is faster than this; 0: not known
};

SearchResult search(const Trial& trial, const SearchSpace& space, const SearchOptions& options);

}  // namespace hocket::planner
