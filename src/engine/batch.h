// SPDX-License-Identifier: Apache-2.0
// Text for a step: training, evaluation, generation, profiling and benchmarks fill a Batch, which
// makes the inputs of a language model of it.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "data/loader.h"
#include "engine/feed.h"
#include "run/compile.h"

namespace hocket::engine {

/// The input `hyper` of step 1, 2, ... of a training (autodiff/autodiff.h).
std::vector<double> hyper_of(const OptimizerSection& optimizer, double lr, int64_t step);

/// Rows of `seq_len` tokens for all micro-batches of a step, one micro-batch after the other, and
/// the numbers of the whole step. A new batch is padding throughout: every token is a document of
/// its own, and there is nothing to predict.
struct Batch {
  Batch(int64_t rows, int64_t seq_len);

  /// Makes room for the answers of every row; none are there yet.
  void add_answers() { answers.assign(tokens.size(), -1); }
  /// Row 0 .. rows - 1, to be filled.
  data::SequenceOut row(int64_t r);
  /// Returns the number of predicted tokens; of the named rows only, if any are named.
  int64_t num_targets(const std::vector<bool>& of_rows = {}) const;
  /// Feeds by the names of a model's inputs; the batch outlives them.
  FeedMap feeds() const;

  int64_t rows, seq_len;
  std::vector<int32_t> tokens, targets, positions;  ///< [rows, seq_len]
  std::vector<int32_t> answers;  ///< likewise with add_answers(): data::SequenceOut::answers
  FeedMap more;                  ///< other inputs of the step
  int64_t first_token = 0;       ///< number of the first one in the training, for dropout
  double loss_scale = 1;         ///< of every token's loss: 1 / num_targets() makes it the mean
  std::vector<double> hyper;     ///< for a program that updates: hyper_of()
};

/// Returns a batch of the program's size: the rows of `seq_len` of its micro-batches, with expected
/// values of symbols.
Batch empty_batch(const Compiled& compiled, int64_t seq_len);

/// Rows of a batch of `rows` that ranks read.
struct RowsRead {
  std::vector<bool> here;  ///< by a rank that is here
  std::vector<bool>
      first;  ///< rows that no earlier rank has; each row is first on exactly one rank
};
RowsRead rows_read(const Compiled& compiled, const std::vector<int32_t>& ranks, int64_t rows,
                   int64_t seq_len);

}  // namespace hocket::engine
