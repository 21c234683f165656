// SPDX-License-Identifier: Apache-2.0
// Implements: match_lora (lora.h).
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <optional>
#include <set>

#include "base/error.h"
#include "base/text.h"
#include "models/build.h"
#include "models/family.h"
#include "models/lora.h"
#include "models/name_pattern.h"
#include "ops/rules.h"

namespace hocket::models {

using graph::Dims;
using graph::Graph;
using graph::kNone;
using graph::Node;
using graph::TensorId;
using ops::product;

namespace {

constexpr const char* kAllLinear = "all-linear";
constexpr std::string_view kWeight = ".weight", kBias = ".bias";

/// "model.layers.0.mlp.up_proj" of "model.layers.0.mlp.up_proj.weight".
std::string without_kind(const std::string& name) {
  for (const std::string_view kind : {kWeight, kBias}) {
    if (name.ends_with(kind)) return name.substr(0, name.size() - kind.size());
  }
  return name;
}

/// Returns whether `ending` is the whole name or its last parts.
bool ends_in(const std::string& name, const std::string& ending) {
  return name == ending || name.ends_with("." + ending);
}

/// A weight of the graph that can have an adapter, or the reason why not.
struct Linear {
  const ParamWeights* param = nullptr;
  size_t in_dims = 1;  ///< trailing dims of the weight that are its input
  int32_t layer = 0;
  bool expert = false;
  WeightForm form;  ///< as transformers has it in memory
};

/// The modules of a model.
struct Modules {
  std::vector<ParamWeights> weights;
  std::vector<Linear> linears;
  std::map<std::string, std::string> others;  ///< names of modules without adapter: the reason
};

Modules modules_of(const ModelConfig& config) {
  BuildOptions options;
  options.mode = BuildOptions::Mode::logits;
  options.tokens = 1;
  const Graph graph = build(config, options);
  Modules all;
  all.weights = weight_map(config);
  std::map<std::string, const ParamWeights*> by_name;
  for (const ParamWeights& param : all.weights) {
    by_name[param.param] = &param;
    for (const WeightSlice& slice : param.forms[0]) {
      all.others[without_kind(slice.name)] = "it is no linear layer; modules_to_save trains it";
    }
  }
  std::set<TensorId> routers;
  for (const Node& node : graph.nodes) {
    if (node.op == "router") {
      routers.insert(node.in[0]);
    }
  }
  for (const Node& node : graph.nodes) {
    const bool expert = node.op == "grouped_linear";
    if (node.op != "linear" && !expert) continue;
    const graph::Tensor& weight = graph.tensor(node.in[1]);
    const ParamWeights& param = *by_name.at(weight.name);
    Linear linear{&param, expert ? 1 : graph.tensor(node.in[0]).type.dims.size() - 1, node.layer,
                  expert, expert ? param.forms.back() : param.forms[0]};
    std::string reason;
    if (node.layer >= graph.num_layers) {
      reason = "the head is part of the loss; try modules_to_save, which trains it in full";
    } else if (routers.contains(node.out[0])) {
      reason = "a router is no linear layer of transformers; modules_to_save trains it";
    }
    for (const WeightSlice& slice : linear.form) {
      if (reason.empty()) {
        all.others.erase(without_kind(slice.name));
      } else {
        all.others[without_kind(slice.name)] = reason;
      }
    }
    if (expert) {
      // Their projections are no modules; only a file of transformers 4 has them as such.
      for (const WeightSlice& slice : param.forms[0]) {
        all.others.erase(without_kind(slice.name));
      }
    }
    if (reason.empty()) {
      all.linears.push_back(std::move(linear));
    }
  }
  if (config.tie_word_embeddings) {
    all.others["lm_head"] = "it is tied to the embedding, which an adapter would leave as it is";
  }
  return all;
}

/// Ranks or alphas by pattern. PEFT takes the first that matches; here several must agree.
template <typename Number>
class Patterns {
 public:
  Patterns(const std::vector<std::pair<std::string, Number>>& list, const char* key,
           const std::string& where)
      : key_(key), where_(where) {
    for (const auto& [pattern, value] : list) {
      if (!(value > 0)) {
        fail(where, "{} has {} for {}; expected a number above 0", key, value, quote(pattern));
      }
      list_.push_back(
          {pattern, NamePattern("(.*\\.)?(" + pattern + ")", key, where), value, false});
    }
  }
  Number of(const std::string& module, Number otherwise) {
    const Entry* first = nullptr;
    for (Entry& entry : list_) {
      if (!entry.expression.matches(module)) continue;
      entry.used = true;
      if (first == nullptr) {
        first = &entry;
      } else if (first->value != entry.value) {
        fail(where_, "{}: {} and {} both match {} and differ; expected one for each module", key_,
             quote(first->pattern), quote(entry.pattern), module);
      }
    }
    return first != nullptr ? first->value : otherwise;
  }
  void expect_used() const {
    for (const Entry& entry : list_) {
      if (!entry.used) {
        fail(where_, "{}: {} matches no module with an adapter", key_, quote(entry.pattern));
      }
    }
  }

