// SPDX-License-Identifier: Apache-2.0
// The search: bounds every mesh and plan on all threads, keeps candidates in a queue by penalized
// estimate (corrected, with penalties for memory and program length), simulates them in this order,
// and prunes the candidates whose lower bound exceeds the best simulated step. It ends when the
// queue is empty, and the best plan is then proven to be the best of the space, or at the time
// limit. If none fits by then, it goes on until one does,
// or gives up (kMorePlans, kMoreSeconds).
#include "planner/search.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <exception>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <queue>
#include <thread>

#include "base/error.h"
#include "base/log.h"
#include "planner/estimate.h"

namespace hocket::planner {

namespace {

using Clock = std::chrono::steady_clock;

/// A plan that may be simulated. The queue is in the order of penalized_s, the smallest first.
struct QueuedPlan {
  PlanCandidate plan;
  float lower_bound_s = 0;
  float lower_bound_any_s = 0;  ///< lower bound over all collective algorithms
  float penalized_s = 0;
  float estimated_s = 0, bytes = 0;  ///< estimated
  uint32_t order = 0;                ///< among those with one penalized_s
  bool replayed = false;             ///< estimated with its schedule replayed
  bool varied = false;               ///< plan.ep_inner is not the one that it was bounded with
  bool surest = false;               ///< it is to be the first plan, of a search that was stopped
  /// It stands for the ways to lay the plan's layers by memory, which are worked out when its turn
  /// comes. Its bounds are those of all plans of the mesh.
  bool stands_for_layers = false;
};
/// Plans of a mesh with their bounds.
struct Bounded {
  std::vector<QueuedPlan> plans;
  Counts counts;
  TooLarge nearest;
};
struct Later {
  bool operator()(const QueuedPlan& left, const QueuedPlan& right) const {
    return left.penalized_s != right.penalized_s ? left.penalized_s > right.penalized_s
                                                 : left.order > right.order;
  }
};

/// Maximum number of queued plans; beyond it those with the largest penalized estimates are
/// dropped.
constexpr size_t kMaxQueuedPlans = 4'000'000;
/// Growth of the penalized estimate per excess of estimated memory: such plans are tried late.
constexpr double kMemoryPenalty = 4;
/// kMemoryPenalty while no plan fits: a plan that fits is then worth more than a fast one.
constexpr double kMemoryPenaltyAtFirst = 100;
/// Share of the memory: a rank estimated below it counts as certain to fit.
constexpr double kCertainToFitShare = 0.9;
/// While no plan fits: growth of the penalized estimate per doubling of a program's length. A short
/// program is simulated sooner, and corrects estimates sooner.
constexpr double kSizePenaltyAtFirst = 0.1;
/// Requeues a candidate whose corrected estimate exceeds its penalized one by more than this
/// factor.
constexpr double kRequeueRatio = 1.02;
/// Growth of the penalized estimate with every doubling of passes through layers beyond
/// kShortProgramPasses, so that among equal plans the shorter program comes first. With keys around
/// a ring, every kRingSteps ranks add the length of a pass.
constexpr double kSizePenalty = 0.02, kShortProgramPasses = 1024, kRingSteps = 8;
/// Other collective algorithms are tried for plans within this factor of the best one
/// (kNearBestRatio), and for others last (kTriedLastPenalty, added to the penalized estimate).
constexpr double kNearBestRatio = 1.05;
constexpr float kTriedLastPenalty = 1e6f;
/// Share of the remaining time after which bounding stops and simulation begins, once there are
/// kEnoughToChoose candidates.
constexpr double kBoundingShare = 0.5;
constexpr size_t kEnoughToChoose = 5000;
// After the time limit, if no plan fits, the search continues to the first that does.

/// It gives up once both are reached: seconds since the limit, and plans taken since.
constexpr double kMoreSeconds = 60;
constexpr int kMorePlans = 16;
/// Memory limit over a rank's estimated memory: at first, and its growth with every misfit. A plan
/// beyond it gets the penalty on its estimate.
constexpr double kFirstMargin = 1.1, kMoreMargin = 1.25, kMisfitPenalty = 100;
/// Growth of the penalized estimate with every doubling of passes.
constexpr double kSizePenaltyAfterLimit = 0.5;
/// A simulation in progress at the end is given up if its program is this many times as long as the
/// surest plan's.
constexpr double kAbandonLengthRatio = 8;

/// Ratios of simulated to estimated time and memory, by schedule, recomputation, sharding, and
/// number of pipeline and expert ranks; applied to further estimates of the same group. A group
/// without simulated plans is not corrected (ratio 1).
class EstimateCorrection {
 public:
  void record(const PlanCandidate& plan, double ratio) {
    groups_[group_of(plan)].add(ratio);
    all_.add(ratio);
  }
  double ratio(const PlanCandidate& plan) const {
    const auto group = groups_.find(group_of(plan));
    return group == groups_.end() ? 1 : group->second.mean();
  }
  /// Returns the ratio over all plans.
  double ratio() const { return all_.count == 0 ? 1 : all_.mean(); }

