// SPDX-License-Identifier: Apache-2.0
// GPT-2 (Radford et al., 2019): pre-norm blocks with LayerNorm, learned positions, biases and a
// plain GELU MLP. Files have one tensor of queries, keys and values, and linear layers as [in,
// out].
#include "models/config_reader.h"
#include "models/family.h"

namespace hocket::models {
namespace {

void read_gpt2(const JsonView& in, ModelConfig& config) {
  constexpr int64_t kPositions = 1024;
  Form& form = config.form;
  form.norm = "layer";
  form.gated = false;
  form.qkv_bias = form.o_bias = form.mlp_bias = true;
  config.max_position = read_int(in, "n_positions", 1, kMaxWidth, kPositions);
  form.position_table = config.max_position;
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    refuse(in, key, "expected null: positions are learned");
  }
  config.rope = {};
  config.rope_layer.assign(config.rope_layer.size(), false);
  refuse(in, "scale_attn_by_inverse_layer_idx", "expected false");
  refuse(in, "add_cross_attention", "expected false: there is no encoder");
  if (!in.get_bool("scale_attn_weights", true)) {
    form.attention_scale = 1;
  }
}

}  // namespace

Family family_gpt2() {
  return {.name = "gpt2",
          .architecture = "GPT2LMHeadModel",
          .read = read_gpt2,
          // Shares of dropout are those of transformers' training; here train.dropout has it.
          .keys = {"add_cross_attention", "attn_pdrop", "embd_pdrop", "n_ctx",
                   "reorder_and_upcast_attn", "resid_pdrop", "scale_attn_by_inverse_layer_idx",
                   "scale_attn_weights", "summary_activation", "summary_first_dropout",
                   "summary_proj_to_labels", "summary_type", "summary_use_proj",
                   "task_specific_params"},
          .defaults = {.widening = 4, .norm_eps = 1e-5, .tied = true, .activation = "gelu_new"},
          .storage = {.names = {{"model.embed_tokens", "transformer.wte"},
                                {"model.embed_positions", "transformer.wpe"},
                                {"model.norm", "transformer.ln_f"},
                                {"model.layers", "transformer.h"},
                                {"input_layernorm", "ln_1"},
                                {"post_attention_layernorm", "ln_2"},
                                {"self_attn.o_proj", "attn.c_proj"},
                                {"self_attn.", "attn."},
                                {"mlp.up_proj", "mlp.c_fc"},
                                {"mlp.down_proj", "mlp.c_proj"}},
                      .qkv = "c_attn",
                      .transposed = true,
                      .prefixes = {"transformer."},
                      .ignored_ends = {".attn.bias", ".attn.masked_bias"}},
          .key_names = {{"hidden_size", "n_embd"},
                        {"num_hidden_layers", "n_layer"},
                        {"num_attention_heads", "n_head"},
                        {"max_position_embeddings", "n_positions"},
                        {"intermediate_size", "n_inner"},
                        {"rms_norm_eps", "layer_norm_epsilon"},
                        {"hidden_act", "activation_function"}}};
}

}  // namespace hocket::models
