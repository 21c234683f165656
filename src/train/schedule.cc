// SPDX-License-Identifier: Apache-2.0
#include "train/schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numbers>

#include "base/log.h"
#include "base/text.h"

namespace hocket::train {

namespace {

/// Share of a run's time that goes into evaluations and checkpoints, added to that of the steps:
/// 4 % at the quickstart's intervals.
constexpr double kBesideSteps = 0.04;

}  // namespace

int64_t decide_steps(const engine::TrainSection& train, double step_s) {
  const double each_s = step_s * (1 + (train.eval_every > 0 ? kBesideSteps : 0));
  const int64_t steps = std::max<int64_t>(1, static_cast<int64_t>(train.minutes * 60 / each_s));
  fmt::print("{} minutes at {} predicted per step: {} steps\n", train.minutes, human_time(step_s),
             steps);
  std::fflush(stdout);
  return steps;
}

double learning_rate(const engine::TrainSection& train, int64_t step, int64_t steps) {
  if (step <= train.warmup_steps) {
    return train.lr * static_cast<double>(step) / static_cast<double>(train.warmup_steps);
  }
  const double span = static_cast<double>(std::max<int64_t>(1, steps - train.warmup_steps));
  const double x = std::min(1.0, static_cast<double>(step - train.warmup_steps) / span);
  const double end = train.final_lr();
  return end + (train.lr - end) * 0.5 * (1 + std::cos(std::numbers::pi * x));
}

void tell_schedule(const engine::TrainSection& train, int64_t steps) {
  if (train.min_lr && *train.min_lr > train.lr) {
    log_warning(
        "train.min_lr is {:g}, above train.lr: the learning rate stays at {:g} after the "
        "warm-up",
        *train.min_lr, train.lr);
  }
  if (train.warmup_steps > steps) {
    log_warning(
        "train.warmup_steps is {}, but the training has {} step{}: the learning rate ends "
        "at {:.6g} instead of {:g}",
        train.warmup_steps, steps, steps == 1 ? "" : "s", learning_rate(train, steps, steps),
        train.lr);
  }
}

engine::Batch batch_of(const data::PackedLoader& loader, int64_t step,
                       const std::vector<bool>& wanted, int64_t seq_len) {
  const int64_t rows = std::ssize(wanted);
  engine::Batch batch(rows, seq_len);
  for (int64_t row = 0; row < rows; ++row) {
    if (wanted[static_cast<size_t>(row)]) {
      loader.fill((step - 1) * rows + row, batch.row(row));
    }
  }
  return batch;
}

}  // namespace hocket::train
