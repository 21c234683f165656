// SPDX-License-Identifier: Apache-2.0
// Reverse-mode differentiation of a graph: appends backward nodes, then the optimizer.
#pragma once

#include <cstdint>

#include "graph/graph.h"

namespace hocket::autodiff {

/// The type of parameters' gradients: that in which they are added up (f32 for bf16 and f16), or
/// that of the parameters, to which every sum of them is rounded.
enum class GradType : uint8_t { sums, params };

/// Appends the backward pass of the sum of `graph.losses` and fills `graph.grads` for every
/// parameter that a loss depends on. A parameter used n times gets n contributions.
void differentiate(graph::Graph& graph, GradType type = GradType::sums);

struct AdamWConfig {
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8;
  double weight_decay = 0.1;  ///< matrices only; vectors (norms) are not decayed
  double max_norm = 1.0;      ///< <= 0: no clipping
  double skip_above = 0;      ///< gradient norm beyond which nothing is updated; <= 0: none
};

/// Appends gradient norm, clipping and AdamW for every parameter with a gradient: states
/// `exp_avg.<param>` and `exp_avg_sq.<param>`, and `master.<param>` of a parameter of another type
/// than its gradient; per-step input `hyper` f64[3], output `grad_norm`.
/// Written for the ops of this one optimizer: sumsq, clip_coef, adamw, adamw_master.
void append_adamw(graph::Graph& graph, const AdamWConfig& config);

/// Makes the gradients of all parameters outputs, named `grad.<param>`: sums over uses and
/// micro-batches (for `eval --save-grads` and tests).
void append_grad_outputs(graph::Graph& graph);

}  // namespace hocket::autodiff
