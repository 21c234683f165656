// SPDX-License-Identifier: Apache-2.0
// Implements: LoraMatcher (lora_matcher.h), for experts: their products, or projections as modules.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "models/lora_matcher.h"
#include "ops/rules.h"

namespace hocket::models {

using graph::Dims;
using graph::kNone;
using ops::product;

void LoraMatcher::add_experts(const LinearModule& linear, int32_t module) {
  // PEFT keeps flat matrices: row e r + k of A, column k E + e of B. Of several parameters of one
  // module the outer wrapper has the last one's.
  const ParamWeights& param = *linear.param;
  const Dims& dims = param.dims;
  const LoraModule& made = plan_.modules[static_cast<size_t>(module)];
  const int64_t experts = dims[0];
  const int64_t in = dims.back();
  const int64_t out = product(dims, 1, dims.size() - 1);
  const int64_t r = made.r;
  LoraTarget target;
  target.weight = param.param;
  target.parts = {module};
  target.expert = true;
  target.a = param.param + ".lora_A";
  target.b = param.param + ".lora_B";
  target.a_dims = {experts, r, in};
  target.b_dims.assign(dims.begin(), dims.end() - 1);
  target.b_dims.push_back(r);
  const std::string parent = made.name.substr(0, made.name.rfind('.'));
  const bool inner =
      made.name.ends_with(".gate_up_proj") && targets_.matches_parameter(parent + ".down_proj");
  const std::string name = kAdapterPrefix + parent + (inner ? ".base_layer" : "");
  const std::string a = name + ".lora_A.weight";
  const std::string b = name + ".lora_B.weight";
  WeightSlice of_a{a, {r * experts, in}};
  WeightSlice of_b{b, {out, r * experts}, 0, 0, {{experts, 1}, {out, r * experts}, {r, experts}}};
  if (layout_ == ExpertLayout::swapped) {
    of_a = {b, {in, r * experts}, 0, 0, {{experts, 1}, {r, experts}, {in, r * experts}}};
    of_b = {a, {r * experts, out}, 0, 0, {{experts, r * out}, {out, 1}, {r, out}}};
  }
  plan_.weights.push_back({target.a, target.a_dims, {{of_a}}, {}});
  plan_.weights.push_back({target.b, target.b_dims, {{of_b}}, {}});
  plan_.targets.push_back(std::move(target));
}

/// Returns the modules of an expert's projections, which are those of all experts: they have one
/// rank and one scale.
std::vector<int32_t> LoraMatcher::expert_modules(const LinearModule& linear, size_t parts) {
  const WeightForm& form = linear.param->forms[0];
  const bool is_parameter = targets_.matches_parameter(without_kind(linear.form[0].name));
  std::vector<int32_t> first(parts, kNone);
  for (size_t i = 0; i < form.size(); ++i) {
    const std::string name = without_kind(form[i].name);
    const bool is_wanted =
        is_parameter || (targets_.matches(name, linear.layer) && !is_left_out(name));
    const int32_t made = is_wanted ? module(name, true) : kNone;
    int32_t& of_part = first[i % parts];
    if (i < parts) {
      of_part = made;
    }
    const auto at = [&](int32_t id) { return plan_.modules[static_cast<size_t>(id)]; };
    if ((made == kNone) != (of_part == kNone) ||
        (made != kNone && (at(made).r != at(of_part).r || at(made).scale != at(of_part).scale))) {
      fail(where_, "{} and {} are not adapted alike; expected one rank and alpha for all experts",
           without_kind(form[i % parts].name), name);
    }
  }
  return first;
}

/// Adds experts whose projections are modules: their tensors are stacked.
void LoraMatcher::add_expert_modules(const LinearModule& linear) {
  const ParamWeights& param = *linear.param;
  const WeightForm& form = param.forms[0];
  const int64_t experts = param.dims[0];
  const int64_t in = param.dims.back();
  const int64_t out = form[0].numel() / in;
  const int64_t parts = product(param.dims, 1, param.dims.size() - 1) / out;
  HOCKET_CHECK(std::ssize(form) == experts * parts, "{}: {} tensors of {} experts", param.param,
               form.size(), experts);
  LoraTarget target;
  target.parts = expert_modules(linear, static_cast<size_t>(parts));
  int64_t rank = 0;
  for (const int32_t part : target.parts) {
    if (part != kNone) {
      rank = std::max(rank, plan_.modules[static_cast<size_t>(part)].r);
    }
  }
  if (rank == 0) return;
  target.weight = param.param;
  target.expert = true;
  target.a = param.param + ".lora_A";
  target.b = param.param + ".lora_B";
  target.a_dims = {experts, rank, in};
  if (parts > 1) {
    target.a_dims.insert(target.a_dims.begin() + 1, parts);
  }
  target.b_dims.assign(param.dims.begin(), param.dims.end() - 1);
  target.b_dims.push_back(rank);
  WeightForm a, b;
  for (size_t i = 0; i < form.size(); ++i) {
    const int32_t part = target.parts[i % target.parts.size()];
    if (part == kNone) continue;
    const int64_t r = plan_.modules[static_cast<size_t>(part)].r;
    const auto at = static_cast<int64_t>(i);
    const std::string name = kAdapterPrefix + without_kind(form[i].name);
    a.push_back({name + ".lora_A.weight", {r, in}, at * rank * in});
    // Rows of fewer columns lie apart in B.
    for (int64_t row = 0; r < rank && row < out; ++row) {
      b.push_back({name + ".lora_B.weight", {out, r}, (at * out + row) * rank, row * r, {{r, 1}}});
    }
    if (r == rank) {
      b.push_back({name + ".lora_B.weight", {out, r}, at * out * rank});
    }
  }
  plan_.weights.push_back({target.a, target.a_dims, {a}, {}});
  plan_.weights.push_back({target.b, target.b_dims, {b}, {}});
  plan_.targets.push_back(std::move(target));
}

}  // namespace hocket::models
