// SPDX-License-Identifier: Apache-2.0
// The frozen reference of a preference tuning or of reinforcement learning: the policy without its
// adapter, or a model in a store of its own on the same ranks.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "engine/programs.h"

namespace hocket::train {

/// Forward programs on the parameters of a training as they are now.
class TrainedReaders {
 public:
  /// Requires: the programs outlive it.
  explicit TrainedReaders(engine::Programs& trained) : trained_(trained) {}
  /// Returns a session of this program on the parameters as they are now. All processes call.
  engine::Session& now(const engine::ProgramSpec& spec);
  void clear() { readers_.clear(); }

 private:
  engine::Programs& trained_;
  std::map<std::string, std::unique_ptr<engine::ParameterReader>> readers_;  ///< by specs' keys
};

class FrozenModel {
 public:
  /// `model`: MODEL; empty: the weights that a training begins with, or under an adapter the model
  /// without it. Under an adapter it has a store of its own where modules are trained in full
  /// beside that. Its programs are inspected as the policy's. Requires: run, policy and readers
  /// outlive it.
  FrozenModel(const engine::Run& run, const std::string& model, engine::Programs& policy,
              TrainedReaders& readers);
  ~FrozenModel();

  /// Returns the run of the frozen model.
  const engine::Run& run() const { return frozen_; }
  /// Returns whether it is the policy without its adapter, and has no store of its own.
  bool shares_store() const { return shares_; }
  /// Returns whether MODEL was given.
  bool is_named() const { return named_; }
  /// Returns where its weights are from: "random, seed 1", "the model without its adapter".
  const std::string& described() const { return described_; }
  /// Returns the program of log-probabilities (engine::logprobs).
  engine::ProgramSpec spec(const engine::Sizes& sizes) const;
  /// The program, of a model with a store of its own; nothing is taken of the ranks for it.
  const engine::Compiled& compiled(const engine::Sizes& sizes);
  /// Reads the weights, unless it shares a store or has them. All processes call.
  void load(const engine::Sizes& sizes);
  /// Returns a session that is ready to run. Requires: load(). All processes call.
  engine::Session& session(const engine::Sizes& sizes);
  /// Gives its memory back; it is not used any more.
  void release();

 private:
  const engine::Run& run_;
  engine::Run frozen_;
  engine::Programs& policy_;
  TrainedReaders& readers_;
  const bool named_;
  bool shares_ = false, loaded_ = false;
  std::unique_ptr<engine::Programs> programs_;  ///< null: it shares the policy's store
  std::string described_;
};

}  // namespace hocket::train
