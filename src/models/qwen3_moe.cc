// SPDX-License-Identifier: Apache-2.0
// Qwen3-MoE (Qwen team, arXiv 2505.09388): Llama's block with RMSNorm on every query and key head,
// and, in the sparse layers, experts chosen by a softmax → top-k router.
#include "base/error.h"
#include "models/builder.h"
#include "models/config_reader.h"
#include "models/family.h"

namespace hocket::models {
namespace {

constexpr int64_t kMaxExperts = int64_t{1} << 16;
constexpr int64_t kMaxTopK = 1024;

void read_qwen3_moe(const JsonView& in, ModelConfig& config) {
  if (in.get_bool("use_sliding_window", false)) {
    config.window = read_window(in, kDefaultWindow);
    // transformers 4 gives the layers before it no window, 5 does not read it.
    if (config.window > 0 && read_int(in, "max_window_layers", 0, kMaxWidth, 0) > 0) {
      in.at("max_window_layers")
          .fail(fmt::format("is {}, which is not supported; expected 0: all layers have the window",
                            in.get_int("max_window_layers")));
    }
  }
  // transformers 5 writes num_local_experts, 4 num_experts.
  const char* key = in.has("num_local_experts") ? "num_local_experts" : "num_experts";
  config.num_experts = read_int(in, key, 1, kMaxExperts);
  if (in.has("num_experts") && read_int(in, "num_experts", 1, kMaxExperts) != config.num_experts) {
    fail(in.where(), "num_experts is {} but num_local_experts is {}; expected one value",
         in.get_int("num_experts"), config.num_experts);
  }
  config.top_k = read_int(in, "num_experts_per_tok", 1, kMaxTopK);
  if (config.top_k > config.num_experts) {
    fail(in.where(), "num_experts_per_tok is {}; expected at most {}, which is {}", config.top_k,
         key, config.num_experts);
  }
  config.moe_intermediate_size = read_int(in, "moe_intermediate_size", 1, kMaxWidth);
  config.norm_topk_prob = in.get_bool("norm_topk_prob", false);
  config.router_aux_loss_coef = read_number(in, "router_aux_loss_coef", 0, 1e6, 0.001);
  const int64_t step = read_int(in, "decoder_sparse_step", 1, kMaxExperts, 1);
  for (int64_t i = 0; i < config.num_layers; ++i) {
    config.moe_layer[i] = (i + 1) % step == 0;
  }
  for (int64_t i : read_ints(in, "mlp_only_layers", 0, config.num_layers - 1)) {
    config.moe_layer[i] = false;
  }
}

graph::TensorId qwen3_moe_block(Builder& builder, int32_t layer, graph::TensorId hidden) {
  const graph::TensorId attention_in = builder.norm(layer, hidden, "input_layernorm");
  const graph::TensorId attended = builder.residual(
      layer, hidden, builder.attention(layer, attention_in, {.head_norm = true}), "attn.residual");
  const graph::TensorId mlp_in = builder.norm(layer, attended, "post_attention_layernorm");
  const bool sparse = builder.config().moe_layer[layer];
  return builder.residual(layer, attended,
                          sparse ? builder.experts(layer, mlp_in) : builder.mlp(layer, mlp_in),
                          "residual");
}

}  // namespace

Family family_qwen3_moe() {
  return {"qwen3_moe",
          "Qwen3MoeForCausalLM",
          4,
          {"decoder_sparse_step", "max_window_layers", "mlp_only_layers", "moe_intermediate_size",
           "norm_topk_prob", "num_experts", "num_experts_per_tok", "num_local_experts",
           "output_router_logits", "router_aux_loss_coef"},
          read_qwen3_moe,
          qwen3_moe_block};
}

}  // namespace hocket::models
