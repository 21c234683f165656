// SPDX-License-Identifier: Apache-2.0
// Computes the log-probabilities of the reference before the first step, of all rows that a
// preference tuning and its evaluations will read (preference.precompute_ref_log_probs).
#pragma once

#include <string>

#include "train/preference.h"

namespace hocket::train {

/// Rows of a training.
struct PreferenceRows {
  const TrainingData& data;
  const data::TrainingRows& rows;
  const data::TrainingRows* mismatched;  ///< kto: other answers behind the prompts; else null

  /// Returns the numbers of a step's rows.
  RowNumbers numbers_of(int64_t step, int64_t global_batch) const;
};

/// Fills the file, as far as it lacks something: in the batches of the steps that read a row first,
/// so that values are those of computing in every step. `steps`: of the training; 0: not known, and
/// all rows are computed. All processes call.
void compute_reference(const engine::Run& run, engine::Programs& programs,
                       const PreferenceRows& rows, int64_t steps, Preferences& preferences);

}  // namespace hocket::train
