// SPDX-License-Identifier: Apache-2.0
// The weight-name map: which elements of which Hugging Face tensors make up each parameter of a
// graph. Most tensors are one contiguous run of a parameter's elements; others hold several
// parameters, are transposed, or are interleaved by head.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "graph/tensor_type.h"
#include "models/config.h"

namespace hocket::models {

/// Elements [offset, offset + numel) of a parameter in a tensor of a safetensors file.
struct WeightSlice {
  /// `size` steps of `stride` elements of the tensor.
  struct Axis {
    int64_t size = 0, stride = 1;
    bool operator==(const Axis&) const = default;
  };
  std::string name;  ///< "model.layers.0.mlp.experts.3.up_proj.weight"
  graph::Dims dims;  ///< as Hugging Face stores it
  int64_t offset = 0;
  int64_t begin = 0;  ///< element of the tensor that is the slice's first
  std::vector<Axis> axes =
      {};  ///< of the slice's elements, the last fastest; empty: the whole tensor

  int64_t numel() const;  ///< of the slice
  bool is_whole() const { return axes.empty(); }
  bool operator==(const WeightSlice&) const = default;
};

/// Rows of a linear layer among those of a file's tensor: runs of `run` rows, whose begins are
/// `stride` rows apart.
struct FileRows {
  int64_t total = 0;  ///< of the tensor
  int64_t first = 0, count = 0, run = 0, stride = 0;
  /// All rows of a tensor.
  static FileRows all(int64_t count) { return {count, 0, count, count, count}; }
};
/// A slice of whole rows of `columns` elements; columns 0: a bias, an element per row. A tensor
/// that is `transposed` has them as columns.
WeightSlice slice_of_rows(std::string name, const FileRows& rows, int64_t columns, bool transposed,
                          int64_t offset = 0);

/// Consecutive elements of a tensor, and their places in the parameter.
struct WeightRun {
  int64_t stored = 0;   ///< first element, in the tensor
  int64_t element = 0;  ///< the same, in the parameter
  int64_t count = 0;
  int64_t stride = 1;  ///< between their places in the parameter
};
/// Calls `use` for the runs that make up elements [first, first + count) of the parameter, all of
/// them of this slice; their places are not in order.
void for_each_run(const WeightSlice& slice, int64_t first, int64_t count,
                  const std::function<void(const WeightRun&)>& use);

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

/// Returns whether files may hold a tensor of this name that the model does not need
/// (`….rotary_emb.inv_freq`).
bool is_ignored_weight(const ModelConfig& config, std::string_view name);
/// Begins of the names of all tensors but the head's: the usual one first. Files of a model without
/// a head lack it.
std::vector<std::string> weight_prefixes(const ModelConfig& config);

}  // namespace hocket::models
