// SPDX-License-Identifier: Apache-2.0
// Implements: choose_length, set_up, load (training.h): all that comes before the first step.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"
#include "comm/run_on_all.h"
#include "engine/memory.h"
#include "engine/params.h"
#include "engine/weights.h"
#include "models/build.h"
#include "rl/advantage.h"
#include "rl/training.h"
#include "run/describe.h"
#include "serve/open.h"
#include "train/preflight.h"

namespace hocket::rl {

/// Finds the number of updates.
void Training::choose_length() {
  if (section_.minutes > 0 || section_.tokens > 0) {
    fail(run_.name, "train.{} gives no length of objective rl; expected train.steps or epochs",
         section_.minutes > 0 ? "minutes" : "tokens");
  }
  course_ = start_.course;
  if (section_.epochs > 0) {
    const double prompts = section_.epochs * static_cast<double>(data_.train().size());
    const auto steps =
        static_cast<int64_t>(std::ceil(prompts / static_cast<double>(rl_.prompts_per_step)));
    course_.steps = std::max<int64_t>(steps, 1) * rl_.updates_per_step();
  }
  if (const int64_t of_step = rl_.updates_per_step(); course_.steps % of_step != 0) {
    course_.steps += of_step - course_.steps % of_step;
    print_once("train.steps {}: whole steps of {} updates each\n", course_.steps, of_step);
  }
}

/// Returns whether a checkpoint has all updates and the evaluation at the end was made, and prints
/// that it does.
bool Training::nothing_left() const {
  const auto decide = [&] {
    if (!start_.from || start_.done.step < course_.steps) return false;
    return data_.held_out().empty() || metrics_.ends_with_final_evaluation();
  };
  const bool nothing = ranks_.processes().broadcast(is_first() && decide() ? "nothing" : "") != "";
  if (nothing) {
    print_once("already finished at update {} of {}; nothing to do (raise train.{} to go on)\n",
               start_.done.step, course_.steps, section_.epochs > 0 ? "epochs" : "steps");
  }
  return nothing;
}

/// Proves the programs and plans their memory, before any is taken.
void Training::set_up() {
  learner_.emplace(run_, programs_, readers_);
  const engine::Compiled& compiled = programs_.compiled(learner_->spec(learner_->multiple()));
  comm::run_on_all(ranks_.processes(), [&] {
    sampling_.emplace(run_, readers_, data_, head_parts(run_, compiled), ranks_.processes());
    return std::string();
  });
  if (rl_.advantage == "gae") {
    critic_.emplace(run_, programs_, stop_);
  }
  describe(compiled);
  if (is_first() && learner_->reference()) {
    train::check_reference(*learner_->reference(), start_);
  }
  train::Prediction proven;
  train::prove(run_, compiled, nullptr, proven);
  certificate_ = proven.certificate;
  memory_.emplace(run_, ranks_);
  const Rollout& rollout = sampling_->rollout();
  programs_.replace(rollout.spec(), serve::compile_generation(run_, rollout.limits()));
  plan_memory();
}

void Training::describe(const engine::Compiled& compiled) const {
  print_once("model    {}\n         {:.2f} M parameters, {}\nweights  {}\n",
             engine::describe(run_.model),
             static_cast<double>(models::param_count(compiled.reference)) / 1e6,
             run_.config.model.dtype, start_.describe());
  std::string held_out;
  for (const PromptSet& set : data_.held_out()) {
    held_out +=
        fmt::format("{}{}{}", held_out.empty() ? "" : ", ", set.name.empty() ? "" : set.name + ": ",
                    counted(std::ssize(set.prompts), "prompt"));
  }
  print_once("data     {}: {} to train on; held out {}\n", data_.name(),
             counted(std::ssize(data_.train()), "prompt"), held_out.empty() ? "nothing" : held_out);
  for (const std::string& note : data_.notes()) {
    print_once("         {}\n", note);
  }
  print_once("plan     {}\n", engine::describe(run_));
  print_once("rl       {} x {} samples a step, {} of it; {}, {} loss, {}\n",
             counted(rl_.prompts_per_step, "prompt"), rl_.samples_per_prompt,
             counted(rl_.updates_per_step(), "update"), rl_.advantage, rl_.loss, rl_.aggregation);
  if (const std::string warning = advantage_warning(rl_); !warning.empty() && is_first()) {
    log_warning("{}", warning);
  }
  if (rl_.rewards.size() > 1) {
    print_once(
        "         pass@k goes by the first reward, {}, from a score of {} (rl.right_from); to "
        "choose another, put it first in rl.rewards\n",
        deciding_reward(rl_), rl_.right_from);
  }
  const bool limited = rl_.top_k > 0 || rl_.top_p < 1 || rl_.min_p > 0;
  print_once(
      "         log-probabilities are of all of the model's logits{}; samples are drawn {}\n",
      rl_.temperature == 1 ? "" : fmt::format(" / {}", rl_.temperature),
      limited ? "within top_k, top_p and min_p" : "from all of them");
  if (const train::FrozenModel* reference = learner_->reference()) {
    print_once("         reference {}\n", reference->described());
  }
}

/// Proves a program beside that of the first update, which set_up() proves: of other sizes, of the
/// reference, of the critic. Holds those that are compiled once the memory is planned to it.
void Training::inspect(const engine::Compiled& compiled) const {
  if (!memory_) return;
  const std::string& purpose = compiled.program.purpose;
  engine::expect_proven(run_, compiled, purpose.empty() ? "updates" : "computes " + purpose);
  memory_->require(compiled.program, memory_remedy());
}

/// Returns the most micro-batches of a program with all samples of so many prompts.
int64_t Training::most_micro_batches(int64_t prompts) const {
  // The last token of a sample takes no place.
  const int64_t places = longest_text(run_, data_) - 1;
  return rl::most_micro_batches(prompts * rl_.samples_per_prompt, places, section_.seq_len,
                                run_.plan.sequences(), learner_->multiple());
}

/// Returns keys that lower the memory of updates of many micro-batches.
std::string Training::memory_remedy() const {
  std::string keys;
  if (run_.plan.pp > 1 && run_.plan.pp_schedule != "1f1b") {
    keys = "plan.pp_schedule: 1f1b, ";
  }
  return keys +
         "a smaller rl.prompts_per_update, rl.samples_per_prompt, rl.max_new_tokens or "
         "train.seq_len";
}

/// Plans the memory of a step: parameters of all stores, the KV cache, and the largest of the other
/// parts, since programs take turns. Those of samples have the most micro-batches that can come.
void Training::plan_memory() {
  const int64_t multiple = learner_->multiple();
  const int64_t of_update = most_micro_batches(rl_.update_prompts());
  const int64_t of_step = most_micro_batches(rl_.prompts_per_step);
  const auto add = [&](const SpecOf& spec, int64_t micro_batches, bool with_store) {
    memory_->add(memory_at(spec, micro_batches, multiple), with_store);
  };
  add([&](int64_t n) { return learner_->spec(n); }, of_update, true);
  memory_->add(memory_by_rank(programs_.compiled(sampling_->rollout().spec()).program), true);
  if (train::FrozenModel* const reference = learner_->reference()) {
    add([&](int64_t n) { return reference->spec({.num_micro_batches = n}); }, of_step,
        !reference->shares_store());
  }
  if (rl_.old_logprobs == "trainer") {
    add([&](int64_t n) { return engine::logprobs(run_, {.num_micro_batches = n}); }, of_step,
        false);
  }
  if (critic_) {
    add([&](int64_t n) { return critic_->spec({.num_micro_batches = n}); }, of_update, true);
    add([&](int64_t n) { return critic_->values({.num_micro_batches = n}); }, of_step, false);
  }
  const program::Program& update = programs_.compiled(learner_->spec(multiple)).program;
  planned_ = memory_->by_class(update);
  with_note(
      fmt::format(
          "an update may have {} micro-batches (rl.prompts_per_update x rl.samples_per_prompt "
          "samples of {} tokens): try {}",
          of_update, longest_text(run_, data_), memory_remedy()),
      [&] { engine::require_memory(run_, update, planned_); });
  print_once("memory   {} planned per rank, for updates of up to {} micro-batches\n",
             human_bytes(static_cast<double>(engine::most_planned(planned_))), of_update);
}

/// Warns of keys that make another loss than that of the steps before. Returns whether the kept
/// groups were drawn at another temperature.
bool Training::warn_of_changes() const {
  std::string text;
  bool is_hotter = false;
  for (const train::ChangedNumber& change : start_.changed_loss) {
    text += fmt::format("{}{} {:g} -> {:g}", text.empty() ? "" : ", ", change.key, change.before,
                        change.now);
    is_hotter = is_hotter || change.key == "rl.temperature";
  }
  if (!text.empty() && is_first()) {
    log_warning("from update {} on the training is another one: {} (changed/... in metrics.jsonl)",
                start_.done.step + 1, text);
  }
  return is_hotter;
}

void Training::load() {
  const int64_t least = learner_->multiple();
  if (critic_) {
    const auto position = critic_->load(start_, data_, least, course_.steps);
    if (position && start_.done.step == 0) {
      prompts_ = position->prompts;
      generated_ = position->generated;
      warmups_ = saved_warmups_ = position->warmups;
      start_.done.seconds = position->time_s;
    }
  }
  std::string groups;
  comm::run_on_all(ranks_.processes(), [&] {
    if (is_first() && start_.from) {
      // Within the warm-up the critic's checkpoint is the newest.
      const bool warms_up = critic_ && start_.done.step == 0;
      const std::string file =
          join_path(warms_up ? critic_->folder_of(0) : start_.from->folder(), kSamplesFile);
      groups = file_exists(file) ? read_file(file) : "";
    }
    return std::string();
  });
  if (warn_of_changes()) {
    groups.clear();
  }
  sampling_->uneven().restore(ranks_.processes().broadcast(groups));
  saved_rounds_ = sampling_->uneven().rounds();
  train::load(start_, run_, programs_.session(learner_->spec(least)));
  engine::Session& samples = readers_.now(sampling_->rollout().spec());
  engine::initialise(samples.graph(), samples.program(), 0, samples.store());
  if (train::FrozenModel* const reference = learner_->reference()) {
    reference->load({.num_micro_batches = least});
  }
  comm::run_on_all(ranks_.processes(), [&] {
    if (is_first()) {
      metrics_.begin_after(start_.done.step);
    }
    return std::string();
  });
}

train::StepperParts Training::parts_of_stepper() {
  train::StepperParts parts;
  parts.data = [this](int64_t) { return learner_->data(); };
  parts.measure = [this](train::StepMetrics& metrics) { measure(metrics); };
  parts.metrics = [this](const train::StepMetrics& metrics) { report_step(metrics); };
  parts.save = [this](const train::StepsDone&) { save(); };
  parts.last_checkpoint = [this] { return saver_.last_or_none(" is intact"); };
  parts.save_before_failure = [this](const std::string& reason) { save_before_update(reason); };
  parts.planned = planned_;
  return parts;
}

}  // namespace hocket::rl
