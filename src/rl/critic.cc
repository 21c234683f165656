// SPDX-License-Identifier: Apache-2.0
#include "rl/critic.h"

#include <fmt/format.h>
#include <fnmatch.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"
#include "checkpoint/gguf_model.h"
#include "checkpoint/resolve.h"
#include "comm/run_on_all.h"
#include "engine/params.h"
#include "engine/weights.h"
#include "graph/names.h"
#include "models/weights.h"
#include "rl/advantage.h"
#include "train/resume.h"

namespace hocket::rl {

namespace names = graph::names;

namespace {

/// Gives the training of the policy the critic's learning rate.
void set_learning_rate(const engine::CriticSection& critic, engine::TrainSection& train) {
  const double peak = critic.lr > 0 ? critic.lr : train.lr;
  const double end_share = train.lr > 0 ? train.final_lr() / train.lr : 0;
  train.min_lr = critic.min_lr.value_or(end_share * peak);
  train.lr = peak;
  train.schedule = critic.schedule.value_or(train.schedule);
  if (critic.lr_warmup_steps || critic.lr_warmup_share) {
    train.warmup_steps = critic.lr_warmup_steps.value_or(0);
    train.warmup_share = critic.lr_warmup_share;
  }
}

/// Leaves out patterns that are of the policy alone, such as its head's or its adapter's. The
/// policy's program refuses those of neither.
void keep_own_groups(const models::ModelConfig& model, engine::OptimizerSection& optimizer) {
  const std::vector<models::ParamWeights> params = models::weight_map(model);
  for (engine::OptimizerGroup& group : optimizer.groups) {
    std::erase_if(group.match, [&](const std::string& pattern) {
      return std::none_of(params.begin(), params.end(), [&](const models::ParamWeights& param) {
        return fnmatch(pattern.c_str(), param.param.c_str(), 0) == 0;
      });
    });
  }
  std::erase_if(optimizer.groups,
                [](const engine::OptimizerGroup& group) { return group.match.empty(); });
}

}  // namespace

engine::Run critic_run(const engine::Run& policy) {
  engine::Run run = policy;
  const engine::CriticSection& section = policy.config.rl.critic;
  run.lora.reset();
  run.config.train.freeze.clear();
  if (!section.path.empty()) {
    const checkpoint::ModelLocation at = with_note("rl.critic.path names it", [&] {
      return checkpoint::resolve_model(section.path, checkpoint::Need::weights);
    });
    run.weights = at.folder;
    run.adapter = at.adapter;
    run.config.model.path = section.path;
    run.model = checkpoint::read_model_config(at.config_file);
    if (run.model.vocab_size != policy.model.vocab_size) {
      fail(policy.name, "rl.critic.path {} has {} tokens, and the policy {}; expected as many",
           section.path, run.model.vocab_size, policy.model.vocab_size);
    }
  }
  run.model.value_head = true;
  keep_own_groups(run.model, run.config.optimizer);
  set_learning_rate(section, run.config.train);
  run.config.output.dir = join_path(policy.config.output.dir, "critic");
  return run;
}

Critic::Critic(const engine::Run& policy, engine::Programs& programs, train::StopSignals& stop)
    : policy_(policy),
      run_(critic_run(policy)),
      programs_(run_, programs.ranks(), programs.inspect()),
      saver_(run_, stop) {
  make_dirs(run_.config.output.dir);
  saver_.open(programs.ranks());
}

engine::ProgramSpec Critic::spec(const engine::Sizes& sizes) const {
  engine::ProgramSpec spec = engine::training(run_, sizes);
  spec.key = "critic " + spec.key;
  return spec;
}

engine::ProgramSpec Critic::values(const engine::Sizes& sizes) const {
  engine::ProgramSpec spec = engine::logprobs(run_, sizes);
  spec.key = "critic " + spec.key;
  return spec;
}

int64_t Critic::updates_of_step() const {
  const engine::RlSection& rl = policy_.config.rl;
  return rl.prompts_per_step / rl.update_prompts() * rl.critic.epochs;
}

/// Returns its updates after so many of the policy's.
int64_t Critic::updates_after(int64_t policy_updates) const {
  const engine::RlSection& rl = policy_.config.rl;
  const int64_t steps = policy_updates / rl.updates_per_step() + rl.critic.warmup_steps;
  return steps * updates_of_step();
}

std::optional<train::Position> Critic::load(const train::Start& policy, const PromptData& data,
                                            int64_t micro_batches, int64_t policy_updates) {
  least_ = micro_batches;
  course_.steps = updates_after(policy_updates);
  saver_.read_files(data);
  engine::Session& session = programs_.session(spec({.num_micro_batches = micro_batches}));
  comm::Processes& processes = session.ranks().processes();
  std::optional<train::Position> position;
  if (policy.from) {
    const int64_t step = policy.done.step;
    const std::string folder = saver_.folder_of(step);
    if (!is_directory(folder)) {
      fail(folder, "is absent: the critic of the policy's checkpoint of step {}; expected both",
           step);
    }
    const checkpoint::Checkpoint from(folder, checkpoint::Verify::all);
    train::restore(from, session.compiled(), session.store());
    position = train::Position::of(from);
    began_with_ = position->began_with;
    updates_ = step > 0 ? updates_after(step) : position->warmups * updates_of_step();
    skipped_ = position->skipped;
  } else {
    if (!run_.weights.empty()) {
      const checkpoint::ModelLocation at =
          checkpoint::resolve_model(run_.weights, checkpoint::Need::intact, processes);
      // Loads all but the head from a language model; from a critic that, too.
      models::ModelConfig model = run_.model;
      model.value_head = checkpoint::read_model_config(at.config_file).value_head;
      engine::load_weights(checkpoint::ModelWeights(at.folder, model, run_.adapter),
                           session.compiled(), session.store());
    }
    began_with_ = run_.weights.empty() ? "random" : "from " + run_.weights;
  }
  engine::initialise(session.graph(), session.program(),
                     static_cast<uint64_t>(run_.config.train.seed), session.store());
  return position;
}

namespace {

/// Collects values of all tokens, [rows, seq_len].
std::vector<double> values_of(engine::Session& session) {
  const graph::DType type = session.graph().tensor(session.graph().find(names::kValues)).type.dtype;
  std::vector<double> all;
  for (int32_t m = 0; m < session.program().num_micro_batches; ++m) {
    if (type == graph::DType::f64) {
      const auto some = session.collect_as<double>(names::kValues, m);
      all.insert(all.end(), some.begin(), some.end());
    } else {
      HOCKET_CHECK(type == graph::DType::f32, "values are {}", to_string(type));
      const auto some = session.collect_as<float>(names::kValues, m);
      all.insert(all.end(), some.begin(), some.end());
    }
  }
  return all;
}

}  // namespace

void Critic::evaluate(std::span<const Item> items, const Packing& packing) {
  engine::Session& session = programs_.session(values(packing.sizes()));
  session.feed(packing.batch());
  session.step();
  std::vector<std::vector<double>> values = packing.by_item(values_of(session));
  for (size_t i = 0; i < items.size(); ++i) {
    items[i].inputs->values = std::move(values[i]);
  }
}

/// Makes one update; returns its loss. A gradient that is not finite changes nothing, and is a
/// failure.
double Critic::update(std::span<const Item> items) {
  const Packing packing(items, RowLimits::of(run_, least_));
  engine::Session& session = programs_.session(spec(packing.sizes()));
  engine::Batch batch = packing.batch();
  packing.add_critic_inputs(batch);
  ++updates_;
  lr_ = train::learning_rate(run_.config.train, updates_, course_);
  batch.hyper = engine::hyper_of(run_.config.optimizer, lr_, updates_ - skipped_);
  session.feed(batch);
  session.step();
  const double loss = session.loss();
  norm_ = session.collect_as<double>(names::kGradNorm)[0];
  if (!std::isfinite(loss) || !std::isfinite(norm_)) {
    failure_ = fmt::format(
        "the critic's update {} has loss {} and gradient norm {}; try a lower rl.critic.lr",
        updates_, number_text(loss), number_text(norm_));
  }
  return loss;
}

train::Values Critic::learn(const std::vector<Item>& items, std::span<LossInputs> loss_inputs,
                            size_t at_once) {
  const engine::RlSection& rl = policy_.config.rl;
  double losses = 0, norms = 0, updates = 0;
  for (int64_t epoch = 0; epoch < rl.critic.epochs; ++epoch) {
    for (size_t begin = 0; begin < items.size(); begin += at_once) {
      const size_t end = std::min(begin + at_once, items.size());
      if (!set_weights(rl, loss_inputs, begin, end)) {
        ++updates_;
        ++skipped_;
        continue;
      }
      losses += update(std::span(items).subspan(begin, end - begin));
      norms += norm_;
      if (!failure_.empty()) {
        is_unchanged_ = updates == 0;
        return {};
      }
      ++updates;
    }
  }
  // Shares of the returns' variance that the values before the updates had explained.
  double n = 0, sum = 0, squares = 0, rest = 0, rest_sum = 0;
  for (const Item& item : items) {
    for (size_t t = 0; t < item.inputs->returns.size(); ++t) {
      if (!item.inputs->trains(t)) continue;
      const double target = item.inputs->returns[t], apart = target - item.inputs->values[t];
      n += 1;
      sum += target;
      squares += target * target;
      rest += apart * apart;
      rest_sum += apart;
    }
  }
  const double variance = squares / n - sum / n * (sum / n);
  const double unexplained = rest / n - rest_sum / n * (rest_sum / n);
  const double explained = variance == 0 ? 0 : 1 - unexplained / variance;
  text_ = updates == 0 ? "nothing to train: no token counts"
                       : fmt::format("loss {:.4f}, explained variance {:.3f}, lr {:.3g}",
                                     losses / updates, explained, lr_);
  return {{"critic/vf_loss", losses / updates},
          {"critic/grad_norm", norms / updates},
          {"critic/lr", lr_}};
}

void Critic::save(const train::StepsDone& done, const PromptData& data, train::Position position) {
  position.began_with = began_with_;
  position.skipped = skipped_;
  saver_.save(done.step, programs_.session(spec({.num_micro_batches = least_})), data, position,
              done.losses);
}

void Critic::prune(int64_t step) const { saver_.prune(step, 0); }

}  // namespace hocket::rl
