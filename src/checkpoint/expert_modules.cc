// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/expert_modules.h"

#include <fmt/format.h>

#include <map>
#include <set>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "models/weights.h"

namespace hocket::checkpoint {

using models::LoraModule;
using models::LoraPlan;
using models::LoraTarget;
using models::ParamWeights;
using models::WeightSlice;

namespace {

/// "model.layers.0.mlp.experts.3.up_proj" of the same with ".weight".
std::string module_of(const std::string& tensor) { return tensor.substr(0, tensor.rfind('.')); }

/// "experts.3.up_proj" of "model.layers.0.mlp.experts.3.up_proj".
std::string ending_of(const std::string& module) {
  size_t at = module.size();
  for (int parts = 0; parts < 3 && at != 0; ++parts) {
    const size_t dot = module.rfind('.', at - 1);
    at = dot == std::string::npos ? 0 : dot;
  }
  return at == 0 ? module : module.substr(at + 1);
}

/// Collects the tensors of a folder with experts as modules.
class ExpertModules {
 public:
  ExpertModules(const AdapterWeights& adapter, const models::ModelConfig& model)
      : adapter_(adapter) {
    for (ParamWeights& param : models::weight_map(model)) {
      std::string name = param.param;
      params_.emplace(std::move(name), std::move(param));
    }
  }
  /// Returns the tensors, which read the adapter when they are written.
  std::vector<NamedTensor> tensors();
  /// Returns the plan with the modules as targets. Requires: tensors().
  LoraPlan plan() const;

 private:
  void expect_alike(const LoraTarget& target) const;
  void add_expert(const LoraTarget& target);
  void add_stored(const std::string& name);
  using Fits = bool (*)(const std::string& tensor, const std::string& ending);
  void keep_meaning(const std::set<std::string>& meant, Fits fits,
                    std::vector<std::string>* endings) const;
  void name_others(LoraPlan* plan) const;
  /// Type that a parameter's tensors are stored as.
  graph::DType type_of(const std::string& param) const;