 private:
  struct Entry {
    std::string pattern;
    NamePattern expression;
    Number value;
    bool used;
  };
  std::vector<Entry> list_;
  const char* key_;
  const std::string& where_;
};

/// Names of modules, last parts first: for messages.
std::string some_of(const Modules& modules, const std::string& wanted) {
  std::set<std::string> ends;
  for (const Linear& linear : modules.linears) {
    for (const WeightSlice& slice : linear.form) {
      const std::string name = without_kind(slice.name);
      const size_t last = name.rfind('.');
      ends.insert(linear.expert ? name.substr(name.rfind('.', last - 1) + 1)
                                : name.substr(last + 1));
    }
  }
  const std::vector<std::string> list(ends.begin(), ends.end());
  const std::string near = nearest(wanted, list);
  return near.empty() ? "expected one of " + join(list, ", ")
                      : fmt::format("did you mean {}? There are {}", near, join(list, ", "));
}

/// Matches names of modules with the targets, and remembers which of these matched.
class Targets {
 public:
  Targets(const Lora& lora, const std::string& where) : lora_(lora), where_(where) {
    if (!lora.target_pattern.empty() && lora.target_pattern != kAllLinear) {
      pattern_.emplace(lora.target_pattern, "target_modules", where);
    }
  }
  /// `linear`: a linear layer of a block.
  bool matches(const std::string& module, bool linear) {
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
  bool matches_parameter(const std::string& name) {
    return fits_one(name, lora_.target_parameters);
  }
  void expect_used(const Modules& modules) const {
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

 private:
  std::string in_layers() const {
    const std::vector<int64_t>& layers = lora_.layers_to_transform;
    return layers.empty() ? "" : fmt::format(" of layers [{}]", fmt::join(layers, ", "));
  }
  static bool is_of_experts(const Modules& modules, const std::string& ending) {
    return std::any_of(modules.linears.begin(), modules.linears.end(), [&](const Linear& linear) {
      return linear.expert &&
             std::any_of(linear.form.begin(), linear.form.end(), [&](const WeightSlice& slice) {
               return ends_in(without_kind(slice.name), ending);
             });
    });
  }
  bool fits_one(const std::string& name, const std::vector<std::string>& endings) {
    bool any = false;
    for (const std::string& ending : endings) {
      if (!ends_in(name, ending)) continue;
      used_.insert(ending);
      any = true;
    }
    return any;
  }

  const Lora& lora_;
  const std::string& where_;
  std::optional<NamePattern> pattern_;
  std::set<std::string> used_;
  bool any_ = false;
};

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

class Matcher {
 public:
  Matcher(const ModelConfig& config, const Lora& lora, const std::string& where,
          ExpertLayout layout)
      : config_(config),
        lora_(lora),
        where_(where),
        layout_(layout),
        modules_(modules_of(config)),
        targets_(lora, where),
        ranks_(lora.rank_pattern, "rank_pattern", where),
        alphas_(lora.alpha_pattern, "alpha_pattern", where) {}

  LoraPlan run();

 private:
  void check_options() const;
  bool is_saved(const std::string& module) const {
    return std::any_of(lora_.modules_to_save.begin(), lora_.modules_to_save.end(),
                       [&](const std::string& ending) { return ends_in(module, ending); });
  }
  bool is_target(const Linear& linear, const std::string& module);
  int32_t module(const std::string& name, bool expert);
  void add_linear(const Linear& linear, const std::vector<int32_t>& parts);
  void add_experts(const Linear& linear, int32_t module);
  std::vector<int32_t> expert_modules(const Linear& linear, size_t parts);
  void add_expert_modules(const Linear& linear);
  void add_saved();

  const ModelConfig& config_;
  const Lora& lora_;
  const std::string& where_;
  const ExpertLayout layout_;
  const Modules modules_;
  Targets targets_;
  Patterns<int64_t> ranks_;
  Patterns<double> alphas_;
  std::map<std::string, int32_t> by_name_;
  std::set<std::string> a_made_;
  LoraPlan plan_;
};

void Matcher::check_options() const {
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

bool Matcher::is_target(const Linear& linear, const std::string& module) {
  if (linear.expert) return targets_.matches_parameter(module);
  const std::vector<int64_t>& layers = lora_.layers_to_transform;
  const bool is_here =
      layers.empty() || std::find(layers.begin(), layers.end(), linear.layer) != layers.end();
  // A target that is in other layers alone is one that matches nothing.
  return is_here && !is_saved(module) && targets_.matches(module, true);
}

int32_t Matcher::module(const std::string& name, bool expert) {
  const auto [at, fresh] = by_name_.emplace(name, static_cast<int32_t>(plan_.modules.size()));
  if (fresh) {
    LoraModule made{name, ranks_.of(name, lora_.r), alphas_.of(name, lora_.lora_alpha), 0, expert};
    const double r = static_cast<double>(made.r);
    made.scale = made.alpha / (lora_.use_rslora ? std::sqrt(r) : r);
    plan_.modules.push_back(made);
  }
  return at->second;
}

void Matcher::add_linear(const Linear& linear, const std::vector<int32_t>& parts) {
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

void Matcher::add_experts(const Linear& linear, int32_t module) {
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
std::vector<int32_t> Matcher::expert_modules(const Linear& linear, size_t parts) {
  const WeightForm& form = linear.param->forms[0];
  const std::vector<int64_t>& layers = lora_.layers_to_transform;
  const bool is_here =
      layers.empty() || std::find(layers.begin(), layers.end(), linear.layer) != layers.end();
  const bool is_parameter = targets_.matches_parameter(without_kind(linear.form[0].name));
  std::vector<int32_t> first(parts, kNone);
  for (size_t i = 0; i < form.size(); ++i) {
    const std::string name = without_kind(form[i].name);
    const bool is_wanted =
        is_parameter || (is_here && !is_saved(name) && targets_.matches(name, true));
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
void Matcher::add_expert_modules(const Linear& linear) {
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

void Matcher::add_saved() {
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

LoraPlan Matcher::run() {
  check_options();
  plan_.lora = lora_;
  plan_.layout = layout_;
  for (const auto& [name, reason] : modules_.others) {
    if (lora_.target_pattern != kAllLinear && !is_saved(name) && targets_.matches(name, false)) {
      fail(where_, "target {} can have no adapter: {}", name, reason);
    }
  }
  for (const Linear& linear : modules_.linears) {
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

}  // namespace

LoraPlan match_lora(const ModelConfig& config, const Lora& lora, const std::string& where,
                    ExpertLayout layout) {
  return Matcher(config, lora, where, layout).run();
}

bool stores_transposed(const ModelConfig& config) { return family_of(config).storage.transposed; }

}  // namespace hocket::models
