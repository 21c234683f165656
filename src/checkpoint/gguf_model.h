// SPDX-License-Identifier: Apache-2.0
// Models in GGUF files: their metadata as a config.json, and their tensors under the names, in the
// shapes and in the order of rows that Hugging Face has.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/gguf_names.h"
#include "checkpoint/safetensors.h"
#include "gguf/file.h"
#include "models/config.h"

namespace hocket::checkpoint {

/// Returns the text of the config.json that a file's metadata stand for. Throws Error for an
/// architecture without a family here, with the nearest, and for a part of a split file. Throws it
/// also for unknown keys that change the computation.
std::string gguf_config(const gguf::File& file);

/// Reads the configuration of a MODEL: a config.json, a folder with one, or a GGUF file.
models::ModelConfig read_model_config(const std::string& path);

/// Opens the tensors of a MODEL: a GGUF file, or safetensors (see TensorFiles).
TensorFiles open_tensors(const std::string& path);

/// Returns the factors by which the rotary frequencies of Llama 3 are divided, by pair.
std::vector<float> rope_factors(const models::Rope& rope, int64_t head_dim);

/// Returns the row of a GGUF file that has row `row` of Hugging Face's tensor, where heads of
/// `head_dim` rows lie in pairs.
inline int64_t paired_row(int64_t row, int64_t head_dim) {
  const int64_t head = row / head_dim, in_head = row % head_dim, half = head_dim / 2;
  return head * head_dim + 2 * (in_head % half) + in_head / half;
}
/// The inverse: the row of Hugging Face's tensor that is row `row` of a GGUF file.
inline int64_t unpaired_row(int64_t row, int64_t head_dim) {
  const int64_t head = row / head_dim, in_head = row % head_dim, half = head_dim / 2;
  return head * head_dim + in_head % 2 * half + in_head / 2;
}

}  // namespace hocket::checkpoint
