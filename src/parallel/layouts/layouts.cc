// SPDX-License-Identifier: Apache-2.0
#include "parallel/layouts/layouts.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/stop.h"
#include "ops/op.h"
#include "parallel/layouts/given_layouts.h"
#include "parallel/layouts/layout_problem.h"
#include "parallel/layouts/layout_rules.h"
#include "parallel/layouts/shares.h"
#include "parallel/plan.h"

namespace hocket::parallel {

using graph::Graph;
using graph::kNone;
using graph::Layout;
using graph::Mesh;
using graph::Node;
using graph::Placement;
using graph::TensorId;
using graph::TensorKind;
using graph::TensorType;

namespace {

/// Greedy choice, node by node in the graph's order and on each mesh axis by itself: the signature
/// with the inputs that are cheapest to reshard, among those that the op allows on the axis. The
/// signature also fixes the layouts of the outputs. Parameters keep their layouts, so the choice is
/// always to move activations. A node that makes a gradient takes only signatures from which the
/// gradient can be reduced to its parameter's layout. An op is replaced by its definition where
/// that costs less.
/// The choice over the whole graph starts from this result. It also uses this class to apply its
/// signatures.
class LayoutChoice {
 public:
  LayoutChoice(const Graph& graph, const Mesh& mesh, const LayoutsGiven& given)
      : graph_(&graph), mesh_(mesh), sharding_(given.sharding), rules_(graph, mesh, given) {
    for (const graph::Axis& axis : mesh.axes) {
      result_.gathers_again.push_back(given.activations.sequence_parallel &&
                                      splits_parameters(axis.name));
    }
  }

  Layouts run() {
    // Replacements are kept by node index. The graph is assembled at the end.
    const std::vector<Node>& nodes = graph_->nodes;
    std::map<size_t, std::vector<Node>> in_place_of;
    for (size_t n = 0; n < nodes.size(); ++n) {
      Placed placed = place(nodes[n]);
      if (placed.cost == kInfinity) {
        refuse(nodes[n]);
      }
      std::move(placed.wanted.begin(), placed.wanted.end(), std::back_inserter(result_.node));
      if (!placed.nodes.empty()) {
        in_place_of[n] = std::move(placed.nodes);
      }
    }
    finish();
    if (!in_place_of.empty()) {
      put_together(nodes, in_place_of);
    }
    return std::move(result_);
  }

  /// Returns the layouts for given signatures, without replacing any node, or nothing if the
  /// signatures are not legal together.
  std::optional<Layouts> run(const std::vector<NodeLayouts>& given) {
    for (size_t n = 0; n < graph_->nodes.size(); ++n) {
      const Node& node = graph_->nodes[n];
      given_ = &given[n].signature;
      rules_.begin(node);
      double bytes = 0;
      NodeLayouts& wanted = result_.node.emplace_back();
      if (place_undecomposed(node, &wanted, &bytes) == kInfinity) return std::nullopt;
      rules_.follow_rows(node);
    }
    finish();
    return std::move(result_);
  }

 private:
  [[noreturn]] void refuse(const Node& node) const {
    const std::string pins = rules_.pins_at(node);
    const std::string text = fmt::format(
        "{} ({}) has no legal layout on axis {} for its inputs", node.op,
        tensor(node.out.empty() ? node.in[0] : node.out[0]).name, mesh_.axes[no_layout_on_].name);
    if (pins.empty()) fail_with(Error::Code::layout, "layouts", "{}", text);
    fail("layouts", "{}; plan.layouts {} pins some of them; try without", text, pins);
  }

  void finish() {
    result_.tensor = rules_.layouts();
    result_.update = rules_.updates();
    result_.counts_of = rules_.counts_of();
    find_storage();
  }

