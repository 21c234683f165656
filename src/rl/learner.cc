// SPDX-License-Identifier: Apache-2.0
#include "rl/learner.h"

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "graph/names.h"

namespace hocket::rl {

namespace names = graph::names;

std::vector<double> outputs_of(engine::Session& session, const char* name) {
  std::vector<double> all;
  for (int32_t m = 0; m < session.program().num_micro_batches; ++m) {
    const std::vector<double> some = session.collect_as<double>(name, m);
    all.insert(all.end(), some.begin(), some.end());
  }
  return all;
}

int64_t head_parts(const engine::Run& run, const engine::Compiled& training) {
  const auto is_part = [&](const program::Kind& kind) {
    return kind.op == "sumexp" && kind.in[0].dims[1] != run.model.vocab_size;
  };
  const auto& kinds = training.program.kinds;
  return std::any_of(kinds.begin(), kinds.end(), is_part) ? run.plan.tp : 1;
}

Learner::Learner(const engine::Run& run, engine::Programs& programs, train::TrainedReaders& readers)
    : run_(run), rl_(run.config.rl), programs_(programs), readers_(readers) {
  if (rl_.kl_coef > 0) {
    const auto open = [&] { reference_.emplace(run, rl_.reference, programs, readers); };
    if (rl_.reference.empty()) {
      open();
    } else {
      with_note("rl.reference names it", open);
    }
  }
}

engine::ProgramSpec Learner::spec(int64_t micro_batches) const {
  return engine::training(run_, {.num_micro_batches = micro_batches});
}

Packing Learner::pack(std::span<const Item> items) const {
  return {items, RowLimits::of(run_, multiple())};
}

void Learner::prepare(std::span<const Item> items, int64_t version) {
  mismatch_ = {};
  version_ = version;
  for (const Item& item : items) {
    mismatch_.all_tokens += std::ssize(item.sample->tokens);
  }
  reference_s_ = old_s_ = 0;
  const bool again = rl_.old_logprobs == "trainer";
  if (!reference_ && !again) return;
  const Packing packing = pack(items);
  const engine::Sizes sizes = packing.sizes();
  const auto logprobs = [&](engine::Session& session, bool replays) {
    engine::Batch batch = packing.batch();
    if (replays) {
      packing.add_routes(batch, run_.model);
    }
    session.feed(batch);
    session.step();
    return packing.by_item(outputs_of(session, names::kLogprobs));
  };
  if (reference_) {
    const int64_t begin = now_ns();
    std::vector<std::vector<double>> found = logprobs(reference_->session(sizes), false);
    for (size_t i = 0; i < items.size(); ++i) {
      items[i].inputs->reference = std::move(found[i]);
    }
    reference_s_ = seconds_since(begin);
  }
  if (again) {
    const int64_t begin = now_ns();
    std::vector<std::vector<double>> found =
        logprobs(readers_.now(engine::logprobs(run_, sizes)), run_.replays_routes());
    for (size_t i = 0; i < items.size(); ++i) {
      compare(items[i], found[i]);
      items[i].inputs->old = std::move(found[i]);
    }
    old_s_ = seconds_since(begin);
    judge();
  }
}

/// Compares a sample's log-probabilities with those of the policy that sampled it: groups that
/// dynamic sampling kept from an earlier step have another one.
void Learner::compare(const Item& item, std::span<const double> trained) {
  if (item.sample->version != version_) return;
  mismatch_.add(item.sample->logprobs, trained);
}

void Learner::judge() const {
  if (!rl_.strict || mismatch_.unequal == 0) return;
  fail_run("rl",
           "log-probabilities of sampling and training differ by {}; expected equal ones "
           "(rl.strict)",
           mismatch_.text());
}

void Learner::update(std::vector<Item> items, bool first, train::Stepper& stepper, double lr) {
  items_ = std::move(items);
  packing_.emplace(pack(items_));
  session_ = &programs_.session(engine::training(run_, packing_->sizes()));
  compares_ = first && rl_.old_logprobs == "rollout";
  stepper.prepare(0);
  stepper.run(lr);
  if (compares_) {
    judge();
  }
}

void Learner::skip(train::Stepper& stepper, double lr) {
  items_.clear();
  packing_.reset();
  session_ = nullptr;
  compares_ = false;
  stepper.skip(lr);
}

train::StepData Learner::data() {
  engine::Batch batch = packing_->batch();
  packing_->add_inputs(batch, engine::answers_per_sequence(run_));
  if (run_.replays_routes()) {
    packing_->add_routes(batch, run_.model);
  }
  // Weights make the mean; the loss needs no further scale.
  const bool first = session_->ranks().processes().index() == 0;
  return {std::move(batch), first ? 1 : 0, session_};
}

/// Adds the samples of the update that was made to its sums.
void Learner::measure_samples(UpdateStats* stats) {
  const auto logprobs = packing_->by_item(outputs_of(*session_, names::kLogprobs));
  const auto entropies = packing_->by_item(outputs_of(*session_, names::kEntropies));
  for (size_t i = 0; i < items_.size(); ++i) {
    stats->add(*items_[i].inputs, logprobs[i], entropies[i]);
    if (compares_) {
      compare(items_[i], logprobs[i]);
    }
  }
}

void Learner::measure(train::StepMetrics& metrics) {
  UpdateStats stats(rl_);
  if (session_ != nullptr) {
    measure_samples(&stats);
    metrics.tokens = packing_->tokens();
  }
  const train::Values means = stats.means();
  metrics.values.insert(metrics.values.end(), means.begin(), means.end());
  const train::Values apart = mismatch_.values();
  metrics.values.insert(metrics.values.end(), apart.begin(), apart.end());
  for (const auto& [name, value] : {std::pair("loss", stats.loss()),
                                    {"grad_norm", metrics.grad_norm},
                                    {"learning_rate", metrics.lr},
                                    {"actor/grad_norm", metrics.grad_norm},
                                    {"actor/lr", metrics.lr}}) {
    metrics.values.push_back({name, value});
  }
}

}  // namespace hocket::rl
