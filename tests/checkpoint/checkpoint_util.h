// SPDX-License-Identifier: Apache-2.0
// Temporary folder and small models with random weights, for the checkpoint tests.
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

/// Returns the text of the error that `action` throws, "" if none; checks that it is bad input
/// (exit 2).
std::string error_of(const std::function<void()>& action);

models::ModelConfig small_config(const std::string& family, bool tied = false);

/// Returns all parameters of a config with random values; `storage` owns them.
std::vector<NamedTensor> random_params(const models::ModelConfig& config, graph::DType dtype,
                                       uint64_t seed, std::vector<std::vector<char>>& storage);

/// Returns the parameters as the tensors of a checkpoint's file.
std::vector<NamedTensor> to_stored(const models::ModelConfig& config,
                                   const std::vector<NamedTensor>& params);

/// Returns tensors that one rank of one process holds completely.
std::vector<SharedTensor> shared(const std::vector<NamedTensor>& tensors);

}  // namespace hocket::checkpoint
