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
#include "base/rng.h"
#include "base/text.h"
#include "comm/run_on_all.h"
#include "engine/memory.h"
#include "engine/params.h"
#include "graph/names.h"
#include "kernels/backend.h"
#include "models/build.h"
#include "program/memory.h"
#include "rl/batches.h"
#include "rl/experience.h"
#include "rl/reward.h"
#include "rl/rollout.h"
#include "run/describe.h"
#include "serve/open.h"
#include "train/frozen_model.h"
#include "train/preflight.h"
#include "train/saver.h"
#include "train/start.h"
#include "train/stepper.h"
#include "train/stop.h"
#include "train/tensorboard.h"

namespace hocket::rl {

namespace {

namespace names = graph::names;

/// Seconds of the phases of a step.
struct Times {
  double sampling = 0, waiting = 0, reference = 0, old = 0, update = 0;
};

/// One training; go() is its story. A step samples prompts, scores the samples while others are
/// drawn, computes advantages, and makes one or more updates. With ranks as processes each runs it;
/// the first samples, scores and writes, and gives the samples to the others.
class Trainer {
 public:
  Trainer(const engine::Run& run, std::string command, train::StopSignals& stop)
      : run_(run),
        rl_(run.config.rl),
        section_(run.config.train),
        command_(std::move(command)),
        stop_(stop),
        data_(run, most_prompt_tokens(run)),
        metrics_(run.config.output.dir + "/metrics.jsonl"),
        saver_(run, stop),
        ranks_(engine::local_ranks(run)),
        rollout_(run, readers_, data_) {}
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
  engine::Sizes sizes(int64_t micro_batches) const { return {.num_micro_batches = micro_batches}; }
  engine::ProgramSpec update_spec(int64_t micro_batches) const {
    return engine::training(run_, sizes(micro_batches));
  }
  /// Divisor of the number of micro-batches.
  int64_t multiple() const { return run_.plan.pp > 1 ? run_.plan.pp : 1; }

  void set_up();
  void plan_memory();
  void load();
  train::StepperParts parts_of_stepper();
  int run_to_end(int64_t first);
  bool signalled(int mine);

  /// Samples, scores and completes the experience of the next step. False: a signal came.
  bool gather(Experience* experience);
  void sample_round(int64_t groups, Experience* experience);
  void keep_uneven(Experience* experience) const;
  void refuse_failed_rewards(const Experience& experience) const;
  void share(Experience* experience);
  void complete(Experience* experience);
  std::vector<Item> items_of(Experience& experience, size_t begin, size_t end) const;
  std::vector<double> outputs(engine::Session& session, const char* name) const;
  std::vector<std::vector<double>> logprobs_by(const Packing& packing, engine::Session& session);
  void compute_reference(const Packing& packing, Experience* experience);
  void compute_old(const Packing& packing, Experience* experience);
  void judge(const Mismatch& mismatch) const;

  void update(Experience& experience);
  void update_once(std::vector<Item> items, bool first_of_step);
  void measure(train::StepMetrics& metrics);
  void tell(const train::StepMetrics& metrics);

  void evaluate(bool final);
  train::Values evaluate_set(const PromptSet& set);
  void record(const std::string& line);
  void write_trajectories(const Experience& experience, const std::string& name) const;
  void write_samples(std::span<const Sample> samples, const std::vector<const Prompt*>& prompts,
                     std::span<const Turn> turns, const std::string& name) const;
  void save();

  const engine::Run& run_;
  const engine::RlSection& rl_;
  const engine::TrainSection& section_;
  const std::string command_;
  train::StopSignals& stop_;
  PromptData data_;
  train::MetricsFile metrics_;
  train::Saver saver_;
  train::Start start_;
  runtime::LocalRanks ranks_;
  engine::Programs programs_{run_, ranks_};
  train::TrainedReaders readers_{programs_};
  Rollout rollout_;
  std::optional<train::FrozenModel> reference_;
  std::optional<RewardPool> rewards_;  ///< of the first process
  std::optional<train::Stepper> stepper_;
  std::optional<train::EventFile> events_;
  std::unique_ptr<Progress> progress_;
  check::Certificate certificate_;
  std::vector<program::Memory> planned_;
  train::Course course_;
  int64_t prompts_ = 0;  ///< that were sampled so far
  int64_t evaluated_ = -1, saved_at_ = -1;
  int stopped_by_ = 0;  ///< the signal that ended the steps; 0: none

