// SPDX-License-Identifier: Apache-2.0
#include "planner/pipeline_shape.h"

#include <algorithm>
#include <span>

#include "parallel/schedules/schedule.h"
#include "sim/schedule_sim.h"

namespace hocket::planner {

namespace {

constexpr int64_t kShown = 2;

/// Returns the micro-batches that show a schedule's pattern, a multiple of its ranks: each further
/// one adds a constant.
int shown_micro_batches(const parallel::BuiltIn& schedule, const PlanCandidate& plan, int64_t count,
                        int64_t times) {
  const int64_t enough = std::min<int64_t>(count, times * plan.pp);
  const int fitting = schedule.fitting
                          ? schedule.fitting(plan.pp, plan.chunks, static_cast<int>(enough))
                          : static_cast<int>(enough);
  return static_cast<int>(std::min<int64_t>(fitting, count));
}

PipelineShape::Rank rank_of(const std::vector<parallel::Action>& row, int micro_batches,
                            int64_t chunks) {
  PipelineShape::Rank rank;
  std::map<int64_t, double> forward;
  double pending = 0;
  for (const parallel::Action& action : row) {
    if (action.kind == 'F') {
      forward[action.stage] += 1;
    }
    pending += action.kind == 'I' ? 1 : action.kind == 'W' ? -1 : 0;
    rank.pending = std::max(rank.pending, pending / static_cast<double>(chunks));
  }
  for (const auto& [stage, count] : forward) {
    rank.stages.emplace_back(stage, count / micro_batches);
  }
  rank.first_stage = row.front().stage;
  rank.last_stage = row.back().stage;
  rank.last_kind = row.back().kind;
  return rank;
}

/// Adds the sends of each rank: outputs of a pass, to the rank with the micro-batch's next one.
void add_sends(const parallel::Schedule& schedule, int64_t stages, int micro_batches,
               PipelineShape* shape) {
  const auto at = [&](int64_t stage, int micro_batch) {
    return static_cast<size_t>(stage * micro_batches + micro_batch);
  };
  std::vector<int64_t> rank_of(at(stages, 0));  // by stage and micro-batch
  for (size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    for (const parallel::Action& action : schedule.ranks[rank]) {
      rank_of[at(action.stage, action.micro_batch)] = static_cast<int64_t>(rank);
    }
  }
  for (size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    for (const parallel::Action& action : schedule.ranks[rank]) {
      const int next = action.kind == 'F' ? action.stage + 1 : action.stage - 1;
      if (action.kind == 'W' || next < 0 || next >= stages) continue;
      const int64_t to = rank_of[at(next, action.micro_batch)];
      if (to != static_cast<int64_t>(rank)) {
        shape->ranks[rank].sends[to] += 1.0 / micro_batches;
      }
    }
  }
}

/// Returns the length of an action, where forward passes and the halves of backward passes take 1.
double passes_of(const parallel::Action& action) { return action.kind == 'B' ? 2 : 1; }

PipelineShape shape_of(const PlanCandidate& plan, int64_t count) {
  if (plan.pp == 1) {
    PipelineShape alone{.ranks = {{.stages = {{0, 1.0}}}}};
    alone.shown = 2;  // of which one is alive at a time
    return alone;
  }
  const parallel::BuiltIn& built_in = parallel::built_in_schedules()[plan.schedule];
  const int shown = shown_micro_batches(built_in, plan, count, kShown);
  const parallel::Schedule schedule = built_in.make(plan.pp, plan.chunks, shown);
  PipelineShape shape;
  shape.shown = shown;
  double busiest = 0;
  for (size_t r = 0; r < schedule.ranks.size(); ++r) {
    shape.ranks.push_back(rank_of(schedule.ranks[r], shown, plan.chunks));
    shape.ranks.back().live = sim::peak_live(schedule.ranks[r], plan.pp, plan.pp * plan.chunks);
    double busy = 0;
    for (const parallel::Action& action : schedule.ranks[r]) {
      busy += passes_of(action);
      shape.splits_backward = shape.splits_backward || action.kind == 'W';
      shape.overlaps = shape.overlaps || action.overlaps_next;
    }
    busiest = std::max(busiest, busy);
  }
  add_sends(schedule, int64_t{plan.pp} * plan.chunks, shown, &shape);
  if (busiest > 0) {
    const double step = sim::schedule_step(schedule, plan.pp * plan.chunks, shown,
                                           {.cell =
                                                [](int, std::span<const parallel::Action> cell) {
                                                  double passes = 0;
                                                  for (const parallel::Action& action : cell) {
                                                    passes += passes_of(action);
                                                  }
                                                  return passes;
                                                },
                                            .message = [](int, int) { return 0.0; }});
    shape.waits = (step - busiest) / busiest * shown;
  }
  return shape;
}

}  // namespace

double replayed_s(const PlanCandidate& plan, int64_t micro_batches, const sim::CellTimes& times) {
  const parallel::BuiltIn& built_in = parallel::built_in_schedules()[plan.schedule];
  const auto step = [&](int count) {
    return sim::schedule_step(built_in.make(plan.pp, plan.chunks, count), plan.pp * plan.chunks,
                              count, times);
  };
  const int fewer = shown_micro_batches(built_in, plan, micro_batches, kShown);
  const int more = shown_micro_batches(built_in, plan, micro_batches, 2 * kShown);
  const double found = step(more);
  if (more == micro_batches || more == fewer) return found;
  const double each = (found - step(fewer)) / (more - fewer);
  return found + static_cast<double>(micro_batches - more) * each;
}

const PipelineShape& PipelineShapes::of(const PlanCandidate& plan, int64_t micro_batches) {
  // More micro-batches than twice the ranks show nothing new.
  const int64_t enough = std::min<int64_t>(micro_batches, 2 * plan.pp + 1);
  const std::array<int64_t, 4> key{plan.schedule, plan.pp, plan.chunks, enough};
  const auto at = known_.find(key);
  if (at != known_.end()) return at->second;
  return known_.emplace(key, shape_of(plan, micro_batches)).first->second;
}

}  // namespace hocket::planner
