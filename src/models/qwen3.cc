// SPDX-License-Identifier: Apache-2.0
// Qwen3 (Qwen team, arXiv 2505.09388): Llama's block with RMSNorm on every query and key head, and
// a window in the layers from max_window_layers on, or those that layer_types names.
#include "models/config_reader.h"
#include "models/family.h"

namespace hocket::models {
namespace {

void read_qwen3(const JsonView& in, ModelConfig& config) {
  config.form.head_norm = "head";
  read_attention_bias(in, config);
  read_window_layers(in, config);
}

}  // namespace

Family family_qwen3() {
  return {.name = "qwen3",
          .architecture = "Qwen3ForCausalLM",
          .read = read_qwen3,
          .keys = {"attention_bias", "layer_types", "max_window_layers", "sliding_window"},
          .defaults = {.kv_heads = 32, .head_dim = 128, .max_position = 32768}};
}

}  // namespace hocket::models