  /// Fills Layouts::storage.
  void find_storage() {
    result_.storage = result_.tensor;
    int64_t all = 0;
    int64_t unsplit = 0;
    const bool shared = std::any_of(
        mesh_.axes.begin(), mesh_.axes.end(),
        [](const graph::Axis& axis) { return axis.size > 1 && splits_tokens(axis.name); });
    for (size_t id = 0; id < graph_->tensors.size(); ++id) {
      const graph::Tensor& tensor = graph_->tensors[id];
      Layout& stored = result_.storage[id];
      if (tensor.kind == TensorKind::param && sharding_.any()) {
        const Layout split = sharded(tensor.type, stored, mesh_, sharding_, sharding_.update());
        all += tensor.type.bytes();
        if (split == stored) {
          unsplit += tensor.type.bytes();
        }
        for (size_t axis = 0; axis < mesh_.axes.size(); ++axis) {
          const graph::Axis& ranks = mesh_.axes[axis];
          if (ranks.size > 1 && tensor.type.bytes() >= sharding_.least_bytes() &&
              may_split(axis, mesh_, sharding_, sharding_.update()) && split[axis].is_replicate()) {
            log_debug("{} {} stays whole over {}: no dim has {} indices to split", tensor.name,
                      to_string(tensor.type), ranks.name, ranks.size);
          }
        }
        stored = rules_.sharded_param(static_cast<TensorId>(id), stored, sharding_.params);
      }
      if (tensor.kind == TensorKind::state && rules_.updated(id) != kNone) {
        stored = result_.update[static_cast<size_t>(rules_.updated(id))];
      }
    }
    if (shared && 2 * unsplit > all && !graph_->grads.empty()) {
      log_warning(
          "plan.shard splits only {:.0f} % of the parameters' bytes: no dim of the others has an "
          "index for every data-parallel rank",
          100 * static_cast<double>(all - unsplit) / static_cast<double>(all));
    }
    if (sharding_.grads == Shard::none) return;
    for (const graph::ParamGrad& grad : graph_->grads) {
      for (TensorId id : grad.contributions) {
        result_.storage[id] = rules_.accumulation_layout(id);
      }
    }
  }

  /// Layouts of a node, or of the nodes that replace it.
  struct Placed {
    double cost = 0, bytes = 0;
    std::vector<Node> nodes;  ///< empty: the node itself
    std::vector<NodeLayouts> wanted;
  };

  const graph::Tensor& tensor(TensorId id) const { return graph_->tensor(id); }

  Placed place(const Node& node) {
    // Try the node as one task first. If it needs resharding and the op has a definition, try the
    // nodes of the definition, and take them if they move fewer bytes. Their larger number of
    // messages counts little: such ops are few, and the tensors that they would need whole are
    // large. A rejected trial is undone.
    const size_t before = rules_.num_noted();
    rules_.begin(node);
    Placed undecomposed;
    undecomposed.wanted.resize(1);
    undecomposed.cost = place_undecomposed(node, &undecomposed.wanted[0], &undecomposed.bytes);
    const ops::Op& op = ops::find(node.op);
    const bool may_decompose =
        op.define && node.phase != graph::Phase::optimizer && node.accumulate.empty();
    if (undecomposed.cost > 0 && may_decompose) {
      const ops::Decomposition decomposed = ops::decompose(op, node.attrs, types_of(node));
      if (!decomposed.out.empty()) {
        rules_.forget(before);
        const size_t tensors = graph_->tensors.size();
        Placed steps = place_steps(node, decomposed);
        const bool possible = steps.cost < kInfinity;
        if (possible && (undecomposed.cost == kInfinity || steps.bytes < undecomposed.bytes))
          return steps;
        rules_.forget(before);
        resize_tensors(tensors);
        undecomposed.bytes = 0;
        place_undecomposed(node, &undecomposed.wanted[0], &undecomposed.bytes);
      }
    }
    if (undecomposed.cost == kInfinity && !node.accumulate.empty()) {
      rules_.forget(before);
      return place_apart(node);
    }
    rules_.follow_rows(node);
    return undecomposed;
  }

