// SPDX-License-Identifier: Apache-2.0
// Models written in another form: a GGUF file, or a Hugging Face folder.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "checkpoint/model_weights.h"
#include "gguf/blocks.h"
#include "gguf/metadata.h"
#include "graph/dtype.h"
#include "models/config.h"

namespace hocket::checkpoint {

/// A model to be written: its parameters under graph names, read by range.
struct ModelSource {
  models::ModelConfig config;
  /// Type in which elements [first, first + count) of a parameter came in.
  std::function<graph::DType(const std::string& param, int64_t first, int64_t count)> dtype;
  std::function<void(const std::string& param, int64_t first, int64_t count, graph::DType dtype,
                     void* to)>
      read;
};
/// The model as its files have it; `weights` must outlive it.
ModelSource source_of(const ModelWeights& weights, const models::ModelConfig& config);

/// Tensors of a file that was written.
struct Written {
  int64_t bytes = 0;
  std::map<std::string, int64_t> elements;  ///< by type: "bf16"

  /// Returns the types, that of most elements first: "bf16, f32".
  std::string types() const;
};

/// Returns the type of most matrices of a GGUF file: `type`, or that in which they came in.
gguf::ElementType gguf_type(const ModelSource& model, std::optional<gguf::ElementType> type);

/// Returns the keys of a GGUF file that describe its model, in front of those of a tokenizer.
/// `where` names the model in errors. Throws Error for a family, or a scaling of rotary
/// frequencies, that GGUF files are not written of.
gguf::Metadata gguf_metadata(const models::ModelConfig& config, gguf::ElementType type,
                             const std::string& where);

/// Writes a model as a GGUF file: matrices as `type`, or the type in which each came in (f64 as
/// F32); vectors and routers as F32. The file is opened again, and its configuration and tensors
/// compared with the model's, before it gets its name. Throws Error for rows that are no whole
/// blocks of the type, and for numbers that it cannot hold.
Written export_gguf(const ModelSource& model, std::optional<gguf::ElementType> type,
                    const gguf::Metadata& metadata, const std::string& path);

/// Writes a model as a folder that transformers opens: config.json, model.safetensors with `dtype`
/// or the types in which its tensors came in, `files`, and unless it is one of them
/// generation_config.json. Throws Error if the folder is there.
Written export_folder(const ModelSource& model, std::optional<graph::DType> dtype,
                      const std::map<std::string, std::string>& files, const std::string& folder);

}  // namespace hocket::checkpoint
