// SPDX-License-Identifier: Apache-2.0
// Llama (Touvron et al., arXiv 2302.13971; Grattafiori et al., arXiv 2407.21783): pre-norm blocks
// of rotary grouped-query attention and a SwiGLU MLP.
#include "models/builder.h"
#include "models/config_reader.h"
#include "models/family.h"

namespace hocket::models {
namespace {

void read_llama(const JsonView& in, ModelConfig&) {
  if (in.get_bool("use_sliding_window", true)) {
    refuse(in, "sliding_window", "expected null: a llama has no window, a mistral has");
  }
}

graph::TensorId llama_block(Builder& builder, int32_t layer, graph::TensorId hidden) {
  const graph::TensorId attention_in = builder.norm(layer, hidden, "input_layernorm");
  const graph::TensorId attended =
      builder.residual(layer, hidden, builder.attention(layer, attention_in), "attn.residual");
  const graph::TensorId mlp_in = builder.norm(layer, attended, "post_attention_layernorm");
  return builder.residual(layer, attended, builder.mlp(layer, mlp_in), "residual");
}

}  // namespace

Family family_llama() { return {"llama", "LlamaForCausalLM", 0, {}, read_llama, llama_block}; }

}  // namespace hocket::models
