// SPDX-License-Identifier: Apache-2.0
// Checkpoints: folders `step-000100` that transformers opens and that a run resumes from, bit for
// bit, under any plan. Every rank writes its own part of the tensor files; replicated data is
// written once, and no process buffers more than one chunk. A folder with its final name is
// complete: it is written under a temporary name, synced by every writer, and renamed. Older
// folders are never touched before the rename. run.json lists every file with its length and the
// XXH3-128 of the file or of its parts, and carries a checksum of its own. The tensor files and the
// folder's name also state the step. Later changes, and files mixed from several checkpoints, are
// therefore detected.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "checkpoint/model_weights.h"
#include "checkpoint/record.h"
#include "checkpoint/run_folder.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/share.h"
#include "comm/communicator.h"
#include "models/config.h"

namespace hocket::checkpoint {

struct CheckpointContent {
  /// Contents of config.json. The end-of-text token is added where it names none
  /// (models::with_end_of_text).
  const models::ModelConfig* config = nullptr;
  int64_t end_of_text = -1;  ///< id of the tokenizer's end-of-text token; -1: none
  /// All parameters of the graph, under their graph names; of an adapter, its own.
  std::vector<SharedTensor> params;
  /// Saves an adapter alone: its adapter_config.json is one of `files`.
  const models::LoraPlan* adapter = nullptr;
  std::vector<SharedTensor> optimizer;  ///< "exp_avg.<param>", "exp_avg_sq.<param>"; may be empty
  RunState state;
  /// Files written as they are, by name: see ModelFiles.
  std::map<std::string, std::string> files;
};

/// Writes `step-NNNNNN` into the folder of a run and returns its path. Collective: every process
/// calls it with the same content, except for its own shares of the tensors. Files: config.json,
/// generation_config.json, model.safetensors (Hugging Face names) or adapter_model.safetensors
/// (PEFT's), optimizer.safetensors, run.json, and `files`. Where hosts share no file system, each
/// host gets model.part.safetensors and optimizer.part.safetensors with the data of its ranks, and
/// a host.json that identifies the host. A checkpoint of the same step is replaced atomically. An
/// error in any process (full disk) removes the new folder and leaves older checkpoints as they
/// were. Every process then throws the same error.
std::string save_checkpoint(const RunFolder& run, const CheckpointContent& content);

/// Returns (step, path) of every `step-NNNNNN` of a run, complete or not, sorted by step.
std::vector<std::pair<int64_t, std::string>> list_checkpoints(const std::string& run_folder);

/// Amount of a checkpoint that is verified before use. Names, lengths, steps and the checksum of
/// run.json are always verified.
enum class Verify {
  lengths,  ///< no file contents
  weights,  ///< the contents of all files but the optimizer's
  all
};

/// Throws Error with the defect unless `folder` is an intact checkpoint, or the folder of one host
/// of an intact checkpoint. A checkpoint in the format without checksums passes, with a warning
/// that only lengths were compared. Collective over `processes`: processes that see the same files
/// divide the comparing, and all get the same answer.
void verify_checkpoint(const std::string& folder, Verify verify,
                       comm::Processes& processes = comm::alone());

/// Returns the newest checkpoint of a run that is intact for all `processes`; nothing if the run
/// has no checkpoint. Collective over `processes`. Damaged checkpoints are skipped with a warning.
/// Throws Error if all are damaged.
std::optional<std::string> latest_checkpoint(const std::string& run_folder, Verify verify,
                                             comm::Processes& processes = comm::alone());

/// Removes leftovers of killed runs (temporary names of ended processes). Collective. Throws Error
/// if something other than a folder has the name of a checkpoint, so that the next save could not
/// replace it.
void clean_checkpoints(const RunFolder& run);

/// Keeps the newest `keep` (0: all) of the complete checkpoints up to step `last`, which was just
/// saved, and that of step `best`. Later checkpoints, which belong to another run, are not touched;
/// neither are damaged checkpoints and other folders with such a name. Collective.
void prune_checkpoints(const RunFolder& run, int64_t last, int64_t keep, int64_t best = 0);

/// An intact checkpoint, opened for reading.
class Checkpoint {
 public:
  /// Throws Error as verify_checkpoint() does, and for weights that do not fit the config.json.
  explicit Checkpoint(const std::string& folder, Verify verify = Verify::all);

  const std::string& folder() const { return folder_; }
  const models::ModelConfig& config() const { return config_; }
  const RunState& state() const { return record_.state; }
  /// Reads elements of a parameter; of an adapter's checkpoint, one of its own.
  void load_range(std::string_view param, int64_t first, int64_t count, graph::DType dtype,
                  void* dst) const;
  /// Returns the tensors of tensor_file() that hold a parameter.
  std::vector<models::WeightSlice> slices(std::string_view param) const;
  const TensorFiles& tensor_file() const { return adapter_ ? adapter_->file() : weights_->file(); }
  /// Returns whether the checkpoint has a parameter: an adapter's lacks those of its base.
  bool has(std::string_view param) const { return !adapter_ || adapter_->has(param); }
  /// Returns the adapter that is all this checkpoint has of the model; null: it has the model.
  const AdapterWeights* adapter() const { return adapter_.get(); }
  /// Returns the contents of run.json.
  const RunRecord& record() const { return record_; }
  /// Returns whether other hosts hold parts of the checkpoint: see MissingParts before reading
  /// anything.
  bool is_partial() const { return !record_.hosts.empty(); }
  /// Index of the host that wrote this folder, in the record's list of hosts.
  int32_t host() const { return host_; }
  /// Finds a tensor of CheckpointContent::optimizer by name. Throws Error if it is absent, or has
  /// other dims.
  TensorFiles::Entry optimizer_tensor(std::string_view name, const graph::TensorType& type) const;

  /// Reads elements [first, first + count) of such a tensor.
  void load_optimizer_range(std::string_view name, const graph::TensorType& type, int64_t first,
                            int64_t count, void* dst) const;

 private:
  std::string folder_;
  models::ModelConfig config_;
  RunRecord record_;
  int32_t host_ = 0;
  std::optional<ModelWeights> weights_;  ///< this or `adapter_`
  std::shared_ptr<const AdapterWeights> adapter_;
  std::optional<TensorFiles> optimizer_;
};

}  // namespace hocket::checkpoint
