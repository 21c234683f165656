// SPDX-License-Identifier: Apache-2.0
// MODEL of the command line → files: a Hugging Face folder, one of our checkpoints or run folders,
// a config.json, or a hub id in the local cache. Nothing is ever downloaded.
#pragma once

#include <map>
#include <string>

#include "comm/communicator.h"
#include "models/config.h"

namespace hocket::checkpoint {

struct ModelLocation {
  std::string folder;          ///< holds the weights, if there are any
  std::string config_file;     ///< a config.json
  bool is_checkpoint = false;  ///< one of ours: run.json is there
  bool has_weights = false;
};

/// What a caller is about to read.
enum class Need {
  config,   ///< the config.json alone
  weights,  ///< that there are weights; checkpoints of ours: by their lengths
  intact    ///< the weights; checkpoints of ours: every byte of them is compared (Verify::weights)
};

/// All `processes` call; those that see the same checkpoint divide the comparing.
/// `model`: a folder with config.json, a run folder (its newest intact checkpoint, also of its
/// subfolder `checkpoints`), a path of a config.json, or "org/name" in the cache under
/// HF_HUB_CACHE, HF_HOME or ~/.cache/huggingface. Error: nothing there (for a hub id with the `hf
/// download` line to run); no safetensors, or a damaged checkpoint, where they are needed.
ModelLocation resolve_model(const std::string& model, Need need,
                            comm::Processes& processes = comm::alone());

/// Files that let transformers' AutoTokenizer open a checkpoint: tokenizer.json of `path` (that
/// file or its folder), the tokenizer_config.json and others beside it; a tokenizer_config.json is
/// made up if there is none. `config` gives the end-of-text token. Error: absent or not JSON.
std::map<std::string, std::string> tokenizer_files(const std::string& path,
                                                   const models::ModelConfig& config);

}  // namespace hocket::checkpoint