  // The step under way.
  Times times_;
  train::Values step_values_;
  std::vector<Item> items_;  ///< of the update that is prepared
  std::optional<Packing> packing_;
  engine::Session* updates_ = nullptr;
  Mismatch mismatch_;      ///< of the step's first update
  bool compares_ = false;  ///< the update that is prepared is the first of its step
  std::optional<CorrectionStats> correction_;
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
  course_ = start_.course;
  if (section_.epochs > 0) {
    const double prompts = section_.epochs * static_cast<double>(data_.train().size());
    const auto steps =
        static_cast<int64_t>(std::ceil(prompts / static_cast<double>(rl_.prompts_per_step)));
    course_.steps = std::max<int64_t>(steps, 1) * rl_.updates_per_step();
  }
  prompts_ = start_.prompts;
  if (start_.from && start_.done.step >= course_.steps) {
    say("already finished at update {} of {}; nothing to do (raise train.steps to go on)\n",
        start_.done.step, course_.steps);
    return 0;
  }
  saver_.set_last(start_.from ? start_.from->folder() : "");
  for (const std::string& note : saver_.read_files(data_)) {
    say("{}\n", note);
  }
  set_up();
  load();
  train::tell_schedule(section_, course_.steps);
  progress_ = std::make_unique<Progress>();
  const int64_t first = start_.done.step;
  stepper_.emplace(run_, programs_.session(update_spec(multiple())), parts_of_stepper(),
                   std::move(start_.done));
  try {
    return run_to_end(first);
  } catch (const Error&) {
    progress_->finish();
    throw;
  }
}

/// Prints model, data and plan; proves the programs and plans their memory, before any is taken.
void Trainer::set_up() {
  if (is_first()) {
    rewards_.emplace(rl_, run_.name);
  }
  const engine::Compiled& compiled = programs_.compiled(update_spec(multiple()));
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
  say("         log-probabilities are of the model's logits{}; samples are drawn {}\n",
      rl_.temperature == 1 ? "" : fmt::format(" / {}", rl_.temperature),
      limited ? "within top_k, top_p, min_p" : "from all of them");
  if (rl_.kl_coef > 0) {
    reference_.emplace(run_, rl_.reference, programs_, readers_);
    say("         reference {}\n", reference_->described());
  }
  train::Prediction proven;
  train::prove(run_, compiled, nullptr, proven);
  certificate_ = proven.certificate;
  programs_.replace(rollout_.spec(), serve::compile_generation(run_, rollout_.limits()));
  plan_memory();
}

/// Memory of a step: parameters of all stores, the KV cache, and the largest of the buffers, since
/// programs take turns.
void Trainer::plan_memory() {
  const program::Program& update = programs_.compiled(update_spec(multiple())).program;
  const program::Program& samples = programs_.compiled(rollout_.spec()).program;
  planned_ = program::memory_of(update);
  const std::vector<program::Memory> of_samples = program::memory_of(samples);
  const bool own = reference_ && !reference_->shares_store();
  const program::Program* reference =
      own ? &reference_->compiled(sizes(multiple())).program : nullptr;
  std::vector<program::Memory> of_reference;
  if (reference != nullptr) {
    of_reference = program::memory_of(*reference);
  }
  for (int32_t rank = 0; rank < update.num_ranks(); ++rank) {
    program::Memory& planned = planned_[update.class_of(rank).value()];
    const program::Memory& sampling = of_samples[samples.class_of(rank).value()];
    program::Memory all = program::memory_of(update)[update.class_of(rank).value()];
    // The cache is what sampling keeps beside parameters, which it shares or has a copy of.
    all.persistent += sampling.persistent;
    all.step_buffers = std::max(all.step_buffers, sampling.step_buffers);
    all.inputs_outputs += sampling.inputs_outputs;
    all.messages = std::max(all.messages, sampling.messages);
    if (reference != nullptr) {
      all.persistent += of_reference[reference->class_of(rank).value()].persistent;
    }
    if (all.total() > planned.total()) {
      planned = all;
    }
  }
  engine::require_memory(run_, update, planned_);
  say("memory   {} planned per rank\n",
      human_bytes(static_cast<double>(engine::most_planned(planned_))));
}

void Trainer::load() {
  engine::Session& session = programs_.session(update_spec(multiple()));
  train::load(start_, run_, session);
  engine::Session& samples = readers_.now(rollout_.spec());
  engine::initialise(samples.graph(), samples.program(), 0, samples.store());
  if (reference_) {
    reference_->load(sizes(multiple()));
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
  parts.data = [this](int64_t) {
    engine::Batch batch = packing_->batch();
    packing_->add_inputs(batch, engine::answers_per_sequence(run_));
    // Weights make the mean; the loss needs no further scale.
    return train::StepData{std::move(batch), is_first() ? 1 : 0, updates_};
  };
  parts.measure = [this](train::StepMetrics& metrics) { measure(metrics); };
  parts.metrics = [this](const train::StepMetrics& metrics) { tell(metrics); };
  parts.save = [](const train::StepsDone&) {};
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

int Trainer::run_to_end(int64_t first) {
  const train::StepsDone& done = stepper_->done();
  if (first == 0) {
    evaluate(false);
  }
  while (done.step < course_.steps) {
    stop_.begin_step(done.step + 1);
    if (signalled(stop_.requested())) break;
    Experience experience;
    if (!gather(&experience)) break;
    complete(&experience);
    if (rl_.trajectories) {
      write_trajectories(experience, fmt::format("step-{:06d}", done.step + 1));
    }
    const int64_t before = done.step;
    update(experience);
    const auto crossed = [&](int64_t every) {
      return every > 0 && done.step / every > before / every;
    };
    const bool last = done.step >= course_.steps;
    if (!last && crossed(section_.eval_every)) {
      evaluate(false);
    }
    if (!last && (stepper_->save_is_due() || crossed(section_.save_every))) {
      save();
    }
  }
  progress_->finish();
  if (done.step > first || first == 0) {
    save();
  }
  if (signalled(stop_.end_steps())) {
    say("stopped after update {} of {}; the same command goes on from there\n", done.step,
        course_.steps);
    return train::exit_code_of(stopped_by_);
  }
  evaluate(true);
  return 0;
}

/// Draws and scores samples of the step's groups. With dynamic sampling further rounds replace
/// groups of equal rewards.
bool Trainer::gather(Experience* experience) {
  times_ = {};
  int64_t rounds = 0;
  while (stopped_by_ == 0) {
    const int64_t have = std::ssize(experience->samples) / rl_.samples_per_prompt;
    if (have >= rl_.prompts_per_step) break;
    if (rounds++ >= std::max<int64_t>(rl_.dynamic_sampling.max_rounds, 1)) {
      fail_run("rl",
               "after {} rounds {} of {} prompts have samples of unlike rewards "
               "(rl.dynamic_sampling); {}; try an easier task, more samples_per_prompt, or more "
               "max_rounds",
               rounds - 1, have, rl_.prompts_per_step, saver_.last_or_none(" is intact"));
    }
    sample_round(rl_.prompts_per_step - have, experience);
  }
  if (stopped_by_ != 0) return false;
  if (is_first()) {
    step_values_ = sample_metrics(experience->samples, rl_.samples_per_prompt);
    if (rl_.dynamic_sampling.on) {
      step_values_.push_back(
          {"dynamic_sampling/left_out", static_cast<double>(experience->groups_left_out) /
                                            static_cast<double>(experience->prompts)});
      step_values_.push_back({"dynamic_sampling/rounds", static_cast<double>(rounds)});
    }
  }
  prompts_ += experience->prompts;
  return true;
}

/// Samples the next prompts, and adds their groups to the experience.
void Trainer::sample_round(int64_t groups, Experience* experience) {
  Order order;
  order.samples = rl_.samples_per_prompt;
  order.temperature = rl_.temperature;
  order.seed = static_cast<uint64_t>(section_.seed);
  order.version = stepper_->done().step;
  for (int64_t i = 0; i < groups; ++i) {
    const int64_t number = prompts_ + experience->prompts + i;
    order.groups.push_back({number, &data_.at(number)});
  }
  int signal = 0;
  std::vector<Sample> samples = rollout_.run(
      order, [&](const Prompt& prompt, Sample& sample) { rewards_->add(prompt, sample); },
      [&] { return (signal = stop_.requested()) != 0; });
  times_.sampling += rollout_.stats().seconds;
  const int64_t begin = now_ns();
  if (is_first()) {
    rewards_->wait();
  }
  times_.waiting += seconds_since(begin);
  experience->prompts += groups;
  if (signalled(signal)) return;
  Experience round;
  round.samples = std::move(samples);
  if (is_first()) {
    refuse_failed_rewards(round);
    for (Sample& sample : round.samples) {
      shape_reward(rl_, &sample);
    }
  }
  share(&round);
  keep_uneven(&round);
  experience->groups_left_out += round.groups_left_out;
  std::move(round.samples.begin(), round.samples.end(), std::back_inserter(experience->samples));
}

void Trainer::refuse_failed_rewards(const Experience& experience) const {
  int64_t failed = 0;
  std::string first;
  for (const Sample& sample : experience.samples) {
    failed += sample.reward_failed ? 1 : 0;
    for (const auto& [name, part] : sample.rewards) {
      if (first.empty() && part.failed) {
        first = fmt::format("{}: {}", name, part.error);
      }
    }
  }
  const auto all = static_cast<double>(experience.samples.size());
  if (static_cast<double>(failed) <= rl_.max_failed_rewards * all) return;
  fail_run("rl",
           "the reward of {} of {} failed, more than the share {} (rl.max_failed_rewards); the "
           "first: {}; {}",
           failed, counted(std::ssize(experience.samples), "sample"), rl_.max_failed_rewards, first,
           saver_.last_or_none(" is intact"));
}

/// Gives the samples of the first process to all.
void Trainer::share(Experience* experience) {
  if (ranks_.processes().size() == 1) return;
  const std::string bytes =
      ranks_.processes().broadcast(is_first() ? to_bytes(experience->samples) : "");
  if (!is_first()) {
    experience->samples = samples_of(bytes);
  }
}

/// With dynamic sampling: removes groups whose samples all have the same reward.
void Trainer::keep_uneven(Experience* experience) const {
  if (!rl_.dynamic_sampling.on) return;
  const auto n = static_cast<size_t>(rl_.samples_per_prompt);
  std::vector<Sample> kept;
  for (size_t i = 0; i + n <= experience->samples.size(); i += n) {
    if (is_even(std::span(experience->samples).subspan(i, n))) {
      ++experience->groups_left_out;
      continue;
    }
    for (size_t s = i; s < i + n; ++s) {
      kept.push_back(std::move(experience->samples[s]));
    }
  }
  experience->samples = std::move(kept);
}

std::vector<Item> Trainer::items_of(Experience& experience, size_t begin, size_t end) const {
  std::vector<Item> items;
  for (size_t i = begin; i < end; ++i) {
    const Sample& sample = experience.samples[i];
    items.push_back({&data_.at(sample.group), &sample, &experience.turns[i]});
  }
  return items;
}

/// Collects an output by token of all micro-batches, [rows, seq_len].
std::vector<double> Trainer::outputs(engine::Session& session, const char* name) const {
  std::vector<double> all;
  for (int32_t m = 0; m < session.program().num_micro_batches; ++m) {
    const std::vector<double> some = session.collect_as<double>(name, m);
    all.insert(all.end(), some.begin(), some.end());
  }
  return all;
}

std::vector<std::vector<double>> Trainer::logprobs_by(const Packing& packing,
                                                      engine::Session& session) {
  session.feed(packing.batch());
  session.step();
  return packing.by_item(outputs(session, names::kLogprobs));
}

/// Adds what is computed of samples: the reference's log-probabilities, old ones, advantages.
void Trainer::complete(Experience* experience) {
  experience->turns = turns_of(rl_, experience->samples);
  mismatch_ = {};
  correction_.reset();
  const bool old = rl_.old_logprobs == "trainer";
  if (reference_ || old) {
    const std::vector<Item> items = items_of(*experience, 0, experience->samples.size());
    const Packing packing(items, section_.seq_len, run_.plan.sequences(), multiple());
    if (reference_) {
      compute_reference(packing, experience);
    }
    if (old) {
      compute_old(packing, experience);
    }
  }
  set_advantages(rl_, experience->turns);
  if (rl_.correction.type != "none") {
    correction_ = apply_correction(rl_, experience->turns);
  }
}

void Trainer::compute_reference(const Packing& packing, Experience* experience) {
  const int64_t begin = now_ns();
  const auto logprobs = logprobs_by(packing, reference_->session(sizes(packing.micro_batches())));
  for (size_t i = 0; i < logprobs.size(); ++i) {
    experience->turns[i].reference = logprobs[i];
  }
  times_.reference = seconds_since(begin);
}

void Trainer::compute_old(const Packing& packing, Experience* experience) {
  const int64_t begin = now_ns();
  const auto logprobs =
      logprobs_by(packing, readers_.now(engine::logprobs(run_, sizes(packing.micro_batches()))));
  for (size_t i = 0; i < logprobs.size(); ++i) {
    mismatch_.add(experience->samples[i].logprobs, logprobs[i]);
    experience->turns[i].old = logprobs[i];
  }
  judge(mismatch_);
  times_.old = seconds_since(begin);
}

void Trainer::judge(const Mismatch& mismatch) const {
  if (!rl_.strict || mismatch.unequal == 0) return;
  fail_run("rl",
           "log-probabilities of sampling and training differ by {}; expected none (rl.strict); {}",
           mismatch.text(), saver_.last_or_none(" is intact"));
}

/// Makes the updates of a step: its groups in order, some prompts at a time, `epochs` times.
void Trainer::update(Experience& experience) {
  const auto at_once = static_cast<size_t>(rl_.update_prompts() * rl_.samples_per_prompt);
  bool first = true;
  for (int64_t epoch = 0; epoch < rl_.epochs; ++epoch) {
    for (size_t begin = 0; begin < experience.samples.size(); begin += at_once) {
      const size_t end = std::min(begin + at_once, experience.samples.size());
      set_weights(rl_, std::span(experience.turns).subspan(begin, end - begin));
      update_once(items_of(experience, begin, end), first);
      first = false;
    }
  }
}

void Trainer::update_once(std::vector<Item> items, bool first_of_step) {
  items_ = std::move(items);
  packing_.emplace(items_, section_.seq_len, run_.plan.sequences(), multiple());
  updates_ = &programs_.session(update_spec(packing_->micro_batches()));
  compares_ = first_of_step && rl_.old_logprobs == "rollout";
  const int64_t begin = now_ns();
  stepper_->prepare(0);
  stepper_->run(train::learning_rate(section_, stepper_->done().step + 1, course_));
  times_.update += seconds_since(begin);
  if (compares_) {
    judge(mismatch_);
  }
}

/// Adds the metrics of an update, by the log-probabilities of its own forward pass.
void Trainer::measure(train::StepMetrics& metrics) {
  const auto logprobs = packing_->by_item(outputs(*updates_, names::kLogprobs));
  const auto entropies = packing_->by_item(outputs(*updates_, names::kEntropies));
  UpdateStats stats(rl_);
  for (size_t i = 0; i < items_.size(); ++i) {
    stats.add(*items_[i].turn, logprobs[i], entropies[i]);
    if (compares_) {
      mismatch_.add(items_[i].sample->logprobs, logprobs[i]);
    }
  }
  metrics.tokens = packing_->tokens();
  metrics.values = step_values_;
  const train::Values of_update = stats.means();
  metrics.values.insert(metrics.values.end(), of_update.begin(), of_update.end());
  if (mismatch_.tokens > 0) {
    metrics.values.push_back({"rollout/logprob_diff_max", mismatch_.largest});
    metrics.values.push_back(
        {"rollout/logprob_diff_mean", mismatch_.sum / static_cast<double>(mismatch_.tokens)});
  }
  if (correction_) {
    metrics.values.push_back({"correction/ratio_mean", correction_->mean_ratio});
    metrics.values.push_back({"correction/ratio_max", correction_->max_ratio});
    metrics.values.push_back({"correction/left_out", correction_->left_out});
    metrics.values.push_back({"correction/cut_off", correction_->cut_off});
    metrics.values.push_back({"correction/kl", correction_->kl});
  }
  metrics.values.push_back({"rl/prompts", static_cast<double>(prompts_)});
  metrics.values.push_back({"time/sampling_s", times_.sampling});
  metrics.values.push_back({"time/reward_wait_s", times_.waiting});
  metrics.values.push_back({"time/reference_s", times_.reference});
  metrics.values.push_back({"time/old_logprobs_s", times_.old});
}

void Trainer::tell(const train::StepMetrics& metrics) {
  record(train::to_line(metrics));
  const auto value = [&](const char* name) {
    for (const auto& [key, number] : metrics.values) {
      if (key == name) return number;
    }
    return 0.0;
  };
  progress_->update(fmt::format(
      "update {}/{}  reward {:.3f}  entropy {:.3f}  length {:.1f}  clipped {:.3f}  equal groups "
      "{:.2f}  loss {:.4f}  sampling {}, update {}  log-probabilities differ {}",
      metrics.step, course_.steps, value("reward"), value("entropy"),
      value("completions/mean_length"), value("clip_ratio/region_mean"),
      value("frac_reward_zero_std"), metrics.loss, human_time(times_.sampling),
      human_time(metrics.step_s), mismatch_.tokens > 0 ? mismatch_.text() : "unmeasured"));
}

/// Samples held-out prompts and scores them.
void Trainer::evaluate(bool final) {
  if (data_.held_out().empty() || evaluated_ == stepper_->done().step) return;
  evaluated_ = stepper_->done().step;
  const int64_t begin = now_ns();
  train::Values values;
  for (const PromptSet& set : data_.held_out()) {
    const std::string group = set.name.empty() ? "eval/" : "eval/" + set.name + "/";
    for (const auto& [name, value] : evaluate_set(set)) {
      values.push_back({group + name, value});
    }
  }
  if (!is_first()) return;
  JsonWriter line;
  line.object().member("step", evaluated_).member("time_s", stepper_->done().seconds);
  for (const auto& [name, value] : values) {
    line.member(name, value);
  }
  record(line.member("eval/final", final).end().take());
  std::string text = fmt::format("update {}:", evaluated_);
  for (const auto& [name, value] : values) {
    if (name.find("reward") != name.npos || name.find("pass@") != name.npos) {
      text += fmt::format(" {} {:.4f}", name, value);
    }
  }
  progress_->print(text + fmt::format(" ({})", human_time(seconds_since(begin))));
}

/// Returns the means of a set's samples; in all processes but the first none.
train::Values Trainer::evaluate_set(const PromptSet& set) {
  Order order;
  order.samples = rl_.eval_samples;
  order.temperature =
      rl_.eval_samples > 1 && rl_.eval_temperature == 0 ? rl_.temperature : rl_.eval_temperature;
  order.limited = order.temperature > 0;
  // Evaluations of a training draw alike, and unlike its own samples.
  order.seed = random_bits(static_cast<uint64_t>(section_.seed), hash_name("rl evaluation"), 0);
  order.version = stepper_->done().step;
  const int64_t all = std::ssize(set.prompts);
  const int64_t count = rl_.eval_prompts > 0 ? std::min(rl_.eval_prompts, all) : all;
  for (int64_t i = 0; i < count; ++i) {
    const Prompt& prompt = set.prompts[static_cast<size_t>(i * all / count)];
    order.groups.push_back({prompt.index, &prompt});
  }
  std::vector<Sample> samples = rollout_.run(
      order, [&](const Prompt& prompt, Sample& sample) { rewards_->add(prompt, sample); },
      [] { return false; });
  if (!is_first()) return {};
  rewards_->wait();
  if (rl_.trajectories) {
    std::vector<const Prompt*> prompts;
    for (const Order::Group& group : order.groups) {
      prompts.insert(prompts.end(), static_cast<size_t>(order.samples), group.prompt);
    }
    write_samples(
        samples, prompts, {},
        fmt::format("eval-{}{:06d}", set.name.empty() ? "" : set.name + "-", order.version));
  }
  return evaluation_metrics(samples, order.samples);
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

void Trainer::write_trajectories(const Experience& experience, const std::string& name) const {
  if (!is_first()) return;
  std::vector<const Prompt*> prompts;
  for (const Sample& sample : experience.samples) {
    prompts.push_back(&data_.at(sample.group));
  }
  write_samples(experience.samples, prompts, experience.turns, name);
}

/// Writes a line per sample to output.dir/trajectories/NAME.jsonl.
void Trainer::write_samples(std::span<const Sample> samples,
                            const std::vector<const Prompt*>& prompts, std::span<const Turn> turns,
                            const std::string& name) const {
  const std::string folder = join_path(run_.config.output.dir, "trajectories");
  std::string text;
  for (size_t i = 0; i < samples.size(); ++i) {
    text += to_line(samples[i], *prompts[i], turns.empty() ? nullptr : &turns[i]) + "\n";
  }
  saver_.storing([&] {
    make_dirs(folder);
    write_file_atomic(join_path(folder, name + ".jsonl"), text);
  });
}

void Trainer::save() {
  const train::StepsDone& done = stepper_->done();
  if (saved_at_ == done.step) return;
  train::Position position;
  position.fingerprint = data_.fingerprint();
  position.certificate = certificate_;
  position.began_with = start_.began_with;
  position.course = course_;
  position.skipped = done.skipped;
  position.time_s = done.seconds;
  position.kernels = kernels::cpu_level();
  position.prompts = prompts_;
  const engine::Session& session = programs_.session(update_spec(multiple()));
  progress_->print("saved " + saver_.save(done.step, session, data_, position, done.losses));
  stepper_->save();
  saved_at_ = done.step;
  saver_.prune(done.step, 0);
}

}  // namespace

int train(const engine::Run& run, const std::string& command) {
  train::StopSignals stop;
  stop.set_resume("nothing was begun");
  return Trainer(run, command, stop).go();
}

}  // namespace hocket::rl
