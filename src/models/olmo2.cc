// SPDX-License-Identifier: Apache-2.0
// OLMo 2 (OLMo team, arXiv 2501.00656): Llama's block with norms of the outputs of attention and
// MLP instead of their inputs, and RMSNorm over all heads of the queries and of the keys.
#include "models/config_reader.h"
#include "models/family.h"

namespace hocket::models {
namespace {

void read_olmo2(const JsonView& in, ModelConfig& config) {
  config.form.head_norm = "all";
  read_attention_bias(in, config);
}

}  // namespace

Family family_olmo2() {
  return {.name = "olmo2",
          .architecture = "Olmo2ForCausalLM",
          .read = read_olmo2,
          .keys = {"attention_bias"},
          .defaults = {.norm_eps = 1e-5},
          .norms = {.attention_in = nullptr,
                    .attention_out = "post_attention_layernorm",
                    .mlp_in = nullptr,
                    .mlp_out = "post_feedforward_layernorm"}};
}

}  // namespace hocket::models
