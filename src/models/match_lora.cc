// SPDX-License-Identifier: Apache-2.0
// Implements: match_lora (lora.h), and LoraMatcher (lora_matcher.h) but for experts.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
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
  if (lora_.r < 1) fail(where_, "r is {}; expected at least 1", lora_.r);
  if (!(lora_.lora_alpha > 0) || !std::isfinite(lora_.lora_alpha)) {
    fail(where_, "lora_alpha is {}, with which the adapter does nothing; expected above 0",
         lora_.lora_alpha);
  }
  if (!(lora_.lora_dropout >= 0 && lora_.lora_dropout < 1)) {
    fail(where_, "lora_dropout is {}; expected 0 <= lora_dropout < 1", lora_.lora_dropout);
  }
  if (lora_.target_modules.empty() && lora_.target_pattern.empty() &&
      lora_.target_parameters.empty()) {
    fail(where_, "there are no targets; {}; or all-linear", some_of(modules_, ""));
  }
  if (!lora_.target_parameters.empty() && lora_.lora_dropout > 0) {
    fail(where_,
         "lora_dropout is {}, which products of experts do not have; expected 0 with "
         "target_parameters",
         lora_.lora_dropout);
  }
  if (!lora_.target_parameters.empty() && !lora_.layers_to_transform.empty()) {
    fail(where_, "layers_to_transform does not select target_parameters; expected one of both");
  }
  for (const int64_t layer : lora_.layers_to_transform) {
    if (layer < 0 || layer >= config_.num_layers) {
      fail(where_, "layers_to_transform has {}; expected 0 to {}", layer, config_.num_layers - 1);
    }
  }
}

bool LoraMatcher::is_target(const LinearModule& linear, const std::string& module) {
  if (linear.expert) return targets_.matches_parameter(module);
  const std::vector<int64_t>& layers = lora_.layers_to_transform;
  const bool is_here =
      layers.empty() || std::find(layers.begin(), layers.end(), linear.layer) != layers.end();
  // A target that is in other layers alone is one that matches nothing.
  return is_here && !is_saved(module) && targets_.matches(module, true);
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

void LoraMatcher::add_saved() {
  std::set<std::string> used;
  for (const ParamWeights& param : modules_.weights) {
    const bool expert =
        param.forms.size() > 1 && param.forms.back().size() == 1 && param.forms[0].size() > 2;
    const WeightForm& form = expert ? param.forms.back() : param.forms[0];
    size_t count = 0;
    for (const WeightSlice& slice : form) {
      const std::string module =
          expert ? slice.name.substr(0, slice.name.rfind('.')) : without_kind(slice.name);
      for (const std::string& ending : lora_.modules_to_save) {
        if (!ends_in(module, ending)) continue;
        used.insert(ending);
        ++count;
        break;
      }
    }
    if (count == 0) continue;
    if (count < form.size()) {
      fail(where_,
           "modules_to_save has one of {} and {}, which are trained together; expected both",
           without_kind(form[0].name), without_kind(form[1].name));
    }
    if (!param.aliases.empty()) {
      fail(
          where_,
          "modules_to_save has {}, which is tied to the head (tie_word_embeddings); a file with it "
          "would untie both; expected another module",
          without_kind(form[0].name));
    }
    WeightForm named = form;
    for (WeightSlice& slice : named) {
      slice.name = kAdapterPrefix + slice.name;
    }
    plan_.saved.push_back(param.param);
    plan_.weights.push_back({param.param, param.dims, {named}, {}});
  }
  for (const std::string& ending : lora_.modules_to_save) {
    if (used.contains(ending)) continue;
    const auto tied = modules_.others.find(ending);
    if (config_.tie_word_embeddings && tied != modules_.others.end()) {
      fail(where_, "modules_to_save has {}: {}", ending, tied->second);
    }
    std::vector<std::string> known;
    for (const ParamWeights& param : modules_.weights) {
      const std::string module = without_kind(param.forms[0][0].name);
      known.push_back(module.substr(module.rfind('.') + 1));
    }
    const std::string near = nearest(ending, known);
    fail(where_, "modules_to_save: no module's name ends in {}{}", quote(ending),
         near.empty() ? "" : fmt::format("; did you mean {}?", near));
  }
}

LoraPlan LoraMatcher::run() {
  check_options();
  plan_.lora = lora_;
  plan_.layout = layout_;
  for (const auto& [name, reason] : modules_.others) {
    if (lora_.target_pattern != kAllLinear && !is_saved(name) && targets_.matches(name, false)) {
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
  add_saved();
  return std::move(plan_);
}

LoraPlan match_lora(const ModelConfig& config, const Lora& lora, const std::string& where,
                    ExpertLayout layout) {
  return LoraMatcher(config, lora, where, layout).run();
}

bool stores_transposed(const ModelConfig& config) { return family_of(config).storage.transposed; }

}  // namespace hocket::models
