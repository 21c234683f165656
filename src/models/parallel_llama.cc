// SPDX-License-Identifier: Apache-2.0
// Llama with parallel blocks (GPT-J, PaLM: Chowdhery et al., arXiv 2204.02311, section 2;
// MegaScale: Jiang et al., arXiv 2402.15627, section 3.1): attention and MLP read one norm, and
// both are added to the hidden state, y = x + Attention(Norm(x)) + MLP(Norm(x)). They share the
// communication of tensor parallelism: one gather and one scatter per block instead of two.
#include "models/builder.h"
#include "models/config_reader.h"
#include "models/family.h"

namespace hocket::models {
namespace {

void read_parallel_llama(const JsonView& in, ModelConfig& config) {
  config.window = in.get_bool("use_sliding_window", true) ? read_window(in, 0) : 0;
}

graph::TensorId parallel_llama_block(Builder& builder, int32_t layer, graph::TensorId hidden) {
  // The branches are added to each other first: as parts of sums over tp, they are summed once.
  // Each drops some of its own, as those of GPT-J do.
  const graph::TensorId normed = builder.norm(layer, hidden, "input_layernorm");
  const graph::TensorId attended = builder.attention(layer, normed);
  const graph::TensorId computed = builder.mlp(layer, normed);
  const graph::TensorId branches = builder.sum(layer, builder.dropped(layer, attended, "attention"),
                                               builder.dropped(layer, computed, "mlp"), "branches");
  return builder.sum(layer, hidden, branches, "residual");
}

}  // namespace

// transformers has no such class, and refuses a model_type that it does not know: a Llama of the
// same weights would be another model.
Family family_parallel_llama() {
  return {"parallel_llama",    "ParallelLlamaForCausalLM", 0, {},
          read_parallel_llama, parallel_llama_block};
}

}  // namespace hocket::models
