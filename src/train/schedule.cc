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
/// Steps that are measured before the first correction.
constexpr int64_t kFirstMeasured = 10;
/// More than any run has.
constexpr double kMaxTrainSteps = 1e15;

/// Steps that fit into `seconds`, evaluations beside them.
int64_t steps_in(const engine::TrainSection& train, double seconds, double step_s) {
  const double each_s = step_s * (1 + (train.eval_every > 0 ? kBesideSteps : 0));
  return static_cast<int64_t>(std::clamp(seconds / each_s, 0.0, kMaxTrainSteps));
}

/// Returns the completed share of the way behind the warm-up, after a step.
double share_done(const engine::TrainSection& train, int64_t step, const Course& course) {
  const int64_t from = std::max(warmup_steps(train, course), course.since);
  const double span = static_cast<double>(std::max<int64_t>(1, course.steps - from));
  const double x = std::min(1.0, static_cast<double>(step - from) / span);
  return course.done + (1 - course.done) * x;
}

/// Returns a decay from 1 to 0 at a share of its way.
double decayed(const std::string& form, double x) {
  if (form == "cosine") return 0.5 * (1 + std::cos(std::numbers::pi * x));
  return form == "1-sqrt" ? 1 - std::sqrt(x) : 1 - x;
}

/// Returns the share of the peak learning rate above the final one, at a share of the way behind
/// the warm-up.
double height(const engine::TrainSection& train, const Course& course, double x) {
  if (train.schedule == "constant") return 1;
  if (train.schedule != "wsd") return decayed(train.schedule, x);
  const int64_t way = std::max<int64_t>(1, course.steps - warmup_steps(train, course));
  const double steps = std::ceil(train.decay_share * static_cast<double>(course.steps));
  const double share = std::min(1.0, steps / static_cast<double>(way));
  return x <= 1 - share ? 1 : decayed(train.decay, (x - (1 - share)) / share);
}

}  // namespace

int64_t steps_of_epochs(const engine::TrainSection& train, int64_t sequences_per_epoch) {
  const double sequences = train.epochs * static_cast<double>(sequences_per_epoch);
  const double steps = std::ceil(sequences / static_cast<double>(train.global_batch));
  return static_cast<int64_t>(std::clamp(steps, 1.0, kMaxTrainSteps));
}

std::string note_of_step(const engine::TrainSection& train, int64_t sequences_per_epoch) {
  if (train.global_batch <= sequences_per_epoch) return "";
  return fmt::format(
      "a step of train.global_batch {} reads the data {:.1f} times: an epoch has {}",
      train.global_batch,
      static_cast<double>(train.global_batch) / static_cast<double>(sequences_per_epoch),
      counted(sequences_per_epoch, "sequence"));
}

int64_t warmup_steps(const engine::TrainSection& train, const Course& course) {
  if (!train.warmup_share) return train.warmup_steps;
  const auto steps =
      static_cast<int64_t>(std::ceil(*train.warmup_share * static_cast<double>(course.steps)));
  // Behind its end the warm-up does not come back with another number of steps.
  return course.since > 0 ? std::min(steps, course.since) : steps;
}

int64_t decide_steps(const engine::TrainSection& train, double predicted_s, const StepsDone& done) {
  const bool measured = done.step > 0 && done.seconds > 0;
  const double step_s = measured ? done.seconds / static_cast<double>(done.step) : predicted_s;
  const int64_t steps =
      std::max<int64_t>(1, corrected_steps(train, done.step, done.seconds, step_s));
  fmt::print("{} minutes at {} {} per step: {}\n", train.minutes, human_time(step_s),
             measured ? "measured" : "predicted", counted(steps, "step"));
  std::fflush(stdout);
  return steps;
}

int64_t corrected_steps(const engine::TrainSection& train, int64_t done, double seconds,
                        double step_s) {
  // Evaluations took their share of the time that is gone, too.
  const double beside = train.eval_every > 0 ? kBesideSteps : 0;
  return done + steps_in(train, train.minutes * 60 - seconds * (1 + beside), step_s);
}

int64_t next_correction(int64_t done, int64_t steps) {
  return done + std::clamp<int64_t>((steps - done) / 2, 1, std::max(kFirstMeasured, done));
}

Course Course::with_end(const engine::TrainSection& train, int64_t step, int64_t end) const {
  if (step <= warmup_steps(train, *this)) return {end, 0, 0};
  return {end, step, share_done(train, step, *this)};
}

double learning_rate(const engine::TrainSection& train, int64_t step, const Course& course) {
  if (const int64_t warmup = warmup_steps(train, course); step <= warmup) {
    return train.lr * static_cast<double>(step) / static_cast<double>(warmup);
  }
  const double end = train.final_lr();
  return end + (train.lr - end) * height(train, course, share_done(train, step, course));
}

void warn_of_schedule(const engine::TrainSection& train, int64_t steps) {
  if (train.min_lr && *train.min_lr > train.lr) {
    log_warning(
        "train.min_lr is {:g}, above train.lr: the learning rate stays at {:g} after the "
        "warm-up",
        *train.min_lr, train.lr);
  }
  if (const int64_t warmup = warmup_steps(train, {steps}); warmup > steps) {
    log_warning(
        "train.warmup_steps is {}, but the training has {} step{}: the learning rate ends "
        "at {:.6g} instead of {:g}",
        warmup, steps, steps == 1 ? "" : "s", learning_rate(train, steps, steps), train.lr);
  }
}

engine::Batch batch_of(const data::TrainingRows& from, int64_t step,
                       const std::vector<bool>& wanted, int64_t seq_len, bool answers) {
  const int64_t rows = std::ssize(wanted);
  engine::Batch batch(rows, seq_len);
  if (answers) {
    batch.add_answers();
  }
  for (int64_t row = 0; row < rows; ++row) {
    if (wanted[static_cast<size_t>(row)]) {
      from.fill((step - 1) * rows + row, batch.row(row));
    }
  }
  return batch;
}

}  // namespace hocket::train
