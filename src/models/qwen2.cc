// SPDX-License-Identifier: Apache-2.0
// Qwen2 and Qwen2.5 (Qwen team, arXiv 2407.10671): Llama's block with biases of queries, keys and
// values, and a window in the layers from max_window_layers on, or those that layer_types names.
#include "models/config_reader.h"
#include "models/family.h"

namespace hocket::models {
namespace {

void read_qwen2(const JsonView& in, ModelConfig& config) {
  config.form.qkv_bias = true;
  read_window_layers(in, config);
}

}  // namespace

Family family_qwen2() {
  return {.name = "qwen2",
          .architecture = "Qwen2ForCausalLM",
          .read = read_qwen2,
          .keys = {"layer_types", "max_window_layers", "sliding_window"},
          .defaults = {.kv_heads = 32, .max_position = 32768}};
}

}  // namespace hocket::models
