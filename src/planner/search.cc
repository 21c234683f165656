// SPDX-License-Identifier: Apache-2.0
// The search: bounds every mesh and plan on all threads, keeps candidates in a queue by key (the
// corrected estimate, with penalties for memory and program length), simulates them in this order,
// and prunes the candidates whose lower bound exceeds the best simulated step. It ends when the
// queue is empty, and the best plan is then proven to be the best of the space, or at the time
// limit. Without a plan by then it goes on to the first that fits.
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

/// A plan that may be simulated, in the order of `key`: the smallest first.
struct Candidate {
  Choice choice;
  float least_s = 0;
  float least_any_s = 0;  ///< lower bound over all collective algorithms
  float key = 0;
  float guess_s = 0, bytes = 0;  ///< estimated
  uint32_t order = 0;            ///< among those with one key
  bool replayed = false;         ///< estimated with its schedule replayed
  bool varied = false;           ///< plan.ep_inner is not the one that it was bounded with
  bool surest = false;           ///< it is to be the first plan, of a search that was stopped
  /// It stands for the ways to lay the plan's layers by memory, which are worked out when its turn
  /// comes. Its bounds are those of all plans of the mesh.
  bool stands_for_layers = false;
};
/// The candidates of a mesh.
struct Bounded {
  std::vector<Candidate> candidates;
  Counts counts;
  TooLarge nearest;
};
struct Later {
  bool operator()(const Candidate& left, const Candidate& right) const {
    return left.key != right.key ? left.key > right.key : left.order > right.order;
  }
};

/// Candidates that are held, at most; of more the worst by their keys are left.
constexpr size_t kMaxCandidates = 4'000'000;
/// Growth of a candidate's key per excess of its estimated memory: such plans are tried late.
constexpr double kMemoryPenalty = 4;
/// kMemoryPenalty while no plan fits: a plan that fits is then worth more than a fast one.
constexpr double kMemoryPenaltyAtFirst = 100;
/// Share of the memory: a rank estimated below it counts as certain to fit.
constexpr double kCertainToFitShare = 0.9;
/// While no plan fits: growth of the key per doubling of a program's length. A short program is
/// simulated sooner, and corrects estimates sooner.
constexpr double kSizePenaltyAtFirst = 0.1;
/// Requeues a candidate whose corrected estimate exceeds its key by more than this factor.
constexpr double kRequeueRatio = 1.02;
/// Growth of the key with every doubling of passes through layers beyond kShortProgramPasses, so
/// that among equal plans the shorter program comes first. With keys around a ring, every
/// kRingSteps ranks add the length of a pass.
constexpr double kSizePenalty = 0.02, kShortProgramPasses = 1024, kRingSteps = 8;
/// Other collective algorithms are tried for plans within this factor of the best one
/// (kNearBestRatio), and for others last (kTriedLastPenalty, added to the key).
constexpr double kNearBestRatio = 1.05;
constexpr float kTriedLastPenalty = 1e6f;
/// Share of the remaining time for bounds before plans are simulated, as long as there are some
/// candidates.
constexpr double kBoundingShare = 0.5;
constexpr size_t kEnoughToChoose = 5000;
// After the time limit without a plan, the search continues to the first that fits.

/// Least seconds and number of plans for that.
constexpr double kMoreSeconds = 60;
constexpr int kMorePlans = 16;
/// Memory limit over a rank's estimated memory: at first, and its growth with every misfit. A plan
/// beyond it gets the penalty on its key.
constexpr double kFirstMargin = 1.1, kMoreMargin = 1.25, kMisfitPenalty = 100;
/// Growth of the key with every doubling of passes.
constexpr double kSizePenaltyAfterLimit = 0.5;
/// A simulation in progress at the end is given up if its program is this many times as long as the
/// surest plan's.
constexpr double kAbandonLengthRatio = 8;

/// Ratios of simulated to estimated time and memory, by schedule, recomputation, sharding, and
/// number of pipeline and expert ranks; applied to further estimates of the same kind. A kind
/// without simulated plans uses the ratio over all.
class EstimateCorrection {
 public:
  void record(const Choice& choice, double ratio) {
    kinds_[kind_of(choice)].add(ratio);
    all_.add(ratio);
  }
  double ratio(const Choice& choice) const {
    const auto kind = kinds_.find(kind_of(choice));
    return kind == kinds_.end() ? 1 : kind->second.mean();
  }
  /// Returns the ratio over all plans.
  double ratio() const { return all_.count == 0 ? 1 : all_.mean(); }

