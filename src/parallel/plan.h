// SPDX-License-Identifier: Apache-2.0
// The plan: every choice that is not the model. Its keys in run.yaml are named here, once.
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

/// The mesh axis along which the pipeline's stages lie. Nobody but this folder asks for these
/// names.
inline constexpr const char* kStageAxis = "pp";
/// The axes along which ranks have other sequences, and parameters alike; where these are split in
/// groups, the one from group to group, and the one inside a group.
inline constexpr const char* kDataAxis = "edp";
inline constexpr const char* kInnerDataAxis = "edp_inner";
/// The axis over which experts are split; where rows go to them in two steps, the one over nodes.
inline constexpr const char* kExpertAxis = "ep";
/// The axis over which a node's part of the experts is split among its ranks.
inline constexpr const char* kInnerExpertAxis = "ep_inner";
/// The axis over which the tokens of one data-parallel rank are split.
inline constexpr const char* kContextAxis = "cp";
/// The axis whose ranks have the same tokens, and parts of parameters.
inline constexpr const char* kTensorAxis = "tp";
/// cp and tp may be several axes of a mesh, whose names begin with theirs: experts are split over
/// those that end in "_ep" (cp_ep, tp_ep), their widths over tp_etp, and "tp_kv" are ranks with
/// other key and value heads, of which the ranks along the rest of tp have the same.
/// True of the axes that split the tokens of a micro-batch: edp, edp_inner, ep, ep_inner, cp, the
/// outermost first.
bool splits_tokens(std::string_view axis);
/// True of those that split the tokens of a data-parallel rank: cp.
bool splits_sequences(std::string_view axis);
/// True of those that split experts, the outermost first.
bool splits_experts(std::string_view axis);
/// True of those that split the width of an expert.
bool splits_expert_widths(std::string_view axis);
/// True of those whose ranks have parts of parameters for the same tokens: tp.
bool splits_parameters(std::string_view axis);

/// Among which ranks something is split that data-parallel ranks would have alike; each splits
/// further than the one before it.
enum class Shard : uint8_t {
  none,   ///< not at all
  group,  ///< among the ranks of a group, and alike in all groups
  all,    ///< among all data-parallel ranks
};
const char* to_string(Shard shard);
/// The words that `plan.shard` has for them, in order.
std::span<const char* const> names_of(Shard);

/// What data-parallel ranks split among them between its uses: over all of them (ZeRO, Rajbhandari
/// et al., arXiv 1910.02054) or inside groups of near ones (PaRO, Wu et al., arXiv 2310.06003).
struct Sharding {
  Shard params = Shard::none;  ///< gathered before each use, and freed after it
  /// Scattered after each micro-batch as far as they are split, and further once, at the end.
  Shard grads = Shard::none;
  /// Its states, and what it updates with them; not given: as far as parameters and gradients.
  std::optional<Shard> optimizer;
  int64_t group = 0;     ///< ranks of a group; 0: there are none
  double least_kib = 0;  ///< parameters of less are not split, nor what belongs to them
  /// What is gathered for a layer's forward pass is freed after it, and gathered again for its
  /// backward pass.
  bool reshard_after_forward = true;
  /// False: gathered once, at the beginning of a step, and freed at its end.
  bool reshard_after_backward = true;
  /// Follows from the plan: only in equal parts along axes that split sequences: ranks with other
  /// parts are classes of their own, and what a class of some ranks of a ring says of the others in
  /// zigzag order is too little to prove it.
  bool even_over_sequences = false;

  bool any() const { return update() != Shard::none; }
  /// How a parameter is updated: as far split as any of the three.
  Shard update() const { return std::max({params, grads, optimizer.value_or(Shard::none)}); }
  int64_t least_bytes() const { return static_cast<int64_t>(least_kib * 1024); }
  void fields(Fields& fields);
};

/// `size` dealt out in such parts: the first ones have together what is theirs of the sum of all,
/// rounded down.
std::vector<int64_t> dealt_out(int64_t size, const std::vector<int64_t>& parts);

