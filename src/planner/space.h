// SPDX-License-Identifier: Apache-2.0
// The plans that a search looks at: every combination of mesh, schedule, micro-batch, recompute,
// sharding and collective algorithm that a model, a batch and a number of ranks allow.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/id.h"
#include "models/config.h"
#include "planner/balance.h"

namespace hocket::planner {

/// Numbers of layers per stage (plan.pp_layers); none: as even as possible.
class StageLayers {
 public:
  StageLayers() = default;
  explicit StageLayers(std::vector<int64_t> each)
      : each_(std::make_shared<const std::vector<int64_t>>(std::move(each))) {}
  bool none() const { return !each_; }
  /// Requires: !none().
  const std::vector<int64_t>& each() const { return *each_; }
  std::strong_ordering operator<=>(const StageLayers& other) const {
    if (none() || other.none()) return other.none() <=> none();
    return *each_ <=> *other.each_;
  }
  bool operator==(const StageLayers& other) const { return (*this <=> other) == 0; }

 private:
  std::shared_ptr<const std::vector<int64_t>> each_;  // shared by the plans that have them
};

/// plan.cp_comm_type: all keys on every rank, or around a ring; or heads exchanged for tokens.
enum class CpCommType : uint8_t { all_gather, p2p, a2a };
inline constexpr CpCommType kCpCommTypes[] = {CpCommType::all_gather, CpCommType::p2p,
                                              CpCommType::a2a};
const char* to_string(CpCommType type);

/// plan.recompute.
enum class Recompute : uint8_t { none, selective, full };
inline constexpr const char* kRecomputeNames[] = {"none", "selective", "full"};
inline const char* to_string(Recompute recompute) { return kRecomputeNames[place_of(recompute)]; }

/// Nothing, optimizer states (ZeRO-1), with parameters that are gathered once a step (pipelines of
/// torchtitan), with gradients (ZeRO-2), with parameters (ZeRO-3); parameters and gradients among
/// the replicas of a node, states among all (HSDP).
enum class ShardLevel : uint8_t { none, optimizer, gathered_once, grads, params, hybrid };
inline constexpr ShardLevel kZero1 = ShardLevel::optimizer,
                            kGatheredOnce = ShardLevel::gathered_once, kZero2 = ShardLevel::grads,
                            kZero3 = ShardLevel::params, kHybrid = ShardLevel::hybrid;
inline constexpr ShardLevel kShardLevels[] = {ShardLevel::none, kZero1, kGatheredOnce,
                                              kZero2,           kZero3, kHybrid};

/// plan.all_reduce, plan.all_gather and plan.reduce_scatter.
enum class CollectiveAlgorithm : uint8_t {
  native,
  ring,
  halving_doubling,
  hierarchical,
  ho_ring,
};
/// All but `native`.
inline constexpr CollectiveAlgorithm kOtherAlgorithms[] = {
    CollectiveAlgorithm::ring, CollectiveAlgorithm::halving_doubling,
    CollectiveAlgorithm::hierarchical, CollectiveAlgorithm::ho_ring};
const char* to_string(CollectiveAlgorithm algorithm);

/// The searched keys of a plan; all others are the run's.
struct PlanCandidate {
  int32_t pp = 1, chunks = 1, dp = 1, ep = 1, etp = 1, cp = 1, tp = 1;
  int32_t ep_inner = 1;     ///< ranks of ep_over().dp that lie together: rows take two steps
  int32_t micro_batch = 1;  ///< sequences of a replica; for heterogeneous ones the mean, rounded up
  /// Sequences of a micro-batch over all replicas, if distributed by speed; 0: micro_batch each.
  int32_t sequences = 0;
  bool sequence_parallel = false;
  StageLayers layers = {};
  CpCommType cp_comm_type = CpCommType::all_gather;
  uint8_t schedule = 0;  ///< of parallel::built_in_schedules()
  Recompute recompute = Recompute::none;
  ShardLevel shard = ShardLevel::none;
  CollectiveAlgorithm collectives = CollectiveAlgorithm::native;  ///< for all three collectives
  auto operator<=>(const PlanCandidate&) const = default;

