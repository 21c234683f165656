// SPDX-License-Identifier: Apache-2.0
#include "models/lora_targets.h"

#include <algorithm>
#include <cstdint>
#include <iterator>

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

/// Returns the name of the first module of a block that the expression matches; empty: none.
std::string first_match(const ModelModules& modules, const std::string& expression) {
  const NamePattern pattern(expression, "", "");
  for (const LinearModule& linear : modules.linears) {
    for (const WeightSlice& slice : linear.form) {
      if (const std::string name = without_kind(slice.name);
          !linear.expert && pattern.matches(name)) {
        return name;
      }
    }
  }
  return "";
}

}  // namespace

std::string key_of(LoraKeys keys, const std::string& field) {
  if (keys == LoraKeys::peft) return field;
  static constexpr std::pair<const char*, const char*> kOther[] = {
      {"lora_alpha", "alpha"},
      {"lora_dropout", "dropout"},
      {"target_modules", "targets"},
      {"layers_to_transform", "layers"}};
  const auto* const at = std::find_if(std::begin(kOther), std::end(kOther),
                                      [&](const auto& pair) { return pair.first == field; });
  return "adapter." + (at == std::end(kOther) ? field : std::string(at->second));
}

TargetMatcher::TargetMatcher(const Lora& lora, const std::string& where, LoraKeys keys)
    : lora_(lora), where_(where), keys_(keys) {
  if (!lora.target_pattern.empty() && lora.target_pattern != kAllLinear) {
    pattern_.emplace(lora.target_pattern, key_of(keys, "target_modules"), where);
  }
}

bool TargetMatcher::matches(const std::string& module, int32_t layer) {
  const bool is_linear = layer != graph::kNone;
  const bool is_here = !is_linear || has_layer(lora_.layers_to_transform, layer);
  if (lora_.target_pattern.empty()) return fits_one(module, lora_.target_modules, is_here);
  const bool fits = is_here && (pattern_ ? pattern_->matches(module) : is_linear);
  any_ = any_ || fits;
  return fits;
}

bool TargetMatcher::matches_parameter(const std::string& name) {
  return fits_one(name, lora_.target_parameters, true);
}

void TargetMatcher::expect_used(const ModelModules& modules) const {
  for (const auto* list : {&lora_.target_modules, &lora_.target_parameters}) {
    for (const std::string& ending : *list) {
      if (used_.contains(&ending)) continue;
      if (list == &lora_.target_modules && is_of_experts(modules, ending)) {
        fail(where_, "{} is a parameter of experts, and no module; expected it in {}",
             quote(ending), key_of(keys_, "target_parameters"));
      }
      fail_unused(ending, modules, list == &lora_.target_parameters);
    }
  }
  if (!lora_.target_pattern.empty() && !any_) {
    fail_unused_pattern(modules);
  }
}

void TargetMatcher::fail_unused(const std::string& ending, const ModelModules& modules,
                                bool is_parameter) const {
  if (is_parameter) {
    fail(where_, "{}: no parameter of experts has a name that ends in {}; {}",
         key_of(keys_, "target_parameters"), quote(ending), some_experts(modules, ending));
  }
  if (ending == kAllLinear) {
    fail(where_,
         "{} has all-linear in a list of names; expected {} alone, which is every linear "
         "layer but the head, routers and experts",
         key_of(keys_, "target_modules"),
         keys_ == LoraKeys::run ? "[all-linear]" : "the text \"all-linear\"");
  }
  fail(where_, "no module's name{} ends in {}; {}", in_layers(), quote(ending),
       some_of(modules, ending, lora_.layers_to_transform));
}

void TargetMatcher::fail_unused_pattern(const ModelModules& modules) const {
  const std::string& pattern = lora_.target_pattern;
  const bool has_choice = pattern.find('|') != pattern.npos;
  const std::string longer = has_choice ? ".*(?:" + pattern + ")" : ".*" + pattern;
  const bool is_ending = !first_match(modules, longer).empty();
  fail(where_, "{} {} matches no module: a regular expression is for whole names, such as {}; {}",
       key_of(keys_, "target_modules"), quote(pattern), first_match(modules, ".*"),
       is_ending ? fmt::format("try {}{}", keys_ == LoraKeys::run ? "regex:" : "", longer)
                 : some_of(modules, pattern, {}));
}

std::string TargetMatcher::in_layers() const {
  const std::vector<int64_t>& layers = lora_.layers_to_transform;
  return layers.empty() ? "" : fmt::format(" of layers [{}]", fmt::join(layers, ", "));
}

bool TargetMatcher::fits_one(const std::string& name, const std::vector<std::string>& endings,
                             bool is_here) {
  bool any = false;
  for (const std::string& ending : endings) {
    if (name != ending && !(is_here && ends_in(name, ending))) continue;
    used_.insert(&ending);
    any = true;
  }
  return any;
}

}  // namespace hocket::models
