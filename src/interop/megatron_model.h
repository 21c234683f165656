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

/// A llama, a mistral with a window, or a qwen3_moe with experts. What these do in another way is
/// added to `notes`. Error: its sizes are missing or cannot be; `name` is the file. Of layers the
/// caller has seen that they are at most models::kMaxLayers.
MegatronModel megatron_model(MegatronArguments& arguments, const std::string& name,
                             std::vector<std::string>* notes);

}  // namespace hocket::interop
