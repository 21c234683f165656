// SPDX-License-Identifier: Apache-2.0
// OLMoE (Muennighoff et al., arXiv 2409.02060): Llama's block with experts in all layers, and
// RMSNorm over all heads of the queries and of the keys.
#include "models/config_reader.h"
#include "models/family.h"

namespace hocket::models {
namespace {

void read_olmoe(const JsonView& in, ModelConfig& config) {
  config.form.head_norm = "all";
  read_attention_bias(in, config);
  constexpr int64_t kPerToken = 8;
  read_experts(in, config, kPerToken);
  config.router_aux_loss_coef = read_number(in, "router_aux_loss_coef", 0, 1e6, 0.01);
  config.moe_intermediate_size = config.intermediate_size;
  config.norm_topk_prob = in.get_bool("norm_topk_prob", false);
}

}  // namespace

Family family_olmoe() {
  return {.name = "olmoe",
          .architecture = "OlmoeForCausalLM",
          .read = read_olmoe,
          .keys = {"attention_bias", "norm_topk_prob", "num_experts", "num_experts_per_tok",
                   "num_local_experts", "output_router_logits", "router_aux_loss_coef"},
          .defaults = {.max_position = 4096, .norm_eps = 1e-5}};
}

}  // namespace hocket::models
