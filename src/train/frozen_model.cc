// SPDX-License-Identifier: Apache-2.0
#include "train/frozen_model.h"

#include <fmt/format.h>

#include "checkpoint/model_weights.h"
#include "checkpoint/resolve.h"
#include "engine/params.h"
#include "engine/weights.h"

namespace hocket::train {

engine::Session& TrainedReaders::now(const engine::ProgramSpec& spec) {
  std::unique_ptr<engine::ParameterReader>& reader = readers_[spec.key];
  if (!reader) {
    reader = std::make_unique<engine::ParameterReader>(trained_, spec, &trained_.compiled());
  }
  reader->update();
  return reader->session();
}

FrozenModel::FrozenModel(const engine::Run& run, const std::string& model, engine::Programs& policy,
                         TrainedReaders& readers)
    : run_(run), frozen_(run), policy_(policy), readers_(readers) {
  frozen_.lora.reset();
  // Nothing of it is trained, and patterns may be of the adapter.
  frozen_.config.train.freeze.clear();
  frozen_.config.rl.routing_replay = false;  // the policy's experts are not its own
  if (!model.empty()) {
    const checkpoint::ModelLocation at =
        checkpoint::resolve_model(model, checkpoint::Need::weights);
    frozen_.weights = at.folder;
    frozen_.adapter = at.adapter;
  }
  shares_ = run.lora && run.lora->modules_to_save.empty() && run.adapter.empty() && model.empty();
  if (shares_) {
    described_ = "the model without its adapter";
    return;
  }
  described_ = frozen_.weights.empty() ? fmt::format("random, seed {}", run.config.train.seed)
                                       : "from " + frozen_.weights;
  if (!frozen_.adapter.empty()) {
    described_ += " and " + frozen_.adapter;
  }
  programs_ = std::make_unique<engine::Programs>(frozen_, policy.ranks());
}

FrozenModel::~FrozenModel() = default;

engine::ProgramSpec FrozenModel::spec(const engine::Sizes& sizes) const {
  engine::ProgramSpec spec = engine::logprobs(frozen_, sizes);
  spec.key = "reference " + spec.key;
  return spec;
}

const engine::Compiled& FrozenModel::compiled(const engine::Sizes& sizes) {
  return programs_->compiled(spec(sizes));
}

void FrozenModel::load(const engine::Sizes& sizes) {
  if (shares_ || loaded_) return;
  loaded_ = true;
  engine::Session& session = programs_->session(spec(sizes));
  if (!frozen_.weights.empty()) {
    const std::string folder = checkpoint::resolve_model(frozen_.weights, checkpoint::Need::intact,
                                                         policy_.ranks().processes())
                                   .folder;
    engine::load_weights(checkpoint::ModelWeights(folder, frozen_.model, frozen_.adapter),
                         session.compiled(), session.store());
  }
  engine::initialise(session.graph(), session.program(),
                     static_cast<uint64_t>(run_.config.train.seed), session.store());
}

engine::Session& FrozenModel::session(const engine::Sizes& sizes) {
  return shares_ ? readers_.now(spec(sizes)) : programs_->session(spec(sizes));
}

void FrozenModel::release() {
  programs_.reset();
  loaded_ = true;  // never again
}

}  // namespace hocket::train
