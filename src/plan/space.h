// SPDX-License-Identifier: Apache-2.0
// The plans that a search looks at: every combination of mesh, schedule, micro-batch, recompute,
// sharding and collective algorithm that a model, a batch and a number of ranks allow.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "models/config.h"

namespace hocket::plan {

/// What a search chooses; all other keys of a plan are as the run has them.
struct Choice {
  int32_t pp = 1, chunks = 1, dp = 1, ep = 1, etp = 1, cp = 1, tp = 1;
  int32_t micro_batch = 1;
  bool sequence_parallel = false;
  uint8_t keys = 0;       ///< of kKeys: how queries meet the keys of other ranks of cp
  uint8_t schedule = 0;   ///< of parallel::built_in_schedules()
  uint8_t recompute = 0;  ///< of kRecompute
  uint8_t shard = 0;      ///< of kShard
  uint8_t sums = 0;       ///< of kSums: the algorithm of all three collectives
  bool operator==(const Choice&) const = default;

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

inline constexpr const char* kKeys[] = {"all_gather", "p2p", "a2a"};
inline constexpr const char* kRecompute[] = {"none", "selective", "full"};
/// Nothing, optimizer states (ZeRO-1), with gradients (ZeRO-2), with parameters (ZeRO-3).
inline constexpr const char* kShard[] = {"none", "optimizer", "grads", "params"};
inline constexpr const char* kSums[] = {"native", "ring", "halving_doubling", "hierarchical",
                                        "ho_ring"};

/// Keys of a run that a search sets, "plan.pp" and so on.
const std::vector<std::string>& searched_keys();

/// The limits of a search.
struct Space {
  models::ModelConfig model;
  int64_t ranks = 1;
  int64_t ranks_per_node = 1;
  int64_t global_batch = 1, seq_len = 1;
  /// Keys among searched_keys() that are given, with their values: only plans with these are in it.
  std::map<std::string, std::string> given;
};

/// A rank of cp has this many tokens of a sequence at least, unless plan.cp is given.
inline constexpr int64_t kLeastTokens = 1024;
/// Sequences of a micro-batch on a data-parallel rank, at most, unless plan.micro_batch is given.
inline constexpr int64_t kMostMicroBatch = 16;
/// Members of the largest group whose sums are tried in messages, unless their keys are given: each
/// sum is then as many messages as twice that, of every rank.
inline constexpr int64_t kMostSummedByMessages = 32;

/// "KEY=VALUE" for every key that differs from its default; what has no effect is left out.
std::vector<std::string> assignments(const Choice& choice, const Space& space);

/// All meshes, each with one micro-batch, no schedule, nothing recomputed and nothing split.
std::vector<Choice> meshes(const Space& space);
/// Sequences of a micro-batch that are possible on a mesh.
std::vector<int32_t> micro_batches(const Space& space, const Choice& mesh);
/// Schedules with their chunks for a mesh and a number of micro-batches.
struct Pipeline {
  uint8_t schedule = 0;
  int32_t chunks = 1;
};
std::vector<Pipeline> pipelines(const Space& space, const Choice& mesh, int64_t num_micro_batches);
/// Every plan with this mesh, micro-batch and pipeline, but for the algorithms of sums.
void visit_rest(const Space& space, const Choice& choice,
                const std::function<void(const Choice&)>& visit);
/// The algorithms of sums that a plan may have beside `native`.
std::vector<uint8_t> other_sums(const Space& space, const Choice& choice);

/// Micro-batches of a step.
int64_t num_micro_batches(const Space& space, const Choice& choice);

/// "pp 8 x dp 16 x tp 8, interleaved of 6, 1 x 64 micro-batches, ..." in one line.
std::string describe(const Choice& choice, const Space& space);

}  // namespace hocket::plan
