// SPDX-License-Identifier: Apache-2.0
// Implements: match_lora (lora.h), and LoraMatcher (lora_matcher.h) but for experts.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "models/family.h"
#include "models/lora_matcher.h"
#include "ops/rules.h"

namespace hocket::models {

using graph::Dims;
using graph::kNone;
using ops::product;

namespace {

/// Returns the element of a tensor that is element `at` of its slice.
int64_t stored_of(const WeightSlice& slice, int64_t at) {
  if (slice.is_whole()) return at;
  int64_t stored = slice.begin;
  for (size_t i = slice.axes.size(); i-- > 0;) {
    stored += at % slice.axes[i].size * slice.axes[i].stride;
    at /= slice.axes[i].size;
  }
  return stored;
}

/// Returns the rows of a linear layer that a slice of `columns` wide rows has, in its tensor.
FileRows rows_of(const WeightSlice& slice, int64_t columns) {
  // A transposed tensor is [columns, rows]; a square one is told by its first row's stride.
  const int64_t count = slice.numel() / columns;
  const bool whole = slice.is_whole();
  const bool transposed = !whole && columns > 1 && stored_of(slice, 1) - stored_of(slice, 0) != 1;
  const int64_t total = slice.dims[transposed ? 1 : 0];
  if (whole) return FileRows::all(count);
  const auto row = [&](int64_t index) {
    const int64_t stored = stored_of(slice, index * columns);
    return transposed ? stored % total : stored / columns;
  };
  FileRows rows{total, row(0), count, count, count};
  for (int64_t i = 1; i < count; ++i) {
    if (row(i) == row(i - 1) + 1) continue;
    rows.run = i;
    rows.stride = row(i) - row(0);
    break;
  }
  for (int64_t i = 0; i < count; ++i) {
    HOCKET_CHECK(row(i) == rows.first + i / rows.run * rows.stride + i % rows.run, "{}: rows of {}",
                 slice.name, slice.dims[0]);
  }
  return rows;
}

}  // namespace

void LoraMatcher::check_options() const {
  if (lora_.r < 1) fail(where_, "{} is {}; expected at least 1", key("r"), lora_.r);
  if (!(lora_.lora_alpha > 0) || !std::isfinite(lora_.lora_alpha)) {
    fail(where_, "{} is {}, with which the adapter does nothing; expected above 0",
         key("lora_alpha"), lora_.lora_alpha);
  }
  if (!(lora_.lora_dropout >= 0 && lora_.lora_dropout < 1)) {
    fail(where_, "{} is {}; expected at least 0 and less than 1", key("lora_dropout"),
         lora_.lora_dropout);
  }
  if (lora_.target_modules.empty() && lora_.target_pattern.empty() &&
      lora_.target_parameters.empty()) {
    fail(where_, "there are no targets; {}; or all-linear", some_of(modules_, "", {}));
  }
  if (!lora_.target_parameters.empty() && lora_.lora_dropout > 0) {
    fail(where_, "{} is {}, which products of experts do not have; expected 0 with {}",
         key("lora_dropout"), lora_.lora_dropout, key("target_parameters"));
  }
  check_layers();
}

void LoraMatcher::check_layers() const {
  const std::vector<int64_t>& layers = lora_.layers_to_transform;
  if (layers.empty()) return;
  const std::string name = key("layers_to_transform");
  if (!lora_.target_parameters.empty()) {
    fail(where_, "{} does not select {}; expected one of the two", name, key("target_parameters"));
  }
  if (!lora_.target_pattern.empty() && lora_.target_pattern != kAllLinear) {
    fail(where_,
         "{} does not select modules of a regular expression, and PEFT opens no file with both; "
         "expected the layers in the expression, or endings of names in {}",
         name, key("target_modules"));
  }
  for (const int64_t layer : layers) {
    if (layer < 0 || layer >= config_.num_layers) {
      fail(where_, "{} has {}; expected 0 to {}", name, layer, config_.num_layers - 1);
    }
  }
}

/// Returns whether a module has no adapter because it is in a module that is trained in full. As in
/// PEFT, this is by whole parts of names; expect_one_training() finds the others.
bool LoraMatcher::is_left_out(const std::string& module) const {
  const std::vector<std::string> names = outwards(module);
  return std::any_of(names.begin(), names.end(), [&](const std::string& name) {
    return std::any_of(lora_.modules_to_save.begin(), lora_.modules_to_save.end(),
                       [&](const std::string& ending) { return ends_in(name, ending); });
  });
}

bool LoraMatcher::is_target(const LinearModule& linear, const std::string& module) {
  if (linear.expert) return targets_.matches_parameter(module);
  return targets_.matches(module, linear.layer) && !is_left_out(module);
}

int32_t LoraMatcher::module(const std::string& name, bool expert) {
  const auto [at, fresh] = by_name_.emplace(name, static_cast<int32_t>(plan_.modules.size()));
  if (fresh) {
    LoraModule made{name, ranks_.of(name, lora_.r), alphas_.of(name, lora_.lora_alpha), 0, expert};
    const double r = static_cast<double>(made.r);
    made.scale = made.alpha / (lora_.use_rslora ? std::sqrt(r) : r);
    plan_.modules.push_back(made);
  }
  return at->second;
}

void LoraMatcher::add_linear(const LinearModule& linear, const std::vector<int32_t>& parts) {
  const ParamWeights& param = *linear.param;
  const Dims& dims = param.dims;
  const size_t outs = dims.size() - linear.in_dims;
  const Dims in(dims.begin() + static_cast<int64_t>(outs), dims.end());
  const int64_t columns = product(dims, outs, dims.size());
  int64_t rank = 0;
  for (const int32_t part : parts) {
    if (part != kNone) {
      rank = std::max(rank, plan_.modules[static_cast<size_t>(part)].r);
    }
  }
  LoraTarget target;
  target.weight = param.param;
  target.parts = parts;
  // One module that is several parameters has one A.
  const bool shared = parts.size() == 1;
  const std::string base = without_kind(param.param);
  target.a = (shared ? without_kind(linear.form[0].name) : base) + ".lora_A.weight";
  target.b = base + ".lora_B.weight";
  if (!shared) {
    target.a_dims.push_back(std::ssize(parts));
  }
  target.a_dims.push_back(rank);
  target.a_dims.insert(target.a_dims.end(), in.begin(), in.end());
  target.b_dims.assign(dims.begin(), dims.begin() + static_cast<int64_t>(outs));
  target.b_dims.push_back(rank);
  WeightForm a, b;
  int64_t row = 0;
  for (size_t p = 0; p < parts.size(); ++p) {
    const WeightSlice& slice = linear.form[p];
    const int64_t count = slice.numel() / columns;
    if (parts[p] != kNone) {
      const LoraModule& module = plan_.modules[static_cast<size_t>(parts[p])];
      const std::string name = kAdapterPrefix + module.name;
      a.push_back(
          {name + ".lora_A.weight", {module.r, columns}, static_cast<int64_t>(p) * rank * columns});
      const FileRows rows = rows_of(slice, columns);
      if (module.r == rank) {
        b.push_back(slice_of_rows(name + ".lora_B.weight", rows, rank, false, row * rank));
      } else {
        // Rows of fewer columns lie apart in B.
        for (int64_t i = 0; i < count; ++i) {
          b.push_back({name + ".lora_B.weight",
                       {rows.total, module.r},
                       (row + i) * rank,
                       (rows.first + i) * module.r,
                       {{module.r, 1}}});
        }
      }
    }
    row += count;
  }
  if (a_made_.insert(target.a).second) {
    plan_.weights.push_back({target.a, target.a_dims, {a}, {}});
  }
  plan_.weights.push_back({target.b, target.b_dims, {b}, {}});
  plan_.targets.push_back(std::move(target));
}

/// Throws Error for a module with an adapter that is trained in full, too.
void LoraMatcher::expect_one_training() const {
  if (plan_.targets.empty()) {
    fail(where_, "every target is in {}, so that no module has an adapter; expected another target",
         key("modules_to_save"));
  }
  for (const LoraModule& module : plan_.modules) {
    const bool is_parameter = module.expert && layout_ != ExpertLayout::modules;
    const std::vector<std::string> saved =
        saved_modules(is_parameter ? module.name : module.name + ".weight", lora_.modules_to_save);
    if (saved.empty()) continue;
    fail(where_, "{} has an adapter, and {} trains {} in full; expected one of the two",
         module.name, key("modules_to_save"), saved[0]);
  }
}

/// Adds a parameter if it is in a module that is trained in full; `used`: endings that are.
void LoraMatcher::add_if_saved(const ParamWeights& param, std::set<std::string>* used) {
  const bool expert =
      param.forms.size() > 1 && param.forms.back().size() == 1 && param.forms[0].size() > 2;
  const WeightForm& form = expert ? param.forms.back() : param.forms[0];
  WeightForm named;
  for (const WeightSlice& slice : form) {
    const std::vector<std::string> saved = saved_modules(slice.name, lora_.modules_to_save);
    if (saved.size() > 1) {
      fail(where_,
           "{} has {} and {}, which is in it: PEFT would save the inner one untrained; expected "
           "names that fit one of the two, such as {}",
           key("modules_to_save"), saved[1], saved[0], saved[1]);
    }
    for (const std::string& ending : lora_.modules_to_save) {
      if (!saved.empty() && saved[0].ends_with(ending)) {
        used->insert(ending);
      }
    }
    if (!saved.empty()) {
      named.push_back(slice);
      named.back().name = kAdapterPrefix + slice.name;
    }
  }
  if (named.empty()) return;
  if (!param.aliases.empty()) {
    fail(where_,
         "{} has {}, which is tied to the head (tie_word_embeddings); a file with it would untie "
         "both; expected another module",
         key("modules_to_save"), without_kind(form[0].name));
  }
  (named.size() < form.size() ? plan_.partly_saved : plan_.saved).push_back(param.param);
  plan_.weights.push_back({param.param, param.dims, {named}, {}});
}

/// Throws Error for an ending of modules_to_save that no module's name has, or a tied head's.
void LoraMatcher::expect_saved(const std::set<std::string>& used) const {
  constexpr std::string_view kHead = "lm_head";
  for (const std::string& ending : lora_.modules_to_save) {
    if (config_.tie_word_embeddings && kHead.ends_with(ending)) {
      fail(where_, "{} has {}: {}", key("modules_to_save"), kHead,
           modules_.others.at(std::string(kHead)));
    }
    if (used.contains(ending)) continue;
    std::set<std::string> known;
    for (const ParamWeights& param : modules_.weights) {
      for (const WeightSlice& slice : param.forms[0]) {
        for (const std::string& module : outwards(without_kind(slice.name))) {
          known.insert(module.substr(module.rfind('.') + 1));
        }
      }
    }
    const std::string near = nearest(ending, {known.begin(), known.end()});
    fail(where_, "{}: no module's name ends in {}{}", key("modules_to_save"), quote(ending),
         near.empty() ? "" : fmt::format("; did you mean {}?", near));
  }
}

void LoraMatcher::add_saved() {
  std::set<std::string> used;
  for (const ParamWeights& param : modules_.weights) {
    add_if_saved(param, &used);
  }
  expect_saved(used);
}

LoraPlan LoraMatcher::run() {
  check_options();
  plan_.lora = lora_;
  plan_.layout = layout_;
  for (const auto& [name, reason] : modules_.others) {
    if (targets_.matches(name, kNone) && !is_left_out(name)) {
      fail(where_, "target {} can have no adapter: {}", name, reason);
    }
  }
  for (const LinearModule& linear : modules_.linears) {
    if (linear.expert && layout_ == ExpertLayout::modules) {
      add_expert_modules(linear);
      continue;
    }
    std::vector<int32_t> parts;
    for (const WeightSlice& slice : linear.form) {
      const std::string name = without_kind(slice.name);
      parts.push_back(is_target(linear, name) ? module(name, linear.expert) : kNone);
    }
    if (std::all_of(parts.begin(), parts.end(), [](int32_t part) { return part == kNone; })) {
      continue;
    }
    if (linear.expert) {
      add_experts(linear, parts[0]);
    } else {
      add_linear(linear, parts);
    }
  }
  targets_.expect_used(modules_);
  ranks_.expect_used();
  alphas_.expect_used();
  expect_one_training();
  add_saved();
  return std::move(plan_);
}

LoraPlan match_lora(const ModelConfig& config, const Lora& lora, const std::string& where,
                    ExpertLayout layout, LoraKeys keys) {
  return LoraMatcher(config, lora, where, layout, keys).run();
}

void expect_whole_modules(const LoraPlan& plan, const std::string& where, LoraKeys keys) {
  if (plan.partly_saved.empty()) return;
  const std::string& param = plan.partly_saved[0];
  const auto at = std::find_if(plan.weights.begin(), plan.weights.end(),
                               [&](const ParamWeights& each) { return each.param == param; });
  const std::string one =
      without_kind(at->forms[0][0].name).substr(std::string_view(kAdapterPrefix).size());
  fail(where,
       "{} has {}, which is one parameter here with others of its MLP (gate_proj and up_proj); "
       "expected all of them; an adapter that PEFT trained can be merged (hocket checkpoint merge)",
       key_of(keys, "modules_to_save"), one);
}

bool stores_transposed(const ModelConfig& config) { return family_of(config).storage.transposed; }

}  // namespace hocket::models
