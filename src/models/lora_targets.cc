// SPDX-License-Identifier: Apache-2.0
#include "models/lora_targets.h"

#include <algorithm>
#include <cstdint>

namespace hocket::models {

namespace {

bool is_of_experts(const ModelModules& modules, const std::string& ending) {
  return std::any_of(
      modules.linears.begin(), modules.linears.end(), [&](const LinearModule& linear) {
        return linear.expert &&
               std::any_of(linear.form.begin(), linear.form.end(), [&](const WeightSlice& slice) {
                 return ends_in(without_kind(slice.name), ending);
               });
      });
}

}  // namespace

TargetMatcher::TargetMatcher(const Lora& lora, const std::string& where)
    : lora_(lora), where_(where) {
  if (!lora.target_pattern.empty() && lora.target_pattern != kAllLinear) {
    pattern_.emplace(lora.target_pattern, "target_modules", where);
  }
}

bool TargetMatcher::matches(const std::string& module, bool linear) {
  if (lora_.target_pattern == kAllLinear) {
    any_ = any_ || linear;
    return linear;
  }
  if (pattern_) {
    const bool fits = pattern_->matches(module);
    any_ = any_ || fits;
    return fits;
  }
  return fits_one(module, lora_.target_modules);
}

bool TargetMatcher::matches_parameter(const std::string& name) {
  return fits_one(name, lora_.target_parameters);
}

void TargetMatcher::expect_used(const ModelModules& modules) const {
  for (const auto* list : {&lora_.target_modules, &lora_.target_parameters}) {
    for (const std::string& ending : *list) {
      if (used_.contains(ending)) continue;
      if (list == &lora_.target_modules && is_of_experts(modules, ending)) {
        fail(where_,
             "{} is a parameter of experts, and no module; expected it in target_parameters",
             quote(ending));
      }
      fail(where_, "no module's name{} ends in {}; {}", in_layers(), quote(ending),
           some_of(modules, ending));
    }
  }
  if (!lora_.target_pattern.empty() && !any_) {
    fail(where_, "target_modules {} matches no module{}; {}", quote(lora_.target_pattern),
         in_layers(), some_of(modules, lora_.target_pattern));
  }
}

std::string TargetMatcher::in_layers() const {
  const std::vector<int64_t>& layers = lora_.layers_to_transform;
  return layers.empty() ? "" : fmt::format(" of layers [{}]", fmt::join(layers, ", "));
}

bool TargetMatcher::fits_one(const std::string& name, const std::vector<std::string>& endings) {
  bool any = false;
  for (const std::string& ending : endings) {
    if (!ends_in(name, ending)) continue;
    used_.insert(ending);
    any = true;
  }
  return any;
}

}  // namespace hocket::models