 private:
  struct Ratios {
    double sum = 0;
    int count = 0;
    void add(double ratio) {
      sum += ratio;
      ++count;
    }
    double mean() const { return sum / count; }
  };
  static std::array<int, 5> group_of(const PlanCandidate& plan) {
    return {plan.schedule, plan.recompute, plan.shard, static_cast<int>(std::log2(plan.pp)),
            static_cast<int>(std::log2(plan.ep))};
  }
  std::map<std::array<int, 5>, Ratios> groups_;
  Ratios all_;
};

/// A thread's estimators.
struct Pricing {
  Pricing(const Trial& trial, const SearchSpace& space)
      : costs(trial.costs()),
        estimator(space, trial.graph(), costs,
                  {.blocking = trial.blocking(), .bucket_bytes = trial.bucket_bytes()}) {}
  cost::CostModel costs;
  Estimator estimator;
};

class Search {
 public:
  Search(const Trial& trial, const SearchSpace& space, const SearchOptions& options)
      : trial_(trial), space_(space), options_(options) {}

  SearchResult run();

 private:
  int num_threads() const;
  double spent_s() const;
  bool out_of_time() const;
  /// Returns whether the search was asked to end, or its time is up.
  bool stopped() const { return stop_.load(std::memory_order_relaxed); }
  /// Returns whether running simulations may be abandoned: stopped, with a plan.
  bool is_done() const { return failed_ || (stopped() && fits_); }
  /// Returns whether no further simulation may begin.
  bool ends() const { return is_done() || gave_up_; }
  void look_whether_to_stop();
  void in_threads(const std::function<void(int)>& body);
  Estimator* estimator_of(int thread);
  void bound_meshes();
  bool bounds_enough() const;
  void bound(Estimator* estimator);
  void bound_mesh(const PlanCandidate& mesh, Estimator* estimator, Bounded* found) const;
  Estimate bound_plan(const PlanCandidate& plan, Estimator* estimator, Bounded* found) const;
  void lay_by_memory(const QueuedPlan& of, Estimator* estimator);
  QueuedPlan queued_plan(const PlanCandidate& plan, const Estimate& estimate) const;
  void keep(Bounded found);
  bool take(QueuedPlan* queued, Estimator* estimator);
  bool put_off_if_worse(QueuedPlan queued);
  void replay_schedule(QueuedPlan* queued, Estimator* estimator,
                       std::unique_lock<std::mutex>* lock);
  double passes(const PlanCandidate& plan) const;
  double doublings(const PlanCandidate& plan) const;
  double penalized_estimate(const QueuedPlan& queued) const;
  void forget_what_was_put_off();
  size_t surest() const;
  bool take_surest(QueuedPlan* queued, Estimator* estimator);
  void simulate(Estimator* estimator);
  void add_other_exchanges(const QueuedPlan& queued, Estimator* estimator);
  void add_other_collectives(const QueuedPlan& queued, bool near);
  void add(const QueuedPlan& queued);
  void record(const QueuedPlan& queued, Outcome outcome, Estimator* estimator);
  void report();
  void finish();

