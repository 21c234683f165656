// SPDX-License-Identifier: Apache-2.0
// The plan of a run: every choice that is not the model. Defines the keys of `plan` in run.yaml.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/config.h"
#include "graph/layout.h"
#include "parallel/schedules/schedule.h"

namespace hocket::parallel {

/// Mesh axis of the pipeline's ranks. No other folder uses the names of axes.
inline constexpr const char* kStageAxis = "pp";
/// Axes of data-parallel ranks, which have different sequences and equal parameters. Where
/// parameters are split in groups, the first is between groups and the second inside of a group.
inline constexpr const char* kDataAxis = "edp";
inline constexpr const char* kInnerDataAxis = "edp_inner";
/// Axis over which experts are split; with two-level all-to-alls, the one between nodes.
inline constexpr const char* kExpertAxis = "ep";
/// Axis over which a node's experts are split among its ranks.
inline constexpr const char* kInnerExpertAxis = "ep_inner";
/// Axis over which the tokens of one data-parallel rank are split.
inline constexpr const char* kContextAxis = "cp";
/// Axis of ranks with the same tokens and different parts of parameters.
inline constexpr const char* kTensorAxis = "tp";
/// Returns whether an axis splits the tokens of a micro-batch: edp, edp_inner, ep, ep_inner, cp,
/// the outermost first.
/// cp and tp may each be several axes of a mesh, with names that begin with "cp" or "tp". Experts
/// are split over those that end in "_ep" (cp_ep, tp_ep), and their widths over tp_etp. Ranks along
/// "tp_kv" have different key and value heads; ranks along the rest of tp have the same.
bool splits_tokens(std::string_view axis);
/// Returns whether an axis splits the tokens of a data-parallel rank: cp.
bool splits_sequences(std::string_view axis);
/// Returns whether an axis splits experts.
bool splits_experts(std::string_view axis);
/// Returns whether an axis splits the width of an expert.
bool splits_expert_widths(std::string_view axis);
/// Returns whether ranks along an axis have parts of parameters for the same tokens: tp.
bool splits_parameters(std::string_view axis);

/// Data-parallel ranks among which a tensor is split instead of replicated. Each value splits
/// further than the one before it.
enum class Shard : uint8_t {
  none,   ///< not at all
  group,  ///< among the ranks of a group; groups have equal copies
  all,    ///< among all data-parallel ranks
};
const char* to_string(Shard shard);
/// Returns the words of `plan.shard` for the values, in order.
std::span<const char* const> names_of(Shard);

/// Sharding over data-parallel ranks between uses: over all of them (ZeRO, Rajbhandari et al.,
/// arXiv 1910.02054), or inside of groups of near ranks (PaRO, Wu et al., arXiv 2310.06003).
struct Sharding {
  Shard params = Shard::none;  ///< gathered before each use, and freed after it
  /// Reduce-scattered after each micro-batch over these ranks; the rest of the reduction is once,
  /// at the end of the step.
  Shard grads = Shard::none;
  /// Optimizer states, and the parameters during the update. Default: as far as parameters and
  /// gradients.
  std::optional<Shard> optimizer;
  int64_t group = 0;     ///< ranks of a group; 0: no groups
  double least_kib = 0;  ///< smaller parameters stay whole, with gradients and states
  /// Frees gathered parameters after a layer's forward pass and gathers them again for its backward
  /// pass.
  bool reshard_after_forward = true;
  /// Frees gathered parameters after the backward pass. False: they are gathered once, at the
  /// beginning of a step, and freed at its end.
  bool reshard_after_backward = true;
  /// Splits only in equal parts along axes that split sequences; derived from the plan. Ranks with
  /// different parts would be classes of their own. In zigzag order the check could not prove a
  /// class of some ranks of a ring: it knows too little of the others.
  bool even_over_sequences = false;