  const AdapterWeights& adapter_;
  std::map<std::string, ParamWeights> params_;
  std::vector<std::string> modules_;  ///< of experts
  std::vector<NamedTensor> tensors_;
};

graph::DType type_of_stored(const StoredTensor& tensor) {
  return floating_type(tensor.type).value_or(graph::DType::f32);
}

graph::DType ExpertModules::type_of(const std::string& param) const {
  const std::string& name = adapter_.slices(param)[0].name;
  return type_of_stored(*adapter_.file().find(name).tensor);
}

/// Throws Error for patterns of experts: their modules have the adapter's own rank and alpha.
void ExpertModules::expect_alike(const LoraTarget& target) const {
  const LoraPlan& plan = adapter_.plan();
  const LoraModule& module = plan.modules[static_cast<size_t>(target.parts[0])];
  if (module.r != plan.lora.r || module.alpha != plan.lora.lora_alpha) {
    fail(adapter_.folder(),
         "{} has r {} and lora_alpha {}; expected those of the adapter, {} and {}", module.name,
         module.r, module.alpha, plan.lora.r, plan.lora.lora_alpha);
  }
}

void ExpertModules::add_expert(const LoraTarget& target) {
  expect_alike(target);
  const models::WeightForm& form = params_.at(target.weight).forms[0];
  const int64_t experts = target.b_dims[0];
  const int64_t r = target.b_dims.back();
  const int64_t in = target.a_dims.back();
  const int64_t out = form[0].numel() / in;
  const int64_t parts = std::ssize(form) / experts;
  const auto add = [&](const std::string& name, const std::string& param, graph::Dims dims,
                       int64_t begin) {
    const graph::DType dtype = type_of(param);
    tensors_.push_back({name,
                        {dtype, std::move(dims)},
                        nullptr,
                        [this, param, dtype, begin](int64_t first, int64_t count, void* dst) {
                          adapter_.load_range(param, begin + first, count, dtype, dst);
                        }});
  };
  for (int64_t i = 0; i < std::ssize(form); ++i) {
    const std::string module = module_of(form[static_cast<size_t>(i)].name);
    modules_.push_back(module);
    const std::string name = models::kAdapterPrefix + module;
    // An expert's projections have one A, and rows of B each.
    add(name + ".lora_A.weight", target.a, {r, in}, i / parts * r * in);
    add(name + ".lora_B.weight", target.b, {out, r}, i * out * r);
  }
}

void ExpertModules::add_stored(const std::string& name) {
  const TensorFiles::Entry entry = adapter_.file().find(name);
  const graph::DType dtype = type_of_stored(*entry.tensor);
  tensors_.push_back({name,
                      {dtype, entry.tensor->dims},
                      nullptr,
                      [entry, dtype](int64_t first, int64_t count, void* dst) {
                        entry.file->read(*entry.tensor, first, count, dtype, dst);
                      }});
}

std::vector<NamedTensor> ExpertModules::tensors() {
  const LoraPlan& plan = adapter_.plan();
  if (plan.layout == models::ExpertLayout::modules) {
    fail(adapter_.folder(), "has tensors of each expert already; expected stacked ones");
  }
  std::set<std::string> stacked;
  for (const LoraTarget& target : plan.targets) {
    if (!target.expert) continue;
    add_expert(target);
    stacked.insert({target.a, target.b});
  }
  if (stacked.empty()) {
    fail(adapter_.folder(), "has no products of experts; expected some (target_parameters)");
  }
  std::set<std::string> others;
  for (const ParamWeights& param : plan.weights) {
    if (stacked.contains(param.param)) continue;
    for (const WeightSlice& slice : param.forms[0]) {
      others.insert(slice.name);
    }
  }
  for (const std::string& name : others) {
    add_stored(name);
  }
  return std::move(tensors_);
}

/// Replaces endings of names that other modules of the model have, too, by the names that are
/// meant.
void ExpertModules::keep_meaning(const std::set<std::string>& meant, Fits fits,
                                 std::vector<std::string>* endings) const {
  std::vector<std::string> kept;
  for (const std::string& ending : *endings) {
    std::set<std::string> names;
    bool is_shared = false;
    for (const auto& [param, weights] : params_) {
      for (const WeightSlice& slice : weights.forms[0]) {
        if (!fits(slice.name, ending)) continue;
        if (const std::string module = module_of(slice.name); meant.contains(module)) {
          names.insert(module);
        } else {
          is_shared = true;
        }
      }
    }
    if (!is_shared) {
      names = {ending};
    }
    kept.insert(kept.end(), names.begin(), names.end());
  }
  *endings = std::move(kept);
}

/// Names the modules beside experts so that no projection of an expert, a module now, is meant:
/// layers without experts have projections of the same names.
void ExpertModules::name_others(LoraPlan* plan) const {
  models::Lora& lora = plan->lora;
  lora.rank_pattern.clear();
  lora.alpha_pattern.clear();
  std::set<std::string> adapted, saved;
  for (const LoraModule& module : plan->modules) {
    if (module.expert) continue;
    adapted.insert(module.name);
    if (module.r != lora.r) {
      lora.rank_pattern.emplace_back(module.name, module.r);
    }
    if (module.alpha != lora.lora_alpha) {
      lora.alpha_pattern.emplace_back(module.name, module.alpha);
    }
  }
  for (const std::string& param : plan->saved) {
    for (const WeightSlice& slice : params_.at(param).forms[0]) {
      saved.insert(module_of(slice.name));
    }
  }
  const Fits is_saved = [](const std::string& tensor, const std::string& ending) {
    return !models::saved_modules(tensor, {ending}).empty();
  };
  const Fits is_target = [](const std::string& tensor, const std::string& ending) {
    const std::string module = module_of(tensor);
    return module == ending || module.ends_with("." + ending);
  };
  keep_meaning(saved, is_saved, &lora.modules_to_save);
  keep_meaning(adapted, is_target, &lora.target_modules);
  if (!lora.target_pattern.empty()) {
    lora.target_modules.assign(adapted.begin(), adapted.end());
    lora.target_pattern.clear();
  }
}

LoraPlan ExpertModules::plan() const {
  LoraPlan plan = adapter_.plan();
  name_others(&plan);
  std::vector<std::string>& targets = plan.lora.target_modules;
  plan.lora.target_parameters.clear();
  // An ending stands for the modules of all layers, if all have an adapter.
  std::map<std::string, int64_t> of_model, adapted;
  for (const auto& [name, param] : params_) {
    for (const WeightSlice& slice : param.forms[0]) {
      ++of_model[ending_of(module_of(slice.name))];
    }
  }
  for (const std::string& module : modules_) {
    ++adapted[ending_of(module)];
  }
  for (const auto& [ending, count] : adapted) {
    if (count == of_model[ending]) {
      targets.push_back(ending);
    }
  }
  for (const std::string& module : modules_) {
    const std::string ending = ending_of(module);
    if (adapted.at(ending) != of_model[ending]) {
      targets.push_back(module);
    }
  }
  return plan;
}

}  // namespace

int64_t save_expert_modules(const AdapterWeights& adapter, const models::ModelConfig& model,
                            const std::string& base, const std::string& out) {
  models::expect_whole_modules(adapter.plan(), adapter.folder(), models::LoraKeys::peft);
  ExpertModules modules(adapter, model);
  const std::vector<NamedTensor> tensors = modules.tensors();
  make_dirs(out);
  save_safetensors(join_path(out, kAdapterFile), tensors);
  write_output(join_path(out, kAdapterConfigFile),
               adapter_config_json(modules.plan(), model, base));
  return std::ssize(tensors);
}

}  // namespace hocket::checkpoint