struct Plan {
  int64_t pp = 1;            ///< pipeline ranks
  int64_t pp_chunks = 1;     ///< stages per pipeline rank (model chunks)
  int64_t dp = 1;            ///< data-parallel ranks: samples of a micro-batch are split over them
  int64_t ep = 1;            ///< ranks over which experts are split, see ep_over
  int64_t etp = 1;           ///< ranks of tp over which the width of each expert is split
  int64_t ep_inner = 1;      ///< ranks of `ep` that lie together; 1: rows go to experts in one step
  int64_t expert_ranks = 0;  ///< more ranks, which have the experts of the others; 0: none
  int64_t cp = 1;            ///< ranks that share the tokens of a dp rank's sequences
  int64_t tp = 1;            ///< ranks that share parameters, with the same tokens
  bool sequence_parallel = false;  ///< between their products, tp ranks split those tokens
  int64_t micro_batch = 1;         ///< sequences per dp rank and micro-batch
  /// Sequences of a micro-batch that each dp rank has, where they are not `micro_batch` each.
  std::vector<int64_t> dp_samples;
  /// What each cp rank has of a dp rank's tokens, one after the other, as parts of the sum of
  /// these; empty: as many each.
  std::vector<int64_t> cp_shares;
  Sharding shard;
  std::vector<int64_t> pp_layers;    ///< layers per stage; empty: as even as possible
  std::string pp_schedule = "1f1b";  ///< a built-in name or a CSV file
  int64_t threads_per_rank = 0;      ///< 0: cores / ranks on this machine, at least 1
  int64_t ranks_per_node = 0;        ///< 0: all ranks on one node
  /// How persistent tensors lie, "PATTERN LAYOUT" each: see parallel/layouts/pins.h.
  std::vector<std::string> layouts;
  /// The keys of `plan` in run.yaml: all members but those below.
  void fields(Fields& fields);

  // What follows from the keys, the model and the batch (run/config.h: derive).
  int64_t num_micro_batches = 1;
  /// Ranks of cp exchange tokens for heads around attention (DeepSpeed Ulysses, arXiv 2309.14509).
  bool exchange_heads = false;
  bool ring = false;    ///< keys travel around cp, which is then one axis
  bool zigzag = false;  ///< plan.cp_order: ranks of the ring have an early and a late part each
  /// Ranks of the ring have two parts of the tokens each that are not all of one length: in zigzag
  /// order, where as many do not divide a sequence. Each is a class of its own.
  bool unlike_parts = false;
  int64_t heads_apart = 0;  ///< ranks of tp with other key and value heads; 0: all of them

  /// Sequences of a micro-batch, of all ranks.
  int64_t sequences() const;
  int64_t world() const { return pp * dp * cp * tp + expert_ranks; }
  /// The plan of the ranks that have the experts, as if they did everything.
  Plan of_experts() const;
  int64_t num_stages() const { return pp * pp_chunks; }
  /// Ranks along edp that are in one group of plan.shard; 1 where groups do not cut that axis.
  int64_t edp_inner() const;
  /// What experts are split over, the innermost ranks first (MoE Parallel Folding, arXiv
  /// 2504.14960): of tp what etp leaves, where sequence_parallel splits the tokens over it; of cp;
  /// of dp.
  struct Over {
    int64_t dp = 1, cp = 1, tp = 1;
  };
  Over ep_over() const;
  /// pp, edp, ep, and edp_inner, ep_inner, cp and tp where they are more than one rank, the latter
  /// two cut where experts or heads are split over a part of them.
  graph::Mesh mesh() const;
  /// Throws Error: samples that are not those of data-parallel ranks, shares that are not those of
  /// cp ranks.
  void validate_tokens() const;
  /// Throws Error naming the key: sizes positive, experts that fit, pp_layers sums to num_layers, a
  /// program of bounded size, ….
  void validate(int64_t num_layers, int64_t num_experts) const;
  /// Stage of every layer: index 0..L-1.
  std::vector<int32_t> stage_of_layers(int64_t num_layers) const;
};

}  // namespace hocket::parallel
