// SPDX-License-Identifier: Apache-2.0
// GPT-NeoX and Pythia (Black et al., arXiv 2204.06745; Biderman et al., arXiv 2304.01373):
// LayerNorm, biases and a plain GELU MLP, attention and MLP in parallel; part of a head turns.
// Files have one tensor of queries, keys and values, head after head.
#include "models/config_reader.h"
#include "models/family.h"

namespace hocket::models {
namespace {

void read_gpt_neox(const JsonView& in, ModelConfig& config) {
  Form& form = config.form;
  form.norm = "layer";
  form.gated = false;
  form.qkv_bias = form.o_bias = in.get_bool("attention_bias", true);
  form.mlp_bias = true;
  form.parallel = in.get_bool("use_parallel_residual", true);
  if (config.num_kv_heads != config.num_heads) {
    in.at("num_key_value_heads").fail("is not supported; expected the number of heads");
  }
  if (config.head_dim * config.num_heads != config.hidden_size) {
    in.at("head_dim").fail("is not supported; expected hidden_size / num_attention_heads");
  }
}

}  // namespace

Family family_gpt_neox() {
  return {.name = "gpt_neox",
          .architecture = "GPTNeoXForCausalLM",
          .read = read_gpt_neox,
          // Shares of dropout are those of transformers' training; here train.dropout has it.
          .keys = {"attention_bias", "attention_dropout", "classifier_dropout", "hidden_dropout",
                   "is_decoder", "partial_rotary_factor", "use_parallel_residual"},
          .defaults = {.norm_eps = 1e-5, .rotary = 0.25, .activation = "gelu"},
          .storage = {.names = {{"model.embed_tokens", "gpt_neox.embed_in"},
                                {"model.norm", "gpt_neox.final_layer_norm"},
                                {"model.layers", "gpt_neox.layers"},
                                {"lm_head", "embed_out"},
                                {"self_attn.o_proj", "attention.dense"},
                                {"self_attn.", "attention."},
                                {"mlp.up_proj", "mlp.dense_h_to_4h"},
                                {"mlp.down_proj", "mlp.dense_4h_to_h"}},
                      .qkv = "query_key_value",
                      .qkv_by_head = true,
                      .prefixes = {"gpt_neox."},
                      .ignored_ends = {".attention.bias", ".attention.masked_bias"}},
          .key_names = {{"rms_norm_eps", "layer_norm_eps"},
                        {"rope_theta", "rotary_emb_base"},
                        {"partial_rotary_factor", "rotary_pct"}}};
}

}  // namespace hocket::models
