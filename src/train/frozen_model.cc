// SPDX-License-Identifier: Apache-2.0
#include "train/frozen_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/error.h"
#include "checkpoint/gguf_model.h"
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

namespace {

/// Values of a configuration that change no log-probability.
constexpr std::array<std::string_view, 6> kFreeValues = {"max_position_embeddings",
                                                         "initializer_range",
                                                         "router_aux_loss_coef",
                                                         "bos_token_id",
                                                         "pad_token_id",
                                                         "eos_token_id"};
constexpr double kRoundedValue = 1e-6;  // numbers of GGUF files are of fp32

bool is_same_value(const nlohmann::ordered_json& a, const nlohmann::ordered_json& b) {
  if (!a.is_number() || !b.is_number()) return a == b;
  const auto x = a.get<double>(), y = b.get<double>();
  return std::fabs(x - y) <= kRoundedValue * std::max(std::fabs(x), std::fabs(y));
}

/// Throws Error for a reference of another network than the policy's, since its weights alone are
/// read.
void expect_same_network(const models::ModelConfig& policy, const std::string& config_file) {
  const nlohmann::ordered_json wanted = models::values_of(policy);
  const nlohmann::ordered_json found =
      models::values_of(checkpoint::read_model_config(config_file));
  for (const auto& [name, value] : wanted.items()) {
    const bool is_free =
        std::find(kFreeValues.begin(), kFreeValues.end(), name) != kFreeValues.end();
    if (is_free || is_same_value(value, found.at(name))) continue;
    fail(config_file,
         "{} of the reference is {}, and that of the model {}; expected a reference with the "
         "model's configuration",
         name, found.at(name).dump(), value.dump());
  }
}

}  // namespace

FrozenModel::FrozenModel(const engine::Run& run, const std::string& model, engine::Programs& policy,
                         TrainedReaders& readers)
    : run_(run), frozen_(run), policy_(policy), readers_(readers), named_(!model.empty()) {
  frozen_.lora.reset();
  // Nothing of it is trained, and patterns may be of the adapter.
  frozen_.config.train.freeze.clear();
  frozen_.config.rl.routing_replay = false;  // the policy's experts are not its own
  if (named_) {
    const checkpoint::ModelLocation at =
        checkpoint::resolve_model(model, checkpoint::Need::weights);
    expect_same_network(run.model, at.config_file);
    frozen_.weights = at.folder;
    frozen_.adapter = at.adapter;
  }
  shares_ = run.lora && run.lora->modules_to_save.empty() && run.adapter.empty() && !named_;
  if (shares_) {
    described_ = "the model without its adapter";
    return;
  }
  described_ = frozen_.weights.empty() ? fmt::format("random, seed {}", run.config.train.seed)
                                       : "from " + checkpoint::base_folder(frozen_.weights);
  if (!frozen_.adapter.empty()) {
    described_ += " and " + frozen_.adapter;
  }
  programs_ = std::make_unique<engine::Programs>(frozen_, policy.ranks(), policy.inspect());
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
