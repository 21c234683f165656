// SPDX-License-Identifier: Apache-2.0
// Granite (IBM, 2024): Llama's block with multipliers of the embedding, of scores, of the branches
// of the residual stream and of the logits (µP: Yang et al., arXiv 2203.03466).
#include "models/config_reader.h"
#include "models/family.h"

namespace hocket::models {
namespace {

void read_granite(const JsonView& in, ModelConfig& config) {
  constexpr double kMinMultiplier = 1e-9, kMaxMultiplier = 1e9;
  const auto multiplier = [&](const char* key) {
    return read_number(in, key, kMinMultiplier, kMaxMultiplier, 1.0);
  };
  config.form.embedding_scale = multiplier("embedding_multiplier");
  config.form.attention_scale = multiplier("attention_multiplier");
  config.form.residual_scale = multiplier("residual_multiplier");
  config.form.logits_scale = 1 / multiplier("logits_scaling");
  read_attention_bias(in, config);
  read_mlp_bias(in, config);
}

}  // namespace

Family family_granite() {
  return {.name = "granite",
          .architecture = "GraniteForCausalLM",
          .read = read_granite,
          // Published files have a share of dropout; here train.dropout has it.
          .keys = {"attention_bias", "attention_dropout", "attention_multiplier",
                   "embedding_multiplier", "logits_scaling", "mlp_bias", "residual_multiplier"}};
}

}  // namespace hocket::models
