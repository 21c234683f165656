// SPDX-License-Identifier: Apache-2.0
// Reverse-mode differentiation of a graph: appends backward nodes, then the optimizer.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "graph/graph.h"

namespace hocket::autodiff {

/// The type of parameters' gradients: that in which they are added up (f32 for bf16 and f16), or
/// that of the parameters, to which every sum of them is rounded.
enum class GradType : uint8_t { sums, params };

/// Appends the backward pass of the sum of `graph.losses` and fills `graph.grads` for every
/// parameter that a loss depends on. A parameter used n times gets n contributions.
void differentiate(graph::Graph& graph, GradType type = GradType::sums);

/// Parameters with settings of their own.
struct ParamGroup {
  std::vector<std::string> match;      ///< globs of names
  double lr_scale = 1;                 ///< factor on the learning rate
  std::optional<double> weight_decay;  ///< of vectors too
  std::string optimizer;               ///< a row of optimizers.inc; empty: OptimizerConfig::name
};

/// Update of parameters in a training.
struct OptimizerConfig {
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8;
  double weight_decay = 0.1;   ///< matrices only; vectors (norms) are not decayed
  double max_norm = 1.0;       ///< <= 0: no clipping
  double skip_above = 0;       ///< gradient norm beyond which nothing is updated; <= 0: none
  std::string name = "adamw";  ///< a row of optimizers.inc
  double momentum = 0.95;      ///< sgd and muon
  bool nesterov = false;       ///< sgd and muon
  int64_t ns_steps = 5;        ///< muon: steps of Newton and Schulz
  /// muon: the factor on the learning rate by a matrix's shape, one of lr_adjustments()
  std::string adjust_lr = "match_rms_adamw";
  /// A parameter has the settings of the first group with a pattern that matches its name.
  std::vector<ParamGroup> groups = {};
};

/// Names of the adjustments of muon's learning rate.
std::vector<std::string> lr_adjustments();

/// Names of the optimizers, in the order of optimizers.inc.
std::vector<std::string> optimizers();

/// Appends gradient norm, clipping and the update of every parameter with a gradient: states of the
/// optimizer, in the type of the gradient, and `master.<param>` of a parameter of another type;
/// per-step input `hyper` f64[n], output `grad_norm`. Throws Error for a pattern of a group that
/// matches no parameter with a gradient.
void append_optimizer(graph::Graph& graph, const OptimizerConfig& config);

/// The input `hyper` of step 1, 2, ...: the numbers that change from step to step.
std::vector<double> hyper_of(const OptimizerConfig& config, double lr, int64_t step);

/// Makes the gradients of all parameters outputs, named `grad.<param>`: sums over uses and
/// micro-batches (for `eval --save-grads` and tests).
void append_grad_outputs(graph::Graph& graph);

}  // namespace hocket::autodiff
