// SPDX-License-Identifier: Apache-2.0
// Preference tuning (objectives dpo and kto): answers of a step, their log-probabilities under the
// frozen reference, and the metrics of the step.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/batch.h"
#include "engine/programs.h"
#include "train/evaluate.h"
#include "train/frozen_model.h"
#include "train/reference_logprobs.h"

namespace hocket::train {

/// Places of a step's answers, equally many per row: first those of a micro-batch's first row, then
/// those of the next. A row of dpo has pairs, each of a chosen and a rejected answer.
class AnswerPlaces {
 public:
  AnswerPlaces(const engine::Run& run, int64_t rows, int64_t micro_batches);

  /// Numbers a batch's answers (data::SequenceOut::answers) by their places, and adds the inputs
  /// answers, answer_weights, answer_lengths and answer_sides. Throws Error for a row with more
  /// answers than a sequence has room for, or for half a pair.
  void number(engine::Batch& batch);
  /// Returns the pairs (dpo) or answers (kto) of a step that its loss averages over; of the named
  /// rows only, if any are named.
  int64_t count(const std::vector<bool>& of_rows = {}) const;

  int64_t per_micro_batch() const { return per_row_ * rows_ / micro_batches_; }
  int64_t size() const { return per_row_ * rows_; }
  /// Sides of the places: 1 chosen or desirable, -1 rejected or undesirable, 0 no answer.
  const std::vector<int32_t>& sides() const { return sides_; }
  /// Numbers of the answers' tokens; 1 at a place without an answer.
  const std::vector<double>& lengths() const { return lengths_; }

 private:
  /// Place in its row of an answer as the data number it.
  int64_t place_in_row(int32_t answer) const;

  const engine::RunConfig& config_;
  const int64_t rows_, micro_batches_, per_row_;
  std::vector<double> weights_, lengths_;
  std::vector<int32_t> sides_;
};

/// Estimate of the policy's divergence from the reference, for kto: the mean of the differences of
/// log-probabilities over all mismatched answers of a step, or of an evaluation.
struct Divergence {
  double sum = 0;
  int64_t answers = 0;

  void add(const Divergence& other) {
    sum += other.sum;
    answers += other.answers;
  }
  /// Returns the mean, at least 0.
  double value() const {
    return answers > 0 ? std::max(0.0, sum / static_cast<double>(answers)) : 0;
  }
};

/// Inputs of a step's loss and metrics, beside the policy's log-probabilities.
struct PreferenceInputs {
  AnswerPlaces places;
  std::vector<double> reference;     ///< log-probability of every place
  std::optional<double> divergence;  ///< kto: Divergence::value()
};

/// Outputs of a step under the policy, by place: sums over an answer's tokens of their
/// log-probabilities, mean logits, entropies, and misses (ops/token_logprobs.cc).
struct AnswerOutputs {
  std::vector<double> logprobs, logits, entropies, misses;
};

/// Sums of a step's answers, for their means over steps. The divergence is that of the last one.
class PreferenceStats {
 public:
  explicit PreferenceStats(const engine::RunConfig& config) : config_(config) {}
  void add(const PreferenceInputs& inputs, const AnswerOutputs& outputs);
  Values means() const;

 private:
  struct Sum {
    double logps = 0, rewards = 0, logits = 0, entropies = 0, misses = 0, tokens = 0;
    int64_t count = 0;
    double mean_reward() const { return rewards / static_cast<double>(count); }
    void put(const char* side, Values* values) const;
  };
  const engine::RunConfig& config_;
  Sum chosen_, rejected_;
  double margins_ = 0;
  std::optional<double> divergence_;
  int64_t right_ = 0;
};

/// The steps that a batch of answers needs before that of its loss, and the frozen reference.
class Preferences {
 public:
  /// `policy`: the programs of the trained model. Requires: run and programs outlive it.
  Preferences(const engine::Run& run, engine::Programs& policy);

  /// Returns the program of a reference with a store of its own in every step, else null; nothing
  /// is taken of the ranks for it.
  const engine::Compiled* compiled();
  /// Reads the reference's weights: those of preference.reference, else those that a training
  /// begins with. All processes call.
  void load();
  /// Numbers the answers of a batch and adds the inputs of its loss; `divergence`: with kto.
  /// `numbers`: of its rows. All processes call.
  PreferenceInputs prepare(engine::Batch& batch, std::optional<double> divergence,
                           int64_t micro_batches, const RowNumbers& numbers);
  /// Returns the divergence on a batch of kto's mismatched rows; `numbers`: of the rows with their
  /// own answers. All processes call.
  Divergence divergence_of(engine::Batch& mismatched, int64_t micro_batches,
                           const RowNumbers& numbers);

  /// Reads these tables of the file of this reference, with preference.precompute_ref_log_probs.
  /// From here to end_computing(), compute() adds to it. All processes call.
  void begin_computing(const std::string& path, const std::vector<std::string>& tables);
  /// Returns whether the reference's values of all rows of a batch are known.
  bool knows(const RowNumbers& numbers, bool mismatched) const;
  /// Computes the values that prepare() needs of the reference for this batch, and writes the file
  /// every train.save_minutes. All processes call.
  void compute(engine::Batch& batch, engine::Batch* mismatched, int64_t micro_batches,
               const RowNumbers& numbers);
  /// Writes the file if there is something new, and gives the reference's memory back.
  void end_computing();
  /// Returns the rows of a table with known values.
  int64_t known(const std::string& table) const { return stored_->size(table); }

  const FrozenModel& reference() const { return reference_; }

 private:
  std::vector<double> of_reference(const engine::Batch& batch, int64_t micro_batches);
  /// Computes the values of a batch's rows in a table, unless they are known.
  void compute_table(engine::Batch& batch, int64_t micro_batches, const std::string& table,
                     const std::vector<int64_t>& rows);
  /// Returns the values that a step needs: kept, or computed now.
  std::vector<double> values_of(const engine::Batch& batch, int64_t micro_batches,
                                const std::string& table, const std::vector<int64_t>& rows);
  /// Writes the file if there is something new.
  void write_values();
  std::string identity() const;
  std::vector<double> of_policy(const engine::Batch& batch, int64_t micro_batches);

  const engine::Run& run_;
  engine::Programs& policy_;
  TrainedReaders readers_;
  FrozenModel reference_;
  std::unique_ptr<ReferenceLogprobs> stored_;  ///< null: they are computed in every step
  std::string stored_in_;                      ///< the file
  bool new_values_ = false;
  int64_t written_ns_ = 0;  ///< when the file was read or written
};

/// Returns the outputs of a session's last step, of training or of an evaluation.
AnswerOutputs answer_outputs(const engine::Session& session);

}  // namespace hocket::train
