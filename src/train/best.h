// SPDX-License-Identifier: Apache-2.0
// The lowest held-out loss of a run's evaluations, and how long ago it was: the best checkpoint and
// early stopping.
#pragma once

#include <cstdint>
#include <limits>
#include <string>

#include "run/config.h"

namespace hocket::train {

struct Best {
  std::string set;   ///< that the loss is of; empty: the data's own held-out part
  std::string rows;  ///< fingerprint of the set's evaluated sequences; empty: not known
  int64_t step = 0;  ///< of the lowest loss; 0: none yet
  double loss = std::numeric_limits<double>::infinity();
  int64_t worse = 0;  ///< evaluations in a row since one was lower by more than min_delta

  /// Takes the loss of an evaluation. Returns whether it is the lowest.
  bool take(int64_t step, double loss, double min_delta);
  /// Returns whether the training ends, by train.early_stopping.
  bool ends(const engine::TrainSection& train) const {
    return train.early_stopping.patience > 0 && worse >= train.early_stopping.patience;
  }
};

/// Returns the state that evaluations of these rows of a set continue: `before`, or a new one where
/// its losses are of other rows.
Best continued(const Best& before, const std::string& set, const std::string& rows);

/// Writes best.json: step, loss and checkpoint.
void write_best(const std::string& path, const Best& best, const std::string& checkpoint);

}  // namespace hocket::train
