// SPDX-License-Identifier: Apache-2.0
// SmolLM3 (Hugging Face, 2025): Llama's block; every fourth layer has no rotary embedding (NoPE:
// Yang et al., arXiv 2501.18795), and such layers may have a window.
#include "base/error.h"
#include "models/config_reader.h"
#include "models/family.h"

namespace hocket::models {
namespace {

void read_smollm3(const JsonView& in, ModelConfig& config) {
  constexpr int64_t kInterval = 4;
  const int64_t interval = read_int(in, "no_rope_layer_interval", 1, kMaxLayers, kInterval);
  for (int64_t i = 0; i < config.num_layers; ++i) {
    config.rope_layer[i] = (i + 1) % interval != 0;
  }
  if (in.has("no_rope_layers")) {  // 1: with rope
    const std::vector<int64_t> layers = read_ints(in, "no_rope_layers", 0, 1);
    if (std::ssize(layers) != config.num_layers) {
      in.at("no_rope_layers")
          .fail(fmt::format("has {} entries; expected one for each of the {} layers", layers.size(),
                            config.num_layers));
    }
    config.rope_layer.assign(layers.begin(), layers.end());
  }
  const bool window = in.get_bool("use_sliding_window", false);
  set_windows(in, config, window ? read_window(in, 0) : 0,
              [&](int64_t layer) { return !config.rope_layer[layer]; });
  read_attention_bias(in, config);
  read_mlp_bias(in, config);
}

}  // namespace

Family family_smollm3() {
  return {.name = "smollm3",
          .architecture = "SmolLM3ForCausalLM",
          .read = read_smollm3,
          .keys = {"attention_bias", "layer_types", "mlp_bias", "no_rope_layer_interval",
                   "no_rope_layers", "sliding_window"},
          .defaults = {.kv_heads = 4, .max_position = 32768, .theta = 2e6, .tied = true}};
}

}  // namespace hocket::models
