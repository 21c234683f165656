// SPDX-License-Identifier: Apache-2.0
#include "train/stepper.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <sstream>

#include "base/clock.h"
#include "base/error.h"
#include "base/text.h"
#include "graph/names.h"

namespace hocket::train {

namespace {

constexpr double kProbeEverySeconds = 5;
/// consecutive skipped steps after which the training has diverged
constexpr int64_t kMaxSkippedInARow = 10;

/// Returns the program's own decision (ops/clip.cc).
bool is_skipped(const engine::TrainSection& train, double grad_norm) {
  return !std::isfinite(grad_norm) ||
         (train.skip_grad_norm > 0 && grad_norm > train.skip_grad_norm);
}

}  // namespace

Stepper::Stepper(const engine::Run& run, engine::Session& session, StepperParts parts,
                 StepsDone done)
    : run_(run),
      section_(run.config.train),
      session_(session),
      parts_(std::move(parts)),
      done_(std::move(done)),
      saved_ns_(now_ns()),
      memory_(run),
      probe_(kernels::cpu_backend()) {}

bool Stepper::is_first() const { return session_.ranks().processes().index() == 0; }

int Stepper::prepare(int word) {
  begin_ns_ = now_ns();
  StepData data = parts_.data(done_.step + 1);
  batch_ = std::move(data.batch);
  steps_ = data.session != nullptr ? data.session : &session_;
  const bool late =
      section_.save_minutes > 0 && seconds_since(saved_ns_) >= section_.save_minutes * 60;
  // One exchange: the total number of targets, all processes' requests, and the first one's clock.
  int64_t targets = 0;
  int largest = 0;
  const std::vector<std::string> all = session_.ranks().processes().all_gather(
      fmt::format("{} {} {}", word, data.targets, late ? 1 : 0));
  for (size_t i = 0; i < all.size(); ++i) {
    std::istringstream in(all[i]);
    int64_t said = 0, counted = 0, saves = 0;
    in >> said >> counted >> saves;
    largest = std::max(largest, static_cast<int>(said));
    targets += counted;
    if (i == 0) {
      time_to_save_ = saves != 0;
    }
  }
  batch_->loss_scale = 1.0 / static_cast<double>(std::max<int64_t>(targets, 1));
  return largest;
}

/// Runs a step. Its time goes from fetching its tokens to having its loss.
StepMetrics Stepper::run(double learning_rate) {
  HOCKET_CHECK(batch_.has_value(), "step {} runs without its data", done_.step + 1);
  StepMetrics metrics = parts_.known;
  metrics.step = done_.step + 1;
  metrics.lr = learning_rate;
  // The bias correction counts the steps that were not skipped.
  batch_->hyper =
      engine::hyper_of(run_.config.optimizer, learning_rate, metrics.step - done_.skipped);
  metrics.tokens = batch_->rows * batch_->seq_len;
  batch_->first_token = done_.step * metrics.tokens;
  steps_->feed(*batch_);
  steps_->step();
  metrics.loss = steps_->loss();
  metrics.step_s = seconds_since(begin_ns_);
  metrics.grad_norm = steps_->collect_as<double>(graph::names::kGradNorm)[0];
  batch_.reset();
  judge(metrics);
  done_.step = metrics.step;
  done_.seconds += metrics.step_s;
  done_.losses.push_back({metrics.step, metrics.loss});
  recent_step_s_ =
      recent_step_s_ == 0 ? metrics.step_s : 0.9 * recent_step_s_ + 0.1 * metrics.step_s;
  memory_.after_step(*steps_, parts_.planned);
  complete(metrics);
  parts_.metrics(metrics);
  return metrics;
}

StepMetrics Stepper::skip(double learning_rate) {
  begin_ns_ = now_ns();
  steps_ = nullptr;
  StepMetrics metrics = parts_.known;
  metrics.step = ++done_.step;
  metrics.lr = learning_rate;
  metrics.loss = metrics.grad_norm = std::numeric_limits<double>::quiet_NaN();
  metrics.skipped = ++done_.skipped;
  complete(metrics);
  parts_.metrics(metrics);
  return metrics;
}

/// Decides whether the step counts, is skipped, or ends the run.
void Stepper::judge(StepMetrics& metrics) {
  const bool skipped = is_skipped(section_, metrics.grad_norm);
  const bool goes_on =
      skipped && (std::isfinite(metrics.grad_norm) || section_.on_nonfinite == "skip");
  const std::string loss = fmt::format("loss {} and gradient norm {}", number_text(metrics.loss),
                                       number_text(metrics.grad_norm));
  if (!goes_on && !(std::isfinite(metrics.loss) && std::isfinite(metrics.grad_norm))) {
    const std::string reason = fmt::format("step {}: {}", metrics.step, loss);
    if (skipped) {
      save_unchanged(reason);
    }
    fail_run("train", "{}; {}; try a lower train.lr{}", reason, parts_.last_checkpoint(),
             skipped ? ", or train.on_nonfinite: skip" : "");
  }
  const int64_t skipped_in_a_row = skipped ? skipped_in_a_row_ + 1 : 0;
  if (skipped_in_a_row == kMaxSkippedInARow) {
    const std::string reason =
        fmt::format("steps {} to {} were all skipped, the last with {}",
                    metrics.step - kMaxSkippedInARow + 1, metrics.step, loss);
    save_unchanged(reason);
    fail_run("train", "{}; {}; try a lower train.lr, or another train.skip_grad_norm than {}",
             reason, parts_.last_checkpoint(), section_.skip_grad_norm);
  }
  skipped_in_a_row_ = skipped_in_a_row;
  done_.skipped += skipped ? 1 : 0;
  metrics.skipped = done_.skipped;
}

void Stepper::save_unchanged(const std::string& reason) {
  if (parts_.save_before_failure) {
    parts_.save_before_failure(reason);
  }
}

/// Adds the position of the run, and measurements beside the step.
void Stepper::complete(StepMetrics& metrics) {
  if (is_first() && !run_.config.emulate.on() && seconds_since(probed_ns_) >= kProbeEverySeconds) {
    metrics.probe_flops = probe_.flops_per_s();
    probed_ns_ = now_ns();
  }
  metrics.tokens_seen = metrics.step * metrics.tokens;
  metrics.time_s = done_.seconds;
  metrics.world = run_.plan.world();
  metrics.peak_bytes = memory_.most();
  metrics.planned_bytes = engine::most_planned(parts_.planned);
  if (steps_ != nullptr) {
    metrics.expert_load = expert_load(*steps_);
  }
  metrics.emulated = run_.config.emulate.on();
  if (parts_.measure) {
    parts_.measure(metrics);
  }
}

bool Stepper::save_is_due() const {
  return time_to_save_ || (section_.save_every > 0 && done_.step % section_.save_every == 0);
}

void Stepper::save() {
  parts_.save(done_);
  time_to_save_ = false;
  saved_ns_ = now_ns();
}

}  // namespace hocket::train
