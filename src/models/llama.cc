// SPDX-License-Identifier: Apache-2.0
// Llama (Touvron et al., arXiv 2302.13971; Grattafiori et al., arXiv 2407.21783): pre-norm blocks
// of rotary grouped-query attention and a SwiGLU MLP.
#include "models/builder.h"
#include "models/family.h"

namespace hocket::models {
namespace {

void read(const JsonView&, ModelConfig&) {}

graph::TensorId block(Builder& b, int32_t layer, graph::TensorId x) {
  const graph::TensorId h = b.norm(layer, x, "input_layernorm");
  const graph::TensorId a = b.add(layer, x, b.attention(layer, h, false), "attn.residual");
  const graph::TensorId m = b.norm(layer, a, "post_attention_layernorm");
  return b.add(layer, a, b.mlp(layer, m), "residual");
}

}  // namespace

Family family_llama() { return {"llama", "LlamaForCausalLM", 0, {}, read, block}; }

}  // namespace hocket::models
