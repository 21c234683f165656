// SPDX-License-Identifier: Apache-2.0
#include "planner/usual.h"

#include <bit>
#include <string_view>

#include "parallel/schedules/schedule.h"

namespace hocket::planner {

namespace {

// With wider limits, more plans are bounded before the first simulation; a family still has the
// same number of them simulated. With narrower ones, plans that practitioners do start from wait
// for the bounds of the whole space.

/// Smallest number of tokens of a sequence on a rank of cp. 8,192 tokens on two ranks are usual
/// (a 70B plan of an expert, bench/results/2026-11-29-planner.md); the space goes down to a
/// quarter.
constexpr int64_t kMinUsualCpTokens = 4096;
/// Largest number of sequences in a micro-batch: half of what the space has; not measured.
constexpr int32_t kMaxUsualMicroBatch = 8;
/// Largest number of ranks in a ring of cp: program_passes() counts longer ones as longer programs.
constexpr int32_t kMaxUsualRing = 8;

bool is_power_of_two(int64_t number) { return std::has_single_bit(static_cast<uint64_t>(number)); }

}  // namespace

Family family_of(const PlanCandidate& plan) {
  if (plan.ep > 1) {
    if (plan.pp > 1) return Family::experts_pipeline;
    return plan.tp > 1 ? Family::experts_tensor : Family::experts;
  }
  if (plan.pp > 1) return plan.tp > 1 ? Family::pipeline_tensor : Family::pipeline;
  if (plan.tp > 1) return Family::tensor;
  const bool splits_parameters =
      plan.shard == kGatheredOnce || plan.shard == kZero3 || plan.shard == kHybrid;
  return splits_parameters ? Family::fsdp : Family::data;
}

bool is_usual_mesh(const SearchSpace& space, const PlanCandidate& mesh) {
  const bool splits_tokens = mesh.tp > 1 && space.seq_len / mesh.cp % mesh.tp == 0;
  const bool usual_cp =
      mesh.cp == 1 || (space.seq_len / mesh.cp >= kMinUsualCpTokens &&
                       mesh.cp_comm_type != CpCommType::a2a && is_power_of_two(mesh.cp));
  // A ring over more ranks makes a long program.
  const bool long_ring = mesh.cp_comm_type == CpCommType::p2p && mesh.cp > kMaxUsualRing;
  return usual_cp && !long_ring && is_power_of_two(mesh.tp) && mesh.tp <= space.ranks_per_node &&
         mesh.sequence_parallel == splits_tokens && mesh.etp == 1;
}

bool is_usual(const PlanCandidate& plan) {
  if (plan.sequences == 0 &&
      (plan.micro_batch > kMaxUsualMicroBatch || !is_power_of_two(plan.micro_batch))) {
    return false;
  }
  if (plan.pp == 1) return true;
  const std::string_view schedule = parallel::built_in_schedules()[plan.schedule].name;
  return (schedule == "1f1b" || schedule == "interleaved" || schedule == "zb-h1") &&
         plan.shard < kZero2;
}

bool is_customary(const PlanCandidate& plan) {
  const bool splits = family_of(plan) == Family::fsdp
                          ? plan.shard == kZero3
                          : plan.shard == kZero1 || plan.shard == kGatheredOnce;
  return plan.recompute == Recompute::full && splits;
}

}  // namespace hocket::planner
