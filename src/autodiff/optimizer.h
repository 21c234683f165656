// SPDX-License-Identifier: Apache-2.0
// One optimizer on top of the common part (gradient sums, norm, clipping): its states and update
// op. Internal to src/autodiff; optimizers.inc lists the optimizers.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
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
    double lr_scale = 1;
    double weight_decay = 0;
  };
  Update(graph::Graph& graph, const OptimizerConfig& config, const Of& of)
      : graph_(graph), config_(config), of_(of) {}

  const OptimizerConfig& config() const { return config_; }
  const graph::Graph& graph() const { return graph_; }
  graph::TensorId param() const { return of_.param; }
  graph::TensorId gradient() const { return of_.gradient; }
  graph::TensorId coef() const { return of_.coef; }
  double weight_decay() const { return of_.weight_decay; }
  /// Adds a state `<prefix><parameter>` of the parameter's shape, in the type of its sums.
  graph::TensorId state(const char* prefix,
                        graph::Init init = {graph::Init::Kind::constant, 0}) const;
  /// Appends an op between the gradient and the update. Returns its outputs.
  std::vector<graph::TensorId> emit(const std::string& op, graph::Attrs attrs,
                                    std::vector<graph::TensorId> in) const;
  /// Appends the op that updates parameter and states in place, on (parameter, gradient, states..,
  /// coef, hyper). For a short parameter (bf16) it is `<op>_master`; its last state is the master
  /// weights, initialised as a copy.
  void apply(const std::string& op, graph::Attrs attrs,
             const std::vector<graph::TensorId>& states) const {
    apply(op, std::move(attrs), of_.gradient, states);
  }
  /// The same with another direction than the gradient.
  void apply(const std::string& op, graph::Attrs attrs, graph::TensorId direction,
             const std::vector<graph::TensorId>& states) const;

 private:
  graph::Graph& graph_;
  const OptimizerConfig& config_;
  const Of of_;
};

/// The group of every parameter.
class ParamGroups {
 public:
  /// Throws Error for a pattern that matches none of the parameters.
  ParamGroups(const std::vector<ParamGroup>& groups, const graph::Graph& graph,
              const std::vector<graph::TensorId>& params);
  /// The first that matches the name; without one, settings that change nothing.
  const ParamGroup& of(const std::string& name) const;

 private:
  const std::vector<ParamGroup>& groups_;
  const ParamGroup none_;
};

struct Optimizer {
  const char* name;  ///< optimizer.name
  void (*update)(const Update& update);
  std::vector<double> (*hyper)(const OptimizerConfig& config, double lr, int64_t step);
};

#define X(name) Optimizer optimizer_##name();
#include "autodiff/optimizers.inc"
#undef X

/// Throws Error for an unknown name.
const Optimizer& optimizer_named(const std::string& name);

}  // namespace hocket::autodiff
