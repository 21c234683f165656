// SPDX-License-Identifier: Apache-2.0
// Llama (Touvron et al., arXiv 2302.13971; Grattafiori et al., arXiv 2407.21783): pre-norm blocks
// of rotary grouped-query attention and a SwiGLU MLP.
#include "models/config_reader.h"
#include "models/family.h"

namespace hocket::models {
namespace {

void read_llama(const JsonView& in, ModelConfig& config) {
  read_attention_bias(in, config);
  read_mlp_bias(in, config);
}

}  // namespace

Family family_llama() {
  return {.name = "llama",
          .architecture = "LlamaForCausalLM",
          .read = read_llama,
          .keys = {"attention_bias", "mlp_bias"}};
}

}  // namespace hocket::models
