// SPDX-License-Identifier: Apache-2.0
// Resolution of a MODEL argument to files: a Hugging Face folder, a Hocket checkpoint or run
// folder, a GGUF file, a config.json, or a hub id in the local cache. Nothing is ever downloaded.
#pragma once

#include <string>

#include "comm/communicator.h"

namespace hocket::checkpoint {

/// Files that a MODEL argument refers to.
struct ModelLocation {
  std::string folder;          ///< folder of the weights, if there are any; or the GGUF file
  std::string config_file;     ///< a config.json, or the GGUF file
  bool is_checkpoint = false;  ///< a checkpoint of Hocket: it has a run.json
  bool has_weights = false;
  /// A PEFT adapter's folder, for the base `folder` (or that folder itself, if it has a tokenizer:
  /// see ModelWeights); empty: none.
  std::string adapter;
};

/// Data that a caller is about to read.
enum class Need {
  config,   ///< the config.json alone
  weights,  ///< requires weights; Hocket checkpoints are verified by their lengths
  intact    ///< as weights, and every byte of a Hocket checkpoint's weights is verified
            ///< (Verify::weights)
};

/// Resolves `model`, one of:
/// - a folder with a config.json, or the path of a config.json;
/// - a run folder: its newest intact checkpoint, also in its subfolder `checkpoints`;
/// - a GGUF file, or a folder with one;
/// - an adapter's folder: its base with the adapter;
/// - "org/name" in the cache under HF_HUB_CACHE, HF_HOME or ~/.cache/huggingface.
/// Collective over `processes`: processes that see the same checkpoint divide the comparing. Throws
/// Error if it is not found; for a hub id, the text has the `hf download` command. Throws it also
/// for no safetensors, or a damaged checkpoint, where weights are needed.
ModelLocation resolve_model(const std::string& model, Need need,
                            comm::Processes& processes = comm::alone());

/// Returns the folder or file of the weights at `path`: of an adapter's folder that of its base.
std::string base_folder(const std::string& path);

/// Returns a location with an adapter to merge into its weights: an adapter's folder, or a run's
/// (then its newest checkpoint). Throws Error if there is none, or if the model has an adapter
/// already.
ModelLocation with_adapter(ModelLocation at, const std::string& adapter);

}  // namespace hocket::checkpoint
