// SPDX-License-Identifier: Apache-2.0
// The search, in phases. First the best usual plans of every family are simulated. Then it bounds
// every mesh and plan on all threads, keeps candidates in a queue by penalized estimate (corrected,
// with penalties for memory and program length), simulates them in this order, and prunes the
// candidates whose lower bound exceeds the best simulated step. Long steps are extrapolated from
// shorter ones. Then every family's most promising plan that is left is simulated, and layers of
// the best plan are moved from stage to stage. At the end the two best are simulated in full, and
// the best once more with each resource of the cluster 10 % better.
#include "planner/search.h"

#include <algorithm>
#include <chrono>
#include <ctime>
#include <limits>
#include <thread>
#include <utility>

#include "base/log.h"
#include "planner/search_state.h"

namespace hocket::planner {

int Search::num_threads() const {
  return options_.threads > 0 ? options_.threads
                              : static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
}

double Search::clock_s() const {
  if (options_.clock) return options_.clock();
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double Search::spent_s() const { return options_.spent_s + clock_s() - begun_s_; }

/// Returns the seconds that winding up takes at this process's share of the processor: others may
/// leave it a twentieth of a core.
double Search::winding_up_s() const {
  const double spent = std::max(1e-3, clock_s() - begun_s_);
  const double processor_s =
      static_cast<double>(std::clock()) / CLOCKS_PER_SEC - begun_processor_s_;
  const double share = std::clamp(processor_s / spent / num_threads(), 0.02, 1.0);
  return std::min(kWindingUpS / share, kMaxWindingUpShare * options_.time_limit_s);
}

bool Search::out_of_time() const {
  const double limit_s = options_.time_limit_s;
  if (phase_ == Phase::nearest) return limit_s > 0 && spent_s() >= kNearestTime * limit_s;
  // The share of the processor may fall until the last phase, which is to keep its time.
  const bool is_searching = phase_ != Phase::usual && phase_ != Phase::final;
  const bool moves_later = phase_ == Phase::all || phase_ == Phase::families;
  const double reserve_s = after_s() + (is_searching ? final_s() + winding_up_s() : 0) +
                           (moves_later ? layers_s() : 0) +
                           (phase_ == Phase::all ? families_s() : 0);
  return limit_s > 0 && spent_s() >= limit_s - reserve_s;
}

/// Returns the step above which a plan is clearly slower than the best one.
double Search::enough_s() {
  const std::lock_guard lock(mutex_);
  return best_s_ * kClearlySlower;
}

/// Stops the phase on request, or when its time is up. Requires: the mutex is held.
void Search::look_whether_to_stop() {
  const bool asked = options_.stop && options_.stop();
  if (!stopped() && (asked || out_of_time())) {
    if (phase_ != Phase::final || result_.ended.empty()) {
      result_.ended = asked ? "it was interrupted" : "its time is up";
    }
    stop_ = true;
    more_.notify_all();
  }
  const double limit_s = options_.time_limit_s;
  const bool has_tried =
      result_.counts.simulated >= kMinSimulated && spent_s() >= kMoreTime * limit_s;
  if (!fits_ && limit_s > 0 && (has_tried || spent_s() >= limit_s + kMaxMoreSeconds)) {
    gave_up_ = true;
    more_.notify_all();
  }
}

/// Runs `body` on every thread; this one waits, shows progress, and decides when to stop. Throws
/// the first exception of a body.
void Search::in_threads(const std::function<void(int)>& body) {
  std::unique_lock lock(mutex_);
  look_whether_to_stop();
  running_ = num_threads();
  std::vector<std::thread> threads;
  for (int t = 0; t < num_threads(); ++t) {
    threads.emplace_back([&, t] {
      std::exception_ptr failure;
      try {
        body(t);
      } catch (...) {
        failure = std::current_exception();
      }
      const std::lock_guard own(mutex_);
      failure_ = failure_ ? failure_ : failure;
      failed_ = failure_ != nullptr;
      --running_;
      more_.notify_all();
      ended_.notify_all();
    });
  }
  constexpr int kLooksPerReport = 5;
  for (int looks = 1; running_ > 0; ++looks) {
    ended_.wait_for(lock, std::chrono::milliseconds(20));
    look_whether_to_stop();
    if (looks % kLooksPerReport == 0 || running_ == 0) {
      report();
    }
  }
  lock.unlock();
  for (std::thread& thread : threads) {
    thread.join();
  }
  if (failure_) {
    std::rethrow_exception(failure_);
  }
}

/// Prints progress. Requires: the mutex is held.
void Search::report() {
  if (!options_.progress) return;
  Counts counts = result_.counts;
  counts.left = std::ssize(queue_);
  options_.progress(counts, result_.best.empty() ? nullptr : &result_.best.front(), result_.ended);
}

/// Takes the next plan that may beat the best one. Waits while running simulations may add
/// plans. Returns false at the end of the search.
bool Search::take(QueuedPlan* queued, Estimator* estimator) {
  std::unique_lock lock(mutex_);
  while (!ends()) {
    while (!queue_.empty()) {
      std::pop_heap(queue_.begin(), queue_.end(), Later());
      *queued = queue_.back();
      queue_.pop_back();
      if (put_off_if_worse(*queued)) continue;
      if (options_.everything || queued->lower_bound_s <= best_s_) {
        if (queued->stands_for_layers) {
          assign_by_memory(*queued, estimator);
          continue;
        }
        if (const auto tried = tried_.find(queued->plan); tried != tried_.end()) {
          add_others(*queued, tried->second, estimator);
          continue;
        }
        ++busy_;
        if (queued->replayed || options_.everything) return true;
        // Then others may come first.
        replay_schedule(queued, estimator, &lock);
        --busy_;
        add(*queued);
        more_.notify_all();
        continue;
      }
      count_slower(queued->plan);
      if (queued->stands_for_layers) continue;
      // Its bound counts with the transport's own collectives; others may be faster.
      if (queued->lower_bound_any_s <= best_s_) {
        add_other_exchanges(*queued, estimator);
        add_other_collectives(*queued, false);
      }
    }
    if (busy_ == 0) return false;
    more_.wait(lock);
  }
  return false;
}

/// Requeues a plan whose corrected estimate is worse than the one that it was queued with.
/// Returns whether it did. Requires: the mutex is held.
bool Search::put_off_if_worse(QueuedPlan queued) {
  if (options_.everything) return false;
  const double penalized_s = corrected_estimate(queued);
  if (penalized_s <= queued.penalized_s * kRequeueRatio) return false;
  queued.penalized_s = static_cast<float>(penalized_s);
  add(queued);
  return true;
}

/// Refines the estimate of the next plan, without the mutex.
void Search::replay_schedule(QueuedPlan* queued, Estimator* estimator,
                             std::unique_lock<std::mutex>* lock) {
  lock->unlock();
  const Estimate estimate = estimator->with_schedule_replayed(queued->plan);
  const QueuedPlan closer = this->queued_plan(queued->plan, estimate);
  log_debug("plan {}: estimated {:.4g} s, {:.4g} s with its schedule replayed",
            describe(queued->plan, space_), queued->estimated_s, closer.estimated_s);
  lock->lock();
  schedule_correction_.record(queued->plan, closer.estimated_s / queued->estimated_s);
  queued->penalized_s =
      queued->penalized_s < kTriedLastPenalty ? closer.penalized_s : queued->penalized_s;
  queued->estimated_s = closer.estimated_s;
  queued->replayed = true;
}

/// Orders the queue by the own estimates of plans again, now that there is a plan. Requires: the
/// mutex is held.
void Search::forget_what_was_put_off() {
  for (QueuedPlan& queued : queue_) {
    queued.penalized_s = queued.penalized_s < kTriedLastPenalty
                             ? static_cast<float>(penalized_estimate(queued))
                             : queued.penalized_s;
  }
  std::make_heap(queue_.begin(), queue_.end(), Later());
}

void Search::add(const QueuedPlan& queued) {
  queue_.push_back(queued);
  std::push_heap(queue_.begin(), queue_.end(), Later());
}

/// Adds the plan with every other ep_inner.
void Search::add_other_exchanges(const QueuedPlan& tried, Estimator* estimator) {
  if (tried.varied || tried.plan.collectives != CollectiveAlgorithm::native) return;
  PlanCandidate one_step = tried.plan;
  one_step.ep_inner = 1;
  std::vector<int32_t> all = inner_experts(space_, one_step);
  if (all.empty()) return;
  all.push_back(1);
  for (const int32_t inner : all) {
    if (inner == tried.plan.ep_inner) continue;
    PlanCandidate plan = tried.plan;
    plan.ep_inner = inner;
    QueuedPlan other = queued_plan(plan, estimator->estimate(plan));
    other.order = tried.order;
    other.varied = true;
    add(other);
    ++result_.counts.plans;
  }
}

/// Adds the plan with other algorithms of its collectives: soon if it is a good one.
void Search::add_other_collectives(const QueuedPlan& queued, bool near) {
  if (queued.plan.collectives != CollectiveAlgorithm::native) return;
  for (const CollectiveAlgorithm algorithm : other_collectives(space_, queued.plan)) {
    QueuedPlan other = queued;
    other.plan.collectives = algorithm;
    other.lower_bound_s = queued.lower_bound_any_s;
    other.penalized_s = near ? queued.penalized_s : queued.penalized_s + kTriedLastPenalty;
    add(other);
    ++result_.counts.plans;
  }
}

/// Adds the other plans that a simulated one stands for.
void Search::add_others(const QueuedPlan& queued, bool near, Estimator* estimator) {
  add_other_exchanges(queued, estimator);
  add_other_collectives(queued, near);
}

/// Records a simulated plan. Returns whether it fits and is about as fast as the best one.
/// Requires: the mutex is held.
bool Search::record(const QueuedPlan& queued, Outcome outcome) {
  ++result_.counts.simulated;
  result_.counts.extrapolated += outcome.extrapolated ? 1 : 0;
  if (!outcome.refused.empty()) {
    ++result_.counts.refused;
    ++result_.refusals[outcome.refused];
    return false;
  }
  log_debug("plan {}: {:.4g} s, estimated {:.4g}; {:.4g} GB, estimated {:.4g}",
            describe(queued.plan, space_), outcome.step_s, queued.estimated_s,
            static_cast<double>(outcome.bytes) * 1e-9, queued.bytes * 1e-9);
  bytes_correction_.record(queued.plan, static_cast<double>(outcome.bytes) / queued.bytes);
  seconds_correction_.record(queued.plan, outcome.step_s / queued.estimated_s);
  if (!outcome.fits) {
    ++result_.counts.over_memory;
    result_.nearest_simulated.take({queued.plan, static_cast<double>(outcome.bytes)});
    result_.over_memory.push_back(std::move(outcome));
    return false;
  }
  if (!fits_) {
    forget_what_was_put_off();
  }
  fits_ = true;
  const bool near = outcome.step_s <= best_s_ * kNearBestRatio;
  best_s_ = std::min(best_s_, outcome.step_s + outcome.error_s);
  insert(std::move(outcome));
  return near;
}

/// Adds a plan that fits. Among equally fast plans the fixed order decides, not the time of
/// simulation.
void Search::insert(Outcome outcome) {
  const auto at = std::upper_bound(result_.best.begin(), result_.best.end(), outcome,
                                   [](const Outcome& left, const Outcome& right) {
                                     return left.step_s != right.step_s ? left.step_s < right.step_s
                                                                        : left.plan < right.plan;
                                   });
  result_.best.insert(at, std::move(outcome));
}

/// Records a simulated plan, and adds those that it stands for. A plan without outcome was given
/// up: it is left. Requires: the mutex is held.
void Search::settle(const QueuedPlan& queued, std::optional<Outcome> outcome,
                    Estimator* estimator) {
  if (!outcome) {
    add(queued);
    return;
  }
  const bool refused = !outcome->refused.empty();
  const bool near = record(queued, std::move(*outcome));
  refused ? add_other_exchanges(queued, estimator) : add_others(queued, near, estimator);
}

/// Counts a plan whose lower bound on time is above the best one. Requires: the mutex is held.
void Search::count_slower(const PlanCandidate& plan) {
  ++result_.counts.slower;
  ++result_.rest_of[static_cast<size_t>(family_of(plan))].slower;
}

void Search::simulate(Estimator* estimator) {
  QueuedPlan queued;
  while (take(&queued, estimator)) {
    std::optional<Outcome> outcome =
        trial_.extrapolate(queued.plan, space_, enough_s(), [&] { return ends(); });
    const std::lock_guard lock(mutex_);
    settle(queued, std::move(outcome), estimator);
    --busy_;
    more_.notify_all();
  }
}

namespace {

/// Suppresses warnings during its lifetime: keys without effect are reported when a plan is used.
class Quiet {
 public:
  Quiet() {
    if (log_level() == LogLevel::debug) return;
    set_log_sink([](LogLevel, const std::string&) {});
    set_ = true;
  }
  ~Quiet() {
    if (set_) {
      set_log_sink(nullptr);
    }
  }
  Quiet(const Quiet&) = delete;
  Quiet& operator=(const Quiet&) = delete;

 private:
  bool set_ = false;
};

}  // namespace

/// Counts the plans of the queue, and notes the most promising of every family.
void Search::count_left() {
  std::array<const QueuedPlan*, kFamilies> first{};
  for (const QueuedPlan& queued : queue_) {
    if (tried_.count(queued.plan) > 0) continue;
    if (queued.lower_bound_s > best_s_) {
      count_slower(queued.plan);
      continue;
    }
    const auto family = static_cast<size_t>(family_of(queued.plan));
    FamilyRest& rest = result_.rest_of[family];
    ++result_.counts.left;
    ++rest.left;
    left_lower_bound_s_ = std::min(left_lower_bound_s_, static_cast<double>(queued.lower_bound_s));
    if (queued.stands_for_layers) continue;
    const bool is_native = queued.plan.collectives == CollectiveAlgorithm::native;
    if (!fits_ && is_native) {  // other algorithms of collectives take about the same memory
      result_.nearest_untried.take({queued.plan, corrected_bytes(queued)});
    }
    if (!first[family] || Later()(*first[family], queued)) {
      first[family] = &queued;
    }
  }
  for (const QueuedPlan* queued : first) {
    if (!queued) continue;
    FamilyRest& rest = result_.rest_of[static_cast<size_t>(family_of(queued->plan))];
    rest.plan = queued->plan;
    rest.step_s = corrected_seconds(*queued);
    rest.bytes = corrected_bytes(*queued);
  }
}

/// Notes the families of the meshes that were not looked at.
void Search::note_unseen_families() {
  const auto unseen = [&](Family family) -> bool& {
    return result_.rest_of[static_cast<size_t>(family)].is_unseen;
  };
  for (size_t next = next_mesh_; next < meshes_.size(); ++next) {
    const PlanCandidate& mesh = meshes_[mesh_at(next)];
    const Family family = family_of(mesh);
    if (unseen(family) && (family != Family::data || unseen(Family::fsdp))) continue;
    visit_rest(space_, mesh, [&](const PlanCandidate& plan) { unseen(family_of(plan)) = true; });
  }
}

/// Counts the plans that were not simulated, and whether they matter.
void Search::finish() {
  Counts& counts = result_.counts;
  count_left();
  note_unseen_families();
  result_.state_bytes = estimator_of(0)->state_bytes();
  counts.plans = counts.too_large + counts.slower + counts.simulated + counts.left;
  counts.meshes = std::ssize(meshes_);
  counts.meshes_left =
      std::max<int64_t>(0, std::ssize(meshes_) - static_cast<int64_t>(next_mesh_.load())) +
      given_up_meshes_;
  const bool all_looked_at = counts.left == 0 && counts.meshes_left == 0;
  const bool all_exact =
      std::none_of(result_.best.begin(), result_.best.end(), [&](const Outcome& outcome) {
        return outcome.extrapolated && outcome.step_s - outcome.error_s < best_s_;
      });
  result_.complete = all_looked_at && all_exact;
  if (result_.complete) {
    result_.ended.clear();  // it came too late to matter
  } else if (result_.ended.empty()) {
    result_.ended = all_looked_at ? "not all of the best were simulated in full"
                                  : "there are too many plans to hold";
  }
  result_.lower_bound_s = counts.meshes_left > 0 ? 0 : std::min(best_s_, left_lower_bound_s_);
  result_.seconds = spent_s();
}

SearchResult Search::run() {
  // Bounds all plans, or, if that takes long, for a share of the time; then simulates. If asked to
  // stop without a plan, it goes on until one fits.
  const Quiet quiet;
  meshes_ = meshes(space_);
  pricing_.resize(static_cast<size_t>(num_threads()));
  if (!options_.everything) {
    simulate_usual();
  }
  phase_ = Phase::all;
  do {
    bound_meshes();
    in_threads([&](int thread) { simulate(estimator_of(thread)); });
  } while (!ends() && next_mesh_ < meshes_.size());
  if (!fits_) {
    phase_ = Phase::nearest;
    stop_ = false;
    simulate_nearest();
  }
  if (fits_ && !(options_.stop && options_.stop())) {
    phase_ = Phase::families;
    stop_ = false;
    simulate_families();
    phase_ = Phase::layers;
    stop_ = false;
    improve_layers();
    phase_ = Phase::final;
    stop_ = false;
    simulate_best_in_full();
    if (!result_.best.empty()) {
      measure_gains();
    }
  }
  finish();
  return std::move(result_);
}

void TooLarge::take(const TooLarge& other) {
  if (other.bytes == 0) return;
  const bool is_nearer = bytes == 0 || other.bytes < bytes;
  if (is_nearer || (other.bytes == bytes && other.plan < plan)) {
    *this = other;
  }
}

SearchResult search(const Trial& trial, const SearchSpace& space, const SearchOptions& options) {
  return Search(trial, space, options).run();
}

}  // namespace hocket::planner
