// SPDX-License-Identifier: Apache-2.0
// One optimizer on top of the common part (gradient sums, norm, clipping): its states and update
// op. Internal to src/autodiff; optimizers.inc lists the optimizers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "autodiff/autodiff.h"
#include "graph/graph.h"

namespace hocket::autodiff {

/// Appends the update of one parameter.
class Update {
 public:
  struct Of {
    graph::TensorId param = graph::kNone;
    graph::TensorId gradient = graph::kNone;  ///< summed over uses
    graph::TensorId coef = graph::kNone;      ///< clipping factor; NaN: the step is skipped
    graph::TensorId hyper = graph::kNone;
    bool decayed = false;
  };
  Update(graph::Graph& graph, const OptimizerConfig& config, const Of& of)
      : graph_(graph), config_(config), of_(of) {}

  const OptimizerConfig& config() const { return config_; }
  double weight_decay() const { return of_.decayed ? config_.weight_decay : 0; }
  /// Adds a state `<prefix><parameter>` of the parameter's shape, in the type of its sums.
  graph::TensorId state(const char* prefix,
                        graph::Init init = {graph::Init::Kind::constant, 0}) const;
  /// Appends the op that updates parameter and states in place, on (parameter, gradient, states..,
  /// coef, hyper). For a short parameter (bf16) it is `<op>_master`, whose last state is the master
  /// weights, initialised as a copy.
  void apply(const std::string& op, graph::Attrs attrs,
             const std::vector<graph::TensorId>& states) const;

 private:
  graph::Graph& graph_;
  const OptimizerConfig& config_;
  const Of of_;
};

struct Optimizer {
  const char* name;  ///< train.optimizer
  void (*update)(const Update& update);
  std::vector<double> (*hyper)(const OptimizerConfig& config, double lr, int64_t step);
};

#define X(name) Optimizer optimizer_##name();
#include "autodiff/optimizers.inc"
#undef X

/// Throws Error for an unknown name.
const Optimizer& optimizer_of(const OptimizerConfig& config);

}  // namespace hocket::autodiff
