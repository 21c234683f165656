// SPDX-License-Identifier: Apache-2.0
// Models written in another form: a GGUF file, or a Hugging Face folder.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "checkpoint/model_weights.h"
#include "gguf/blocks.h"
#include "gguf/metadata.h"
#include "graph/dtype.h"
#include "models/config.h"

namespace hocket::checkpoint {

/// Returns the keys of a GGUF file that say what model it has, in front of those of a tokenizer.
/// `where` names the model in errors. Error: a family, or a scaling of rotary frequencies, that
/// GGUF files are not written of.
gguf::Metadata gguf_metadata(const models::ModelConfig& config, gguf::ElementType type,
                             const std::string& where);

/// Writes a model as a GGUF file and returns its bytes: matrices as `type`, vectors and routers as
/// F32. The file is opened again, and its configuration and tensors compared with the model's,
/// before it gets its name. Error: rows that are no whole blocks of the type, numbers that it
/// cannot hold.
int64_t export_gguf(const ModelWeights& weights, const models::ModelConfig& config,
                    gguf::ElementType type, const gguf::Metadata& metadata,
                    const std::string& path);

/// Writes a model as a folder that transformers opens: config.json, generation_config.json,
/// model.safetensors and `files`. Returns the bytes of the tensors. Error: the folder is there.
int64_t export_folder(const ModelWeights& weights, const models::ModelConfig& config,
                      graph::DType dtype, const std::map<std::string, std::string>& files,
                      const std::string& folder);

}  // namespace hocket::checkpoint
