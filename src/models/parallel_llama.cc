// SPDX-License-Identifier: Apache-2.0
// Llama with parallel blocks (GPT-J, PaLM: Chowdhery et al., arXiv 2204.02311, section 2;
// MegaScale: Jiang et al., arXiv 2402.15627, section 3.1): attention and MLP read one norm, and
// both are added to the hidden state, y = x + Attention(Norm(x)) + MLP(Norm(x)). They share the
// communication of tensor parallelism: one gather and one scatter per block instead of two.
#include "models/config_reader.h"
#include "models/family.h"

namespace hocket::models {
namespace {

void read_parallel_llama(const JsonView& in, ModelConfig& config) {
  config.form.parallel = true;
  set_window(config, in.get_bool("use_sliding_window", true) ? read_window(in, 0) : 0);
}

}  // namespace

// Returns the family. transformers has no such class, and refuses a model_type that it does not
// know. It is meant to: a Llama of the same weights would be another model.
Family family_parallel_llama() {
  return {.name = "parallel_llama",
          .architecture = "ParallelLlamaForCausalLM",
          .read = read_parallel_llama,
          .keys = {"sliding_window"},
          .norms = {.mlp_in = nullptr}};
}

}  // namespace hocket::models