  const Trial& trial_;
  const SearchSpace& space_;
  const SearchOptions& options_;
  Clock::time_point begun_ = Clock::now();
  std::vector<PlanCandidate> meshes_;
  std::atomic<size_t> next_mesh_{0};
  double bound_until_s_ = 0;
  std::atomic<size_t> held_{0};  // candidates
  // stop_: asked to end, or the time is up. fits_: there is a plan. failed_: a thread threw.
  // gave_up_: after stop_, no plan was found in kMorePlans and kMoreSeconds.
  std::atomic<bool> stop_{false}, fits_{false}, failed_{false}, gave_up_{false};
  double stopped_s_ = 0;                                                   // when it was stopped
  int more_plans_ = 0;                                                     // taken since then
  std::atomic<double> too_long_{std::numeric_limits<double>::infinity()};  // passes, since then
  double margin_ = kFirstMargin;
  std::mutex mutex_;
  std::condition_variable ended_;
  int running_ = 0;
  std::exception_ptr failure_;
  std::vector<std::unique_ptr<Pricing>> pricing_;  // by thread
  std::vector<QueuedPlan> queue_;                  // a heap, the next one first
  int busy_ = 0;                                   // threads that simulate, and may add candidates
  std::condition_variable more_;
  uint32_t next_order_ = 0;
  double best_s_ = std::numeric_limits<double>::infinity();
  double left_lower_bound_s_ = std::numeric_limits<double>::infinity();
  EstimateCorrection bytes_correction_, seconds_correction_;
  EstimateCorrection schedule_correction_;  // by estimates beside those with the schedule replayed
  SearchResult result_;
};

int Search::num_threads() const {
  return options_.threads > 0 ? options_.threads
                              : static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
}

double Search::spent_s() const {
  return std::chrono::duration<double>(Clock::now() - begun_).count();
}

bool Search::out_of_time() const {
  return options_.time_limit_s > 0 && spent_s() >= options_.time_limit_s;
}

/// Stops the search on request, or when its time is up. Requires: the mutex is held.
void Search::look_whether_to_stop() {
  const bool asked = options_.stop && options_.stop();
  if (stopped() || !(asked || out_of_time())) return;
  result_.ended = asked ? "it was interrupted" : "its time is up";
  stopped_s_ = spent_s();
  if (!queue_.empty()) {
    too_long_ = kAbandonLengthRatio * passes(queue_[surest()].plan);
  }
  stop_ = true;
  more_.notify_all();
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
  while (running_ > 0) {
    ended_.wait_for(lock, std::chrono::milliseconds(100));
    look_whether_to_stop();
    report();
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

/// Returns the length of a plan's program: passes of its micro-batches through layers.
double Search::passes(const PlanCandidate& plan) const {
  const bool in_ring = plan.cp > 1 && plan.keys == kKeysInRing;
  return static_cast<double>(num_micro_batches(space_, plan) * space_.model.num_layers) *
         (in_ring ? std::max(1.0, plan.cp / kRingSteps) : 1);
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
                   .estimated_s = static_cast<float>(std::max(1e-9, estimate.seconds * size)),
                   .bytes = static_cast<float>(std::max(1.0, estimate.bytes))};
  found.penalized_s = static_cast<float>(penalized_estimate(found));
  return found;
}

/// Bounds and estimates a plan. Returns the estimate, all 0 for one that is left out.
Estimate Search::bound_plan(const PlanCandidate& plan, Estimator* estimator, Bounded* found) const {
  // The speed of replicas depends on the layers of their stages.
  if (!deals_well(space_, plan)) return {};
  ++found->counts.plans;
  const Estimate estimate = estimator->estimate(plan);
  if (estimate.lower_bound_bytes > static_cast<double>(trial_.memory()) && !options_.everything) {
    ++found->counts.too_large;
    found->nearest.take({plan, estimate.lower_bound_bytes});
    return estimate;
  }
  found->plans.push_back(queued_plan(plan, estimate));
  return estimate;
}

/// Bounds and estimates every plan with this mesh.
void Search::bound_mesh(const PlanCandidate& mesh, Estimator* estimator, Bounded* found) const {
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
        if (!fits) {
          // For any layers of its stages.
          ++found->counts.plans;
          ++found->counts.too_large;
          found->nearest.take({plan, floor.lower_bound_bytes});
          return;
        }
        const Estimate even = bound_plan(plan, estimator, found);
        double bytes = even.bytes;
        if (StageLayers by_time = estimator->layers_by_time(plan); !by_time.none()) {
          PlanCandidate laid = plan;
          laid.layers = std::move(by_time);
          bytes = std::max(bytes, bound_plan(laid, estimator, found).bytes);
        }
        if (plan.pp == 1 || is_given(space_, "plan.pp_layers") ||
            bytes <= limit * kCertainToFitShare) {
          return;
        }
        Estimate any = floor;
        any.seconds = even.bytes > 0 ? even.seconds : estimator->estimate(plan).seconds;
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
  const bool late = bound_until_s_ > 0 && spent_s() >= bound_until_s_;
  return held_ >= kEnoughToChoose && (late || stopped());
}

/// Bounds the plans of the next meshes, in an order that soon has seen some of every sort: every
/// n-th mesh, and around again.
void Search::bound(Estimator* estimator) {
  const size_t count = meshes_.size();
  auto stride = static_cast<size_t>(0.618 * static_cast<double>(count)) | 1;
  while (std::gcd(stride, count) != 1) {
    stride += 2;
  }
  while (!bounds_enough()) {
    const size_t next = next_mesh_++;
    if (next >= count) break;
    const size_t mesh = next * stride % count;
    Bounded found;
    bound_mesh(meshes_[mesh], estimator, &found);
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

void Search::keep(Bounded found) {
  const std::lock_guard lock(mutex_);
  result_.counts.plans += found.counts.plans;
  result_.counts.too_large += found.counts.too_large;
  result_.nearest.take(found.nearest);
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

/// Adds the plans that a candidate stands for, in its place. The mutex is held.
void Search::lay_by_memory(const QueuedPlan& of, Estimator* estimator) {
  Bounded found;
  const double limit = static_cast<double>(trial_.memory());
  for (StageLayers& layers : estimator->layers_by_memory(of.plan, limit)) {
    PlanCandidate laid = of.plan;
    laid.layers = std::move(layers);
    bound_plan(laid, estimator, &found);
  }
  for (QueuedPlan& queued : found.plans) {
    queued.order = of.order;
    add(queued);
  }
  result_.counts.plans += found.counts.plans - 1;
  result_.counts.too_large += found.counts.too_large;
  result_.nearest.take(found.nearest);
}

/// Takes the next plan that may beat the best one. Waits while running simulations may add
/// plans. Returns false at the end of the search.
bool Search::take(QueuedPlan* queued, Estimator* estimator) {
  std::unique_lock lock(mutex_);
  while (!ends()) {
    if (stopped() && !queue_.empty()) {
      if (take_surest(queued, estimator)) return true;
      continue;
    }
    while (!queue_.empty()) {
      std::pop_heap(queue_.begin(), queue_.end(), Later());
      *queued = queue_.back();
      queue_.pop_back();
      if (put_off_if_worse(*queued)) continue;
      if (options_.everything || queued->lower_bound_s <= best_s_) {
        if (queued->stands_for_layers) {
          lay_by_memory(*queued, estimator);
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
      ++result_.counts.slower;
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

/// The candidate that is most likely to be a plan soon. The mutex is held.
size_t Search::surest() const {
  const double limit = static_cast<double>(trial_.memory());
  const auto layers = static_cast<double>(space_.model.num_layers);
  const auto worth = [&](const QueuedPlan& of) {
    const double size = passes(of.plan) / layers * of.plan.chunks;
    const double over = std::max(0.0, of.bytes * margin_ / limit - 1);
    return of.estimated_s * (1 + kSizePenaltyAfterLimit * std::log2(1 + size)) *
           (1 + kMisfitPenalty * over);
  };
  size_t surest = 0;
  double least = std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < queue_.size(); ++i) {
    const double here = worth(queue_[i]);
    if (here < least) {
      least = here;
      surest = i;
    }
  }
  return surest;
}

/// After the end, without a plan: the one that is most likely to be a plan soon. False: it gives
/// up, or there are others in place of that one. The mutex is held.
bool Search::take_surest(QueuedPlan* queued, Estimator* estimator) {
  if (more_plans_ >= kMorePlans && spent_s() - stopped_s_ >= kMoreSeconds) {
    gave_up_ = true;
    more_.notify_all();
    return false;
  }
  const size_t found = surest();
  *queued = queue_[found];
  queued->surest = true;
  queue_[found] = queue_.back();
  queue_.pop_back();
  std::make_heap(queue_.begin(), queue_.end(), Later());
  if (queued->stands_for_layers) {
    lay_by_memory(*queued, estimator);
    return false;
  }
  ++more_plans_;
  ++busy_;
  return true;
}

/// Requeues a plan whose corrected estimate is worse than the one that it was queued with.
/// Returns whether it did. Requires: the mutex is held.
bool Search::put_off_if_worse(QueuedPlan queued) {
  if (options_.everything) return false;
  const bool none_fits = result_.best.empty();
  double bytes = bytes_correction_.ratio(queued.plan);
  if (none_fits) {
    bytes = std::max(bytes, bytes_correction_.ratio());
  }
  const double seconds = seconds_correction_.ratio(queued.plan) *
                         (queued.replayed ? 1 : schedule_correction_.ratio(queued.plan)) *
                         (none_fits ? 1 + kSizePenaltyAtFirst * doublings(queued.plan) : 1);
  const double limit = static_cast<double>(trial_.memory());
  const double over = std::max(0.0, queued.bytes * bytes / limit - 1);
  const double penalty = none_fits ? kMemoryPenaltyAtFirst : kMemoryPenalty;
  const double penalized_s = queued.estimated_s * seconds * (1 + penalty * over);
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

/// Now that there is a plan: plans come by their own estimates again. The mutex is held.
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

/// The same plan with ep laid in other ways over the mesh.
void Search::add_other_exchanges(const QueuedPlan& tried, Estimator* estimator) {
  if (tried.varied || tried.plan.collectives != 0) return;
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
  if (queued.plan.collectives != 0) return;
  for (const uint8_t algorithm : other_collectives(space_, queued.plan)) {
    QueuedPlan other = queued;
    other.plan.collectives = algorithm;
    other.lower_bound_s = queued.lower_bound_any_s;
    other.penalized_s = near ? queued.penalized_s : queued.penalized_s + kTriedLastPenalty;
    add(other);
    ++result_.counts.plans;
  }
}

void Search::record(const QueuedPlan& queued, Outcome outcome, Estimator* estimator) {
  const std::lock_guard lock(mutex_);
  ++result_.counts.simulated;
  add_other_exchanges(queued, estimator);
  if (!outcome.refused.empty()) {
    ++result_.counts.refused;
    ++result_.refusals[outcome.refused];
    return;
  }
  log_debug("plan {}: {:.4g} s, estimated {:.4g}; {:.4g} GB, estimated {:.4g}",
            describe(queued.plan, space_), outcome.step_s, queued.estimated_s,
            static_cast<double>(outcome.bytes) * 1e-9, queued.bytes * 1e-9);
  bytes_correction_.record(queued.plan, static_cast<double>(outcome.bytes) / queued.bytes);
  seconds_correction_.record(queued.plan, outcome.step_s / queued.estimated_s);
  add_other_collectives(queued, outcome.fits && outcome.step_s <= best_s_ * kNearBestRatio);
  if (!outcome.fits) {
    ++result_.counts.over_memory;
    result_.nearest_simulated.take({queued.plan, static_cast<double>(outcome.bytes)});
    margin_ *= stopped() ? kMoreMargin : 1;
    result_.over_memory.push_back(std::move(outcome));
    return;
  }
  if (!fits_) {
    forget_what_was_put_off();
  }
  fits_ = true;
  best_s_ = std::min(best_s_, outcome.step_s);
  const auto at = std::upper_bound(result_.best.begin(), result_.best.end(), outcome,
                                   [](const Outcome& left, const Outcome& right) {
                                     // Among equally fast plans the fixed order decides, not the
                                     // time of simulation.
                                     return left.step_s != right.step_s ? left.step_s < right.step_s
                                                                        : left.plan < right.plan;
                                   });
  result_.best.insert(at, std::move(outcome));
}

void Search::simulate(Estimator* estimator) {
  QueuedPlan queued;
  // Work started before the end is given up for a plan that is available much sooner.
  const auto stop = [&] {
    return is_done() || (stopped() && !queued.surest && passes(queued.plan) > too_long_);
  };
  while (take(&queued, estimator)) {
    std::optional<Outcome> outcome = trial_.simulate(queued.plan, space_, stop);
    if (outcome) {
      record(queued, std::move(*outcome), estimator);
    }
    const std::lock_guard lock(mutex_);
    if (!outcome) {
      add(queued);  // given up: it is left
    }
    --busy_;
    more_.notify_all();
  }
}

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

/// Counts the plans that were not simulated, and whether they matter.
void Search::finish() {
  for (const QueuedPlan& queued : queue_) {
    if (queued.lower_bound_s > best_s_) {
      ++result_.counts.slower;
      continue;
    }
    ++result_.counts.left;
    left_lower_bound_s_ = std::min(left_lower_bound_s_, static_cast<double>(queued.lower_bound_s));
  }
  result_.counts.meshes = std::ssize(meshes_);
  result_.counts.meshes_left =
      std::max<int64_t>(0, std::ssize(meshes_) - static_cast<int64_t>(next_mesh_.load()));
  result_.complete = result_.counts.left == 0 && result_.counts.meshes_left == 0;
  if (result_.complete) {
    result_.ended.clear();  // it came too late to matter
  } else if (result_.ended.empty()) {
    result_.ended = "there are too many plans to hold";
  }
  result_.lower_bound_s =
      result_.counts.meshes_left > 0 ? 0 : std::min(best_s_, left_lower_bound_s_);
  result_.seconds = spent_s();
}

SearchResult Search::run() {
  // Bounds all plans, or, if that takes long, for a share of the time; then simulates. If stopped
  // without a plan, bounded plans are simulated until one fits; if none does, more are bounded.
  const Quiet quiet;
  meshes_ = meshes(space_);
  pricing_.resize(static_cast<size_t>(num_threads()));
  do {
    bound_meshes();
    in_threads([&](int thread) { simulate(estimator_of(thread)); });
  } while (!ends() && next_mesh_ < meshes_.size());
  finish();
  return std::move(result_);
}

}  // namespace

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
