// SPDX-License-Identifier: Apache-2.0
// Implements: the bounds and the order of a search's plans (search_state.h).
#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "base/stop.h"
#include "planner/search_state.h"

namespace hocket::planner {

/// Returns the length of the programs that a plan's simulation takes.
double Search::passes(const PlanCandidate& plan) const {
  const std::vector<int64_t> shorter = shortened_micro_batches(plan, space_);
  const int64_t all = shorter.empty() ? num_micro_batches(space_, plan)
                                      : std::accumulate(shorter.begin(), shorter.end(), int64_t{0});
  return program_passes(plan, space_, all);
}

/// Returns the doublings of the passes beyond kShortProgramPasses.
double Search::doublings(const PlanCandidate& plan) const {
  return std::log2(std::max(1.0, passes(plan) / kShortProgramPasses));
}

/// Returns the penalized estimate by the plan's own estimates alone, in seconds.
double Search::penalized_estimate(const QueuedPlan& queued) const {
  const double over = std::max(0.0, queued.bytes / static_cast<double>(trial_.memory()) - 1);
  return queued.estimated_s * (1 + kMemoryPenalty * over);
}

/// Returns a plan with its bounds and its penalized estimate.
QueuedPlan Search::queued_plan(const PlanCandidate& plan, const Estimate& estimate) const {
  const double size = 1 + kSizePenalty * doublings(plan);
  QueuedPlan found{.plan = plan,
                   .lower_bound_s = static_cast<float>(estimate.lower_bound_s * (1 - 1e-6)),
                   .lower_bound_any_s = static_cast<float>(estimate.lower_bound_any_s * (1 - 1e-6)),
                   .estimated_s = static_cast<float>(std::max(1e-9, estimate.expected_s * size)),
                   .bytes = static_cast<float>(std::max(1.0, estimate.bytes))};
  found.penalized_s = static_cast<float>(penalized_estimate(found));
  return found;
}

/// Bounds and estimates a plan. Returns the estimate, all 0 for one that is left out.
Estimate Search::bound_plan(const PlanCandidate& plan, Estimator* estimator,
                            BoundedPlans* found) const {
  // The speed of replicas depends on the layers of their stages.
  if (!balances_replicas(space_, plan)) return {};
  ++found->counts.plans;
  stop_if_asked();
  const Estimate estimate = estimator->estimate(plan);
  if (estimate.lower_bound_bytes > static_cast<double>(trial_.memory()) && !options_.everything) {
    found->drop(plan, estimate);
    return estimate;
  }
  found->plans.push_back(queued_plan(plan, estimate));
  return estimate;
}

/// Drops a plan of a mesh that is too large whatever else the plan chooses.
void Search::drop_by_floor(const PlanCandidate& plan, const Estimate& floor, Estimator* estimator,
                           BoundedPlans* found) const {
  ++found->counts.plans;
  stop_if_asked();
  if (!balances_replicas(space_, plan) || !found->may_be_nearest(plan, floor.lower_bound_bytes)) {
    ++found->counts.too_large;
    return;
  }
  Estimate estimate = estimator->estimate(plan);
  // The plan's own bound is that of even layers, the floor's that of any.
  estimate.lower_bound_bytes = floor.lower_bound_bytes;
  found->drop(plan, estimate);
}

/// Bounds and estimates every plan with this mesh.
void Search::bound_mesh(const PlanCandidate& mesh, Estimator* estimator,
                        BoundedPlans* found) const {
  const double limit = static_cast<double>(trial_.memory());
  for (const PlanCandidate& sized : micro_batches(space_, mesh)) {
    // Bounds do not depend on the placement of ep: other placements are added to the candidates.
    PlanCandidate base = estimator->with_fastest_exchange(sized);
    const Estimate floor = estimator->floor_of_mesh(base);
    const bool fits = options_.everything || floor.lower_bound_bytes <= limit;
    for (const Pipeline& pipeline : pipelines(space_, base)) {
      base.schedule = pipeline.schedule;
      base.chunks = pipeline.chunks;
      visit_rest(space_, base, [&](const PlanCandidate& plan) {
        if (phase_ == Phase::usual && !is_usual(plan)) return;
        if (!fits) {
          drop_by_floor(plan, floor, estimator, found);
          return;
        }
        const Estimate even = bound_plan(plan, estimator, found);
        double bytes = even.bytes;
        if (StageLayers by_time = estimator->layers_by_time(plan); !by_time.none()) {
          PlanCandidate assigned = plan;
          assigned.layers = std::move(by_time);
          bytes = std::max(bytes, bound_plan(assigned, estimator, found).bytes);
        }
        if (plan.pp == 1 || is_given(space_, "plan.pp_layers") ||
            bytes <= limit * kCertainToFitShare) {
          return;
        }
        Estimate any = floor;
        any.expected_s = even.bytes > 0 ? even.expected_s : estimator->estimate(plan).expected_s;
        any.lower_bound_any_s = floor.lower_bound_s;
        any.bytes = limit * kCertainToFitShare;
        QueuedPlan& others = found->plans.emplace_back(queued_plan(plan, any));
        others.stands_for_layers = true;
        ++found->counts.plans;
      });
    }
  }
}

/// Returns a thread's estimator, made by that thread.
Estimator* Search::estimator_of(int thread) {
  std::unique_ptr<Pricing>& own = pricing_[static_cast<size_t>(thread)];
  if (!own) {
    own = std::make_unique<Pricing>(trial_, space_);
  }
  return &own->estimator;
}

/// Returns whether enough is bounded to start simulating.
bool Search::bounds_enough() const {
  if (ends()) return true;
  if (phase_ == Phase::usual) return false;
  const bool late = bound_until_s_ > 0 && spent_s() >= bound_until_s_;
  return held_ >= kEnoughToChoose && (late || stopped());
}

/// Returns the place of the n-th mesh in an order that soon has some of every sort: every n-th
/// mesh, and around again. Requires: there are more than `next` meshes.
size_t Search::mesh_at(size_t next) const {
  const size_t count = meshes_.size();
  auto stride = static_cast<size_t>(0.618 * static_cast<double>(count)) | 1;
  while (std::gcd(stride, count) != 1) {
    stride += 2;
  }
  return next * stride % count;
}

/// Bounds the plans of the next meshes.
void Search::bound(Estimator* estimator) {
  while (!bounds_enough()) {
    const size_t next = next_mesh_++;
    if (next >= meshes_.size()) break;
    const size_t mesh = mesh_at(next);
    if (phase_ == Phase::usual && !is_usual_mesh(space_, meshes_[mesh])) continue;
    BoundedPlans found;
    {
      const std::lock_guard lock(mutex_);
      found.nearest_of = result_.nearest_of;
    }
    try {
      const StopWhen given_up([&] { return ends(); });
      bound_mesh(meshes_[mesh], estimator, &found);
    } catch (const Stopped&) {
      ++given_up_meshes_;
      break;
    }
    for (QueuedPlan& queued : found.plans) {
      queued.order = static_cast<uint32_t>(mesh);
    }
    keep(std::move(found));
  }
}

/// Bounds all meshes, or those that time permits; the queue is then in order.
void Search::bound_meshes() {
  const double from = spent_s();
  held_ = queue_.size();
  bound_until_s_ =
      options_.time_limit_s > 0 ? from + (options_.time_limit_s - from) * kBoundingShare : 0;
  in_threads([&](int thread) { bound(estimator_of(thread)); });
  result_.bounding_s += spent_s() - from;
  // Plans of one penalized estimate in the order in which the space names them, whichever thread
  // found them.
  std::stable_sort(
      queue_.begin(), queue_.end(),
      [](const QueuedPlan& left, const QueuedPlan& right) { return Later()(right, left); });
  for (QueuedPlan& queued : queue_) {
    queued.order = next_order_++;
  }
  std::make_heap(queue_.begin(), queue_.end(), Later());
}

/// Records the dropped plans that are nearest to fitting. Requires: the mutex is held.
void Search::take_nearest(const BoundedPlans& found) {
  for (size_t family = 0; family < kFamilies; ++family) {
    result_.nearest.take(found.nearest_of[family]);
    result_.nearest_of[family].take(found.nearest_of[family]);
  }
}

void Search::keep(BoundedPlans found) {
  const std::lock_guard lock(mutex_);
  result_.counts.plans += found.counts.plans;
  result_.counts.too_large += found.counts.too_large;
  take_nearest(found);
  queue_.insert(queue_.end(), found.plans.begin(), found.plans.end());
  held_ = queue_.size();
  if (queue_.size() <= kMaxQueuedPlans) return;
  const auto middle = queue_.begin() + static_cast<std::ptrdiff_t>(kMaxQueuedPlans / 2);
  std::nth_element(queue_.begin(), middle, queue_.end(),
                   [](const QueuedPlan& left, const QueuedPlan& right) {
                     return left.penalized_s < right.penalized_s;
                   });
  for (auto at = middle; at != queue_.end(); ++at) {
    left_lower_bound_s_ = std::min(left_lower_bound_s_, static_cast<double>(at->lower_bound_s));
    ++result_.counts.left;
  }
  queue_.erase(middle, queue_.end());
}

/// Adds the plans that a candidate stands for, in its place. Requires: the mutex is held.
void Search::assign_by_memory(const QueuedPlan& of, Estimator* estimator) {
  BoundedPlans found;
  const double limit = static_cast<double>(trial_.memory());
  for (StageLayers& layers : estimator->layers_by_memory(of.plan, limit / arena_ratio(of.plan))) {
    PlanCandidate assigned = of.plan;
    assigned.layers = std::move(layers);
    bound_plan(assigned, estimator, &found);
  }
  for (QueuedPlan& queued : found.plans) {
    queued.order = of.order;
    add(queued);
  }
  result_.counts.plans += found.counts.plans - 1;
  result_.counts.too_large += found.counts.too_large;
  take_nearest(found);
}

/// Returns the estimated memory with the correction by simulated plans.
double Search::corrected_bytes(const QueuedPlan& queued) const {
  const double own = bytes_correction_.ratio(queued.plan);
  return queued.bytes * (result_.best.empty() ? std::max(own, bytes_correction_.ratio()) : own);
}

/// Returns the estimated step with the corrections by simulated plans.
double Search::corrected_seconds(const QueuedPlan& queued) const {
  return queued.estimated_s * seconds_correction_.ratio(queued.plan) *
         (queued.replayed ? 1 : schedule_correction_.ratio(queued.plan));
}

/// Returns the penalized estimate with the corrections by simulated plans.
double Search::corrected_estimate(const QueuedPlan& queued) const {
  const bool none_fits = result_.best.empty();
  const double seconds = corrected_seconds(queued) *
                         (none_fits ? 1 + kSizePenaltyAtFirst * doublings(queued.plan) : 1);
  const double limit = static_cast<double>(trial_.memory());
  const double over = std::max(0.0, corrected_bytes(queued) / limit - 1);
  const double penalty = none_fits ? kMemoryPenaltyAtFirst : kMemoryPenalty;
  return seconds * (1 + penalty * over);
}

}  // namespace hocket::planner
