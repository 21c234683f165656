// SPDX-License-Identifier: Apache-2.0
// State of a search, shared by its phases: search_bounds.cc bounds and estimates plans,
// search_phases.cc has the first and the last phase, search.cc the one between them.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <ctime>
#include <exception>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <vector>

#include "planner/estimate.h"
#include "planner/queue.h"
#include "planner/search.h"
#include "planner/usual.h"

namespace hocket::planner {

/// Maximum number of queued plans; beyond it those with the largest penalized estimates are
/// dropped.
inline constexpr size_t kMaxQueuedPlans = 4'000'000;
/// Growth of the penalized estimate per excess of estimated memory, as a share of the limit. A plan
/// 1 % too large comes like one 15 % slower, one 7 % too large at twice its step. Simulated memory
/// was 0.98 to 1.09 of most estimates (bench/results/2026-11-29-planner.md), before these had the
/// factors of arena_ratio(). With less, more misfits are simulated. With more, a plan whose memory
/// is overestimated comes too late.
inline constexpr double kMemoryPenalty = 15;
/// kMemoryPenalty while no plan fits: a plan 1 % too large then comes like one of twice the step.
/// The value is not measured. With less, misfits slightly above the limit may take all the time.
/// With more, a plan estimated slightly too large never has its turn.
inline constexpr double kMemoryPenaltyAtFirst = 100;
/// Share of the memory: a rank estimated below it counts as certain to fit.
inline constexpr double kCertainToFitShare = 0.9;
/// While no plan fits: growth of the penalized estimate per doubling of a program's length. A short
/// program is simulated sooner, and corrects estimates sooner.
inline constexpr double kSizePenaltyAtFirst = 0.1;
/// Growth of the penalized estimate with every doubling of passes through layers beyond
/// kShortProgramPasses. It is far below the error of estimates (10 to 28 %,
/// bench/results/2026-11-27-plan.md). Of plans that seem equally fast, the shorter program thus
/// comes first. With more, plans of many micro-batches come too late; with 0, a long program may
/// take the time of many short ones.
inline constexpr double kSizePenalty = 0.02, kShortProgramPasses = 1024;
/// Share of the remaining time after which bounding stops and simulation begins, once there are
/// kEnoughToChoose candidates. On idle cores the bounds of 5.8 M plans take a tenth of 50 s
/// (bench/results/2026-11-26-plan.md). Half is for slow machines and larger spaces. With more, too
/// few plans are simulated there; with less, more meshes are never visited.
inline constexpr double kBoundingShare = 0.5;
/// Number of candidates from which simulation may begin before all meshes are bounded. Searches of
/// models of 7 B and more simulated 5 to 69 plans in 100 s (bench/results/2026-11-29-planner.md).
/// With fewer candidates than that, poor plans are simulated first; with far more, a slow machine
/// starts late.
inline constexpr size_t kEnoughToChoose = 5000;
/// Share of the time limit after which no usual plan is begun, if some plan fits. With more, long
/// programs of usual plans leave the rest of the space no time. With less, families of large models
/// have no simulated plan.
inline constexpr double kUsualShare = 0.3;
/// Largest share of the time limit for the simulations at the end. The timelines of families have a
/// second share of at most this size (timelines_s()). One full step of 70B on 64 ranks takes 14 s
/// of processor time (bench/results/2026-11-29-planner.md). With more, fewer plans are searched;
/// with less, more of the best plans keep an extrapolated step.
inline constexpr double kFinalShare = 0.4;
/// Share of the time limit for moving layers of the best plan from stage to stage. With more, fewer
/// plans are searched; with less, a program of some seconds has too few of its moves tried.
inline constexpr double kLayersShare = 0.1;
/// Share of the time limit for a simulation of every family's most promising plan that is left.
/// With more, fewer plans are searched; with less, families of large models keep a plan that
/// estimates favoured and a simulation did not, or none.
inline constexpr double kFamiliesShare = 0.1;
/// Time of the simulations with better resources over that of one extrapolation. They compile two
/// of its three steps, and replay each up to six times: 1.5 times its time if a third of that is
/// replay. A step that is not shortened takes more, by the same count 2.7 times its time. With
/// more, the search ends too early; with less, time may be lacking for the gains.
inline constexpr double kGainsOverOnce = 1.5;
/// Usual plans of a family that are simulated, and the number of further ones if none of them fits.
/// Estimates err by 10 to 28 %, so that one plan is not enough to judge a family. Eight families
/// share kUsualShare: with more plans of each, there is less time for other plans.
inline constexpr int kUsualOfFamily = 3, kMoreUsualOfFamily = 6;
/// Number of further plans of a family that are sharded and recomputed like most practitioners'
/// first plan (is_customary()), if none of the others was.
inline constexpr int kCustomaryOfFamily = 1;
/// Further plans of a family are not usual ones if they are estimated at this times the best step.
inline constexpr double kMaxUsualSlowdown = 1.5;
/// A plan is extrapolated from two steps alone if it is slower than this times the best one. The
/// line through two steps is off by 5 % at most (trial.cc): 0.95 of 1.06 is still above 1. With
/// less, the best plan might be missed; with more, poor plans take a third simulation.
inline constexpr double kClearlySlower = 1.06;
/// Requeues a candidate whose corrected estimate exceeds its penalized one by more than this
/// factor. Corrections change a little with every simulated plan. With 1, the queue would be
/// reordered each time; with more, plans are simulated in the order of outdated estimates.
inline constexpr double kRequeueRatio = 1.02;
/// Other collective algorithms are tried for plans within this factor of the best one
/// (kNearBestRatio), and for others last (kTriedLastPenalty, added to the penalized estimate).
inline constexpr double kNearBestRatio = 1.05;
inline constexpr float kTriedLastPenalty = 1e6f;
/// Processor time, in seconds, between the stop of a search and the end of the process: a thread
/// looks at the clock again (0.1 s later at most, measured with 70B), large programs are freed, and
/// the result is written.
inline constexpr double kWindingUpS = 0.2;
/// Share of the limit that winding up takes at most.
inline constexpr double kMaxWindingUpShare = 0.05;
/// Ratio to the time limit at which a search without a plan ends, once it has simulated
/// kMinSimulated plans. The twentieth lets simulations in progress end.
inline constexpr double kMoreTime = 1.05;
inline constexpr int64_t kMinSimulated = 8;
/// Seconds beyond the time limit after which a search without a plan ends in any case.
inline constexpr double kMaxMoreSeconds = 60;
/// Ratio to the time limit at which the simulations of plans that are nearest to fitting end. One
/// of 70B takes some seconds of the usual 50 s. With more, a search that found nothing exceeds its
/// limit for longer; with less, its error names estimates.
inline constexpr double kNearestTime = 1.2;

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
      : trial_(trial), space_(space), options_(options), begun_s_(clock_s()) {}

