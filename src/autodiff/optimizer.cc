// SPDX-License-Identifier: Apache-2.0
#include "autodiff/optimizer.h"

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

void Update::apply(const std::string& op, graph::Attrs attrs,
                   const std::vector<graph::TensorId>& states) const {
  const graph::Tensor param = graph_.tensor(of_.param);
  const graph::DType state_dtype = ops::sum_dtype(param.type.dtype);
  const bool has_master = param.type.dtype != state_dtype;
  std::vector<graph::TensorId> in{of_.param, of_.gradient};
  in.insert(in.end(), states.begin(), states.end());
  if (has_master) {
    in.push_back(state(graph::names::kMasterOf, {graph::Init::Kind::copy, 0}));
    if (graph_.tensor(of_.gradient).type.dtype != state_dtype) {
      attrs.set("short_gradient", int64_t{1});
    }
  }
  in.insert(in.end(), {of_.coef, of_.hyper});
  ops::apply(graph_, has_master ? op + "_master" : op, std::move(attrs), std::move(in),
             op + "." + param.name, param.layer, graph::Phase::optimizer);
}

const Optimizer& optimizer_of(const OptimizerConfig& config) {
  for (const Optimizer& optimizer : optimizer_list()) {
    if (config.name == optimizer.name) return optimizer;
  }
  fail("autodiff", "the optimizer is {}; expected {}", quote(config.name),
       join(optimizers(), " or "));
}

std::vector<std::string> optimizers() {
  std::vector<std::string> names;
  for (const Optimizer& optimizer : optimizer_list()) {
    names.emplace_back(optimizer.name);
  }
  return names;
}

std::vector<double> hyper_of(const OptimizerConfig& config, double lr, int64_t step) {
  return optimizer_of(config).hyper(config, lr, step);
}

}  // namespace hocket::autodiff
