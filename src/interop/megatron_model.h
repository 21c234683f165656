// SPDX-License-Identifier: Apache-2.0
// The model of Megatron-LM's command line as a Hugging Face config.json.
#pragma once

#include <string>
#include <vector>

#include "interop/megatron_arguments.h"

namespace hocket::interop {

struct MegatronModel {
  std::string config_json;
};

/// Returns the family for the flags: gpt2, gpt_neox, llama, mistral with a window, qwen2 with
/// biases of q, k, v, qwen3 with norms of queries and keys, qwen3_moe with experts. Adds
/// differences from them to `notes`. Throws Error if sizes are missing or impossible; `name` is the
/// file. Requires: at most models::kMaxLayers layers.
MegatronModel megatron_model(MegatronArguments& arguments, const std::string& name,
                             std::vector<std::string>* notes);

}  // namespace hocket::interop
