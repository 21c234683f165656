// SPDX-License-Identifier: Apache-2.0
// The parameters of a model folder: graph names on one side, the tensors of its safetensors on the
// other, whichever of the known forms the file uses.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/safetensors.h"
#include "models/config.h"
#include "models/weights.h"

namespace hocket::checkpoint {

class ModelWeights {
 public:
  /// Opens the safetensors of `path` (see Safetensors) and matches every tensor by name and shape.
  /// Error: missing tensors, wrong shapes, tensors that the model has no place for, a tied head
  /// that is stored too and differs.
  ModelWeights(const std::string& path, const models::ModelConfig& config);

  /// Elements [first, first + count) of a parameter in the graph's own shape. Error: stored in a
  /// type that does not convert.
  void load_range(std::string_view param, int64_t first, int64_t count, graph::DType dtype,
                  void* dst) const;

  /// The tensors that hold a parameter, under the names that this file uses; a tensor that repeats
  /// another's values comes last.
  std::vector<models::WeightSlice> slices(std::string_view param) const;
  /// Parameters in the order of the graph.
  const std::vector<models::ParamWeights>& params() const { return params_; }
  const Safetensors& file() const { return file_; }

 private:
  struct Place {
    models::WeightForm form;     // with the names of this file
    models::WeightForm aliases;  // those that are there
    int64_t numel = 0;
  };
  const Place& place(std::string_view param) const;
  void match(const models::ParamWeights& param, bool bare, std::vector<std::string>& missing);
  void check_shape(const models::WeightSlice& slice) const;
  void check_alias(std::string_view param, const models::WeightSlice& alias) const;

  Safetensors file_;
  std::vector<models::ParamWeights> params_;
  std::map<std::string, Place, std::less<>> places_;
};

/// One tensor's slices: views into `whole`, under the slices' names and dims.
std::vector<NamedTensor> to_slices(const NamedTensor& whole,
                                   const std::vector<models::WeightSlice>& slices);

}  // namespace hocket::checkpoint
