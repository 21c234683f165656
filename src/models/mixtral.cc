// SPDX-License-Identifier: Apache-2.0
// Mixtral (Jiang et al., arXiv 2401.04088): Mistral with experts in all layers; the softmax is over
// the experts of a token alone.
#include "models/config_reader.h"
#include "models/family.h"

namespace hocket::models {
namespace {

void read_mixtral(const JsonView& in, ModelConfig& config) {
  set_window(config, read_window(in, 0));
  refuse_above_zero(in, "router_jitter_noise", "expected 0: the router's input gets no noise");
  constexpr int64_t kPerToken = 2;
  read_experts(in, config, kPerToken);
  config.moe_intermediate_size = config.intermediate_size;
  config.norm_topk_prob = true;
}

}  // namespace

Family family_mixtral() {
  return {
      .name = "mixtral",
      .architecture = "MixtralForCausalLM",
      .read = read_mixtral,
      .keys = {"num_experts", "num_experts_per_tok", "num_local_experts", "output_router_logits",
               "router_aux_loss_coef", "router_jitter_noise", "sliding_window"},
      .defaults = {.kv_heads = 8, .max_position = 131072, .norm_eps = 1e-5, .theta = 1e6},
      .storage = {.names = {{".mlp.", ".block_sparse_moe."},
                            {"gate_proj", "w1"},
                            {"down_proj", "w2"},
                            {"up_proj", "w3"}}}};
}

}  // namespace hocket::models