  /// Places a node without its in-place accumulation, and the sums as nodes of their own. Used
  /// where the accumulator has another layout than the output.
  Placed place_apart(const Node& node) {
    Node alone = node;
    alone.in.resize(num_inputs(node));
    alone.accumulate = {};
    std::vector<Node> sums;
    size_t accumulator = num_inputs(node);
    for (size_t output = 0; output < node.out.size(); ++output) {
      if (!node.accumulate.contains(output)) continue;
      const std::string& op = ops::of(ops::Meaning::sum).name;
      Node& sum = sums.emplace_back();
      sum.op = op;
      sum.phase = node.phase;
      sum.layer = node.layer;
      sum.recompute = node.recompute;
      alone.out[output] = add_tensor(node, node.op, tensor(node.out[output]).type);
      sum.in = {node.in[accumulator++], alone.out[output]};
      sum.out = {node.out[output]};
    }
    sums.insert(sums.begin(), std::move(alone));
    Placed all;
    for (Node& part : sums) {
      Placed placed = place(part);
      all.cost += placed.cost;
      all.bytes += placed.bytes;
      if (placed.cost == kInfinity) return all;
      if (placed.nodes.empty()) {
        placed.nodes.push_back(std::move(part));
      }
      std::move(placed.nodes.begin(), placed.nodes.end(), std::back_inserter(all.nodes));
      std::move(placed.wanted.begin(), placed.wanted.end(), std::back_inserter(all.wanted));
    }
    return all;
  }

  Placed place_steps(const Node& node, const ops::Decomposition& decomposed) {
    // Values of the definition become tensors: inputs and outputs exist already, values in between
    // are new.
    std::vector<TensorId> tensors(decomposed.types.size(), kNone);
    std::copy(node.in.begin(), node.in.end(), tensors.begin());
    for (size_t i = 0; i < decomposed.out.size(); ++i) {
      tensors[static_cast<size_t>(decomposed.out[i])] = node.out[i];
    }
    Placed all;
    for (const ops::Decomposition::Step& step : decomposed.steps) {
      Node inner;
      inner.op = step.op->name;
      inner.attrs = step.attrs;
      inner.phase = node.phase;
      inner.layer = node.layer;
      inner.recompute = node.recompute;
      for (int value : step.in) {
        inner.in.push_back(tensors[static_cast<size_t>(value)]);
      }
      for (int value : step.out) {
        TensorId& id = tensors[static_cast<size_t>(value)];
        if (id == kNone) {
          id = add_tensor(node, inner.op, decomposed.types[static_cast<size_t>(value)]);
        }
        inner.out.push_back(id);
      }
      Placed placed = place(inner);
      all.cost += placed.cost;
      all.bytes += placed.bytes;
      if (all.cost == kInfinity) return all;
      if (placed.nodes.empty()) {
        placed.nodes.push_back(std::move(inner));
      }
      std::move(placed.nodes.begin(), placed.nodes.end(), std::back_inserter(all.nodes));
      std::move(placed.wanted.begin(), placed.wanted.end(), std::back_inserter(all.wanted));
    }
    return all;
  }

  TensorId add_tensor(const Node& node, const std::string& op, const TensorType& type) {
    take_own_graph();
    graph::Tensor made;
    made.name = tensor(node.out[0]).name + "/" + op;
    made.type = type;
    made.layer = node.layer;
    own_->tensors.push_back(std::move(made));
    resize_tensors(own_->tensors.size());
    return static_cast<TensorId>(own_->tensors.size()) - 1;
  }

  void resize_tensors(size_t tensors) {
    if (own_) {
      own_->tensors.resize(tensors);
    }
    rules_.grown(*graph_);
  }

  /// Copies the graph before its first change.
  void take_own_graph() {
    if (own_) return;
    own_ = *graph_;
    graph_ = &*own_;
  }

  void put_together(const std::vector<Node>& nodes,
                    std::map<size_t, std::vector<Node>>& in_place_of) {
    // The given graph's nodes, with replacements in the place of some.
    std::vector<Node> all;
    for (size_t n = 0; n < nodes.size(); ++n) {
      const auto others = in_place_of.find(n);
      if (others == in_place_of.end()) {
        all.push_back(nodes[n]);
      } else {
        std::move(others->second.begin(), others->second.end(), std::back_inserter(all));
      }
      result_.origin.resize(all.size(), static_cast<graph::NodeId>(n));
    }
    // A definition that only rewrites existing tensors adds no tensor, so the graph may not be
    // copied yet.
    take_own_graph();
    for (size_t n = 0; n < all.size(); ++n) {
      for (TensorId id : all[n].out) {
        own_->tensors[static_cast<size_t>(id)].producer = static_cast<graph::NodeId>(n);
      }
    }
    own_->nodes = std::move(all);
    result_.decomposed = std::move(own_);
  }

