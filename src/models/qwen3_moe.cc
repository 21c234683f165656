// SPDX-License-Identifier: Apache-2.0
// Qwen3-MoE (Qwen team, arXiv 2505.09388): Llama's block with RMSNorm on every query and key head,
// and, in the sparse layers, experts chosen by a softmax → top-k router.
#include "base/error.h"
#include "models/config_reader.h"
#include "models/family.h"

namespace hocket::models {
namespace {

void read_qwen3_moe(const JsonView& in, ModelConfig& config) {
  config.form.head_norm = "head";
  read_attention_bias(in, config);
  if (in.get_bool("use_sliding_window", false)) {
    set_window(config, read_window(in, kDefaultWindow));
    // transformers 4 gives the layers before it no window, 5 does not read it.
    if (config.windows[0] > 0 && read_int(in, "max_window_layers", 0, kMaxWidth, 0) > 0) {
      in.at("max_window_layers")
          .fail(fmt::format("is {}, which is not supported; expected 0: all layers have the window",
                            in.get_int("max_window_layers")));
    }
  }
  read_experts(in, config);
  config.moe_intermediate_size = read_int(in, "moe_intermediate_size", 1, kMaxWidth);
  config.norm_topk_prob = in.get_bool("norm_topk_prob", false);
  const int64_t step = read_int(in, "decoder_sparse_step", 1, kMaxWidth, 1);
  for (int64_t i = 0; i < config.num_layers; ++i) {
    config.moe_layer[i] = (i + 1) % step == 0;
  }
  for (int64_t i : read_ints(in, "mlp_only_layers", 0, config.num_layers - 1)) {
    config.moe_layer[i] = false;
  }
}

}  // namespace

Family family_qwen3_moe() {
  return {.name = "qwen3_moe",
          .architecture = "Qwen3MoeForCausalLM",
          .read = read_qwen3_moe,
          .keys = {"attention_bias", "decoder_sparse_step", "max_window_layers", "mlp_only_layers",
                   "moe_intermediate_size", "norm_topk_prob", "num_experts", "num_experts_per_tok",
                   "num_local_experts", "output_router_logits", "router_aux_loss_coef",
                   "sliding_window"},
          .defaults = {.kv_heads = 4, .max_position = 32768}};
}

}  // namespace hocket::models
