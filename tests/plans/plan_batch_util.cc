// SPDX-License-Identifier: Apache-2.0
// Implements plan_util.h: batches of random cases.
#include <algorithm>
#include <utility>
#include <vector>

#include "graph/names.h"
#include "plan_util.h"
#include "train/preference.h"

namespace hocket::test {

namespace {

/// Gives a batch answers of preferences: tokens of any place in their row.
void add_random_answers(const engine::Compiled& compiled, const engine::Run& run, Rng& rng,
                        engine::Batch* batch) {
  batch->add_answers();
  const auto most = static_cast<uint64_t>(run.config.preference.answers_per_sequence);
  for (int64_t r = 0; r < batch->rows; ++r) {
    const data::SequenceOut row = batch->row(r);
    const bool has_pair = row.answers.size() > 1 && rng.below(4) > 0;
    for (size_t k = 0; has_pair && k < row.answers.size(); ++k) {
      // Both answers of the first pair are there; those of others if they come in pairs.
      row.answers[k] = k < 2 ? static_cast<int32_t>(k) : static_cast<int32_t>(rng.below(2));
      if (k + 1 < row.answers.size() && k >= 2 && rng.below(3) == 0) {
        const auto other = static_cast<int32_t>(2 * rng.below(most));
        row.answers[k] = other;
        row.answers[++k] = other + 1;
      }
    }
  }
  for (int32_t& answer : batch->answers) {
    if (run.config.objective == engine::Objective::kto && answer >= 0) {
      answer += answer / 2 % 2 - answer % 2;  // one side each
    }
  }
  const int64_t micro_batches = compiled.program.num_micro_batches;
  train::AnswerPlaces places(run, batch->rows, micro_batches);
  places.number(*batch);
  std::vector<double> reference, divergences;
  for (int64_t i = 0; i < places.size(); ++i) {
    reference.push_back(-20 * rng.uniform());
  }
  for (int64_t m = 0; m < micro_batches; ++m) {
    divergences.push_back(rng.uniform());
  }
  batch->more.keep(graph::names::kReference, std::move(reference));
  batch->more.keep(graph::names::kDivergence, std::move(divergences));
  batch->loss_scale = 1.0 / static_cast<double>(std::max<int64_t>(places.count(), 1));
}

}  // namespace

engine::Batch random_batch(const engine::Compiled& compiled, const engine::Run& run, int step,
                           uint64_t seed) {
  Rng rng(seed * 7919 + static_cast<uint64_t>(step));
  const auto vocab = static_cast<uint64_t>(run.model.vocab_size);
  engine::Batch batch = engine::empty_batch(compiled, run.config.train.seq_len);
  for (int64_t r = 0; r < batch.rows; ++r) {
    const data::SequenceOut row = batch.row(r);
    for (size_t k = 0; k < row.tokens.size(); ++k) {
      row.tokens[k] = static_cast<int32_t>(rng.below(vocab));
      const bool ignored = rng.below(8) == 0;
      row.targets[k] = ignored ? data::kIgnoredTarget : static_cast<int32_t>(rng.below(vocab));
      const bool begins = k == 0 || rng.below(4) == 0;
      row.positions[k] = begins ? 0 : row.positions[k - 1] + 1;
    }
  }
  batch.loss_scale = 1.0 / static_cast<double>(std::max<int64_t>(batch.num_targets(), 1));
  batch.hyper = engine::hyper_of(run.config.optimizer, run.config.train.lr, step + 1);
  batch.first_token = step * batch.rows * batch.seq_len;
  if (run.config.prefers()) {
    add_random_answers(compiled, run, rng, &batch);
  }
  return batch;
}

}  // namespace hocket::test
