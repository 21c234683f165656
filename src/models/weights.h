// SPDX-License-Identifier: Apache-2.0
// The weight-name map: which Hugging Face tensors make up each parameter of a graph. Parameters are
// stored so that every such tensor is one contiguous run of the parameter's elements.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "graph/tensor_type.h"
#include "models/config.h"

namespace hocket::models {

/// One tensor of a safetensors file: elements [offset, offset + numel) of the parameter.
struct WeightSlice {
  std::string name;  ///< "model.layers.0.mlp.experts.3.up_proj.weight"
  graph::Dims dims;  ///< as Hugging Face stores it
  int64_t offset = 0;
  int64_t numel() const;
  bool operator==(const WeightSlice&) const = default;
};

/// Slices that together cover a parameter, in order of offset.
using WeightForm = std::vector<WeightSlice>;

struct ParamWeights {
  std::string param;  ///< name of the graph's parameter
  graph::Dims dims;   ///< of the graph's parameter
  /// The first form is transformers' default for writing; all are read.
  std::vector<WeightForm> forms;
  /// Other names under which a file may repeat the same values (tied output head).
  std::vector<WeightSlice> aliases;
};

/// One entry per parameter, in the order of the graph that `build` makes.
std::vector<ParamWeights> weight_map(const ModelConfig& config);

/// True for tensors that old files hold and no model needs (`….rotary_emb.inv_freq`).
bool is_ignored_weight(std::string_view name);

}  // namespace hocket::models
