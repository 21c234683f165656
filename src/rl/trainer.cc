// SPDX-License-Identifier: Apache-2.0
#include "rl/trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/folder_lock.h"
#include "base/json_writer.h"
#include "base/log.h"
#include "base/text.h"
#include "comm/run_on_all.h"
#include "engine/memory.h"
#include "engine/params.h"
#include "kernels/backend.h"
#include "models/build.h"
#include "program/memory.h"
#include "rl/critic.h"
#include "rl/learner.h"
#include "rl/report.h"
#include "rl/sampling.h"
#include "run/describe.h"
#include "serve/open.h"
#include "train/preflight.h"
#include "train/saver.h"
#include "train/start.h"
#include "train/stepper.h"
#include "train/stop.h"
#include "train/tensorboard.h"

namespace hocket::rl {

namespace {

/// One training; go() is its story. A step samples prompts, scores the samples while others are
/// drawn, computes advantages, and makes one or more updates. With ranks as processes each runs it;
/// the first scores and writes.
class Trainer {
 public:
  Trainer(const engine::Run& run, const std::string& command, train::StopSignals& stop)
      : run_(run),
        rl_(run.config.rl),
        section_(run.config.train),
        stop_(stop),
        data_(run, most_prompt_tokens(run)),
        metrics_(run.config.output.dir + "/metrics.jsonl"),
        report_(run, data_.tokenizer(), command),
        saver_(run, stop),
        ranks_(engine::local_ranks(run)) {}
  /// Returns the exit code.
  int go();

 private:
  bool is_first() const { return ranks_.processes().index() == 0; }
  template <class... Args>
  void say(fmt::format_string<Args...> text, Args&&... args) const {
    if (is_first()) {
      fmt::print(text, std::forward<Args>(args)...);
      std::fflush(stdout);
    }
  }
  void choose_length();
  bool nothing_left() const;
  void set_up();
  void describe(const engine::Compiled& compiled) const;
  void plan_memory();
  void load();
  train::StepperParts parts_of_stepper();
  int run_to_end(int64_t first);
  bool crossed(int64_t step, int64_t every) const;
  bool lacks_evaluation(int64_t first) const;
  bool signalled(int mine);
  /// Makes the next step; false: a signal came before it was sampled.
  bool step();
  bool warms_up() const;
  void update(Experience& experience, int64_t begin_ns);
  std::vector<Item> items_of(Experience& experience, size_t begin, size_t end) const;
  void measure(train::StepMetrics& metrics);
  void tell(const train::StepMetrics& metrics);
  void evaluate(bool final);
  void record(const std::string& line);
  void write_samples(std::span<const Sample> samples, std::span<const Turn> turns,
                     const PromptOf& prompt_of, const std::string& name) const;
  void write_report(Report::State state);
  void save();

