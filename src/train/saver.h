// SPDX-License-Identifier: Apache-2.0
// Checkpoints of a run during training, and the message about the newest one when a run ends.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "checkpoint/model_files.h"
#include "checkpoint/run_folder.h"
#include "data/prepare.h"
#include "engine/session.h"
#include "train/resume.h"
#include "train/stop.h"
#include "train/training_data.h"

namespace hocket::train {

/// Returns the folder of a run's checkpoints.
std::string checkpoint_folder(const engine::Run& run);

class Saver {
 public:
  Saver(const engine::Run& run, StopSignals& stop) : run_(run), stop_(stop) {}

  /// Looks at the folder of the checkpoints, with all processes of the ranks. Before all else.
  void open(const runtime::LocalRanks& ranks);
  const checkpoint::RunFolder& folder() const { return *folder_; }

  /// Reads the files that go into every checkpoint: those beside the weights that the run starts
  /// from, or the tokenizer of the data; with the chat template that the run names. Returns
  /// sentences about changes and omissions.
  std::vector<std::string> read_files(const RunData& data);
  /// Adds a file to the checkpoints to come, beside those of read_files(); without text: removes
  /// it.
  void set_file(const std::string& name, std::string text);
  /// Sets the newest checkpoint, at first the one that the run starts from; empty: none. From then
  /// on a signal that ends the process says it.
  void set_last(const std::string& checkpoint);
  /// Saves the ranks' tensors after `step`; all processes call. Returns the checkpoint's path.
  /// Throws Error, and saves nothing, if a parameter or optimizer state is not finite.
  const std::string& save(int64_t step, const engine::Session& session, const RunData& data,
                          const Position& position,
                          const std::vector<std::pair<int64_t, double>>& losses);
  /// Removes those before `step` that are beyond train.keep_last, but for that of step `best`.
  void prune(int64_t step, int64_t best) const;
  /// Returns the folder of a step's checkpoint.
  std::string folder_of(int64_t step) const;
  /// Runs `write`; adds the newest checkpoint to its error (a full disk).
  template <typename Write>
  void storing(const Write& write) const {
    try {
      write();
    } catch (const Error& error) {
      named_checkpoint_ = true;
      throw error.with(last_or_none(" is complete, and the same command goes on from it"));
    }
  }
  /// Returns whether storing() has thrown an error, which names the newest checkpoint.
  bool named_checkpoint() const { return named_checkpoint_; }
  /// Returns "there is no checkpoint yet", or the newest followed by `what`.
  std::string last_or_none(const std::string& what) const;

 private:
  const engine::Run& run_;
  StopSignals& stop_;
  std::optional<checkpoint::RunFolder> folder_;
  checkpoint::ModelFiles files_;
  std::optional<std::vector<int64_t>> beginning_;  ///< of the texts of examples or prompts
  std::optional<models::LoraPlan> adapter_;        ///< that is trained
  std::string last_;                               ///< empty: none
  mutable bool named_checkpoint_ = false;
};

}  // namespace hocket::train