 private:
  struct Kind {
    double sum = 0;
    int count = 0;
    void add(double ratio) {
      sum += ratio;
      ++count;
    }
    double mean() const { return sum / count; }
  };
  static std::array<int, 5> kind_of(const Choice& choice) {
    return {choice.schedule, choice.recompute, choice.shard, static_cast<int>(std::log2(choice.pp)),
            static_cast<int>(std::log2(choice.ep))};
  }
  std::map<std::array<int, 5>, Kind> kinds_;
  Kind all_;
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
  void bound_mesh(const Choice& mesh, Estimator* estimator, Bounded* found) const;
  Estimate bound_plan(const Choice& plan, Estimator* estimator, Bounded* found) const;
  void lay_by_memory(const Candidate& of, Estimator* estimator);
  Candidate candidate(const Choice& plan, const Estimate& guess) const;
  void keep(Bounded found);
  bool take(Candidate* candidate, Estimator* estimator);
  bool is_put_off(Candidate candidate);
  void replay_schedule(Candidate* candidate, Estimator* estimator,
                       std::unique_lock<std::mutex>* lock);
  double passes(const Choice& choice) const;
  double doublings(const Choice& choice) const;
  double first_key(const Candidate& candidate) const;
  void forget_what_was_put_off();
  size_t surest() const;
  bool take_surest(Candidate* candidate, Estimator* estimator);
  void simulate(Estimator* estimator);
  void add_other_exchanges(const Candidate& candidate, Estimator* estimator);
  void add_other_sums(const Candidate& candidate, bool near);
  void add(const Candidate& candidate);
  void record(const Candidate& candidate, Outcome outcome, Estimator* estimator);
  void report();
  void finish();

