// SPDX-License-Identifier: Apache-2.0
// Mistral (Jiang et al., arXiv 2310.06825): Llama with sliding-window attention in all layers.
#include "base/error.h"
#include "models/config_reader.h"
#include "models/family.h"

namespace hocket::models {
namespace {

void read_mistral(const JsonView& in, ModelConfig& config) {
  const int64_t window = read_window(in, kDefaultWindow);
  if (window > 0 && !in.get_bool("use_sliding_window", true)) {
    in.at("use_sliding_window")
        .fail(fmt::format("is false, which transformers does not read of a mistral, but the window "
                          "is {}; expected sliding_window: null",
                          window));
  }
  set_window(config, window);
}

}  // namespace

Family family_mistral() {
  return {.name = "mistral",
          .architecture = "MistralForCausalLM",
          .read = read_mistral,
          .keys = {"sliding_window"},
          .defaults = {.kv_heads = 8, .max_position = 131072}};
}

}  // namespace hocket::models
