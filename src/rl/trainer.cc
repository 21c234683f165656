// SPDX-License-Identifier: Apache-2.0
#include "rl/trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "base/folder_lock.h"
#include "base/text.h"
#include "comm/run_on_all.h"
#include "rl/advantage.h"
#include "rl/training.h"
#include "rl/verl_metrics.h"

namespace hocket::rl {

int Training::run() {
  std::optional<FolderLock> lock;
  comm::run_on_all(ranks_.processes(), [&] {
    if (is_first()) {
      train::claim_folder(run_.config.output.dir);
      lock.emplace(run_.config.output.dir, "training into this folder",
                   "choose another output.dir");
    }
    return std::string();
  });
  saver_.open(ranks_);
  start_ = train::find_start(run_, data_, saver_.folder());
  comm::expect_same(ranks_.processes(), "rl", "the start",
                    fmt::format("{}, {} updates, data {}", start_.describe(), start_.course.steps,
                                data_.fingerprint()));
  choose_length();
  if (nothing_left()) return 0;
  prompts_ = start_.prompts;
  tokens_ = start_.tokens;
  generated_ = start_.generated;
  saved_at_ = start_.done.step;
  saver_.set_last(start_.from ? start_.from->folder() : "");
  for (const std::string& note : saver_.read_files(data_)) {
    print_once("{}\n", note);
  }
  if (is_first()) {
    last_failure_.emplace(run_.config.output.dir);
    if (const std::string failed = last_failure_->text(start_.done.step); !failed.empty()) {
      log_warning("{}", failed);
    }
  }
  set_up();
  load();
  train::warn_of_schedule(section_, course_.steps);
  progress_ = std::make_unique<Progress>();
  const int64_t first = start_.done.step;
  stepper_.emplace(run_, programs_.session(learner_->spec(learner_->multiple())),
                   parts_of_stepper(), std::move(start_.done));
  try {
    return run_to_end(first);
  } catch (const Error& error) {
    progress_->finish();
    if (is_first()) {
      last_failure_->keep(stepper_->done().step, error.what());
    }
    if (is_first() && run_.config.output.report) {
      report_.write_failed(stepper_->done().step, course_.steps, error.what());
    }
    if (saver_.named_checkpoint()) throw;
    throw error.with(saver_.last_or_none(" is intact, and the same command goes on from it"));
  }
}

/// Returns whether a signal came to one of the processes.
bool Training::signalled(int mine) {
  for (const std::string& signal : ranks_.processes().all_gather(std::to_string(mine))) {
    stopped_by_ = std::max(stopped_by_, std::stoi(signal));
  }
  return stopped_by_ != 0;
}

/// Returns whether the updates of the step that ended at `step` crossed a multiple of `every`.
bool Training::crossed(int64_t step, int64_t every) const {
  const int64_t before = step - rl_.updates_per_step();
  return every > 0 && step > 0 && step / every > before / every;
}

/// Returns whether a run that starts after `first` lacks an evaluation: that before all updates, or
/// one that a signal left out.
bool Training::lacks_evaluation(int64_t first) const {
  if (first == 0) return true;
  const bool lacks = crossed(first, section_.eval_every) && first < course_.steps &&
                     !(is_first() && metrics_.ends_with_evaluation());
  return ranks_.processes().broadcast(lacks ? "lacks" : "") != "";
}

/// Returns whether the step that was made is saved: by time, or by train.save_every updates, or
/// before the first one as many steps of the critic's warm-up.
bool Training::save_is_due() const {
  const int64_t step = stepper_->done().step;
  if (step == 0) return section_.save_every > 0 && warmups_ % section_.save_every == 0;
  return stepper_->save_is_due() || crossed(step, section_.save_every);
}

/// Returns whether the newest checkpoint has all updates, all steps of the critic's warm-up, and
/// all groups of a step under way, or nothing was learned yet.
bool Training::is_saved() const {
  const int64_t step = stepper_->done().step;
  if (step == 0 && warmups_ == 0) return true;
  return saved_at_ == step && saved_warmups_ == warmups_ &&
         saved_rounds_ == sampling_->uneven().rounds();
}

int Training::run_to_end(int64_t first) {
  const train::StepsDone& done = stepper_->done();
  if (lacks_evaluation(first)) {
    evaluate(false);
  }
  while (done.step < course_.steps) {
    if (!step()) break;
    if (is_first()) {
      last_failure_->passed(done.step);
    }
    const bool last = done.step >= course_.steps;
    if (!last && crossed(done.step, section_.eval_every)) {
      stop_.begin_step(done.step, fmt::format("giving up the evaluation of update {}", done.step));
      evaluate(false);
    }
    if (!last && save_is_due()) {
      stepper_->save();
    }
    if (is_first() && report_.is_due()) {
      write_report(Report::State::running);
    }
  }
  progress_->finish();
  if (!is_saved()) {
    stepper_->save();
  }
  if (signalled(stop_.end_steps())) {
    write_report(Report::State::stopped);
    print_once("stopped after update {} of {}; the same command goes on from there\n", done.step,
               course_.steps);
    return train::exit_code_of(stopped_by_);
  }
  evaluate(true);
  write_report(Report::State::finished);
  if (is_first() && run_.config.output.report) {
    print_once("report   {}/report.html\n", run_.config.output.dir);
  }
  return 0;
}

bool Training::step() {
  const int64_t version = stepper_->done().step, begin = now_ns();
  step_begin_ns_ = begin;
  stop_.begin_step(version + 1, fmt::format("dropping the samples of step {}, and saving {}",
                                            version + 1, counted(version, "update")));
  if (signalled(stop_.requested())) return false;
  Experience experience;
  stopped_by_ = sampling_->gather(
      prompts_, version, [this] { return stop_.requested(); }, &experience);
  if (stopped_by_ < 0) {
    end_of_samples();
  }
  if (stopped_by_ != 0 || is_solved_) return false;
  stop_.begin_step(version + 1);
  experience.loss_inputs = loss_inputs_of(rl_, experience.samples);
  const std::vector<Item> all = items_of(experience, 0, experience.samples.size());
  learner_->prepare(all, version);
  if (critic_) {
    critic_->evaluate(all, learner_->pack(all));
  }
  CorrectionStats correction;
  if (rl_.correction.type != "none") {
    correction = apply_correction(rl_, experience.loss_inputs);
  }
  try {
    set_advantages(rl_, experience.loss_inputs);
  } catch (const Error& error) {
    save_learned(error.text());
    throw;
  }
  step_values_ = sample_metrics(experience.samples, rl_.samples_per_prompt);
  const train::Values verl = verl_metrics(rl_, all);
  step_values_.insert(step_values_.end(), verl.begin(), verl.end());
  step_generated_ = 0;
  for (const Item& item : all) {
    step_generated_ += std::ssize(item.prompt->ids) + std::ssize(item.sample->tokens);
  }
  if (rl_.dynamic_sampling.on) {
    measure_sampling(experience);
  }
  if (rl_.correction.type != "none") {
    step_values_.push_back({"correction/ratio_mean", correction.mean_ratio});
    step_values_.push_back({"correction/ratio_max", correction.max_ratio});
    step_values_.push_back({"correction/left_out", correction.left_out});
    step_values_.push_back({"correction/cut_off", correction.cut_off});
    step_values_.push_back({"correction/kl", correction.kl});
  }
  const PromptOf prompt_of = [&](size_t i) -> const Prompt& { return *all[i].prompt; };
  if (is_first()) {
    report_.take_step(version + 1, experience.samples, experience.loss_inputs, prompt_of);
    if (rl_.trajectories) {
      write_samples(experience.samples, experience.loss_inputs, prompt_of,
                    warms_up() ? fmt::format("critic-{:06d}", warmups_ + 1)
                               : fmt::format("step-{:06d}", version + 1));
    }
  }
  update(experience, begin);
  return true;
}

/// Sets the metrics of dynamic sampling: groups are counted before those with equal rewards are
/// left out.
void Training::measure_sampling(const Experience& experience) {
  std::erase_if(step_values_, [](const auto& value) {
    return std::string_view(value.first) == "frac_reward_zero_std";
  });
  if (experience.prompts > 0) {
    step_values_.push_back(
        {"frac_reward_zero_std", static_cast<double>(experience.groups_left_out) /
                                     static_cast<double>(experience.prompts)});
  }
  step_values_.push_back({"train/num_gen_batches", static_cast<double>(experience.rounds)});
}

/// Saves the updates before a step that fails, and its groups: nothing that was learned is lost.
void Training::save_learned(std::string_view reason) {
  if (is_saved()) return;
  try {
    stepper_->save();
  } catch (const Error& error) {
    fail_run("rl", "{}; {}", reason, error.text());
  }
}

/// Saves the updates before a step whose first one fails and changes nothing. A critic has learned
/// from the step by then: it and the policy are of no one step.
void Training::save_before_update(const std::string& reason) {
  if (critic_ || stepper_->done().step % rl_.updates_per_step() != 0) return;
  save_learned(reason);
}

/// Ends a run whose samples or rewards make no step: a solved task, or throws Error.
void Training::end_of_samples() {
  std::string reason = sampling_->failure();
  if (stopped_by_ == Sampling::kExhausted) {
    reason = sampling_->uneven().text();
    if (sampling_->uneven().is_solved()) {
      is_solved_ = true;
      stopped_by_ = 0;
      progress_->print(fmt::format("the task is solved: {}", reason));
      return;
    }
    reason += "; try an easier or a harder task, or more samples_per_prompt";
    if (rl_.dynamic_sampling.max_rounds > 0) {
      reason += " or max_rounds (0: no limit)";
    }
  }
  save_learned(reason);
  fail_run("rl", "{}", reason);
}

std::vector<Item> Training::items_of(Experience& experience, size_t begin, size_t end) const {
  std::vector<Item> items;
  for (size_t i = begin; i < end; ++i) {
    const Sample& sample = experience.samples[i];
    items.push_back({&data_.at(sample.group), &sample, &experience.loss_inputs[i]});
  }
  return items;
}

/// Returns whether the critic alone is trained.
bool Training::warms_up() const {
  return critic_ && warmups_ < rl_.critic.warmup_steps && stepper_->done().step == 0;
}

/// Makes the updates of a step, which began at a time: its groups in order, some prompts at a time,
/// `epochs` times. The critic's come first, by the same samples.
void Training::update(Experience& experience, int64_t begin_ns) {
  const auto at_once = static_cast<size_t>(rl_.update_prompts() * rl_.samples_per_prompt);
  const size_t size = experience.samples.size();
  if (critic_) {
    const train::Values values =
        critic_->learn(items_of(experience, 0, size), experience.loss_inputs, at_once);
    if (!critic_->failure().empty()) {
      if (critic_->is_unchanged()) {
        save_learned(critic_->failure());
      }
      fail_run("rl", "{}", critic_->failure());
    }
    step_values_.insert(step_values_.end(), values.begin(), values.end());
  }
  step_prompts_ = experience.prompts;
  stepper_->spend(seconds_since(begin_ns));
  if (warms_up()) {
    end_step();
    ++warmups_;
    progress_->print(
        fmt::format("critic {}/{}: {}", warmups_, rl_.critic.warmup_steps, critic_->text()));
    return;
  }
  bool first = true;
  for (int64_t epoch = 0; epoch < rl_.epochs; ++epoch) {
    for (size_t begin = 0; begin < size; begin += at_once) {
      const size_t end = std::min(begin + at_once, size);
      const double lr = train::learning_rate(section_, stepper_->done().step + 1, course_);
      if (!set_weights(rl_, experience.loss_inputs, begin, end)) {
        learner_->skip(*stepper_, lr);
        continue;
      }
      learner_->update(items_of(experience, begin, end), first, *stepper_, lr);
      first = false;
    }
  }
  end_step();
}

/// Forgets the samples of a step that was made.
void Training::end_step() {
  prompts_ += step_prompts_;
  generated_ += step_generated_;
  step_prompts_ = step_generated_ = 0;
  sampling_->uneven().end_step();
}

int train(const engine::Run& run, const std::string& command) {
  train::StopSignals stop;
  stop.set_resume("nothing was begun");
  return Training(run, command, stop).run();
}

}  // namespace hocket::rl
