// SPDX-License-Identifier: Apache-2.0
// The model of Megatron-LM's command line as a Hugging Face config.json.
#pragma once

#include <string>
#include <vector>

#include "interop/megatron_arguments.h"

namespace hocket::interop {

struct MegatronModel {
  std::string config_json;
  /// Parts of it that no model here has, with their flags: without them it is another one.
  std::vector<std::string> lacks;
};

/// Returns a llama, a mistral with a window, or a qwen3_moe with experts. Adds differences from
/// these to `notes`. Throws Error if sizes are missing or impossible; `name` is the file. Requires:
/// at most models::kMaxLayers layers.
MegatronModel megatron_model(MegatronArguments& arguments, const std::string& name,
                             std::vector<std::string>* notes);

}  // namespace hocket::interop
