// SPDX-License-Identifier: Apache-2.0
// Implements: measure, evaluate, save (training.h): metrics, samples, the report, checkpoints.
#include <fmt/format.h>

#include <cmath>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/file.h"
#include "base/json_writer.h"
#include "base/text.h"
#include "kernels/backend.h"
#include "rl/training.h"

namespace hocket::rl {

/// Adds the metrics of a step and its update; seconds are those up to this update's end.
void Training::measure(train::StepMetrics& metrics) {
  metrics.values = step_values_;
  learner_->measure(metrics);
  tokens_ += metrics.tokens;
  metrics.tokens_seen = tokens_;
  metrics.values.push_back({"rl/prompts", static_cast<double>(prompts_ + step_prompts_)});
  metrics.values.push_back(
      {"rl/cached_tokens", static_cast<double>(sampling_->stats().cached_tokens)});
  metrics.values.push_back({"rl/preemptions", static_cast<double>(sampling_->stats().preemptions)});
  metrics.values.push_back({"num_tokens", static_cast<double>(generated_ + step_generated_)});
  for (const train::ChangedNumber& change : start_.changed_loss) {
    metrics.values.push_back({"changed/" + change.key, change.now});
  }
  start_.changed_loss.clear();
  metrics.values.push_back({"timing_s/gen", sampling_->sampling_s()});
  metrics.values.push_back({"timing_s/reward", sampling_->waiting_s()});
  metrics.values.push_back({"timing_s/old_log_prob", learner_->old_s()});
  metrics.values.push_back({"timing_s/ref", learner_->reference_s()});
  metrics.values.push_back({"timing_s/update_actor", metrics.step_s});
  metrics.values.push_back({"timing_s/step", seconds_since(step_begin_ns_)});
}

void Training::report_step(const train::StepMetrics& metrics) {
  record(train::to_line(metrics));
  const auto value = [&](const char* name) {
    for (const auto& [key, number] : metrics.values) {
      if (key == name) return number;
    }
    return 0.0;
  };
  const Mismatch& mismatch = learner_->mismatch();
  const std::string groups = rl_.samples_per_prompt > 1 ? fmt::format("equal groups {:.2f}  ",
                                                                      value("frac_reward_zero_std"))
                                                        : "";
  if (std::isnan(metrics.loss)) {
    progress_->update(fmt::format(
        "update {}/{}  reward {:.3f}  length {:.1f}  nothing to train: no token counts in the loss",
        metrics.step, course_.steps, value("reward"), value("completions/mean_length")));
    return;
  }
  progress_->update(fmt::format(
      "update {}/{}  reward {:.3f}  entropy {:.3f}  length {:.1f}  clipped {:.3f}  {}loss {:.4f}  "
      "sampling {}, update {}  log-probabilities differ {}",
      metrics.step, course_.steps, value("reward"), value("entropy"),
      value("completions/mean_length"), value("clip_ratio/region_mean"), groups, metrics.loss,
      human_time(sampling_->sampling_s()), human_time(metrics.step_s),
      mismatch.tokens > 0 ? mismatch.text() : "unmeasured"));
}

/// Samples held-out prompts and scores them.
void Training::evaluate(bool final) {
  const int64_t step = stepper_->done().step;
  if (data_.held_out().empty() || (evaluated_ == step && !final)) return;
  evaluated_ = step;
  const int64_t begin = now_ns();
  train::Values values;
  const std::string& deciding = deciding_reward(rl_);
  for (const PromptSet& set : data_.held_out()) {
    const Evaluated evaluated =
        sampling_->evaluate(set, step, [this] { return stop_.requested(); });
    if (evaluated.stopped != 0) return;
    if (!is_first()) continue;
    const PromptOf prompt_of = [&](size_t i) -> const Prompt& { return *evaluated.prompts[i]; };
    report_.take_evaluation(set.name, step, evaluated.samples, prompt_of);
    const std::string group = set.name.empty() ? "" : set.name + "/";
    if (rl_.trajectories) {
      write_samples(evaluated.samples, {}, prompt_of,
                    fmt::format("eval-{}{:06d}", set.name.empty() ? "" : set.name + "-", step));
    }
    for (const auto& [name, value] :
         evaluation_metrics(evaluated.samples, rl_.eval_samples, deciding, rl_.right_from)) {
      values.push_back({"eval/" + group + name, value});
    }
  }
  if (!is_first()) return;
  JsonWriter line;
  line.object().member("step", step).member("time_s", stepper_->done().seconds);
  for (const auto& [name, value] : values) {
    line.member(name, value);
  }
  record(line.member("eval/final", final).end().take());
  std::string text = fmt::format("update {}:", step);
  for (const auto& [name, value] : values) {
    const bool is_shown = name.ends_with("/failed")
                              ? value > 0
                              : name.find("reward") != name.npos || name.find("pass@") != name.npos;
    if (is_shown) {
      text += fmt::format(" {} {:.4f}", name, value);
    }
  }
  progress_->print(text + fmt::format(" ({})", human_time(seconds_since(begin))));
}

void Training::record(const std::string& line) {
  if (!is_first()) return;
  saver_.storing([&] { metrics_.append(line); });
}

/// Writes a line per sample to output.dir/trajectories/NAME.jsonl.
void Training::write_samples(std::span<const Sample> samples,
                             std::span<const LossInputs> loss_inputs, const PromptOf& prompt_of,
                             const std::string& name) const {
  const std::string folder = join_path(run_.config.output.dir, "trajectories");
  const LineOptions options{
      .samples_per_prompt = loss_inputs.empty() ? rl_.eval_samples : rl_.samples_per_prompt,
      .top_k = run_.model.top_k,
      .old_of_trainer = rl_.old_logprobs == "trainer"};
  std::string text;
  for (size_t i = 0; i < samples.size(); ++i) {
    text += to_line(samples[i], prompt_of(i), loss_inputs.empty() ? nullptr : &loss_inputs[i],
                    options) +
            "\n";
  }
  saver_.storing([&] {
    make_dirs(folder);
    write_file_atomic(join_path(folder, name + ".jsonl"), text);
  });
}

void Training::write_report(Report::State state) {
  if (!is_first() || !run_.config.output.report) return;
  saver_.storing([&] { report_.write(state, stepper_->done().step, course_.steps); });
}

void Training::save() {
  const train::StepsDone& done = stepper_->done();
  train::Position position;
  position.fingerprint = data_.fingerprint();
  position.certificate = certificate_;
  position.began_with = start_.began_with;
  position.frozen = start_.frozen;
  position.course = course_;
  position.skipped = done.skipped;
  position.time_s = done.seconds;
  position.kernels = kernels::cpu_level();
  position.prompts = prompts_;
  position.tokens = tokens_;
  position.generated = generated_;
  position.warmups = warmups_;
  const std::string groups = sampling_->uneven().to_bytes();
  saver_.set_file(kSamplesFile, groups);
  // The critic's first: a start looks for the one that the policy's newest checkpoint goes with.
  if (critic_) {
    critic_->set_file(kSamplesFile, groups);
    critic_->save(done, data_, position);
  }
  const engine::Session& session = programs_.session(learner_->spec(learner_->multiple()));
  progress_->print("saved " + saver_.save(done.step, session, data_, position, done.losses));
  saved_at_ = done.step;
  saved_warmups_ = warmups_;
  saved_rounds_ = sampling_->uneven().rounds();
  saver_.prune(done.step, 0);
  if (critic_) {
    critic_->prune(done.step);
  }
}

}  // namespace hocket::rl
