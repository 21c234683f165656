// SPDX-License-Identifier: Apache-2.0
// Parameters of a model: maps graph names to the tensors of its safetensors or of its GGUF file, in
// whichever known form the file uses.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/adapter.h"
#include "checkpoint/safetensors.h"
#include "models/config.h"
#include "models/weights.h"

namespace hocket::checkpoint {

/// Weights of a model, opened and matched with its parameters.
class ModelWeights {
 public:
  /// Opens the tensors of `path` (see open_tensors) and matches every one by name and shape. Throws
  /// Error for missing tensors, wrong shapes, and tensors that the model has no place for. Throws
  /// it also for a stored copy of a tied head with other values. With an adapter, values are those
  /// of the merged model: W + scale * B A, rounded once. The folder of an adapter as `path` stands
  /// for its base with the adapter.
  ModelWeights(const std::string& path, const models::ModelConfig& config,
               const std::string& adapter = "");

  /// Reads elements [first, first + count) of a parameter, counted in the graph's shape, as
  /// `dtype`. Throws Error for one that is stored in a type that does not convert.
  void load_range(std::string_view param, int64_t first, int64_t count, graph::DType dtype,
                  void* dst) const;

  /// Returns whether the model has a parameter; it lacks those of an adapter that is trained.
  bool has(std::string_view param) const { return stored_.contains(param); }
  /// Returns the adapter's folder; empty: there is none.
  std::string adapter() const { return adapter_ ? adapter_->folder() : ""; }

  /// Returns the type in which the file has elements [first, first + count) of a parameter: of
  /// several the smallest that holds all of them exactly. Throws Error for a type that does not
  /// convert to a floating-point one.
  graph::DType dtype(std::string_view param, int64_t first, int64_t count) const;
  /// Returns the tensors that hold a parameter, under this file's names. Tensors that repeat the
  /// values of others (aliases) come last.
  std::vector<models::WeightSlice> slices(std::string_view param) const;
  /// Parameters in graph order.
  const std::vector<models::ParamWeights>& params() const { return params_; }
  const TensorFiles& file() const { return file_; }

 private:
  /// Tensors that hold one parameter.
  struct StoredParameter {
    models::WeightForm form;     // under this file's names
    models::WeightForm aliases;  // the ones that this file has
    int64_t numel = 0;
  };
  const StoredParameter& stored(std::string_view param) const;
  void load_base(std::string_view param, int64_t first, int64_t count, graph::DType dtype,
                 void* dst) const;
  /// Reads elements of a weight with an adapter: W + scale * B A.
  void load_adapted(std::string_view param, int64_t first, int64_t count, graph::DType dtype,
                    void* dst) const;
  void match(const models::ParamWeights& param, std::vector<std::string>& missing);
  /// Finds how this file's names begin: see file_name.
  void find_prefixes(const models::ModelConfig& config, const std::vector<std::string>& names);
  std::string file_name(const std::string& name) const;
  void check_names(const models::ModelConfig& config, const std::vector<std::string>& names) const;
  void check_shape(const models::WeightSlice& slice) const;
  void check_alias(std::string_view param, const models::WeightSlice& alias) const;

  TensorFiles file_;
  std::shared_ptr<const AdapterWeights> adapter_;
  std::string wrapper_;          // before every name: "module.", "_orig_mod."
  std::string usual_, instead_;  // the usual begin of names, and this file's for it
  std::vector<models::ParamWeights> params_;
  std::map<std::string, StoredParameter, std::less<>> stored_;
};

/// A parameter, and the slices by which tensors of files hold it.
struct SlicedParameter {
  NamedTensor whole;
  std::vector<models::WeightSlice> slices;
};
/// Returns the tensors of files that hold these parameters, under the slices' names and dims: views
/// of a parameter, or, where a tensor is no run of one, put together while it is read.
std::vector<NamedTensor> to_stored(const std::vector<SlicedParameter>& params);

}  // namespace hocket::checkpoint
