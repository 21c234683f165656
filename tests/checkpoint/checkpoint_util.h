// SPDX-License-Identifier: Apache-2.0
// A folder that goes away, and small models with random weights, for the checkpoint tests.
#pragma once

#include <string>
#include <vector>

#include "checkpoint/safetensors.h"
#include "checkpoint/share.h"
#include "models/config.h"

namespace hocket::checkpoint {

class TempFolder {
 public:
  TempFolder();
  ~TempFolder();
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

/// Text of what `action` throws; "" if it throws nothing; checks that it is bad input (exit 2).
std::string error_of(const std::function<void()>& action);

models::ModelConfig small_config(const std::string& family, bool tied = false);

/// All parameters of a config with random values; `storage` keeps them alive.
std::vector<NamedTensor> random_params(const models::ModelConfig& config, graph::DType dtype,
                                       uint64_t seed, std::vector<std::vector<char>>& storage);

/// The parameters as the tensors that a checkpoint's file has.
std::vector<NamedTensor> to_stored(const models::ModelConfig& config,
                                   const std::vector<NamedTensor>& params);

/// Tensors as one process has them, all with one rank.
std::vector<SharedTensor> shared(const std::vector<NamedTensor>& tensors);

}  // namespace hocket::checkpoint