  const Trial& trial_;
  const SearchSpace& space_;
  const SearchOptions& options_;
  Clock::time_point begun_ = Clock::now();
  std::vector<Choice> meshes_;
  std::atomic<size_t> next_mesh_{0};
  double bound_until_s_ = 0;
  std::atomic<size_t> held_{0};  // candidates
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
  std::vector<Candidate> queue_;                   // a heap, the next one first
  int busy_ = 0;                                   // threads that simulate, and may add candidates
  std::condition_variable more_;
  uint32_t next_order_ = 0;
  double best_s_ = std::numeric_limits<double>::infinity();
  double left_least_s_ = std::numeric_limits<double>::infinity();
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
    too_long_ = kAbandonLengthRatio * passes(queue_[surest()].choice);
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
double Search::passes(const Choice& choice) const {
  const bool in_ring = choice.cp > 1 && choice.keys == kKeysInRing;
  return static_cast<double>(num_micro_batches(space_, choice) * space_.model.num_layers) *
         (in_ring ? std::max(1.0, choice.cp / kRingSteps) : 1);
}

/// Returns the doublings of the passes beyond kShortProgramPasses.
double Search::doublings(const Choice& choice) const {
  return std::log2(std::max(1.0, passes(choice) / kShortProgramPasses));
}

/// Returns the key by the candidate's own estimates alone.
double Search::first_key(const Candidate& candidate) const {
  const double over = std::max(0.0, candidate.bytes / static_cast<double>(trial_.memory()) - 1);
  return candidate.guess_s * (1 + kMemoryPenalty * over);
}

/// Returns a plan with its bounds; smaller estimates give smaller keys.
Candidate Search::candidate(const Choice& plan, const Estimate& guess) const {
  const double size = 1 + kSizePenalty * doublings(plan);
  Candidate found{.choice = plan,
                  .least_s = static_cast<float>(guess.least_s * (1 - 1e-6)),
                  .least_any_s = static_cast<float>(guess.least_any_s * (1 - 1e-6)),
                  .guess_s = static_cast<float>(std::max(1e-9, guess.seconds * size)),
                  .bytes = static_cast<float>(std::max(1.0, guess.bytes))};
  found.key = static_cast<float>(first_key(found));
  return found;
}

/// Bounds and estimates a plan. Returns the estimate, all 0 for one that is left out.
Estimate Search::bound_plan(const Choice& plan, Estimator* estimator, Bounded* found) const {
  // The speed of replicas depends on the layers of their stages.
  if (!deals_well(space_, plan)) return {};
  ++found->counts.plans;
  const Estimate guess = estimator->guess(plan);
  if (guess.least_bytes > static_cast<double>(trial_.memory()) && !options_.everything) {
    ++found->counts.too_large;
    found->nearest.take({plan, guess.least_bytes});
    return guess;
  }
  found->candidates.push_back(candidate(plan, guess));
  return guess;
}

/// Bounds and estimates every plan with this mesh.
void Search::bound_mesh(const Choice& mesh, Estimator* estimator, Bounded* found) const {
  const double limit = static_cast<double>(trial_.memory());
  for (const Choice& sized : micro_batches(space_, mesh)) {
    // Bounds do not depend on the placement of ep: other placements are added to the candidates.
    Choice choice = estimator->with_fastest_exchange(sized);
    const Estimate floor = estimator->floor_of_mesh(choice);
    const bool fits = options_.everything || floor.least_bytes <= limit;
    for (const Pipeline& pipeline : pipelines(space_, choice)) {
      choice.schedule = pipeline.schedule;
      choice.chunks = pipeline.chunks;
      visit_rest(space_, choice, [&](const Choice& plan) {
        if (!fits) {
          // For any layers of its stages.
          ++found->counts.plans;
          ++found->counts.too_large;
          found->nearest.take({plan, floor.least_bytes});
          return;
        }
        const Estimate even = bound_plan(plan, estimator, found);
        double bytes = even.bytes;
        if (StageLayers by_time = estimator->layers_by_time(plan); !by_time.none()) {
          Choice laid = plan;
          laid.layers = std::move(by_time);
          bytes = std::max(bytes, bound_plan(laid, estimator, found).bytes);
        }
        if (plan.pp == 1 || is_given(space_, "plan.pp_layers") ||
            bytes <= limit * kCertainToFitShare) {
          return;
        }
        Estimate any = floor;
        any.seconds = even.bytes > 0 ? even.seconds : estimator->guess(plan).seconds;
        any.least_any_s = floor.least_s;
        any.bytes = limit * kCertainToFitShare;
        Candidate& others = found->candidates.emplace_back(candidate(plan, any));
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
    for (Candidate& candidate : found.candidates) {
      candidate.order = static_cast<uint32_t>(mesh);
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
  // Plans of one key in the order in which the space names them, whichever thread found them.
  std::stable_sort(queue_.begin(), queue_.end(), [](const Candidate& left, const Candidate& right) {
    return Later()(right, left);
  });
  for (Candidate& candidate : queue_) {
    candidate.order = next_order_++;
  }
  std::make_heap(queue_.begin(), queue_.end(), Later());
}

void Search::keep(Bounded found) {
  const std::lock_guard lock(mutex_);
  result_.counts.plans += found.counts.plans;
  result_.counts.too_large += found.counts.too_large;
  result_.nearest.take(found.nearest);
  queue_.insert(queue_.end(), found.candidates.begin(), found.candidates.end());
  held_ = queue_.size();
  if (queue_.size() <= kMaxCandidates) return;
  const auto middle = queue_.begin() + static_cast<std::ptrdiff_t>(kMaxCandidates / 2);
  std::nth_element(
      queue_.begin(), middle, queue_.end(),
      [](const Candidate& left, const Candidate& right) { return left.key < right.key; });
  for (auto at = middle; at != queue_.end(); ++at) {
    left_least_s_ = std::min(left_least_s_, static_cast<double>(at->least_s));
    ++result_.counts.left;
  }
  queue_.erase(middle, queue_.end());
}

/// Adds the plans that a candidate stands for, in its place. The mutex is held.
void Search::lay_by_memory(const Candidate& of, Estimator* estimator) {
  Bounded found;
  const double limit = static_cast<double>(trial_.memory());
  for (StageLayers& layers : estimator->layers_by_memory(of.choice, limit)) {
    Choice laid = of.choice;
    laid.layers = std::move(layers);
    bound_plan(laid, estimator, &found);
  }
  for (Candidate& candidate : found.candidates) {
    candidate.order = of.order;
    add(candidate);
  }
  result_.counts.plans += found.counts.plans - 1;
  result_.counts.too_large += found.counts.too_large;
  result_.nearest.take(found.nearest);
}

/// The next plan that may beat the best one; false: there is none.
bool Search::take(Candidate* candidate, Estimator* estimator) {
  std::unique_lock lock(mutex_);
  while (!ends()) {
    if (stopped() && !queue_.empty()) {
      if (take_surest(candidate, estimator)) return true;
      continue;
    }
    while (!queue_.empty()) {
      std::pop_heap(queue_.begin(), queue_.end(), Later());
      *candidate = queue_.back();
      queue_.pop_back();
      if (is_put_off(*candidate)) continue;
      if (options_.everything || candidate->least_s <= best_s_) {
        if (candidate->stands_for_layers) {
          lay_by_memory(*candidate, estimator);
          continue;
        }
        ++busy_;
        if (candidate->replayed || options_.everything) return true;
        // Then others may come first.
        replay_schedule(candidate, estimator, &lock);
        --busy_;
        add(*candidate);
        more_.notify_all();
        continue;
      }
      ++result_.counts.slower;
      if (candidate->stands_for_layers) continue;
      // Its bound counts with the transport's sums; others may be faster.
      if (candidate->least_any_s <= best_s_) {
        add_other_exchanges(*candidate, estimator);
        add_other_sums(*candidate, false);
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
  const auto worth = [&](const Candidate& of) {
    const double size = passes(of.choice) / layers * of.choice.chunks;
    const double over = std::max(0.0, of.bytes * margin_ / limit - 1);
    return of.guess_s * (1 + kSizePenaltyAfterLimit * std::log2(1 + size)) *
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
bool Search::take_surest(Candidate* candidate, Estimator* estimator) {
  if (more_plans_ >= kMorePlans && spent_s() - stopped_s_ >= kMoreSeconds) {
    gave_up_ = true;
    more_.notify_all();
    return false;
  }
  const size_t found = surest();
  *candidate = queue_[found];
  candidate->surest = true;
  queue_[found] = queue_.back();
  queue_.pop_back();
  std::make_heap(queue_.begin(), queue_.end(), Later());
  if (candidate->stands_for_layers) {
    lay_by_memory(*candidate, estimator);
    return false;
  }
  ++more_plans_;
  ++busy_;
  return true;
}

/// Puts a plan back if plans like it have shown that it will take more time than was thought, or
/// more memory than there is. The mutex is held.
bool Search::is_put_off(Candidate candidate) {
  if (options_.everything) return false;
  const bool none_fits = result_.best.empty();
  double bytes = bytes_correction_.ratio(candidate.choice);
  if (none_fits) {
    bytes = std::max(bytes, bytes_correction_.ratio());
  }
  const double seconds = seconds_correction_.ratio(candidate.choice) *
                         (candidate.replayed ? 1 : schedule_correction_.ratio(candidate.choice)) *
                         (none_fits ? 1 + kSizePenaltyAtFirst * doublings(candidate.choice) : 1);
  const double limit = static_cast<double>(trial_.memory());
  const double over = std::max(0.0, candidate.bytes * bytes / limit - 1);
  const double penalty = none_fits ? kMemoryPenaltyAtFirst : kMemoryPenalty;
  const double key = candidate.guess_s * seconds * (1 + penalty * over);
  if (key <= candidate.key * kRequeueRatio) return false;
  candidate.key = static_cast<float>(key);
  add(candidate);
  return true;
}

/// Refines the estimate of the next plan, without the mutex.
void Search::replay_schedule(Candidate* candidate, Estimator* estimator,
                             std::unique_lock<std::mutex>* lock) {
  lock->unlock();
  const Estimate guess = estimator->with_schedule_replayed(candidate->choice);
  const Candidate closer = this->candidate(candidate->choice, guess);
  log_debug("plan {}: estimated {:.4g} s, {:.4g} s with its schedule replayed",
            describe(candidate->choice, space_), candidate->guess_s, closer.guess_s);
  lock->lock();
  schedule_correction_.record(candidate->choice, closer.guess_s / candidate->guess_s);
  candidate->key = candidate->key < kTriedLastPenalty ? closer.key : candidate->key;
  candidate->guess_s = closer.guess_s;
  candidate->replayed = true;
}

/// Now that there is a plan: plans come by their own estimates again. The mutex is held.
void Search::forget_what_was_put_off() {
  for (Candidate& candidate : queue_) {
    candidate.key = candidate.key < kTriedLastPenalty ? static_cast<float>(first_key(candidate))
                                                      : candidate.key;
  }
  std::make_heap(queue_.begin(), queue_.end(), Later());
}

void Search::add(const Candidate& candidate) {
  queue_.push_back(candidate);
  std::push_heap(queue_.begin(), queue_.end(), Later());
}

/// The same plan with ep laid in other ways over the mesh.
void Search::add_other_exchanges(const Candidate& tried, Estimator* estimator) {
  if (tried.varied || tried.choice.sums != 0) return;
  Choice one_step = tried.choice;
  one_step.ep_inner = 1;
  std::vector<int32_t> all = inner_experts(space_, one_step);
  if (all.empty()) return;
  all.push_back(1);
  for (const int32_t together : all) {
    if (together == tried.choice.ep_inner) continue;
    Choice plan = tried.choice;
    plan.ep_inner = together;
    Candidate other = candidate(plan, estimator->guess(plan));
    other.order = tried.order;
    other.varied = true;
    add(other);
    ++result_.counts.plans;
  }
}

/// The same plan with other algorithms of sums: soon if it is a good one.
void Search::add_other_sums(const Candidate& candidate, bool near) {
  if (candidate.choice.sums != 0) return;
  for (const uint8_t sums : other_sums(space_, candidate.choice)) {
    Candidate other = candidate;
    other.choice.sums = sums;
    other.least_s = candidate.least_any_s;
    other.key = near ? candidate.key : candidate.key + kTriedLastPenalty;
    add(other);
    ++result_.counts.plans;
  }
}

void Search::record(const Candidate& candidate, Outcome outcome, Estimator* estimator) {
  const std::lock_guard lock(mutex_);
  ++result_.counts.simulated;
  add_other_exchanges(candidate, estimator);
  if (!outcome.refused.empty()) {
    ++result_.counts.refused;
    ++result_.refusals[outcome.refused];
    return;
  }
  log_debug("plan {}: {:.4g} s, estimated {:.4g}; {:.4g} GB, estimated {:.4g}",
            describe(candidate.choice, space_), outcome.step_s, candidate.guess_s,
            static_cast<double>(outcome.bytes) * 1e-9, candidate.bytes * 1e-9);
  bytes_correction_.record(candidate.choice, static_cast<double>(outcome.bytes) / candidate.bytes);
  seconds_correction_.record(candidate.choice, outcome.step_s / candidate.guess_s);
  add_other_sums(candidate, outcome.fits && outcome.step_s <= best_s_ * kNearBestRatio);
  if (!outcome.fits) {
    ++result_.counts.over_memory;
    result_.nearest_simulated.take({candidate.choice, static_cast<double>(outcome.bytes)});
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
                                     return left.step_s != right.step_s
                                                ? left.step_s < right.step_s
                                                : left.choice < right.choice;
                                   });
  result_.best.insert(at, std::move(outcome));
}

void Search::simulate(Estimator* estimator) {
  Candidate candidate;
  // Work started before the end is given up for a plan that is available much sooner.
  const auto stop = [&] {
    return is_done() || (stopped() && !candidate.surest && passes(candidate.choice) > too_long_);
  };
  while (take(&candidate, estimator)) {
    std::optional<Outcome> outcome = trial_.simulate(candidate.choice, space_, stop);
    if (outcome) {
      record(candidate, std::move(*outcome), estimator);
    }
    const std::lock_guard lock(mutex_);
    if (!outcome) {
      add(candidate);  // given up: it is left
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
  for (const Candidate& candidate : queue_) {
    if (candidate.least_s > best_s_) {
      ++result_.counts.slower;
      continue;
    }
    ++result_.counts.left;
    left_least_s_ = std::min(left_least_s_, static_cast<double>(candidate.least_s));
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
  result_.least_s = result_.counts.meshes_left > 0 ? 0 : std::min(best_s_, left_least_s_);
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
  if (is_nearer || (other.bytes == bytes && other.choice < choice)) {
    *this = other;
  }
}

SearchResult search(const Trial& trial, const SearchSpace& space, const SearchOptions& options) {
  return Search(trial, space, options).run();
}

}  // namespace hocket::planner
