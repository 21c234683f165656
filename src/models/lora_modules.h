// SPDX-License-Identifier: Apache-2.0
// Modules of a model as an adapter names them. Internal to src/models.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "models/config.h"
#include "models/weights.h"

namespace hocket::models {

/// "model.layers.0.mlp.up_proj" of "model.layers.0.mlp.up_proj.weight".
std::string without_kind(const std::string& name);

/// Returns whether `ending` is the whole name or its last parts.
bool ends_in(const std::string& name, const std::string& ending);

/// A module and those that it is in: "model.norm", "model".
std::vector<std::string> outwards(const std::string& module);

/// A weight of the graph that can have an adapter, or the reason why not.
struct LinearModule {
  const ParamWeights* param = nullptr;
  size_t in_dims = 1;  ///< trailing dims of the weight that are its input
  int32_t layer = 0;
  bool expert = false;
  WeightForm form;  ///< as transformers has it in memory
};

/// The modules of a model.
struct ModelModules {
  std::vector<ParamWeights> weights;
  std::vector<LinearModule> linears;
  std::map<std::string, std::string> others;  ///< names of modules without adapter: the reason
};

/// Returns the modules of a model, by its graph.
ModelModules modules_of(const ModelConfig& config);

/// Returns whether a list of layers, in which an empty one is all, has a layer.
bool has_layer(const std::vector<int64_t>& layers, int32_t layer);

/// Last parts of the names of modules in `layers` (empty: all), for messages: the one that `wanted`
/// may be, and all.
std::string some_of(const ModelModules& modules, const std::string& wanted,
                    const std::vector<int64_t>& layers);
/// The same of experts' parameters.
std::string some_experts(const ModelModules& modules, const std::string& wanted);

}  // namespace hocket::models