  const engine::Run& run_;
  const engine::RlSection& rl_;
  const engine::TrainSection& section_;
  train::StopSignals& stop_;
  PromptData data_;
  train::MetricsFile metrics_;
  Report report_;
  train::Saver saver_;
  train::Start start_;
  runtime::LocalRanks ranks_;
  engine::Programs programs_{run_, ranks_};
  train::TrainedReaders readers_{programs_};
  std::optional<Sampling> sampling_;
  std::optional<Learner> learner_;
  std::optional<Critic> critic_;
  std::optional<train::Stepper> stepper_;
  std::optional<train::EventFile> events_;
  std::unique_ptr<Progress> progress_;
  check::Certificate certificate_;
  std::vector<program::Memory> planned_;
  train::Course course_;
  int64_t prompts_ = 0;  ///< that were sampled so far
  int64_t tokens_ = 0;   ///< in updates so far
  int64_t warmups_ = 0;  ///< steps that trained the critic alone
  int64_t evaluated_ = -1, saved_at_ = -1;
  int stopped_by_ = 0;         ///< the signal that ended the steps; 0: none
  train::Values step_values_;  ///< of the step under way
};

int Trainer::go() {
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
  saver_.set_last(start_.from ? start_.from->folder() : "");
  for (const std::string& note : saver_.read_files(data_)) {
    say("{}\n", note);
  }
  set_up();
  load();
  train::tell_schedule(section_, course_.steps);
  progress_ = std::make_unique<Progress>();
  const int64_t first = start_.done.step;
  stepper_.emplace(run_, programs_.session(learner_->spec(learner_->multiple())),
                   parts_of_stepper(), std::move(start_.done));
  try {
    return run_to_end(first);
  } catch (const Error& error) {
    progress_->finish();
    if (is_first() && run_.config.output.report) {
      report_.write_failed(stepper_->done().step, course_.steps, error.what());
    }
    if (saver_.told()) throw;
    throw error.with(saver_.last_or_none(" is intact, and the same command goes on from it"));
  }
}

/// Finds the number of updates.
void Trainer::choose_length() {
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
    say("train.steps {}: whole steps of {} updates each\n", course_.steps, of_step);
  }
}

/// True, after saying so, if a checkpoint has all updates and the evaluation at the end was made.
bool Trainer::nothing_left() const {
  const auto decide = [&] {
    if (!start_.from || start_.done.step < course_.steps) return false;
    return data_.held_out().empty() || metrics_.ends_with_final_evaluation();
  };
  const bool nothing = ranks_.processes().broadcast(is_first() && decide() ? "nothing" : "") != "";
  if (nothing) {
    say("already finished at update {} of {}; nothing to do (raise train.{} to go on)\n",
        start_.done.step, course_.steps, section_.epochs > 0 ? "epochs" : "steps");
  }
  return nothing;
}

/// Proves the programs and plans their memory, before any is taken.
void Trainer::set_up() {
  learner_.emplace(run_, programs_, readers_);
  const engine::Compiled& compiled = programs_.compiled(learner_->spec(learner_->multiple()));
  comm::run_on_all(ranks_.processes(), [&] {
    sampling_.emplace(run_, readers_, data_, head_parts(run_, compiled), ranks_.processes());
    return std::string();
  });
  if (rl_.advantage == "gae") {
    critic_.emplace(run_, ranks_, stop_);
  }
  describe(compiled);
  train::Prediction proven;
  train::prove(run_, compiled, nullptr, proven);
  certificate_ = proven.certificate;
  const Rollout& rollout = sampling_->rollout();
  programs_.replace(rollout.spec(), serve::compile_generation(run_, rollout.limits()));
  plan_memory();
}

void Trainer::describe(const engine::Compiled& compiled) const {
  say("model    {}\n         {:.2f} M parameters, {}\nweights  {}\n", engine::describe(run_.model),
      static_cast<double>(models::param_count(compiled.reference)) / 1e6, run_.config.model.dtype,
      start_.describe());
  std::string held_out;
  for (const PromptSet& set : data_.held_out()) {
    held_out +=
        fmt::format("{}{}{}", held_out.empty() ? "" : ", ", set.name.empty() ? "" : set.name + ": ",
                    counted(std::ssize(set.prompts), "prompt"));
  }
  say("data     {}: {} to train on; held out {}\n", data_.name(),
      counted(std::ssize(data_.train()), "prompt"), held_out.empty() ? "nothing" : held_out);
  for (const std::string& note : data_.notes()) {
    say("         {}\n", note);
  }
  say("plan     {}\n", engine::describe(run_));
  say("rl       {} x {} samples a step, {} of it; {}, {} loss, {}\n",
      counted(rl_.prompts_per_step, "prompt"), rl_.samples_per_prompt,
      counted(rl_.updates_per_step(), "update"), rl_.advantage, rl_.loss, rl_.aggregation);
  const bool limited = rl_.top_k > 0 || rl_.top_p < 1 || rl_.min_p > 0;
  say("         log-probabilities are of all of the model's logits{}; samples are drawn {}\n",
      rl_.temperature == 1 ? "" : fmt::format(" / {}", rl_.temperature),
      limited ? "within top_k, top_p and min_p" : "from all of them");
  if (const train::FrozenModel* reference = learner_->reference()) {
    say("         reference {}\n", reference->described());
  }
}

/// Memory of a step: parameters of all stores, the KV cache, and the largest of the buffers, since
/// programs take turns.
void Trainer::plan_memory() {
  const engine::Sizes sizes{.num_micro_batches = learner_->multiple()};
  const program::Program& update = programs_.compiled(learner_->spec(learner_->multiple())).program;
  std::vector<const program::Program*> others = {
      &programs_.compiled(sampling_->rollout().spec()).program};
  train::FrozenModel* const reference = learner_->reference();
  if (reference && !reference->shares_store()) {
    others.push_back(&reference->compiled(sizes).program);
  }
  if (critic_) {
    others.push_back(&critic_->compiled(learner_->multiple()).program);
  }
  const std::vector<program::Memory> own = program::memory_of(update);
  planned_ = own;
  for (int32_t rank = 0; rank < update.num_ranks(); ++rank) {
    const auto at = update.class_of(rank).value();
    program::Memory all = own[at];
    for (const program::Program* other : others) {
      const program::Memory more = program::memory_of(*other)[other->class_of(rank).value()];
      all.persistent += more.persistent;
      all.inputs_outputs += more.inputs_outputs;
      all.step_buffers = std::max(all.step_buffers, more.step_buffers);
      all.messages = std::max(all.messages, more.messages);
      all.host = std::max(all.host, more.host);
    }
    if (all.total() > planned_[at].total()) {
      planned_[at] = all;
    }
  }
  engine::require_memory(run_, update, planned_);
  say("memory   {} planned per rank\n",
      human_bytes(static_cast<double>(engine::most_planned(planned_))));
}

void Trainer::load() {
  const int64_t least = learner_->multiple();
  if (critic_) {
    critic_->load(start_, data_, least);
  }
  train::load(start_, run_, programs_.session(learner_->spec(least)));
  engine::Session& samples = readers_.now(sampling_->rollout().spec());
  engine::initialise(samples.graph(), samples.program(), 0, samples.store());
  if (train::FrozenModel* const reference = learner_->reference()) {
    reference->load({.num_micro_batches = least});
  }
  comm::run_on_all(ranks_.processes(), [&] {
    if (is_first()) {
      metrics_.begin_after(start_.done.step);
      if (run_.config.output.tensorboard) {
        events_.emplace(run_.config.output.dir, start_.done.step);
      }
    }
    return std::string();
  });
}

train::StepperParts Trainer::parts_of_stepper() {
  train::StepperParts parts;
  parts.data = [this](int64_t) { return learner_->data(); };
  parts.measure = [this](train::StepMetrics& metrics) { measure(metrics); };
  parts.metrics = [this](const train::StepMetrics& metrics) { tell(metrics); };
  parts.save = [this](const train::StepsDone&) { save(); };
  parts.last_checkpoint = [this] { return saver_.last_or_none(" is intact"); };
  parts.planned = planned_;
  return parts;
}

/// True if a signal came to one of the processes.
bool Trainer::signalled(int mine) {
  for (const std::string& signal : ranks_.processes().all_gather(std::to_string(mine))) {
    stopped_by_ = std::max(stopped_by_, std::stoi(signal));
  }
  return stopped_by_ != 0;
}

/// True if the updates of the step that ended at `step` crossed a multiple of `every`.
bool Trainer::crossed(int64_t step, int64_t every) const {
  const int64_t before = step - rl_.updates_per_step();
  return every > 0 && step > 0 && step / every > before / every;
}

/// True if a run that starts after `first` lacks an evaluation: that before all updates, or one
/// that a signal left out.
bool Trainer::lacks_evaluation(int64_t first) const {
  if (first == 0) return true;
  const bool lacks = crossed(first, section_.eval_every) && first < course_.steps &&
                     !(is_first() && metrics_.ends_with_evaluation());
  return ranks_.processes().broadcast(lacks ? "lacks" : "") != "";
}

int Trainer::run_to_end(int64_t first) {
  const train::StepsDone& done = stepper_->done();
  if (lacks_evaluation(first)) {
    evaluate(false);
  }
  while (done.step < course_.steps) {
    if (!step()) break;
    const bool last = done.step >= course_.steps;
    if (!last && crossed(done.step, section_.eval_every)) {
      stop_.begin_step(done.step, fmt::format("giving up the evaluation of update {}", done.step));
      evaluate(false);
    }
    if (!last && done.step > 0 &&
        (stepper_->save_is_due() || crossed(done.step, section_.save_every))) {
      stepper_->save();
    }
    if (is_first() && report_.is_due()) {
      write_report(Report::State::running);
    }
  }
  progress_->finish();
  if (done.step > first && saved_at_ != done.step) {
    stepper_->save();
  }
  if (signalled(stop_.end_steps())) {
    write_report(Report::State::stopped);
    say("stopped after update {} of {}; the same command goes on from there\n", done.step,
        course_.steps);
    return train::exit_code_of(stopped_by_);
  }
  evaluate(true);
  write_report(Report::State::finished);
  if (is_first() && run_.config.output.report) {
    say("report   {}/report.html\n", run_.config.output.dir);
  }
  return 0;
}

bool Trainer::step() {
  const int64_t version = stepper_->done().step, begin = now_ns();
  stop_.begin_step(version + 1, fmt::format("dropping the samples of step {}, and saving {}",
                                            version + 1, counted(version, "update")));
  if (signalled(stop_.requested())) return false;
  Experience experience;
  stopped_by_ = sampling_->gather(
      prompts_, version, [this] { return stop_.requested(); }, &experience);
  if (stopped_by_ == Sampling::kExhausted) {
    // As where a task is solved: nothing that was learned is lost.
    if (version > 0 && saved_at_ != version) {
      stepper_->save();
    }
    fail_run("rl",
             "after {} of generation {} of {} prompts have samples of unlike rewards "
             "(rl.dynamic_sampling); try a harder or an easier task, more samples_per_prompt, or "
             "more max_rounds",
             counted(sampling_->rounds(), "round"),
             std::ssize(experience.samples) / rl_.samples_per_prompt, rl_.prompts_per_step);
  }
  if (stopped_by_ != 0) return false;
  stop_.begin_step(version + 1);
  prompts_ += experience.prompts;
  experience.turns = turns_of(rl_, experience.samples);
  const std::vector<Item> all = items_of(experience, 0, experience.samples.size());
  learner_->prepare(all);
  if (critic_) {
    critic_->evaluate(all, learner_->pack(all));
  }
  set_advantages(rl_, experience.turns);
  step_values_ = sample_metrics(experience.samples, rl_.samples_per_prompt);
  if (rl_.dynamic_sampling.on) {
    step_values_.push_back(
        {"dynamic_sampling/left_out", static_cast<double>(experience.groups_left_out) /
                                          static_cast<double>(experience.prompts)});
    step_values_.push_back({"dynamic_sampling/rounds", static_cast<double>(sampling_->rounds())});
  }
  if (rl_.correction.type != "none") {
    const CorrectionStats stats = apply_correction(rl_, experience.turns);
    step_values_.push_back({"correction/ratio_mean", stats.mean_ratio});
    step_values_.push_back({"correction/ratio_max", stats.max_ratio});
    step_values_.push_back({"correction/left_out", stats.left_out});
    step_values_.push_back({"correction/cut_off", stats.cut_off});
    step_values_.push_back({"correction/kl", stats.kl});
  }
  const PromptOf prompt_of = [&](size_t i) -> const Prompt& { return *all[i].prompt; };
  if (is_first()) {
    report_.take_step(version + 1, experience.samples, experience.turns, prompt_of);
    if (rl_.trajectories) {
      write_samples(experience.samples, experience.turns, prompt_of,
                    warms_up() ? fmt::format("critic-{:06d}", warmups_ + 1)
                               : fmt::format("step-{:06d}", version + 1));
    }
  }
  update(experience, begin);
  return true;
}

std::vector<Item> Trainer::items_of(Experience& experience, size_t begin, size_t end) const {
  std::vector<Item> items;
  for (size_t i = begin; i < end; ++i) {
    const Sample& sample = experience.samples[i];
    items.push_back({&data_.at(sample.group), &sample, &experience.turns[i]});
  }
  return items;
}

/// True while the critic alone is trained.
bool Trainer::warms_up() const {
  return critic_ && warmups_ < rl_.critic.warmup_steps && stepper_->done().step == 0;
}

/// Makes the updates of a step, which began at a time: its groups in order, some prompts at a time,
/// `epochs` times. The critic's come first, by the same samples.
void Trainer::update(Experience& experience, int64_t begin_ns) {
  const auto at_once = static_cast<size_t>(rl_.update_prompts() * rl_.samples_per_prompt);
  const size_t size = experience.samples.size();
  if (critic_) {
    const train::Values values = critic_->learn(items_of(experience, 0, size), at_once);
    step_values_.insert(step_values_.end(), values.begin(), values.end());
  }
  stepper_->spend(seconds_since(begin_ns));
  if (warms_up()) {
    ++warmups_;
    progress_->print(
        fmt::format("critic {}/{}: {}", warmups_, rl_.critic.warmup_steps, critic_->text()));
    return;
  }
  bool first = true;
  for (int64_t epoch = 0; epoch < rl_.epochs; ++epoch) {
    for (size_t begin = 0; begin < size; begin += at_once) {
      const size_t end = std::min(begin + at_once, size);
      set_weights(rl_, std::span(experience.turns).subspan(begin, end - begin));
      learner_->update(items_of(experience, begin, end), first, *stepper_,
                       train::learning_rate(section_, stepper_->done().step + 1, course_));
      first = false;
    }
  }
}

/// Adds the metrics of a step and its update.
void Trainer::measure(train::StepMetrics& metrics) {
  metrics.values = step_values_;
  learner_->measure(metrics);
  tokens_ += metrics.tokens;
  metrics.tokens_seen = tokens_;
  metrics.values.push_back({"rl/prompts", static_cast<double>(prompts_)});
  metrics.values.push_back(
      {"rl/cached_tokens", static_cast<double>(sampling_->stats().cached_tokens)});
  metrics.values.push_back({"rl/preemptions", static_cast<double>(sampling_->stats().preemptions)});
  metrics.values.push_back({"time/sampling_s", sampling_->sampling_s()});
  metrics.values.push_back({"time/reward_wait_s", sampling_->waiting_s()});
  metrics.values.push_back({"time/reference_s", learner_->reference_s()});
  metrics.values.push_back({"time/old_logprobs_s", learner_->old_s()});
}

void Trainer::tell(const train::StepMetrics& metrics) {
  record(train::to_line(metrics));
  const auto value = [&](const char* name) {
    for (const auto& [key, number] : metrics.values) {
      if (key == name) return number;
    }
    return 0.0;
  };
  const Mismatch& mismatch = learner_->mismatch();
  progress_->update(fmt::format(
      "update {}/{}  reward {:.3f}  entropy {:.3f}  length {:.1f}  clipped {:.3f}  equal groups "
      "{:.2f}  loss {:.4f}  sampling {}, update {}  log-probabilities differ {}",
      metrics.step, course_.steps, value("reward"), value("entropy"),
      value("completions/mean_length"), value("clip_ratio/region_mean"),
      value("frac_reward_zero_std"), metrics.loss, human_time(sampling_->sampling_s()),
      human_time(metrics.step_s), mismatch.tokens > 0 ? mismatch.text() : "unmeasured"));
}

/// Samples held-out prompts and scores them.
void Trainer::evaluate(bool final) {
  const int64_t step = stepper_->done().step;
  if (data_.held_out().empty() || (evaluated_ == step && !final)) return;
  evaluated_ = step;
  const int64_t begin = now_ns();
  train::Values values;
  const engine::RewardSection& reward = rl_.rewards.front();
  const std::string& deciding = reward.name.empty() ? reward.type : reward.name;
  for (const PromptSet& set : data_.held_out()) {
    const Evaluated evaluated =
        sampling_->evaluate(set, step, [this] { return stop_.requested(); });
    if (!is_first() || stop_.requested() != 0) continue;
    const PromptOf prompt_of = [&](size_t i) -> const Prompt& { return *evaluated.prompts[i]; };
    report_.take_evaluation(set.name, step, evaluated.samples, prompt_of);
    const std::string group = set.name.empty() ? "" : set.name + "/";
    if (rl_.trajectories) {
      write_samples(evaluated.samples, {}, prompt_of,
                    fmt::format("eval-{}{:06d}", set.name.empty() ? "" : set.name + "-", step));
    }
    for (const auto& [name, value] :
         evaluation_metrics(evaluated.samples, rl_.eval_samples, deciding)) {
      values.push_back({"eval/" + group + name, value});
    }
  }
  if (!is_first() || stop_.requested() != 0) return;
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

void Trainer::record(const std::string& line) {
  if (!is_first()) return;
  saver_.storing([&] {
    metrics_.append(line);
    if (events_) {
      events_->append(line);
    }
  });
}

/// Writes a line per sample to output.dir/trajectories/NAME.jsonl.
void Trainer::write_samples(std::span<const Sample> samples, std::span<const Turn> turns,
                            const PromptOf& prompt_of, const std::string& name) const {
  const std::string folder = join_path(run_.config.output.dir, "trajectories");
  std::string text;
  for (size_t i = 0; i < samples.size(); ++i) {
    text +=
        to_line(samples[i], prompt_of(i), turns.empty() ? nullptr : &turns[i], run_.model.top_k) +
        "\n";
  }
  saver_.storing([&] {
    make_dirs(folder);
    write_file_atomic(join_path(folder, name + ".jsonl"), text);
  });
}

void Trainer::write_report(Report::State state) {
  if (!is_first() || !run_.config.output.report) return;
  saver_.storing([&] { report_.write(state, stepper_->done().step, course_.steps); });
}

void Trainer::save() {
  const train::StepsDone& done = stepper_->done();
  train::Position position;
  position.fingerprint = data_.fingerprint();
  position.certificate = certificate_;
  position.began_with = start_.began_with;
  position.course = course_;
  position.skipped = done.skipped;
  position.time_s = done.seconds;
  position.kernels = kernels::cpu_level();
  position.prompts = prompts_;
  position.tokens = tokens_;
  // The critic's first: a start looks for the one that the policy's newest checkpoint goes with.
  if (critic_) {
    critic_->save(done, data_, position);
  }
  const engine::Session& session = programs_.session(learner_->spec(learner_->multiple()));
  progress_->print("saved " + saver_.save(done.step, session, data_, position, done.losses));
  saved_at_ = done.step;
  saver_.prune(done.step, 0);
  if (critic_) {
    critic_->prune(done.step);
  }
}

}  // namespace

int train(const engine::Run& run, const std::string& command) {
  train::StopSignals stop;
  stop.set_resume("nothing was begun");
  return Trainer(run, command, stop).go();
}

}  // namespace hocket::rl
