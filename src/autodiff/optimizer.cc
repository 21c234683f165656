// SPDX-License-Identifier: Apache-2.0
#include "autodiff/optimizer.h"

#include <fmt/format.h>
#include <fnmatch.h>

#include <algorithm>

#include "base/error.h"
#include "base/text.h"
#include "graph/names.h"
#include "ops/build.h"
#include "ops/rules.h"

namespace hocket::autodiff {

namespace {

const std::vector<Optimizer>& optimizer_list() {
  static const std::vector<Optimizer> list = {
#define X(name) optimizer_##name(),
#include "autodiff/optimizers.inc"
#undef X
  };
  return list;
}

}  // namespace

graph::TensorId Update::state(const char* prefix, graph::Init init) const {
  graph::Tensor tensor = graph_.tensor(of_.param);
  tensor.name = prefix + tensor.name;
  tensor.type.dtype = ops::sum_dtype(tensor.type.dtype);
  tensor.kind = graph::TensorKind::state;
  tensor.state = graph::StateKind::optimizer;
  tensor.of = of_.param;
  tensor.init = init;
  return graph_.add_tensor(tensor);
}

std::vector<graph::TensorId> Update::emit(const std::string& op, graph::Attrs attrs,
                                          std::vector<graph::TensorId> in) const {
  const graph::Tensor param = graph_.tensor(of_.param);
  std::vector<graph::TensorId> out =
      ops::apply(graph_, op, std::move(attrs), std::move(in), op + "." + param.name, param.layer,
                 graph::Phase::optimizer);
  for (const graph::TensorId id : out) {
    graph_.tensors[static_cast<size_t>(id)].of = of_.param;
  }
  return out;
}

void Update::apply(const std::string& op, graph::Attrs attrs, graph::TensorId direction,
                   const std::vector<graph::TensorId>& states) const {
  const graph::Tensor param = graph_.tensor(of_.param);
  const graph::DType state_dtype = ops::sum_dtype(param.type.dtype);
  const bool has_master = param.type.dtype != state_dtype;
  std::vector<graph::TensorId> in{of_.param, direction};
  in.insert(in.end(), states.begin(), states.end());
  if (has_master) {
    in.push_back(state(graph::names::kMasterOf, {graph::Init::Kind::copy, 0}));
    if (graph_.tensor(direction).type.dtype != state_dtype) {
      attrs.set("short_gradient", int64_t{1});
    }
  }
  in.insert(in.end(), {of_.coef, of_.hyper});
  if (of_.lr_scale != 1) {
    attrs.set("lr_scale", of_.lr_scale);
  }
  ops::apply(graph_, has_master ? op + "_master" : op, std::move(attrs), std::move(in),
             op + "." + param.name, param.layer, graph::Phase::optimizer);
}

ParamGroups::ParamGroups(const std::vector<ParamGroup>& groups, const graph::Graph& graph,
                         const std::vector<graph::TensorId>& params)
    : groups_(groups) {
  for (size_t group = 0; group < groups.size(); ++group) {
    for (const std::string& pattern : groups[group].match) {
      std::vector<std::string> names;
      for (const graph::TensorId id : params) {
        names.push_back(graph.tensor(id).name);
      }
      if (std::any_of(names.begin(), names.end(), [&](const std::string& name) {
            return fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
          })) {
        continue;
      }
      const std::string close = nearest(pattern, names);
      fail(fmt::format("optimizer.groups.{}.match", group),
           "{} matches no trained parameter; expected a glob of names such as {}; try `hocket "
           "graph`, which lists them",
           quote(pattern), quote(close.empty() ? names.front() : close));
    }
  }
}

const ParamGroup& ParamGroups::of(const std::string& name) const {
  for (const ParamGroup& group : groups_) {
    for (const std::string& pattern : group.match) {
      if (fnmatch(pattern.c_str(), name.c_str(), 0) == 0) return group;
    }
  }
  return none_;
}

const Optimizer& optimizer_named(const std::string& name) {
  for (const Optimizer& optimizer : optimizer_list()) {
    if (name == optimizer.name) return optimizer;
  }
  fail("autodiff", "the optimizer is {}; expected {}", quote(name), join(optimizers(), " or "));
}

std::vector<std::string> optimizers() {
  std::vector<std::string> names;
  for (const Optimizer& optimizer : optimizer_list()) {
    names.emplace_back(optimizer.name);
  }
  return names;
}

std::vector<double> hyper_of(const OptimizerConfig& config, double lr, int64_t step) {
  return optimizer_named(config.name).hyper(config, lr, step);
}

}  // namespace hocket::autodiff
