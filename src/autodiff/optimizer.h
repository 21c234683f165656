// SPDX-License-Identifier: Apache-2.0
// What one optimizer adds to what all of them share (sums of gradients, their norm, clipping):
// states and an op that updates. Internal to src/autodiff; optimizers.inc lists them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "autodiff/autodiff.h"
#include "graph/graph.h"

namespace hocket::autodiff {

/// The update of one parameter, to be appended.
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
  /// A new state `<prefix><parameter>` of the parameter's shape and its gradient's type.
  graph::TensorId state(const char* prefix,
                        graph::Init init = {graph::Init::Kind::constant, 0}) const;
  /// Appends the op that updates parameter and states in place: of (parameter, gradient, states..,
  /// coef, hyper). Where the parameter is of another type than its gradient (bf16, f32), it is the
  /// op `<op>_master`, whose last state are the master weights, which begin as a copy.
  void apply(const std::string& op, const graph::Attrs& attrs,
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

/// Error: there is none of this name.
const Optimizer& optimizer_of(const OptimizerConfig& config);

}  // namespace hocket::autodiff
