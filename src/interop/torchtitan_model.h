// SPDX-License-Identifier: Apache-2.0
// The model of torchtitan's JSON as a Hugging Face config.json.
#pragma once

#include <string>
#include <vector>

#include "base/config_tree.h"
#include "interop/settings.h"

namespace hocket::interop {

/// Returns a llama, qwen3 or qwen3_moe of the sizes below `path` ("model_spec.model"); empty if
/// there are none. Throws Error for a part of the model that no family here has.
std::string torchtitan_model(Settings& job, const std::string& path, const std::string& name,
                             std::vector<std::string>* notes);

}  // namespace hocket::interop
