// SPDX-License-Identifier: Apache-2.0
// Checkpoints: folders `step-000100` that transformers opens and that a run resumes from, bit for
// bit, under any plan. Every rank writes its own part of the tensors' files, and what several hold
// is written once; nobody has more than a buffer of it. A folder with its final name is complete:
// it is written under a temporary name, synced by all who wrote, and renamed. What was there before
// is never touched until then. run.json names every file with its length and the XXH3-128 of it or
// of its parts, and carries one of its own; the tensors' files and the folder's name say the step,
// too: what changed since, or was put together from several checkpoints, is noticed.
#pragma once

#include <cstdint>
#include <map>
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
  /// Its config.json, with the end of text where it names none (models::with_end_of_text).
  const models::ModelConfig* config = nullptr;
  int64_t end_of_text = -1;             ///< the tokenizer's; -1: it has none
  std::vector<SharedTensor> params;     ///< all parameters of the graph, under their graph names
  std::vector<SharedTensor> optimizer;  ///< "exp_avg.<param>", "exp_avg_sq.<param>"; may be empty
  RunState state;
  /// Files copied as they are, by name: see tokenizer_files().
  std::map<std::string, std::string> files;
};

/// Writes `step-NNNNNN` into the folder of a run and returns its path. All processes call, with the
/// same content but for what they share of the tensors. Files: config.json,
/// generation_config.json, model.safetensors (Hugging Face names), optimizer.safetensors, run.json,
/// and `files`; where hosts share no file system, each gets model.part.safetensors,
/// optimizer.part.safetensors, with what its ranks hold, and host.json, which says whose they are.
/// A checkpoint of the same step is replaced in one step. On any error of any process (full disk)
/// nothing of it is left, older checkpoints are as they were, and all throw the same error.
std::string save_checkpoint(const RunFolder& run, const CheckpointContent& content);

/// (step, path) of every `step-NNNNNN` of a run, complete or not, by step.
std::vector<std::pair<int64_t, std::string>> list_checkpoints(const std::string& run_folder);

/// How much of a checkpoint is read before it is believed. Names, lengths, steps and run.json's own
/// checksum always are.
enum class Verify {
  lengths,  ///< nothing else
  weights,  ///< the contents of all files but the optimizer's
  all
};

/// Error, with what is wrong, unless `folder` is an intact checkpoint, or one host's folder of one.
/// One from before there were checksums passes with a warning that only lengths were compared. All
/// `processes` call: those that see the same files divide the comparing, and all get the same
/// answer.
void verify_checkpoint(const std::string& folder, Verify verify,
                       comm::Processes& processes = comm::alone());

/// Newest checkpoint of a run that is intact for all `processes`, which all call; nothing if there
/// is no checkpoint. Damaged ones are skipped with a warning; if all are: Error.
std::optional<std::string> latest_checkpoint(const std::string& run_folder, Verify verify,
                                             comm::Processes& processes = comm::alone());

/// Removes what killed runs left behind (temporary names whose process is gone). All processes
/// call. Error: a name of a checkpoint that is no folder, which the next one could not replace.
void clean_checkpoints(const RunFolder& run);

/// Of the complete checkpoints up to step `last`, which was just saved, keeps the newest `keep` (0:
/// all). Later ones, of another run, are not touched, nor is a folder of such a name that holds
/// something else or a damaged checkpoint. All processes call.
void prune_checkpoints(const RunFolder& run, int64_t last, int64_t keep);

/// An intact checkpoint, opened for reading.
class Checkpoint {
 public:
  /// Error: see verify_checkpoint; weights that do not fit the config.json.
  explicit Checkpoint(const std::string& folder, Verify verify = Verify::all);

  const std::string& folder() const { return folder_; }
  const models::ModelConfig& config() const { return config_; }
  const RunState& state() const { return record_.state; }
  const ModelWeights& weights() const { return weights_; }
  /// What run.json says.
  const RunRecord& record() const { return record_; }
  /// Whether other hosts have parts of it: see MissingParts before anything is read.
  bool is_partial() const { return !record_.hosts.empty(); }
  /// The host whose folder this is, of those that the record lists.
  int32_t host() const { return host_; }
  /// The tensor `name`, as in CheckpointContent::optimizer. Error: absent, or not of these dims.
  Safetensors::Entry optimizer_tensor(std::string_view name, const graph::TensorType& type) const;

  /// Elements [first, first + count) of such a tensor.
  void load_optimizer_range(std::string_view name, const graph::TensorType& type, int64_t first,
                            int64_t count, void* dst) const;

 private:
  std::string folder_;
  models::ModelConfig config_;
  RunRecord record_;
  int32_t host_ = 0;
  ModelWeights weights_;
  std::optional<Safetensors> optimizer_;
};

}  // namespace hocket::checkpoint
