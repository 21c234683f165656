// SPDX-License-Identifier: Apache-2.0
// Normalizers, pre-tokenizers and decoders of a tokenizer.json as steps of a TokenizerSpec. Throw
// Error, by name, for one that is not built in.
#pragma once

#include <string>
#include <vector>

#include "base/json.h"
#include "data/tokenizer/tokenizer_spec.h"

namespace hocket::data {

/// Throws the refusal of a part that is not built in.
[[noreturn]] void refuse_part(const JsonView& view, const std::string& type, const char* built_in);

/// Calls `each` for the parts of a sequence, under the key of its list, or for the part itself.
template <class Each>
void each_part(const JsonView& view, const char* list, const Each& each) {
  if (view.get_string("type") != "Sequence") {
    each(view);
    return;
  }
  const JsonView parts = view.at(list);
  for (size_t i = 0; i < parts.size(); ++i) {
    each_part(parts.at(i), list, each);
  }
}

NormalizerStep normalizer_step(const JsonView& view);

/// Appends the steps of a pre-tokenizer; those of ByteLevel come before its change of bytes to an
/// alphabet.
void add_pretokenizer(const JsonView& view, std::vector<PretokenizerStep>* steps, bool* byte_level);

DecoderStep decoder_step(const JsonView& view, const std::string& type);

}  // namespace hocket::data
