// SPDX-License-Identifier: Apache-2.0
// Implements: the first phase of a search, and those after the one over all plans (search_state.h).
#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <functional>
#include <limits>
#include <set>
#include <utility>

#include "base/log.h"
#include "planner/bottleneck.h"
#include "planner/search_state.h"

namespace hocket::planner {

/// Returns the seconds that an extrapolation of the best plan takes. Requires: the mutex is held,
/// there is a plan.
double Search::once_s() const {
  const Outcome& best = result_.best.front();
  return best.whole_s * passes(best.plan) /
         program_passes(best.plan, space_, num_micro_batches(space_, best.plan));
}

/// Returns the seconds that the simulations at the end take: of the best plan in full and with
/// better resources, beside the second best. Requires: the mutex is held.
double Search::final_s() const {
  if (result_.best.empty()) return 0;
  const double most = kFinalShare * options_.time_limit_s;
  double full_s = 0, all_s = 0;
  for (size_t i = 0; i < std::min<size_t>(2, result_.best.size()); ++i) {
    const double whole_s = result_.best[i].extrapolated ? result_.best[i].whole_s : 0;
    full_s = std::max(full_s, whole_s);
    all_s += whole_s;
  }
  full_s = std::max(full_s, all_s / num_threads());
  return std::min(most, (full_s > most ? 0 : full_s) + kGainsOverOnce * once_s());
}

/// Returns the seconds in which the timelines of the best plans of all families are simulated.
/// Requires: the mutex is held.
double Search::timelines_s() const {
  // Time of a simulation that records all tasks over that of one that does not; not measured.
  // With more, the search ends too early; with less, the timelines exceed the time limit.
  constexpr double kRecordingSlowdown = 1.5;
  std::array<bool, kFamilies> seen{};
  double seconds = 0;
  for (const Outcome& outcome : result_.best) {
    bool& is_seen = seen[static_cast<size_t>(family_of(outcome.plan))];
    if (is_seen) continue;
    is_seen = true;
    const int64_t all = num_micro_batches(space_, outcome.plan);
    const std::vector<int64_t> shorter = shortened_micro_batches(outcome.plan, space_);
    const int64_t shown = shorter.empty() ? all : shorter.front();
    seconds += kRecordingSlowdown * outcome.whole_s * program_passes(outcome.plan, space_, shown) /
               program_passes(outcome.plan, space_, all);
  }
  return std::min(seconds, kFinalShare * options_.time_limit_s);
}

/// Returns the seconds that follow the last simulation. Requires: the mutex is held.
double Search::after_s() const {
  return winding_up_s() + (options_.draws_families ? timelines_s() : 0);
}

/// Takes the usual plan with the least corrected estimate, of a family with fewest simulated ones.
/// Returns false once there are enough of every family, or their time is up.
bool Search::take_usual(QueuedPlan* queued) {
  const std::lock_guard lock(mutex_);
  const bool late =
      options_.time_limit_s > 0 && spent_s() >= kUsualShare * options_.time_limit_s && fits_;
  if (ends() || late || (options_.stop && options_.stop() && fits_)) return false;
  const auto enough = [&](const PlanCandidate& plan) {
    const auto family = static_cast<size_t>(family_of(plan));
    const int more = fitting_of_[family] > 0 ? 0 : kMoreUsualOfFamily;
    const bool is_due = is_customary(plan) && customary_of_[family] < kCustomaryOfFamily;
    return tried_of_[family] >= kUsualOfFamily + more + (is_due ? kCustomaryOfFamily : 0);
  };
  size_t next = queue_.size();
  int fewest = 0;
  double least = 0;
  for (size_t i = 0; i < queue_.size(); ++i) {
    const auto family = static_cast<size_t>(family_of(queue_[i].plan));
    const bool is_later = next < queue_.size() && tried_of_[family] > fewest;
    if (queue_[i].stands_for_layers || enough(queue_[i].plan) || is_later) continue;
    const double here = corrected_estimate(queue_[i]);
    if (fitting_of_[family] > 0 && here > kMaxUsualSlowdown * best_s_) continue;
    if (next < queue_.size() && tried_of_[family] == fewest && here >= least) continue;
    next = i;
    fewest = tried_of_[family];
    least = here;
  }
  if (next == queue_.size()) return false;
  const auto family = static_cast<size_t>(family_of(queue_[next].plan));
  *queued = queue_[next];
  queue_[next] = queue_.back();
  queue_.pop_back();
  ++tried_of_[family];
  customary_of_[family] += is_customary(queued->plan) ? 1 : 0;
  return true;
}

/// Simulates the best usual plans of every family. The whole space is bounded after that, and
/// these plans with it.
void Search::simulate_usual() {
  bound_meshes();
  in_threads([&](int thread) {
    QueuedPlan queued;
    while (take_usual(&queued)) {
      if (!queued.replayed) {  // then others may come first
        std::unique_lock lock(mutex_);
        replay_schedule(&queued, estimator_of(thread), &lock);
        const auto family = static_cast<size_t>(family_of(queued.plan));
        --tried_of_[family];
        customary_of_[family] -= is_customary(queued.plan) ? 1 : 0;
        queue_.push_back(queued);
        continue;
      }
      std::optional<Outcome> outcome =
          trial_.extrapolate(queued.plan, space_, enough_s(), [&] { return ends(); });
      if (!outcome) return;
      const std::lock_guard lock(mutex_);
      fitting_of_[static_cast<size_t>(family_of(queued.plan))] += outcome->fits ? 1 : 0;
      tried_[queued.plan] = record(queued, std::move(*outcome));
    }
  });
  const int64_t simulated = result_.counts.simulated;
  next_mesh_ = 0;
  given_up_meshes_ = 0;
  phase_ = Phase::all;
  const std::lock_guard lock(mutex_);
  look_whether_to_stop();  // with the reserve of the later phases
  if (ends()) return;      // the others are left
  queue_.clear();
  next_order_ = 0;
  result_.counts.plans = simulated;
  result_.counts.too_large = 0;
}

/// Returns the seconds in which a further plan of every family is simulated. Requires: the mutex is
/// held.
double Search::families_s() const {
  return result_.best.empty() ? 0
                              : std::min(static_cast<double>(kFamilies) * once_s() / num_threads(),
                                         kFamiliesShare * options_.time_limit_s);
}

/// Removes from the queue every family's most promising plan, and returns those that seem faster
/// than the simulated plans of their family: first of families in which none fits, then in the
/// order of their estimates.
std::vector<QueuedPlan> Search::promising_of_families() {
  // Corrected estimates take a microsecond each, and queues have millions of plans.
  constexpr std::ptrdiff_t kMaxCorrected = 1000;
  std::array<std::vector<const QueuedPlan*>, kFamilies> of_family;
  for (const QueuedPlan& queued : queue_) {
    if (queued.stands_for_layers || tried_.count(queued.plan) > 0) continue;
    of_family[static_cast<size_t>(family_of(queued.plan))].push_back(&queued);
  }
  struct Promising {
    bool has_best = false;
    double estimate_s = 0;
    QueuedPlan queued;
  };
  std::vector<Promising> found;
  for (size_t family = 0; family < kFamilies; ++family) {
    std::vector<const QueuedPlan*>& all = of_family[family];
    const auto end = all.begin() + std::min(std::ssize(all), kMaxCorrected);
    std::ranges::nth_element(all, end, {}, &QueuedPlan::penalized_s);
    const auto estimate_s = [&](const QueuedPlan* queued) { return corrected_estimate(*queued); };
    const auto first = std::ranges::min_element(all.begin(), end, {}, estimate_s);
    if (first == end) continue;
    const auto best = std::ranges::find(result_.best, static_cast<Family>(family),
                                        [](const Outcome& of) { return family_of(of.plan); });
    const bool has_best = best != result_.best.end();
    if (has_best && estimate_s(*first) >= best->step_s) continue;
    found.push_back({has_best, estimate_s(*first), **first});
  }
  std::ranges::sort(found, {},
                    [](const Promising& of) { return std::pair(of.has_best, of.estimate_s); });
  std::vector<QueuedPlan> plans;
  for (const Promising& promising : found) {
    plans.push_back(promising.queued);
  }
  std::erase_if(queue_, [&](const QueuedPlan& queued) {
    return std::ranges::find(plans, queued.plan, &QueuedPlan::plan) != plans.end();
  });
  std::make_heap(queue_.begin(), queue_.end(), Later());
  return plans;
}

/// Simulates every family's most promising plan that is left: estimates of a family may all be too
/// high beside those of others.
void Search::simulate_families() {
  if (options_.everything) return;
  const std::vector<QueuedPlan> promising = promising_of_families();
  std::atomic<size_t> next{0};
  in_threads([&](int thread) {
    for (size_t i = next++; i < promising.size(); i = next++) {
      std::optional<Outcome> outcome;
      if (!stopped()) {
        outcome =
            trial_.extrapolate(promising[i].plan, space_, enough_s(), [&] { return stopped(); });
      }
      const std::lock_guard lock(mutex_);
      settle(promising[i], std::move(outcome), estimator_of(thread));
    }
  });
}

/// Simulates the plans whose estimated memory is the least: one of those dropped by their bound,
/// and one of those left.
void Search::simulate_nearest() {
  if (options_.everything) return;
  std::vector<QueuedPlan> nearest;
  const auto memory_of = [&](const QueuedPlan& queued) {
    const bool is_native = queued.plan.collectives == CollectiveAlgorithm::native;
    return queued.stands_for_layers || !is_native || tried_.count(queued.plan) > 0
               ? std::numeric_limits<double>::infinity()
               : corrected_bytes(queued);
  };
  const auto least = std::ranges::min_element(queue_, {}, memory_of);
  const bool has_left = least != queue_.end() && std::isfinite(memory_of(*least));
  if (has_left) {
    nearest.push_back(*least);
    queue_.erase(least);
    std::make_heap(queue_.begin(), queue_.end(), Later());
  }
  if (result_.nearest.bytes > 0) {
    nearest.push_back(
        {.plan = result_.nearest.plan, .bytes = static_cast<float>(result_.nearest.bytes)});
  }
  std::atomic<size_t> next{0};
  in_threads([&](int thread) {
    for (size_t i = next++; i < nearest.size(); i = next++) {
      const QueuedPlan& queued = nearest[i];
      const bool is_left = has_left && i == 0;
      std::optional<Outcome> outcome;
      if (!stopped()) {
        outcome = trial_.extrapolate(queued.plan, space_, best_s_, [&] { return stopped(); });
      }
      const std::lock_guard lock(mutex_);
      if (is_left) {
        settle(queued, std::move(outcome), estimator_of(thread));
      } else if (outcome && outcome->refused.empty()) {
        // Its bound has proven that it does not fit: it stays counted as too large.
        result_.nearest_simulated.take({queued.plan, static_cast<double>(outcome->bytes)});
        result_.nearest = {};
      }
    }
  });
}

/// Returns the seconds in which layers of the best plan are moved. Requires: the mutex is held.
double Search::layers_s() const {
  if (result_.best.empty()) return 0;
  const Outcome& best = result_.best.front();
  const double stages = static_cast<double>(best.plan.pp) * best.plan.chunks;
  return best.plan.pp == 1 ? 0
                           : std::min(stages * (stages - 1) * once_s() / num_threads(),
                                      kLayersShare * options_.time_limit_s);
}

/// Takes the next plan that may be faster than the best one. Returns false at the end.
bool Search::take_moved(QueuedPlan* queued) {
  const std::lock_guard lock(mutex_);
  while (!queue_.empty() && !stopped()) {
    std::pop_heap(queue_.begin(), queue_.end(), Later());
    *queued = queue_.back();
    queue_.pop_back();
    if (options_.everything || queued->lower_bound_s <= best_s_) return true;
    count_slower(queued->plan);
  }
  return false;
}

/// Moves a layer of the best plan from one stage to another, and again from the best of those, as
/// long as that makes a faster plan. Estimates choose the splits of layers that are simulated
/// before, and err by more than a layer matters.
void Search::improve_layers() {
  std::vector<QueuedPlan> others;  // of the phase before
  others.swap(queue_);
  std::set<PlanCandidate> improved, moved;
  while (!stopped() && improved.insert(result_.best.front().plan).second) {
    BoundedPlans found;
    for (const PlanCandidate& plan : with_a_layer_moved(space_, result_.best.front().plan)) {
      const auto is_same = [&](const Outcome& outcome) { return outcome.plan == plan; };
      if (std::ranges::any_of(result_.best, is_same) ||
          std::ranges::any_of(result_.over_memory, is_same) || !moved.insert(plan).second) {
        continue;
      }
      bound_plan(plan, estimator_of(0), &found);
    }
    result_.counts.plans += found.counts.plans;
    result_.counts.too_large += found.counts.too_large;
    for (QueuedPlan& queued : found.plans) {
      queued.order = next_order_++;
      queued.penalized_s = static_cast<float>(corrected_estimate(queued));
      add(queued);
    }
    in_threads([&](int) {
      QueuedPlan queued;
      while (take_moved(&queued)) {
        std::optional<Outcome> outcome =
            trial_.extrapolate(queued.plan, space_, enough_s(), [&] { return stopped(); });
        const std::lock_guard lock(mutex_);
        if (!outcome) {
          add(queued);  // given up: it is left
          return;
        }
        record(queued, std::move(*outcome));
      }
    });
  }
  queue_.insert(queue_.end(), others.begin(), others.end());
}

/// Takes the next plan to be simulated in full: one of the two best, or one that may be as fast.
bool Search::take_for_full(PlanCandidate* plan) {
  const std::lock_guard lock(mutex_);
  for (size_t i = 0; i < result_.best.size() && !stopped(); ++i) {
    const Outcome& next = result_.best[i];
    if (i >= 2 && next.step_s - next.error_s > best_s_) break;
    const bool in_time =
        options_.time_limit_s <= 0 || spent_s() + next.whole_s < options_.time_limit_s - after_s();
    if (!next.extrapolated || !in_time || !in_full_.insert(next.plan).second) continue;
    *plan = next.plan;
    return true;
  }
  return false;
}

/// Simulates the best plans in full that were extrapolated.
void Search::simulate_best_in_full() {
  in_threads([&](int) {
    PlanCandidate plan;
    while (take_for_full(&plan)) {
      std::optional<Outcome> outcome = trial_.simulate(plan, space_, [&] { return stopped(); });
      if (!outcome) return;
      const std::lock_guard lock(mutex_);
      const auto shorter = std::find_if(result_.best.begin(), result_.best.end(),
                                        [&](const Outcome& of) { return of.plan == plan; });
      log_debug("plan {}: {:.6g} s, extrapolated {:.6g} +- {:.2g}", describe(plan, space_),
                outcome->step_s, shorter->step_s, shorter->error_s);
      result_.best.erase(shorter);
      if (outcome->good()) {
        best_s_ = std::min(best_s_, outcome->step_s);
        insert(std::move(*outcome));
      } else {
        ++result_.counts.over_memory;
        result_.over_memory.push_back(std::move(*outcome));
      }
    }
  });
}

/// Simulates the best plan once more with each resource better, and records the gains.
void Search::measure_gains() {
  const std::vector<BetterResource> better = better_resources(trial_);
  const PlanCandidate plan = result_.best.front().plan;
  std::vector<double> step_s;
  in_threads([&](int thread) {
    if (thread == 0) {
      step_s = steps_with(trial_, plan, space_, better, [&] { return stopped(); });
    }
  });
  for (size_t i = 1; i < step_s.size(); ++i) {
    result_.gains.push_back({better[i - 1].name, 1 - step_s[i] / step_s[0]});
  }
}

}  // namespace hocket::planner
