// SPDX-License-Identifier: Apache-2.0
// The parts that families are made of. Each makes its parameters, under the names that a Llama of
// Hugging Face gives them, and its nodes. Internal to src/models; blocks.cc has the decoder layers.
//
// Shape letters: T tokens, D width, H query heads, G kv heads, d head dim, F ffn width, E experts,
// K experts per token, V vocabulary, S slots of the KV cache, L layers.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "graph/graph.h"
#include "models/build.h"
#include "models/config.h"
#include "models/family.h"
#include "models/weights.h"

namespace hocket::models {

inline constexpr graph::Init kZeros{graph::Init::Kind::constant, 0};

class Builder {
 public:
  using TensorId = graph::TensorId;

  /// `collect_weights`: also make the weight-name map.
  Builder(const ModelConfig& config, const BuildOptions& options, bool collect_weights = false);

  /// Inputs, embedding, blocks, final norm and head.
  void build();

  graph::Graph take_graph() { return std::move(graph_); }
  std::vector<ParamWeights> take_weights() { return std::move(weights_); }

 private:
  /// One decoder layer: x[T,D] -> [T,D].
  TensorId block(int32_t layer, TensorId hidden);
  /// Norm with the weight `<prefix of the layer><name>.weight`; `name` null: none.
  TensorId norm(int32_t layer, TensorId hidden, const char* name);
  /// Norm of a layer or of the head; `base`: name of its parameters.
  TensorId norm_of(int32_t layer, TensorId hidden, const std::string& base,
                   const std::string& name);
  /// Normed queries or keys, if the family norms them.
  TensorId head_norm(int32_t layer, TensorId heads, const char* name);
  /// The addend of a branch in the residual stream: scaled, and in training with dropout.
  TensorId branch(int32_t layer, TensorId branch, const std::string& name);
  TensorId sum(int32_t layer, TensorId one, TensorId other, const std::string& name);
  TensorId scaled(int32_t layer, TensorId tensor, double factor, const std::string& name);
  /// Grouped-query attention with its four projections.
  TensorId attention(int32_t layer, TensorId hidden);
  /// Scores, softmax and the sum of values, with a KV cache where the mode has one.
  TensorId attend(int32_t layer, TensorId q, TensorId k, TensorId v);
  /// MLP, gated or not.
  TensorId mlp(int32_t layer, TensorId hidden);
  TensorId activated(int32_t layer, TensorId hidden);
  /// Router, dispatch, SwiGLU experts, combine; in training the balance loss.
  TensorId experts(int32_t layer, TensorId hidden);
  /// "model.layers.3." for a block.
  static std::string prefix(int32_t layer);
  /// Appends a node; `name` is relative to the layer. Returns its first output.
  TensorId node(int32_t layer, const char* op, graph::Attrs attrs, std::vector<TensorId> in,
                const std::string& name);
  TensorId embedding();
  /// Queries ("q"), keys ("k") or values ("v").
  TensorId projection(int32_t layer, TensorId hidden, const char* which, int64_t heads);
  /// Adds a bias of a tensor's trailing dims.
  TensorId biased(int32_t layer, TensorId tensor, const std::string& base, graph::Dims dims,
                  std::vector<WeightForm> forms, const std::string& name);
  /// Rows of queries, keys or values in the tensor of a file, and that tensor's name without
  /// ".weight".
  std::pair<FileRows, std::string> rows_of(int32_t layer, const char* which) const;
  /// Forms of gate and up side by side; columns 0: of their biases.
  std::vector<WeightForm> gate_up_forms(const std::string& base, const char* suffix,
                                        int64_t columns) const;
  /// The name of a file's tensor, from Llama's.
  std::string file_name(std::string name) const;
  /// Longest sequence that this graph is for.
  int64_t longest() const;
  const Rope& rope_of(int32_t layer) const;
  /// A linear layer, with operands of 8 bits if the options say so.
  TensorId linear(int32_t layer, TensorId hidden, TensorId weight, const std::string& name);
  TensorId param(const std::string& name, graph::Dims dims, int32_t layer, graph::Init init,
                 std::vector<WeightForm> forms, bool expert = false);
  /// A parameter stored as one tensor of these Hugging Face dims.
  TensorId plain(const std::string& name, graph::Dims dims, int32_t layer, graph::Init init,
                 graph::Dims stored);
  TensorId input(const std::string& name, graph::DType dtype, graph::Dim size,
                 bool per_step = false);
  /// An input of a micro-batch without an element per token.
  TensorId whole_input(const std::string& name, graph::DType dtype, graph::Dim size);
  TensorId rope(int32_t layer, TensorId heads, const std::string& name);
  /// generate: the inputs that say where keys and values of sequences lie.
  void page_inputs();
  void head(TensorId hidden);
  TensorId logits(TensorId hidden, TensorId weight);
  /// generate: logits and a token drawn for every row of `hidden`.
  void sampled(TensorId hidden, TensorId weight);
  /// Log-probabilities of the targets, and their sums over answers if there are any; returns those.
  std::vector<TensorId> token_logprobs(TensorId hidden, TensorId weight, TensorId targets);
  TensorId logprobs(TensorId hidden, TensorId weight, TensorId targets);
  /// The head of a critic, and in training its loss.
  void values(TensorId hidden);
  void policy_loss(TensorId hidden, TensorId weight, TensorId targets, TensorId scale);
  /// The loss over answers of these log-probabilities.
  TensorId answer_loss(TensorId logprobs, TensorId scale);
  /// normal(0, initializer_range), scaled for projections into the residual stream.
  graph::Init matrix_init(bool residual = false) const;

  const ModelConfig& config_;
  const Family& family_;
  const BuildOptions options_;
  const bool collect_weights_;
  graph::Graph graph_;
  std::vector<ParamWeights> weights_;
  graph::Dim num_tokens_;  // generate: a symbol
  TensorId tokens_ = graph::kNone, positions_ = graph::kNone, embedding_ = graph::kNone;
  TensorId sequences_ = graph::kNone, page_table_ = graph::kNone, page_copies_ = graph::kNone;
  TensorId token_numbers_ = graph::kNone;  // with dropout
  TensorId is_token_ = graph::kNone;       // with padding and experts
  int64_t num_dropouts_ = 0;
  std::vector<TensorId> balance_losses_;
  std::map<TensorId, TensorId> float8_of_;  // 8-bit casts for linear layers, by operand
};

}  // namespace hocket::models
