// SPDX-License-Identifier: Apache-2.0
#include "models/lora_modules.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string_view>
#include <utility>

#include "base/text.h"
#include "graph/graph.h"
#include "models/build.h"

namespace hocket::models {

using graph::Graph;
using graph::Node;
using graph::TensorId;

std::string without_kind(const std::string& name) {
  constexpr std::string_view kWeight = ".weight", kBias = ".bias";
  for (const std::string_view kind : {kWeight, kBias}) {
    if (name.ends_with(kind)) return name.substr(0, name.size() - kind.size());
  }
  return name;
}

bool ends_in(const std::string& name, const std::string& ending) {
  return name == ending || name.ends_with("." + ending);
}

std::vector<std::string> outwards(const std::string& module) {
  std::vector<std::string> names = {module};
  for (size_t dot = module.rfind('.'); dot != module.npos; dot = names.back().rfind('.')) {
    names.push_back(module.substr(0, dot));
  }
  return names;
}

std::vector<std::string> saved_modules(const std::string& tensor,
                                       const std::vector<std::string>& endings) {
  std::vector<std::string> modules = outwards(tensor);
  modules.erase(modules.begin());  // the tensor itself
  std::erase_if(modules, [&](const std::string& module) {
    return std::none_of(endings.begin(), endings.end(),
                        [&](const std::string& ending) { return module.ends_with(ending); });
  });
  return modules;
}

ModelModules modules_of(const ModelConfig& config) {
  BuildOptions options;
  options.mode = BuildOptions::Mode::logits;
  options.tokens = 1;
  const Graph graph = build(config, options);
  ModelModules all;
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
    LinearModule linear{&param, expert ? 1 : graph.tensor(node.in[0]).type.dims.size() - 1,
                        node.layer, expert, expert ? param.forms.back() : param.forms[0]};
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

bool has_layer(const std::vector<int64_t>& layers, int32_t layer) {
  return layers.empty() || std::find(layers.begin(), layers.end(), layer) != layers.end();
}

namespace {

/// Last parts of a name: two of experts' parameters, which are no modules, else one.
std::string last_parts(const LinearModule& linear, const WeightSlice& slice) {
  const std::string name = without_kind(slice.name);
  const size_t last = name.rfind('.');
  return linear.expert ? name.substr(name.rfind('.', last - 1) + 1) : name.substr(last + 1);
}

std::string some_of(const std::set<std::string>& ends, const std::string& wanted) {
  const std::vector<std::string> list(ends.begin(), ends.end());
  const std::string near = nearest(wanted, list);
  return near.empty() ? "expected one of " + join(list, ", ")
                      : fmt::format("did you mean {}? There are {}", near, join(list, ", "));
}

}  // namespace

std::string some_of(const ModelModules& modules, const std::string& wanted,
                    const std::vector<int64_t>& layers) {
  std::set<std::string> ends;
  for (const LinearModule& linear : modules.linears) {
    if (!has_layer(layers, linear.layer)) continue;
    for (const WeightSlice& slice : linear.form) {
      ends.insert(last_parts(linear, slice));
    }
  }
  return some_of(ends, wanted);
}

std::string some_experts(const ModelModules& modules, const std::string& wanted) {
  std::set<std::string> ends;
  for (const LinearModule& linear : modules.linears) {
    for (const WeightSlice& slice : linear.form) {
      if (linear.expert) {
        ends.insert(last_parts(linear, slice));
      }
    }
  }
  return ends.empty() ? "the model has none" : some_of(ends, wanted);
}

}  // namespace hocket::models
