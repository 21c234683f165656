// SPDX-License-Identifier: Apache-2.0
// State of a run in a checkpoint, conditions for resuming (docs/config.md, "Resuming"),
// requirements on the data, and the transfer of tensors between checkpoint and ranks.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "check/certificate.h"
#include "checkpoint/checkpoint.h"
#include "data/prepare.h"
#include "engine/session.h"
#include "train/best.h"
#include "train/schedule.h"
#include "train/weight_files.h"

namespace hocket::train {

/// The trainer's state in run.json beside step, seed, configuration and losses.
struct Position {
  std::string fingerprint;         ///< of the data
  check::Certificate certificate;  ///< of the program that trained; empty hashes: not known
  std::string began_with;          ///< "random, seed 1", "from <folder>"; empty: not known
  FrozenFiles frozen;              ///< files that are read again, as they were when the run began
  Course course;          ///< where the run ends; of 0 steps: a checkpoint that does not say
  int64_t skipped = 0;    ///< steps that changed nothing
  double time_s = 0;      ///< spent in steps
  Best best;              ///< of the evaluations so far
  std::string kernels;    ///< kernels::cpu_level of its last steps; empty: not known
  int64_t prompts = 0;    ///< rl: that were sampled so far, groups left out among them
  int64_t tokens = 0;     ///< rl: of samples, with their prompts, in updates so far
  int64_t generated = 0;  ///< rl: of samples, with their prompts, in steps so far, once for each
  int64_t warmups = 0;    ///< rl: steps so far that trained the critic alone
  /// Tokens before each text of examples or prompts, which none but training knows afterwards;
  /// nothing: of prepared texts. Saver sets it, data::beginning_of_text reads it, of() does not.
  std::optional<std::vector<int64_t>> beginning;

  std::string to_json() const;
  /// Throws Error if the checkpoint's state is invalid.
  static Position of(const checkpoint::Checkpoint& from);
};

/// Throws Error, naming the first key that differs with both values, unless this is the training
/// that saved the checkpoint. Model, type, seed, batches and data (its fingerprint) must be the
/// same; of examples with another fingerprint all keys that differ are named.
void check_same_training(const engine::Run& run, const std::string& data_fingerprint,
                         const checkpoint::Checkpoint& from);

/// A number of the configuration that differs from that of the run that saved a checkpoint.
struct ChangedNumber {
  std::string key;  ///< "rl.kl_coef"
  double before = 0, now = 0;
};

/// Returns the keys of section `rl` that make another loss or other samples from the checkpoint on,
/// and may: coefficients, clips, the temperature.
std::vector<ChangedNumber> changed_loss(const engine::Run& run, const checkpoint::Checkpoint& from);

/// Returns the differences to the run that saved the checkpoint: "train.lr 0.001 -> 0.01" for every
/// differing key, in order. Keys missing in the checkpoint have their default; those of `model` are
/// omitted, since they must be equal or no longer matter.
std::vector<std::string> changed_settings(const engine::Run& run,
                                          const checkpoint::Checkpoint& from);

/// Reads parameters and optimizer state of the checkpoint into a store: each local rank its own
/// part. All processes call. Throws Error, in all, if a host lacks parts of its ranks.
void restore(const checkpoint::Checkpoint& from, const engine::Compiled& compiled,
             const runtime::Store& store);

/// Writes a checkpoint of a store on the ranks of all processes, which all call, and returns its
/// path.
std::string save(const checkpoint::RunFolder& folder, const engine::Compiled& compiled,
                 const runtime::Store& store, checkpoint::CheckpointContent content);

}  // namespace hocket::train