  std::vector<TensorType> types_of(const Node& node) const {
    std::vector<TensorType> types;
    for (size_t i = 0; i < num_inputs(node); ++i) {
      types.push_back(tensor(node.in[i]).type);
    }
    return types;
  }

  /// Places a node as one task: on every axis its cheapest signature. An accumulator gets the
  /// layout of its output. Returns the cost of resharding the inputs, or infinity if that is
  /// impossible. Adds to `bytes`.
  double place_undecomposed(const Node& node, NodeLayouts* wanted, double* bytes) {
    stop_if_asked();
    const size_t inputs = num_inputs(node);
    const std::vector<ops::AxisSignature> all = rules_.signatures(node);
    *wanted = {};
    wanted->in.resize(node.in.size());
    wanted->signature.resize(mesh_.axes.size());
    double total = 0;
    for (size_t axis : rules_.order_of_axes(node)) {
      if (!rules_.is_used(axis)) continue;
      double cost = kInfinity;
      const ops::AxisSignature* const best = cheapest(node, all, *wanted, axis, &cost);
      if (!best) {
        no_layout_on_ = axis;
        return kInfinity;
      }
      total += cost;
      wanted->signature[axis] = static_cast<int32_t>(best - all.data());
      for (size_t i = 0; i < inputs; ++i) {
        *bytes += rules_.bytes_to_reshard(node.in[i], best->in[i], axis);
        rules_.note_resharded(node.in[i], best->in[i], axis);
        wanted->in[i].set(axis, best->in[i]);
      }
      rules_.place(node, *best, axis);
    }
    size_t accumulator = inputs;
    for (size_t output = 0; output < node.out.size(); ++output) {
      if (node.accumulate.contains(output)) {
        wanted->in[accumulator++] = rules_.layouts()[static_cast<size_t>(node.out[output])];
      }
    }
    return total;
  }

  const ops::AxisSignature* cheapest(const Node& node, const std::vector<ops::AxisSignature>& all,
                                     const NodeLayouts& wanted, size_t axis, double* cost) {
    const ops::AxisSignature* best = nullptr;
    for (const ops::AxisSignature& signature : all) {
      if (given_ && &signature - all.data() != (*given_)[axis]) continue;
      if (!rules_.may_take(node, signature, wanted, axis)) continue;
      const double here = rules_.cost_of(node, signature, axis);
      if (here < *cost) {
        best = &signature;
        *cost = here;
      }
    }
    return best;
  }

  const Graph* graph_;
  std::optional<Graph> own_;  // copy with replacements and their tensors
  const Mesh& mesh_;
  const Sharding sharding_;
  LayoutRules rules_;
  const std::vector<int32_t>* given_ = nullptr;  // by axis: signatures of the current node
  Layouts result_;
  size_t no_layout_on_ = 0;
};

}  // namespace

Layouts layouts_by_node(const Graph& graph, const Mesh& mesh, const LayoutsGiven& given) {
  Layouts made = LayoutChoice(graph, mesh, given).run();
  const Graph& lowered = made.decomposed ? *made.decomposed : graph;
  Shares(lowered, mesh, given.tokens).give(lowered, &made);
  return made;
}

std::optional<Layouts> layouts_with(const Graph& graph, const Mesh& mesh, const LayoutsGiven& given,
                                    const std::vector<NodeLayouts>& signatures) {
  std::optional<Layouts> made = LayoutChoice(graph, mesh, given).run(signatures);
  if (made) {
    Shares(graph, mesh, given.tokens).give(graph, &*made);
  }
  return made;
}

Layouts choose_layouts(const Graph& graph, const Mesh& mesh, const LayoutsGiven& given,
                       int64_t num_micro_batches) {
  // Node by node first, which decides the replacements; then over the whole graph that results.
  Layouts layouts = layouts_by_node(graph, mesh, given);
  std::optional<Graph> decomposed = std::move(layouts.decomposed);
  std::vector<graph::NodeId> origin = std::move(layouts.origin);
  choose_over_graph(decomposed ? *decomposed : graph, mesh, given, num_micro_batches, &layouts);
  layouts.decomposed = std::move(decomposed);
  layouts.origin = std::move(origin);
  return layouts;
}

}  // namespace hocket::parallel