  SearchResult run();

 private:
  int num_threads() const;
  double clock_s() const;
  double spent_s() const;
  double winding_up_s() const;
  bool out_of_time() const;
  /// Returns whether the search was asked to end, or the time of this phase is up.
  bool stopped() const { return stop_.load(std::memory_order_relaxed); }
  /// Returns whether the phase ends: it stopped, with a plan, or without one some time ago.
  bool ends() const { return failed_ || gave_up_ || (stopped() && fits_); }
  double enough_s();
  void look_whether_to_stop();
  double final_s() const;
  double timelines_s() const;
  double after_s() const;
  double once_s() const;
  double families_s() const;
  void in_threads(const std::function<void(int)>& body);
  Estimator* estimator_of(int thread);
  void bound_meshes();
  bool bounds_enough() const;
  size_t mesh_at(size_t next) const;
  void bound(Estimator* estimator);
  void bound_mesh(const PlanCandidate& mesh, Estimator* estimator, BoundedPlans* found) const;
  Estimate bound_plan(const PlanCandidate& plan, Estimator* estimator, BoundedPlans* found) const;
  void drop_by_floor(const PlanCandidate& plan, const Estimate& floor, Estimator* estimator,
                     BoundedPlans* found) const;
  void assign_by_memory(const QueuedPlan& of, Estimator* estimator);
  QueuedPlan queued_plan(const PlanCandidate& plan, const Estimate& estimate) const;
  void keep(BoundedPlans found);
  void take_nearest(const BoundedPlans& found);
  bool take(QueuedPlan* queued, Estimator* estimator);
  double corrected_bytes(const QueuedPlan& queued) const;
  double corrected_seconds(const QueuedPlan& queued) const;
  double corrected_estimate(const QueuedPlan& queued) const;
  bool put_off_if_worse(QueuedPlan queued);
  void replay_schedule(QueuedPlan* queued, Estimator* estimator,
                       std::unique_lock<std::mutex>* lock);
  double passes(const PlanCandidate& plan) const;
  double doublings(const PlanCandidate& plan) const;
  double penalized_estimate(const QueuedPlan& queued) const;
  void forget_what_was_put_off();
  void simulate_usual();
  bool take_usual(QueuedPlan* queued);
  void simulate(Estimator* estimator);
  void add_other_exchanges(const QueuedPlan& queued, Estimator* estimator);
  void add_other_collectives(const QueuedPlan& queued, bool near);
  void add(const QueuedPlan& queued);
  void add_others(const QueuedPlan& queued, bool near, Estimator* estimator);
  bool record(const QueuedPlan& queued, Outcome outcome);
  void settle(const QueuedPlan& queued, std::optional<Outcome> outcome, Estimator* estimator);
  void count_slower(const PlanCandidate& plan);
  void insert(Outcome outcome);
  std::vector<QueuedPlan> promising_of_families();
  void simulate_families();
  void simulate_nearest();
  double layers_s() const;
  void improve_layers();
  bool take_moved(QueuedPlan* queued);
  void simulate_best_in_full();
  bool take_for_full(PlanCandidate* plan);
  void measure_gains();
  void report();
  void finish();
  void count_left();
  void note_unseen_families();

  const Trial& trial_;
  const SearchSpace& space_;
  const SearchOptions& options_;
  const double begun_s_;
  const double begun_processor_s_ = static_cast<double>(std::clock()) / CLOCKS_PER_SEC;
  std::vector<PlanCandidate> meshes_;
  std::atomic<size_t> next_mesh_{0};
  std::atomic<int64_t> given_up_meshes_{0};  // of these
  double bound_until_s_ = 0;
  std::atomic<size_t> held_{0};  // candidates
  // stop_: asked to end, or the phase's time is up. fits_: there is a plan. failed_: a thread
  // threw. gave_up_: no plan was found some time after the limit.
  std::atomic<bool> stop_{false}, fits_{false}, failed_{false}, gave_up_{false};
  /// The first phase looks at usual plans alone. After the second, if no plan fits, the nearest to
  /// fitting are simulated; if one does, a further plan of every family. `layers` moves layers of
  /// the best plan from stage to stage; the last phase needs all the time that is left.
  enum class Phase { usual, all, nearest, families, layers, final } phase_ = Phase::usual;
  std::map<PlanCandidate, bool> tried_;  // usual plans that were simulated; near the best one
  std::array<int, kFamilies> tried_of_{}, fitting_of_{}, customary_of_{};
  std::set<PlanCandidate> in_full_;  // begun
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

}  // namespace hocket::planner
