// SPDX-License-Identifier: Apache-2.0
// Phi-3 and Phi-4-mini (Abdin et al., arXiv 2404.14219): Llama's block, in files with one tensor of
// queries, keys and values and one of gate and up; part of a head may turn, and LongRoPE (Ding et
// al., arXiv 2402.13753) stretches its angles.
#include "models/config_reader.h"
#include "models/family.h"

namespace hocket::models {
namespace {

void read_phi3(const JsonView& in, ModelConfig& config) {
  set_window(config, read_window(in, 0));
  for (const char* key : {"embd_pdrop", "resid_pdrop"}) {
    refuse_above_zero(in, key, "expected 0; try train.dropout");
  }
}

}  // namespace

Family family_phi3() {
  return {.name = "phi3",
          .architecture = "Phi3ForCausalLM",
          .read = read_phi3,
          .keys = {"embd_pdrop", "long_factor", "partial_rotary_factor", "resid_pdrop",
                   "sliding_window"},
          .defaults = {.max_position = 4096, .original_max_position = 4096, .norm_eps = 1e-5},
          .storage = {.qkv = "qkv_proj", .gate_up = true}};
}

}  // namespace hocket::models
