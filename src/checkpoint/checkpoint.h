// SPDX-License-Identifier: Apache-2.0
// Checkpoints: folders `step-000100` that transformers opens and that a run resumes from, bit for
// bit. A folder with its final name is complete: it is written under a temporary name, synced, and
// renamed. What was there before is never touched until then.
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

/// run.json: what a run needs besides tensors. `data`, `rng` and `extra` are JSON texts that their
/// owners write and read; empty counts as null.
struct RunState {
  int64_t step = 0;  ///< steps done
  uint64_t seed = 0;
  std::string config;  ///< the resolved run.yaml
  std::string data;    ///< position in the data
  std::string rng;
  std::vector<std::pair<int64_t, double>> losses;  ///< (step, loss), bit-exact
  std::string extra;
};

struct CheckpointContent {
  const models::ModelConfig* config = nullptr;
  std::vector<NamedTensor> params;     ///< all parameters of the graph, under their graph names
  std::vector<NamedTensor> optimizer;  ///< "exp_avg.<param>", "exp_avg_sq.<param>"; may be empty
  RunState state;
  /// Files copied as they are, by name: see tokenizer_files().
  std::map<std::string, std::string> files;
};

/// Writes `<run_folder>/step-NNNNNN` and returns its path. Files: config.json, generation_config.json,
/// model.safetensors (Hugging Face names), optimizer.safetensors, run.json, and `files`. A checkpoint
/// of the same step is replaced in one step. On any error (full disk) nothing of it is left and older
/// checkpoints are as they were.
std::string save_checkpoint(const std::string& run_folder, const CheckpointContent& content);

/// Newest complete checkpoint of a run; nothing if there is none. Damaged ones are skipped with a
/// warning.
std::optional<std::string> latest_checkpoint(const std::string& run_folder);

/// Removes what killed runs left behind (temporary names whose process is gone).
void clean_checkpoints(const std::string& run_folder);

/// True if `folder` holds a run.json and every file that it lists, in full length.
bool is_complete_checkpoint(const std::string& folder);

/// A complete checkpoint, opened for reading. Error: not one, damaged.
class Checkpoint {
 public:
  explicit Checkpoint(const std::string& folder);

  const std::string& folder() const { return folder_; }
  const models::ModelConfig& config() const { return config_; }
  const RunState& state() const { return state_; }
  const ModelWeights& weights() const { return weights_; }

  void load_param(std::string_view param, graph::DType dtype, void* dst) const {
    weights_.load_param(param, dtype, dst);
  }
  bool has_optimizer() const { return optimizer_.has_value(); }
  /// `name` as in CheckpointContent::optimizer. Error: absent, or not of these dims.
  void load_optimizer(std::string_view name, const graph::TensorType& type, void* dst) const;
  /// Elements [first, first + count) of it.
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
