// SPDX-License-Identifier: Apache-2.0
// Architectures of GGUF files and the names of their tensors, beside those of Hugging Face.
// Internal to checkpoint/gguf_*.cc.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace hocket::checkpoint {

/// A GGUF architecture, as it holds models of one family.
struct GgufArchitecture {
  const char* name;    ///< general.architecture
  const char* family;  ///< model_type
  bool experts;        ///< all layers have experts, and none a dense MLP
  /// Rows of a query or key head lie as the pairs that turn together: 0, d/2, 1, d/2 + 1, ...
  bool pairs_rows = false;
  float norm_offset = 0;  ///< added to the weights of norms
};

/// Returns an architecture by its name. Throws Error, in the name of `where`, for one without a
/// family, or without one that has experts or none. Its text names the nearest.
const GgufArchitecture& architecture_named(std::string_view name, bool experts,
                                           const std::string& where);
/// Returns the architecture that files of a family have; null if there is none.
const GgufArchitecture* architecture_of(std::string_view family);
/// Returns the families that are written.
std::vector<std::string> gguf_families();

/// A tensor of a GGUF file beside that of Hugging Face.
struct GgufPlacement {
  bool pairs_rows = false;  ///< rows of heads lie in pairs: see GgufArchitecture
  float offset = 0;         ///< added to every number
};

/// A Hugging Face name, and how GGUF stores the tensor.
struct HfTensorName {
  std::string name;  ///< with {} for the number of an expert
  bool per_expert = false;
  GgufPlacement placement = {};
};

/// Turns a name of a GGUF file into that of Hugging Face; nothing for a name that is not known.
std::optional<HfTensorName> hf_name_of(std::string_view gguf, const GgufArchitecture& architecture);

/// Tensor of a GGUF file, by a Hugging Face name.
struct GgufName {
  std::string name;
  int64_t expert = -1;  ///< of a tensor that has those of all experts, one after the other
  GgufPlacement placement = {};
};
std::optional<GgufName> gguf_name_of(std::string_view hf, const GgufArchitecture& architecture);

/// Tensor with the factors by which Llama 3 divides its rotary frequencies.
inline constexpr const char* kRopeFactors = "rope_freqs.weight";

}  // namespace hocket::checkpoint
