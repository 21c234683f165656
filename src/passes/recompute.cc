// SPDX-License-Identifier: Apache-2.0
// recompute (Chen et al., arXiv 1604.06174): repeats forward nodes of a block in front of its
// backward nodes, so that their results need not be kept. `full`: a block keeps only its input.
// `selective`: repeats only ops that cost memory traffic but little arithmetic, all of them or the
// named ones, and every so many products. A repeated dispatch sends its rows to the experts again:
// one more exchange where they are on other ranks.
#include <algorithm>
#include <map>
#include <set>

#include "base/error.h"
#include "base/text.h"
#include "ops/op.h"
#include "passes/pass.h"

namespace hocket::passes {

using graph::Graph;
using graph::NodeId;
using graph::TensorId;

namespace {

/// Returns the ops of selective recomputation: "cast, dispatch, ..".
std::string cheap_ops() {
  std::vector<std::string> names;
  for (const ops::Op* op : ops::all()) {
    if (op->cheap_to_repeat) {
      names.push_back(op->name);
    }
  }
  return join(names, ", ");
}

struct RecomputeOptions {
  std::string recompute = "none";
  std::vector<std::string> recompute_ops;
  int64_t recompute_products = 0;
  void fields(Fields& visit) {
    visit("recompute", recompute, "activations to compute again in the backward pass")
        .one_of({"none", "selective", "full"});
    visit("recompute_ops", recompute_ops,
          "ops that recompute: selective repeats, among the cheap ones (rms_norm, layer_norm, "
          "rope, swiglu, geglu, activation, dispatch, cast); none named: all of them");
    visit("recompute_products", recompute_products,
          "selective repeats every so many of the blocks' products, too, counted from the first "
          "block on, those of gate and up as two; 0: none; torchtitan repeats every second one")
        .min(0);
  }

  bool repeats(const std::string& op) const {
    if (recompute == "full") return true;
    const bool named =
        recompute_ops.empty() ||
        std::find(recompute_ops.begin(), recompute_ops.end(), op) != recompute_ops.end();
    return named && ops::find(op).cheap_to_repeat;
  }
  /// Throws Error for a name of no op, or of one that selective recomputation never repeats.
  void validate() const {
    for (const std::string& op : recompute_ops) {
      const ops::Op* const rules = ops::find_or_null(op);
      if (!rules || !rules->cheap_to_repeat) {
        fail("plan.recompute_ops", "got '{}'; expected ops that are cheap to repeat; try {}", op,
             cheap_ops());
      }
    }
  }
};

/// Returns the forward products that selective recomputation repeats.
std::set<NodeId> products_to_repeat(const Graph& graph, const RecomputeOptions& options) {
  if (options.recompute != "selective" || options.recompute_products == 0) return {};
  std::set<TensorId> gated;  // outputs of gate and up in one product
  for (const graph::Node& node : graph.nodes) {
    if (node.op == "swiglu" || node.op == "geglu") {
      gated.insert(node.in.begin(), node.in.end());
    }
  }
  std::set<NodeId> list;
  int64_t number = 1;
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const graph::Node& node = graph.nodes[n];
    const bool block = node.layer >= 0 && node.layer < graph.num_layers;
    if (node.phase != graph::Phase::forward || !block || node.op != "linear") continue;
    if (number % options.recompute_products == 0) {
      list.insert(static_cast<NodeId>(n));
    }
    number += gated.contains(node.out[0]) ? 2 : 1;
  }
  return list;
}

/// Returns the forward nodes of `layer` that its backward nodes need recomputed.
std::set<NodeId> to_repeat(const Graph& graph, int32_t layer, const RecomputeOptions& options,
                           const std::set<NodeId>& products) {
  // Walks back from the inputs of backward nodes through repeatable forward nodes of the layer. An
  // output of another layer, or of a node that is not repeated, is kept and ends the walk.
  std::set<NodeId> repeat;
  std::vector<TensorId> wanted;
  for (const graph::Node& node : graph.nodes) {
    if (node.phase == graph::Phase::backward && node.layer == layer) {
      wanted.insert(wanted.end(), node.in.begin(), node.in.end());
    }
  }
  while (!wanted.empty()) {
    TensorId id = wanted.back();
    wanted.pop_back();
    NodeId producer = graph.tensor(id).producer;
    if (producer == graph::kNone) continue;
    const graph::Node& node = graph.nodes[producer];
    if (node.phase != graph::Phase::forward || node.layer != layer) continue;
    if (!options.repeats(node.op) && !products.contains(producer)) continue;
    if (repeat.insert(producer).second) {
      wanted.insert(wanted.end(), node.in.begin(), node.in.end());
    }
  }
  return repeat;
}

void run_recompute(Graph& graph, const RecomputeOptions& options) {
  options.validate();
  if (options.recompute == "none" || graph.grads.empty()) return;
  // The repeated nodes stand right before the first backward node of their layer, with outputs of
  // their own ("@again"); from there on backward nodes read these. The first versions are then read
  // by forward nodes alone, and their memory is free until the layer's backward pass begins.
  const std::set<NodeId> products = products_to_repeat(graph, options);
  std::vector<graph::Node> nodes;
  std::set<int32_t> done;
  std::map<TensorId, TensorId> repeated;  // tensor -> its second version
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    graph::Node node = graph.nodes[n];
    const bool block = node.layer >= 0 && node.layer < graph.num_layers;
    if (node.phase == graph::Phase::backward && block && done.insert(node.layer).second) {
      for (NodeId id : to_repeat(graph, node.layer, options, products)) {
        graph::Node copy = graph.nodes[id];
        copy.phase = graph::Phase::backward;
        copy.recompute = true;
        for (TensorId& in : copy.in) {
          if (auto it = repeated.find(in); it != repeated.end()) {
            in = it->second;
          }
        }
        for (TensorId& out : copy.out) {
          graph::Tensor tensor = graph.tensor(out);
          tensor.name += "@again";
          TensorId fresh = graph.add_tensor(std::move(tensor));
          repeated[out] = fresh;
          out = fresh;
        }
        nodes.push_back(std::move(copy));
      }
    }
    if (node.phase == graph::Phase::backward) {
      for (TensorId& in : node.in) {
        if (auto it = repeated.find(in); it != repeated.end()) {
          in = it->second;
        }
      }
    }
    nodes.push_back(std::move(node));
  }
  graph.nodes = std::move(nodes);
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    for (TensorId out : graph.nodes[n].out) {
      graph.tensors[out].producer = static_cast<NodeId>(n);
    }
  }
}

}  // namespace

Pass pass_recompute() {
  return graph_pass("recompute",
                    "computes activations again instead of keeping them (plan.recompute)", true,
                    {"recompute=selective", "recompute=full"}, run_recompute);
}

}  // namespace hocket::passes
