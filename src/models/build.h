// SPDX-License-Identifier: Apache-2.0
// Config → graph, written once for one device: the forward pass of one global micro-batch.
// Backward, optimizer and every kind of parallelism are derived from it.
#pragma once

#include <cstdint>
#include <optional>

#include "graph/graph.h"
#include "models/config.h"

namespace hocket::models {

/// Sizes of a graph that generates. Those of a step are symbols, up to these bounds.
struct Generation {
  int64_t sequences = 1;     ///< maximum sequences per step and partition
  int64_t longest = 1;       ///< tokens of a sequence
  int64_t pages = 1;         ///< of ops::kPageTokens tokens, in a partition of every layer's cache
  int64_t rows = 1;          ///< tokens with requested logits
  int64_t changes = 1;       ///< changed logits (ops/sample.h), of all rows together
  int64_t alternatives = 1;  ///< most likely tokens that are reported, at most
  int64_t vocab = 0;         ///< tokens that may be drawn; 0: all of the model's
  int64_t head_parts = 1;    ///< parts of the vocabulary that training's head adds up
  bool routes = false;       ///< outputs "moe.routes.<layer>" [T,K]: every token's experts
};

/// Loss of reinforcement learning: policy_loss of every target (ops/policy_loss.cc), and with
/// samples also sequence_policy_loss.
struct PolicyLoss {
  graph::Attrs of_tokens;   ///< but `grad`; empty: there is no loss of tokens
  graph::Attrs of_samples;  ///< likewise
  int64_t samples = 0;      ///< that a micro-batch has room for; 0: no loss of samples
};

struct BuildOptions {
  enum class Mode {
    train,   ///< inputs tokens, positions, targets, loss_scale; the losses
    logits,  ///< inputs tokens, positions; output "logits" [T,V]
    /// Inputs tokens, positions, targets; outputs "logprobs" and "logprobs.1" (entropies) f64[T],
    /// of every target, and with `answers` answer_logprobs.
    logprobs,
    /// New tokens of several sequences behind those in the pages of a KV cache, and a token drawn
    /// for every chosen row: see Generation.
    generate,
  } mode = Mode::train;
  /// T: tokens of a global micro-batch (sequences x length); generate: new tokens per step, at
  /// most.
  int64_t tokens = 0;
  /// Sequence length, for the cost of attention; 0: T is one sequence.
  int64_t sequence_length = 0;
  graph::DType dtype = graph::DType::f32;
  /// Operands of the blocks' linear layers, but for routers and experts, are cast to f8_e4m3.
  bool float8 = false;
  /// train: the head also computes gradients; false for evaluation (losses only).
  bool grad = true;
  /// train: weight of the balance loss of a whole step, summed over layers and averaged over
  /// micro-batches; 0: none.
  double balance_coef = 0;
  int64_t num_micro_batches = 1;
  /// train, logprobs: number A of answers of a micro-batch. Output "answer_logprobs" f64[A] is the
  /// sum of the log-probabilities of an answer's tokens. 0: the loss is of tokens.
  int64_t answers = 0;
  /// train, with a loss of tokens: outputs "entropy_sum" and "misses_sum" f64[1].
  bool token_metrics = false;
  /// train, with answers: the op of the loss, and its attributes but `grad`.
  std::string answer_loss = {};
  graph::Attrs answer_loss_attrs = {};
  /// train: this loss, and outputs as of mode logprobs.
  std::optional<PolicyLoss> policy = {};
  /// train: input `is_token` i32[T]: padding goes to no expert, and counts in no balance loss.
  bool padded = false;
  /// train, logprobs: inputs "moe.routes.<layer>" i32[T,K], the experts of every token, in place of
  /// the router's choice.
  bool routes_given = false;
  /// train with a policy's loss, logprobs: logits are divided by it.
  double temperature = 1;
  /// train, of a model with a value head: clip of its loss (ops/policy_loss.cc); 0: none.
  double value_clip = 0;
  Generation generation = {};
  /// generate: number of partitions of the sequences, one for each data-parallel rank that divides
  /// them. Each partition has pages and new tokens of its own.
  int64_t parts = 1;
  /// generate: number of ranks that can split the new tokens: a divisor of every step's new tokens,
  /// and a multiple of `parts`.
  int64_t token_ranks = 1;
  /// train: dropped share of the attention's and MLP's contribution to the residual stream
  /// (Megatron's hidden_dropout), and its seed; 0: none.
  double dropout = 0;
  int64_t dropout_seed = 0;
};

/// Inputs: `tokens` i32[T], `positions` i32[T] (0 begins a document; generate: the token's place in
/// its sequence, < 0 for none); train: `targets` i32[T] (-100: none), `loss_scale` f64[1] per step;
/// with dropout `token_numbers` i64[T]; with answers `answers` i32[T], the answer of every target
/// (-1: none), and in training the inputs of the loss op (ops/preference_loss.cc); with a policy's
/// loss those of its ops, by names of graph/names.h; generate: `sequences` i32[T], `page_table`
/// i32[R,B], `page_copies` i32[R,2], `rows` i32[N] of tokens with logits, those of ops/sample.cc.
/// Parameters have Hugging Face's names; fused ones are `….mlp.gate_up_proj.weight` [2,F,D],
/// `….mlp.experts.gate_up_proj` [E,2,F,D] and `….mlp.experts.down_proj` [E,D,F] (expert = true);
/// projections of heads are 3-D: q, k, v [H,d,D], o [D,H,d]. States: `….attn.k_pages` [P,G,d,32]
/// and `….attn.v_pages` [P,G,32,d], P the pages of all parts. losses: "loss" first, then
/// "moe.balance.<layer>". outputs: of a value head "values" [T,1]; "logits", [T,V], of generate
/// [N,V] beside the outputs of `sample`; in training "moe.counts.<layer>", of generate
/// "moe.routes.<layer>" (graph/names.h has the names for the host). Initial values: matrices
/// normal(0, initializer_range), the two projections per block that write to the residual stream
/// times 1/sqrt(2L) (Radford et al. 2019, GPT-2), norms 1.
graph::Graph build(const ModelConfig& config, const BuildOptions& options);

/// Elements of all parameters.
int64_t param_count(const graph::Graph& graph);
/// Like param_count, with top_k of E experts: the parameters used by one token, embeddings
/// included.
int64_t active_param_count(const graph::Graph& graph);

}  // namespace hocket::models
