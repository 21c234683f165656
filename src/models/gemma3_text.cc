// SPDX-License-Identifier: Apache-2.0
// Gemma 3 (Gemma team, arXiv 2503.19786), its text model: norms of the inputs and outputs of
// attention and MLP, of weights around 0; RMSNorm on every query and key head; five layers with a
// window and a rope of their own, then one without.
#include "models/config_reader.h"
#include "models/family.h"

namespace hocket::models {
namespace {

void read_gemma3_text(const JsonView& in, ModelConfig& config) {
  constexpr int64_t kPattern = 6;
  const int64_t every = read_int(in, "sliding_window_pattern", 1, kMaxLayers, kPattern);
  read_gemma(in, config, [every](int64_t layer) { return (layer + 1) % every != 0; });
  config.form.head_norm = "head";
  refuse(in, "attn_logit_softcapping", "expected null: transformers does not read it of a gemma3");
  config.form.logits_softcap = read_softcap(in, "final_logit_softcapping");
}

}  // namespace

Family family_gemma3_text() {
  Family family = family_gemma2();
  family.name = "gemma3_text";
  family.architecture = "Gemma3ForCausalLM";
  family.read = read_gemma3_text;
  family.keys.insert(family.keys.end(),
                     {"rope_local_base_freq", "sliding_window_pattern", "_sliding_window_pattern"});
  constexpr int64_t kVocabulary = 262208, kHeads = 8, kPositions = 131072;
  family.defaults.vocab = kVocabulary;
  family.defaults.heads = kHeads;
  family.defaults.max_position = kPositions;
  family.defaults.theta = 1e6;
  family.storage.prefixes = {"model.", "language_model.model.", "model.language_model."};
  family.storage.ignored_begins = {"vision_tower.", "multi_modal_projector.", "model.vision_tower.",
                                   "model.multi_modal_projector."};
  return family;
}

}  // namespace hocket::models
