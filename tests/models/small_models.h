// SPDX-License-Identifier: Apache-2.0
// A small config.json of every family, of odd sizes, with the keys special to the family.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace hocket::models {

inline nlohmann::json small_model(const std::string& family, int64_t layers = 3) {
  nlohmann::json c = {{"model_type", family},        {"vocab_size", 37},
                      {"hidden_size", 24},           {"intermediate_size", 20},
                      {"num_hidden_layers", layers}, {"num_attention_heads", 4},
                      {"num_key_value_heads", 2},    {"head_dim", 10}};
  if (family == "qwen3_moe") {
    c.update({{"num_experts", 4},
              {"num_experts_per_tok", 2},
              {"moe_intermediate_size", 12},
              {"mlp_only_layers", {1}},
              {"norm_topk_prob", true}});
  }
  if (family == "mixtral" || family == "olmoe") {
    c.update({{"num_local_experts", 4}, {"num_experts_per_tok", 2}});
  }
  if (family == "qwen2" || family == "qwen3") {
    c.update({{"use_sliding_window", true}, {"sliding_window", 5}, {"max_window_layers", 1}});
  }
  if (family == "gemma2" || family == "gemma3_text") {
    c.update({{"sliding_window", 5}});
  }
  if (family == "gemma3_text") {
    c.update({{"sliding_window_pattern", 2}});
  }
  if (family == "smollm3") {
    c.update({{"no_rope_layer_interval", 2}, {"mlp_bias", true}, {"attention_bias", true}});
  }
  if (family == "phi3") {
    c.update({{"partial_rotary_factor", 0.6}});
  }
  if (family == "granite") {
    c.update({{"embedding_multiplier", 3.0},
              {"attention_multiplier", 0.25},
              {"residual_multiplier", 0.5},
              {"logits_scaling", 2.0}});
  }
  if (family == "gpt2") {
    c = {{"model_type", family}, {"vocab_size", 37}, {"n_embd", 24},
         {"n_layer", layers},    {"n_head", 4},      {"n_positions", 64}};
  }
  if (family == "gpt_neox") {
    c.erase("num_key_value_heads");
    c.erase("head_dim");
    c.update({{"rotary_pct", 0.34}});
  }
  return c;
}

}  // namespace hocket::models
