// SPDX-License-Identifier: Apache-2.0
// Llama (Touvron et al., arXiv 2302.13971; Grattafiori et al., arXiv 2407.21783): pre-norm blocks
// of rotary grouped-query attention and a SwiGLU MLP.
#include "models/builder.h"
#include "models/family.h"

namespace hocket::models {
namespace {

void read(const JsonView&, ModelConfig&) {}

graph::TensorId block(Builder& builder, int32_t layer, graph::TensorId tensor) {
  const graph::TensorId tensor_id = builder.norm(layer, tensor, "input_layernorm");
  const graph::TensorId a =
      builder.add(layer, tensor, builder.attention(layer, tensor_id, false), "attn.residual");
  const graph::TensorId m = builder.norm(layer, a, "post_attention_layernorm");
  return builder.add(layer, a, builder.mlp(layer, m), "residual");
}

}  // namespace

Family family_llama() { return {"llama", "LlamaForCausalLM", 0, {}, read, block}; }

}  // namespace hocket::models
