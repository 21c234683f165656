// SPDX-License-Identifier: Apache-2.0
// Samples packed into the rows of a step, whole and apart from each other, and numbers per token on
// the way there and back.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/batch.h"
#include "models/config.h"
#include "rl/advantage.h"
#include "rl/prompts.h"
#include "rl/sample.h"

namespace hocket::rl {

/// A sample as its update sees it.
struct Item {
  const Prompt* prompt = nullptr;
  const Sample* sample = nullptr;
  LossInputs* inputs = nullptr;
};

/// Returns the most micro-batches that Packing has for so many samples of at most so many places.
/// Requires: a row has room for one.
int64_t most_micro_batches(int64_t samples, int64_t places, int64_t seq_len, int64_t rows_at_once,
                           int64_t multiple);

/// Places of samples in the rows of a step. A sample of p prompt and n sampled tokens takes
/// p + n - 1 places: each sampled token is the target of the place before it.
class Packing {
 public:
  /// Fills rows of `seq_len`, the longest samples first, each into the fullest row that has room
  /// (best fit); rows are distributed to micro-batches of `rows_at_once` so that each has about as
  /// many tokens. `multiple`: divisor of the number of micro-batches. Throws Error for a sample
  /// that no row has room for.
  Packing(std::span<const Item> items, int64_t seq_len, int64_t rows_at_once, int64_t multiple);

  int64_t micro_batches() const { return micro_batches_; }
  int64_t rows() const { return micro_batches_ * rows_at_once_; }
  /// Returns the tokens of samples, prompts among them, that are computed.
  int64_t tokens() const { return tokens_; }

  /// Returns a batch with tokens, targets and positions.
  engine::Batch batch() const;
  /// Adds the inputs of policy_loss; with `samples_per_row` above 0 those of sequence_policy_loss,
  /// too. `reference`: the samples have log-probabilities of one.
  void add_inputs(engine::Batch& batch, int64_t samples_per_row) const;
  /// Adds the experts that the samples' tokens had, of the layers that have experts, `top_k` each.
  void add_routes(engine::Batch& batch, const models::ModelConfig& model) const;
  /// Adds the inputs of value_loss. Requires: the samples' weights are set, as for the policy.
  void add_critic_inputs(engine::Batch& batch) const;
  /// Returns the values of an output by token, [rows, seq_len], of every sampled token of the items
  /// in their order.
  std::vector<std::vector<double>> by_item(std::span<const double> values) const;

 private:
  struct PackedAt {
    int64_t row = 0, begin = 0;
  };
  /// Index, in [rows, seq_len], of the place that has item i's first sampled token as its target.
  size_t first_target(size_t i) const;
  template <class Get>
  std::vector<double> spread(const Get& values) const;
  void add_samples(engine::Batch& batch, int64_t samples_per_row) const;

  std::vector<Item> items_;
  const int64_t seq_len_, rows_at_once_;
  int64_t micro_batches_ = 0, tokens_ = 0;
  std::vector<PackedAt> packed_at_;  ///< by item
};

}  // namespace hocket::rl
