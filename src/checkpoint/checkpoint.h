// SPDX-License-Identifier: Apache-2.0
// Checkpoints: folders `step-000100` that transformers opens and that a run resumes from, bit for
// bit. A folder with its final name is complete: it is written under a temporary name, synced, and
// renamed. What was there before is never touched until then. run.json names every file with its
// length and XXH3-128 and carries one of its own; the tensors' files and the folder's name say the
// step, too: what changed since, or was put together from several checkpoints, is noticed.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "checkpoint/model_weights.h"
#include "checkpoint/safetensors.h"
#include "models/config.h"

namespace hocket::checkpoint {

/// run.json: what a run needs besides tensors.
struct RunState {
  int64_t step = 0;  ///< steps done
  uint64_t seed = 0;
  std::string config;  ///< the resolved run.yaml
  std::string data;    ///< JSON text that the trainer writes and reads; empty counts as null
  std::vector<std::pair<int64_t, double>> losses;  ///< (step, loss), bit-exact
};

struct CheckpointContent {
  /// Its config.json, with the end of text where it names none (models::with_end_of_text).
  const models::ModelConfig* config = nullptr;
  int64_t end_of_text = -1;            ///< the tokenizer's; -1: it has none
  std::vector<NamedTensor> params;     ///< all parameters of the graph, under their graph names
  std::vector<NamedTensor> optimizer;  ///< "exp_avg.<param>", "exp_avg_sq.<param>"; may be empty
  RunState state;
  /// Files copied as they are, by name: see tokenizer_files().
  std::map<std::string, std::string> files;
};

/// Writes `<run_folder>/step-NNNNNN` and returns its path. Files: config.json,
/// generation_config.json, model.safetensors (Hugging Face names), optimizer.safetensors, run.json,
/// and `files`. A checkpoint of the same step is replaced in one step. On any error (full disk)
/// nothing of it is left and older checkpoints are as they were.
std::string save_checkpoint(const std::string& run_folder, const CheckpointContent& content);

/// (step, path) of every `step-NNNNNN` of a run, complete or not, by step.
std::vector<std::pair<int64_t, std::string>> list_checkpoints(const std::string& run_folder);

/// How much of a checkpoint is read before it is believed. Names, lengths, steps and run.json's own
/// checksum always are.
enum class Verify {
  lengths,  ///< nothing else
  weights,  ///< the contents of all files but the optimizer's
  all
};

/// Error, with what is wrong, unless `folder` is an intact checkpoint. One from before there were
/// checksums passes with a warning that only lengths were compared.
void verify_checkpoint(const std::string& folder, Verify verify);

/// Newest intact checkpoint of a run; nothing if there is no checkpoint. Damaged ones are skipped
/// with a warning; if all are: Error.
std::optional<std::string> latest_checkpoint(const std::string& run_folder, Verify verify);

/// Removes what killed runs left behind (temporary names whose process is gone). Error: a name of a
/// checkpoint that is no folder, which the next one could not replace.
void clean_checkpoints(const std::string& run_folder);

/// Of the complete checkpoints up to step `last`, which was just saved, keeps the newest `keep` (0:
/// all). Later ones, of another run, are not touched, nor is a folder of such a name that holds
/// something else or a damaged checkpoint.
void prune_checkpoints(const std::string& run_folder, int64_t last, int64_t keep);

/// An intact checkpoint, opened for reading.
class Checkpoint {
 public:
  /// Error: see verify_checkpoint; weights that do not fit the config.json.
  explicit Checkpoint(const std::string& folder, Verify verify = Verify::all);

  const std::string& folder() const { return folder_; }
  const models::ModelConfig& config() const { return config_; }
  const RunState& state() const { return state_; }
  const ModelWeights& weights() const { return weights_; }

  /// Elements [first, first + count) of `name`, as in CheckpointContent::optimizer. Error: absent,
  /// or not of these dims.
  void load_optimizer_range(std::string_view name, const graph::TensorType& type, int64_t first,
                            int64_t count, void* dst) const;

 private:
  std::string folder_;
  models::ModelConfig config_;
  RunState state_;
  ModelWeights weights_;
  std::optional<Safetensors> optimizer_;
};

}  // namespace hocket::checkpoint
