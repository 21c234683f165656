// SPDX-License-Identifier: Apache-2.0
// LoRA (Hu et al., arXiv 2106.09685): y = W x + scale * B (A x) with trained A and B beside frozen
// weights W, as a transform of a model's graph before autodiff. Names and shapes are PEFT's.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "graph/graph.h"
#include "models/config.h"
#include "models/weights.h"

namespace hocket::models {

/// Begin of all names in PEFT's files of tensors.
inline constexpr const char* kAdapterPrefix = "base_model.model.";

/// The trained part of a model. Fields are those of PEFT's LoraConfig.
struct Lora {
  int64_t r = 8;
  double lora_alpha = 8;
  double lora_dropout = 0;
  int64_t dropout_seed = 0;
  bool use_rslora = false;
  /// Endings of modules' names ("q_proj", "self_attn.q_proj").
  std::vector<std::string> target_modules;
  /// Instead: a regular expression for whole names, or "all-linear".
  std::string target_pattern;
  /// Endings of the names of experts' parameters ("mlp.experts.gate_up_proj").
  std::vector<std::string> target_parameters;
  /// Other ranks and alphas, by a regular expression for the end of a name.
  std::vector<std::pair<std::string, int64_t>> rank_pattern;
  std::vector<std::pair<std::string, double>> alpha_pattern;
  std::vector<std::string> modules_to_save;  ///< modules trained in full: saved_modules()
  std::vector<int64_t> layers_to_transform;  ///< empty: all

  bool operator==(const Lora&) const = default;
};

/// Layout of experts' tensors in a file of PEFT.
enum class ExpertLayout : uint8_t {
  swapped,  ///< until 0.18: A and B of all experts had exchanged dims
  usual,
  modules  ///< projections of each expert are modules, as in transformers 4: only merged
};

/// One module of transformers' model with an adapter.
struct LoraModule {
  std::string name;  ///< "model.layers.0.self_attn.q_proj"; of experts that of their parameter
  int64_t r = 0;
  double alpha = 0;
  double scale = 0;  ///< alpha / r; rank-stabilised alpha / sqrt(r)
  bool expert = false;

  bool operator==(const LoraModule&) const = default;
};

/// A and B of one parameter W of the graph. W [out.., in..] has A [r, in..] and B [out.., r]; W
/// [E, out.., in] of experts [E, r, in] and [E, out.., r]; W [2, F, D] that is two modules [2, r,
/// D] and [2, F, r] with the larger rank of the two, and experts' W [E, 2, F, D] [E, 2, r, D] and
/// [E, 2, F, r]. Parameters that are one module share A.
struct LoraTarget {
  std::string weight, a, b;  ///< names in the graph
  graph::Dims a_dims, b_dims;
  bool expert = false;
  /// Modules that W is made of, one or two, as indices into LoraPlan::modules; kNone: without
  /// adapter.
  std::vector<int32_t> parts;
};

/// An adapter matched with a model.
struct LoraPlan {
  Lora lora;
  std::vector<LoraModule> modules;  ///< in the order of the model
  std::vector<LoraTarget> targets;  ///< in the order of the graph's parameters
  std::vector<std::string> saved;   ///< parameters that are trained in full
  /// Parameters of which some modules are saved in full, and others not: read, but not trained.
  std::vector<std::string> partly_saved;
  /// The map of A, B and saved parameters to PEFT's tensors. Not all elements of A and B are stored
  /// where two modules have different ranks.
  std::vector<ParamWeights> weights;
  ExpertLayout layout = ExpertLayout::usual;
};

/// Names of an adapter's keys in errors: those of PEFT's files, or of run.yaml.
enum class LoraKeys : uint8_t { peft, run };

/// Matches an adapter with a model, whose modules are named as transformers does; `where` names the
/// adapter in errors. Throws Error for a rank or alpha that is not positive, and for a name or
/// pattern that nothing matches. Throws it also for a target that is no linear layer of a block,
/// and for a tied weight to save.
LoraPlan match_lora(const ModelConfig& config, const Lora& lora, const std::string& where,
                    ExpertLayout layout = ExpertLayout::usual, LoraKeys keys = LoraKeys::peft);

/// Throws Error for a parameter that is saved in part, as a gate projection without its up
/// projection: an adapter with one is merged, but neither trained nor written.
void expect_whole_modules(const LoraPlan& plan, const std::string& where, LoraKeys keys);

/// Returns the modules that a list modules_to_save trains in full and that have a tensor of
/// transformers' model, the innermost first. As in PEFT, a name may end within a word ("norm": also
/// "model.layers.0.input_layernorm"), and a module has all that is in it ("mlp": its projections).
std::vector<std::string> saved_modules(const std::string& tensor,
                                       const std::vector<std::string>& endings);

/// Adds an adapter to a graph of build(), whose parameters are frozen but for those saved in full.
/// `train`: inputs of A are dropped, by the input `token_numbers`.
void apply_lora(graph::Graph& graph, const LoraPlan& plan, bool train);

/// Returns whether a family's files have linear layers as [in, out] (PEFT's fan_in_fan_out).
bool stores_transposed(const ModelConfig& config);

/// Freezes the parameters whose names match one of the patterns (`*`: any characters). Throws Error
/// for a pattern that matches none, and if nothing is left to train.
void freeze(graph::Graph& graph, const std::vector<std::string>& patterns,
            const std::string& where);

}  // namespace hocket::models
