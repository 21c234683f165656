// SPDX-License-Identifier: Apache-2.0
// Gemma 2 (Gemma team, arXiv 2408.00118): norms of the inputs and outputs of attention and MLP, of
// weights around 0; soft caps of scores and logits; every other layer has a window.
#include "models/config_reader.h"
#include "models/family.h"

namespace hocket::models {
namespace {

void read_gemma2(const JsonView& in, ModelConfig& config) {
  read_gemma(in, config, [](int64_t layer) { return layer % 2 == 0; });
  config.form.attention_softcap = read_softcap(in, "attn_logit_softcapping", 50);
  config.form.logits_softcap = read_softcap(in, "final_logit_softcapping", 30);
}

}  // namespace

Family family_gemma2() {
  return {.name = "gemma2",
          .architecture = "Gemma2ForCausalLM",
          .read = read_gemma2,
          .keys = {"attention_bias", "attn_logit_softcapping", "cache_implementation",
                   "final_logit_softcapping", "hidden_act", "layer_types", "query_pre_attn_scalar",
                   "sliding_window", "use_bidirectional_attention"},
          .defaults = {.kv_heads = 4,
                       .head_dim = 256,
                       .max_position = 8192,
                       .tied = true,
                       .activation = "gelu_pytorch_tanh"},
          .norms = {.attention_out = "post_attention_layernorm",
                    .mlp_in = "pre_feedforward_layernorm",
                    .mlp_out = "post_feedforward_layernorm"},
          .key_names = {{"hidden_act", "hidden_activation"}},
          .rounds_embedding_scale = true};
}

}  // namespace hocket::models
