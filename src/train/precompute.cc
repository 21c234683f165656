// SPDX-License-Identifier: Apache-2.0
#include "train/precompute.h"

#include <fmt/format.h>

#include <optional>
#include <vector>

#include "base/file.h"
#include "base/log.h"
#include "train/schedule.h"

namespace hocket::train {

namespace {

void compute_training(const engine::Run& run, const engine::Compiled& program,
                      const PreferenceRows& of, int64_t steps, Preferences& preferences,
                      Progress& progress) {
  const engine::TrainSection& train = run.config.train;
  const std::vector<bool> all(static_cast<size_t>(train.global_batch), true);
  const int64_t rows = of.rows.sequences_per_epoch();
  const std::string table = of.numbers_of(1, 0).table;
  for (int64_t step = 1; (steps == 0 || step <= steps) && preferences.known(table) < rows; ++step) {
    const RowNumbers numbers = of.numbers_of(step, train.global_batch);
    if (preferences.knows(numbers, of.mismatched != nullptr)) continue;
    engine::Batch batch = batch_of(of.rows, step, all, train.seq_len, true);
    std::optional<engine::Batch> mismatched;
    if (of.mismatched) {
      mismatched = batch_of(*of.mismatched, step, all, train.seq_len, true);
    }
    preferences.compute(batch, mismatched ? &*mismatched : nullptr,
                        program.program.num_micro_batches, numbers);
    progress.update(
        fmt::format("reference, once: {}/{} sequences", preferences.known(table), rows));
  }
}

/// Returns the tables of all rows that a training and its evaluations read.
std::vector<std::string> tables_of(const PreferenceRows& rows,
                                   const std::vector<HeldOutSet>& sets) {
  std::vector<RowNumbers> all = {rows.numbers_of(1, 0)};
  for (const HeldOutSet& set : sets) {
    all.push_back({table_of(set), {}});
  }
  std::vector<std::string> tables;
  for (const RowNumbers& numbers : all) {
    tables.push_back(numbers.table);
    if (rows.mismatched) {
      tables.push_back(numbers.mismatched());
    }
  }
  return tables;
}

void compute_held_out(const engine::Run& run, const engine::Compiled& program,
                      const HeldOutSet& set, Preferences& preferences) {
  const engine::TrainSection& train = run.config.train;
  const auto compute = [&](HeldOutBatch& of) {
    preferences.compute(of.batch, of.mismatched ? &*of.mismatched : nullptr,
                        program.program.num_micro_batches, of.numbers);
  };
  if (train.eval_every > 0) {
    for_each_batch(set, chosen_of(set, train.eval_sequences), program, true, compute);
  }
  for_each_batch(set, chosen_of(set, train.final_eval_sequences), program, true, compute);
}

}  // namespace

RowNumbers PreferenceRows::numbers_of(int64_t step, int64_t global_batch) const {
  RowNumbers numbers{"train " + data.fingerprint(), {}};
  for (int64_t row = 0; row < global_batch; ++row) {
    numbers.rows.push_back(rows.identity((step - 1) * global_batch + row));
  }
  return numbers;
}

void compute_reference(const engine::Run& run, engine::Programs& programs,
                       const PreferenceRows& rows, int64_t steps, Preferences& preferences) {
  const std::vector<HeldOutSet> sets = rows.data.held_out();
  preferences.begin_computing(join_path(run.config.output.dir, "reference_logprobs.bin"),
                              tables_of(rows, sets));
  Progress progress;
  compute_training(run, programs.compiled(), rows, steps, preferences, progress);
  for (const HeldOutSet& set : sets) {
    progress.update("reference, once: held-out sequences");
    compute_held_out(run, programs.compiled(engine::evaluation(run)), set, preferences);
  }
  progress.finish();
  preferences.end_computing();
}

}  // namespace hocket::train
