// SPDX-License-Identifier: Apache-2.0
// Samples packed into the rows of a step, whole, those of a prompt behind its tokens, and numbers
// per token on the way there and back.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/batch.h"
#include "models/config.h"
#include "rl/advantage.h"
#include "rl/prompts.h"
#include "rl/sample.h"
#include "run/compile.h"

namespace hocket::rl {

/// A sample as its update sees it.
struct Item {
  const Prompt* prompt = nullptr;
  const Sample* sample = nullptr;
  LossInputs* inputs = nullptr;
};

/// Returns the most micro-batches that Packing makes of `samples` samples with at most `places`
/// tokens each. Requires: places <= seq_len.
int64_t most_micro_batches(int64_t samples, int64_t places, int64_t seq_len, int64_t rows_at_once,
                           int64_t multiple);

/// Sizes of the rows that a program takes.
struct RowLimits {
  int64_t seq_len = 0;
  int64_t ranks = 1;     ///< that divide the rows of a micro-batch equally
  int64_t most = 1;      ///< rows of a micro-batch
  bool fewer = true;     ///< programs of fewer rows may be compiled, too
  int64_t multiple = 1;  ///< divisor of the number of micro-batches
  bool shares = true;    ///< samples of a prompt share its places

  /// `multiple`: divisor of the number of micro-batches. Ranks of cp cut rows, and tokens far apart
  /// do not share places.
  static RowLimits of(const engine::Run& run, int64_t multiple);
};

/// Places of samples in the rows of a step. Each sampled token is the target of the place before
/// it. A sample of n tokens has n places, from that of its prompt's last token on. The tokens
/// before that take places once for samples of a prompt that are side by side: the first goes on
/// behind them, the others are branches (ops/attention.cc).
class Packing {
 public:
  /// Fills rows, the longest prompts with their samples first, each into the fullest row that has
  /// room (best fit). A group that no row has room for is divided: the prompt is repeated in
  /// another row if its samples there have at least as many tokens as it has. Rows are distributed
  /// to micro-batches so that each has about as many tokens. Samples of a prompt are next to each
  /// other in `items`. Throws Error for a sample that no row has room for.
  Packing(std::span<const Item> items, const RowLimits& limits);

  int64_t micro_batches() const { return micro_batches_; }
  int64_t rows() const { return micro_batches_ * rows_at_once_; }
  /// Returns the sizes of the program that takes the rows.
  engine::Sizes sizes() const {
    return {.micro_batch = limits_.fewer ? rows_at_once_ / limits_.ranks : 0,
            .num_micro_batches = micro_batches_};
  }
  /// Returns the places of samples and prompts that are computed.
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
  /// Where a sample's places begin, and how many tokens of its prompt stand before them for it.
  struct PackedAt {
    int64_t row = 0, begin = 0, before = 0;
  };
  class Rows;
  void place(Rows& rows, std::span<const size_t> samples);
  void distribute(const Rows& rows);
  /// Index, in [rows, seq_len], of the place that has item i's first sampled token as its target.
  size_t first_target(size_t i) const {
    return static_cast<size_t>(packed_at_[i].row * limits_.seq_len + packed_at_[i].begin);
  }
  template <class Get>
  std::vector<double> spread(const Get& values) const;
  void add_samples(engine::Batch& batch, int64_t samples_per_row) const;

  std::vector<Item> items_;
  const RowLimits limits_;
  int64_t micro_batches_ = 0, rows_at_once_ = 0, tokens_ = 0;
  std::vector<PackedAt> packed_at_;  ///< by item
};

}  // namespace hocket::rl
