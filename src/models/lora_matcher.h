// SPDX-License-Identifier: Apache-2.0
// Matching of an adapter with a model: the state of match_lora (lora.h). Internal to src/models.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "models/lora.h"
#include "models/lora_modules.h"
#include "models/lora_targets.h"

namespace hocket::models {

/// Finds the weights that an adapter changes, module by module, and their tensors in its file.
class LoraMatcher {
 public:
  LoraMatcher(const ModelConfig& config, const Lora& lora, const std::string& where,
              ExpertLayout layout, LoraKeys keys)
      : config_(config),
        lora_(lora),
        where_(where),
        layout_(layout),
        keys_(keys),
        modules_(modules_of(config)),
        targets_(lora, where, keys),
        ranks_(lora.rank_pattern, key("rank_pattern"), where),
        alphas_(lora.alpha_pattern, key("alpha_pattern"), where) {}

  LoraPlan run();

 private:
  std::string key(const char* field) const { return key_of(keys_, field); }
  void check_options() const;
  void check_layers() const;
  bool is_left_out(const std::string& module) const;
  bool is_target(const LinearModule& linear, const std::string& module);
  int32_t module(const std::string& name, bool expert);
  void add_linear(const LinearModule& linear, const std::vector<int32_t>& parts);
  void add_experts(const LinearModule& linear, int32_t module);
  std::vector<int32_t> expert_modules(const LinearModule& linear, size_t parts);
  void add_expert_modules(const LinearModule& linear);
  void add_saved();
  void add_if_saved(const ParamWeights& param, std::set<std::string>* used);
  void expect_saved(const std::set<std::string>& used) const;
  void expect_one_training() const;

  const ModelConfig& config_;
  const Lora& lora_;
  const std::string& where_;
  const ExpertLayout layout_;
  const LoraKeys keys_;
  const ModelModules modules_;
  TargetMatcher targets_;
  PatternValues<int64_t> ranks_;
  PatternValues<double> alphas_;
  std::map<std::string, int32_t> by_name_;
  std::set<std::string> a_made_;
  LoraPlan plan_;
};

}  // namespace hocket::models