  bool any() const { return update() != Shard::none; }
  /// Returns the split of a parameter during its update: the furthest of the three.
  Shard update() const { return std::max({params, grads, optimizer.value_or(Shard::none)}); }
  int64_t least_bytes() const { return static_cast<int64_t>(least_kib * 1024); }
  void fields(Fields& fields);
};

/// Divides `size` in proportion to `parts`: every prefix of the result sums to its share of `size`,
/// rounded down.
std::vector<int64_t> shares_of(int64_t size, const std::vector<int64_t>& parts);

struct Plan {
  int64_t pp = 1;            ///< pipeline ranks
  int64_t pp_chunks = 1;     ///< stages per pipeline rank (model chunks)
  int64_t dp = 1;            ///< data-parallel ranks: samples of a micro-batch are split over them
  int64_t ep = 1;            ///< ranks over which experts are split, see ep_over
  int64_t etp = 1;           ///< ranks of tp over which the width of each expert is split
  int64_t ep_inner = 1;      ///< ranks of `ep` on a node; 1: one-step all-to-all
  int64_t expert_ranks = 0;  ///< additional ranks, which have all experts; 0: none
  int64_t cp = 1;            ///< ranks that share the tokens of a dp rank's sequences
  int64_t tp = 1;            ///< ranks that share parameters, with the same tokens
  bool sequence_parallel = false;  ///< tp ranks split tokens between products
  int64_t micro_batch = 1;         ///< sequences per dp rank and micro-batch
  /// Sequences of a micro-batch per dp rank; empty: `micro_batch` each.
  std::vector<int64_t> dp_samples;
  /// Shares of a dp rank's tokens per cp rank, relative to their sum; empty: equal.
  std::vector<int64_t> cp_shares;
  Sharding shard;
  std::vector<int64_t> pp_layers;    ///< layers per stage; empty: as even as possible
  std::string pp_schedule = "1f1b";  ///< a built-in name or a CSV file
  int64_t threads_per_rank = 0;      ///< 0: cores / ranks on this machine, at least 1
  int64_t ranks_per_node = 0;        ///< 0: all ranks on one node
  /// Pinned layouts, "PATTERN LAYOUT" each: see parallel/layouts/pins.h.
  std::vector<std::string> layouts;
  /// Lists the keys of `plan` in run.yaml: all members but those below.
  void fields(Fields& fields);

  // Derived from the keys, the model and the batch (run/config.h: derive).
  int64_t num_micro_batches = 1;
  /// Ranks of cp exchange tokens for heads around attention (DeepSpeed Ulysses, arXiv 2309.14509).
  bool exchange_heads = false;
  bool ring = false;    ///< ring attention: keys travel around cp, one axis
  bool zigzag = false;  ///< plan.cp_order: every rank has an early and a late part
  /// Zigzag order where 2 cp does not divide a program's sequences (run/compile.cc): the two parts
  /// of ranks have different lengths. Every rank is then a class of its own.
  bool uneven_parts = false;
  int64_t heads_apart = 0;  ///< ranks of tp with different key/value heads; 0: all

  /// Returns the sequences of a micro-batch on all ranks.
  int64_t sequences() const;
  int64_t world() const { return pp * dp * cp * tp + expert_ranks; }
  /// Returns the plan of the expert_ranks, as if they ran the whole model.
  Plan of_experts() const;
  int64_t num_stages() const { return pp * pp_chunks; }
  /// Returns the ranks along edp in one group of plan.shard; 1 where groups do not cut that axis.
  int64_t edp_inner() const;
  /// Ranks over which experts are split, the innermost first (MoE Parallel Folding, arXiv
  /// 2504.14960): of tp those that etp leaves, if sequence_parallel splits the tokens over it; then
  /// of cp; then of dp.
  struct Over {
    int64_t dp = 1, cp = 1, tp = 1;
  };
  Over ep_over() const;
  /// Returns the mesh: pp, edp, ep; and edp_inner, ep_inner, cp and tp where they have more than
  /// one rank. cp and tp are cut where experts or heads are split over a part of them.
  graph::Mesh mesh() const;
  /// Throws Error if dp_samples do not match the data-parallel ranks, or cp_shares the cp ranks.
  void validate_tokens() const;
  /// Throws Error, naming the key, for a size that is not positive or experts that do not fit. Also
  /// throws for layers that do not sum to num_layers, a program of unbounded size, and the like.
  void validate(int64_t num_layers, int64_t num_experts) const;
  /// Returns the stage of every layer 0..num_layers-1.
  std::vector<int32_t> stage_of_layers(int64_t num_layers) const;
};

}  // namespace hocket::parallel