  int64_t world() const { return int64_t{pp} * dp * cp * tp; }
  /// Ranks that share parameters, but for experts.
  int64_t replicas() const { return int64_t{dp} * cp; }
  /// The ranks of ep that are of tp, of cp and of dp (parallel::Plan::ep_over).
  struct Over {
    int64_t dp = 1, cp = 1, tp = 1;
  };
  Over ep_over() const;
  /// Ranks that have the same experts, and the same part of their widths.
  int64_t expert_replicas() const;
};

/// Keys of a run that a search sets, "plan.pp" and so on.
const std::vector<std::string>& searched_keys();

/// Returns the placement of a plan's stages.
Stages stages_of(const PlanCandidate& plan);

/// The limits of a search.
struct SearchSpace {
  models::ModelConfig model;
  int64_t ranks = 1;
  int64_t ranks_per_node = 1;
  int64_t global_batch = 1, seq_len = 1;
  /// Keys among searched_keys() that are given, with their values: only plans with these are in it.
  std::map<std::string, std::string> given;
  /// Numbers of layers per stage, by the FLOPs of layers and the speed of devices. They give the
  /// busiest rank less work than an even split. Absent: an even split is as good, or there are
  /// several chunks on equal devices.
  std::map<Stages, std::vector<int64_t>> balanced = {};
  /// Speed of every rank's device relative to the fastest; empty: all equal.
  std::vector<double> speed = {};
  /// Key of samples_by_speed.
  struct Replicas {
    int32_t pp = 1, dp = 1, sequences = 1;
    bool balanced = false;  ///< with an uneven split of layers
    auto operator<=>(const Replicas&) const = default;
  };
  /// Sequences of a micro-batch per replica, where equal numbers would make replicas wait for the
  /// slowest.
  std::map<Replicas, std::vector<int64_t>> samples_by_speed = {};
  /// If set, only plans that it accepts: those that another trainer can express
  /// (interop/foreign.h).
  std::function<bool(const PlanCandidate&)> expressible = nullptr;
  /// If set, whether another trainer waits for each message between a plan's stages, which then has
  /// plan.overlap_p2p_comm false.
  std::function<bool(const PlanCandidate&)> waits_for_messages = nullptr;
};

/// Returns whether a searched key has its value from elsewhere.
bool is_given(const SearchSpace& space, const char* key);
/// Returns the speed of every replica, with these layers per stage.
std::vector<double> replica_speeds(const SearchSpace& space, int64_t dp, const LayerCosts& costs,
                                   const std::vector<int64_t>& layers);
/// plan.shard.group of a hybrid plan: replicas that lie on one node. 1: there is no such plan.
int64_t shard_group(const SearchSpace& space, const PlanCandidate& plan);
/// Returns false if a plan has sequences per replica by speed, and equal numbers would be as fast.
bool balances_replicas(const SearchSpace& space, const PlanCandidate& plan);
/// Layers of every stage of a plan.
std::vector<int64_t> stage_layers(const SearchSpace& space, const PlanCandidate& plan);
/// Sequences of a micro-batch of every replica of a plan.
std::vector<int64_t> samples(const SearchSpace& space, const PlanCandidate& plan);

/// Layers are assigned by cost, and sequences by speed, if the longest time shrinks below this
/// ratio.
inline constexpr double kWorthBalancing = 0.995;
/// A rank of cp has this many tokens of a sequence at least, unless plan.cp is given.
inline constexpr int64_t kMinCpTokens = 1024;
/// Largest number of sequences of a micro-batch per data-parallel rank, unless plan.micro_batch is
/// given; for heterogeneous replicas on average.
inline constexpr int64_t kMaxMicroBatch = 16;
/// Largest group whose collectives are tried as messages, unless their keys are given: each is then
/// twice that many messages per rank.
inline constexpr int64_t kMaxGroupByMessages = 32;

/// Largest number of stages between any two of which a layer is moved: 16 have 240 pairs.
inline constexpr size_t kMaxStagesOfPairs = 16;

/// Returns "KEY=VALUE" for every key that differs from its default and has an effect.
std::vector<std::string> assignments(const PlanCandidate& plan, const SearchSpace& space);

/// Returns all meshes, with defaults for micro-batch, schedule, recomputation and sharding. Experts
/// exchange rows in one step unless plan.ep_inner is given.
std::vector<PlanCandidate> meshes(const SearchSpace& space);
/// Returns the values of plan.ep_inner with which a mesh exchanges rows in two steps, one of them
/// within nodes. None where that would not send fewer messages between nodes.
std::vector<int32_t> inner_experts(const SearchSpace& space, const PlanCandidate& mesh);
/// Returns the mesh with every possible number of sequences of a micro-batch.
std::vector<PlanCandidate> micro_batches(const SearchSpace& space, const PlanCandidate& mesh);
/// Schedules with their chunks for a mesh with a micro-batch.
struct Pipeline {
  uint8_t schedule = 0;
  int32_t chunks = 1;
};
std::vector<Pipeline> pipelines(const SearchSpace& space, const PlanCandidate& mesh);
/// Returns the plan with one layer on another stage, for every pair of stages; of more than
/// kMaxStagesOfPairs stages, for neighbours alone. None if plan.pp_layers is given.
std::vector<PlanCandidate> with_a_layer_moved(const SearchSpace& space, const PlanCandidate& plan);
/// Visits every plan with this mesh, micro-batch and pipeline, but for the algorithms of
/// collectives and other layers on its stages.
void visit_rest(const SearchSpace& space, const PlanCandidate& plan,
                const std::function<void(const PlanCandidate&)>& visit);
/// Returns the algorithms that a plan's collectives may have beside `native`.
std::vector<CollectiveAlgorithm> other_collectives(const SearchSpace& space,
                                                   const PlanCandidate& plan);

/// Micro-batches of a step.
int64_t num_micro_batches(const SearchSpace& space, const PlanCandidate& plan);

/// "pp 8 x dp 16 x tp 8, interleaved of 6, 64 micro-batches of 1, ..." in one line.
std::string describe(const PlanCandidate& plan, const SearchSpace& space);

}  // namespace hocket::planner
