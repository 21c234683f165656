// SPDX-License-Identifier: Apache-2.0
// The parts that families are made of. Each makes its parameters (with their Hugging Face names)
// and its nodes. Internal to src/models.
//
// Shape letters: T tokens, D width, H query heads, G kv heads, d head dim, F ffn width, E experts,
// K experts per token, V vocabulary, S slots of the KV cache, L layers.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "models/build.h"
#include "models/config.h"
#include "models/weights.h"

namespace hocket::models {

/// Differences of a family's attention from llama's.
struct AttentionForm {
  bool head_norm = false;  ///< RMSNorm of every query and key head before the rotation
};

class Builder {
 public:
  using TensorId = graph::TensorId;

  /// `collect_weights`: also make the weight-name map.
  Builder(const ModelConfig& config, const BuildOptions& options, bool collect_weights = false);

  const ModelConfig& config() const { return config_; }

  /// Inputs, embedding, blocks, final norm and head.
  void build();

  /// RMSNorm with the weight `<prefix of the layer><name>.weight`.
  TensorId norm(int32_t layer, TensorId hidden, const std::string& name);
  /// Adds a branch to the residual stream, with dropout in training.
  TensorId residual(int32_t layer, TensorId hidden, TensorId branch, const std::string& name);
  /// Applies dropout to a branch in training.
  TensorId dropped(int32_t layer, TensorId branch, const std::string& name);
  TensorId sum(int32_t layer, TensorId one, TensorId other, const std::string& name);
  /// Rotary grouped-query attention with its four projections.
  TensorId attention(int32_t layer, TensorId hidden, const AttentionForm& form = {});
  /// SwiGLU MLP: down(silu(gate(x)) * up(x)).
  TensorId mlp(int32_t layer, TensorId hidden);
  /// Router, dispatch, SwiGLU experts, combine; in training the balance loss.
  TensorId experts(int32_t layer, TensorId hidden);

  graph::Graph take_graph() { return std::move(graph_); }
  std::vector<ParamWeights> take_weights() { return std::move(weights_); }

 private:
  /// "model.layers.3." for a block.
  static std::string prefix(int32_t layer);
  /// Appends a node; `name` is relative to the layer. Returns its first output.
  TensorId node(int32_t layer, const char* op, graph::Attrs attrs, std::vector<TensorId> in,
                const std::string& name);
  /// A linear layer, with operands of 8 bits if the options say so.
  TensorId linear(int32_t layer, TensorId hidden, TensorId weight, const std::string& name);
  TensorId param(const std::string& name, graph::Dims dims, int32_t layer, graph::Init init,
                 std::vector<WeightForm> forms, bool expert = false);
  /// A parameter stored as one tensor of its own name and these Hugging Face dims.
  TensorId plain(const std::string& name, graph::Dims dims, int32_t layer, graph::Init init,
                 graph::Dims stored);
  TensorId input(const std::string& name, graph::DType dtype, graph::Dim size,
                 bool per_step = false);
  TensorId rope(int32_t layer, TensorId heads, const std::string& name);
  void head(TensorId hidden);
  /// normal(0, initializer_range), scaled for projections into the residual stream.
  graph::Init matrix_init(bool residual = false) const;

  const ModelConfig& config_;
  const BuildOptions options_;
  const bool collect_weights_;
  graph::Graph graph_;
  std::vector<ParamWeights> weights_;
  graph::Dim num_tokens_, cache_slots_;  // generate: symbols
  TensorId tokens_ = graph::kNone, positions_ = graph::kNone, embedding_ = graph::kNone;
  TensorId token_numbers_ = graph::kNone;  // with dropout
  int64_t num_dropouts_ = 0;
  std::vector<TensorId> balance_losses_;
  std::map<TensorId, TensorId> float8_of_;  // 8-bit casts for linear layers, by operand
};

}  // namespace hocket::models
