// SPDX-License-Identifier: Apache-2.0
#include "parallel/layouts.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <map>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "ops/op.h"
#include "parallel/plan.h"
#include "parallel/stored.h"

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

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Greedy, node by node in the graph's order, and for every mesh axis by itself: among the layouts
/// that the op allows on that axis, the one whose inputs cost least to bring there from where they
/// lie; it also says how the outputs lie. Parameters stay where the plan put them, so the choice is
/// always "move the activation". A node that makes a gradient may only choose what can be reduced
/// to the layout of its parameter. Where the op's definition costs less, its nodes are taken.
class LayoutChoice {
 public:
  LayoutChoice(const Graph& graph, const Mesh& mesh, std::vector<Layout> stored,
               std::map<TensorId, Pinned> pinned, const Sharding& sharding,
               const ActivationLayouts& activations)
      : graph_(&graph),
        mesh_(mesh),
        sharding_(sharding),
        activations_(activations),
        pinned_(std::move(pinned)) {
    result_.tensor = std::move(stored);
    param_of_.resize(graph.tensors.size(), kNone);
    updated_.resize(graph.tensors.size(), kNone);
    supported_.resize(graph.tensors.size(), 0);
    counts_of_rows_.resize(graph.tensors.size(), kNone);
    brought_.resize(graph.tensors.size());
    result_.counts_of.assign(graph.tensors.size(), kNone);
    for (size_t axis = 0; axis < mesh.axes.size(); ++axis) {
      paths_.emplace_back(Mesh{{mesh.axes[axis]}});
      result_.gathers_again.push_back(activations.sequence_parallel &&
                                      splits_parameters(mesh.axes[axis].name));
    }
    for (const auto& grad : graph.grads) {
      for (TensorId id : grad.contributions) {
        param_of_[id] = grad.param;
      }
    }
    share_updates();
  }

  Layouts run() {
    // Nodes that give way to others are kept, by their place; the graph is put together at the end.
    const std::vector<Node>& nodes = graph_->nodes;
    std::map<size_t, std::vector<Node>> in_place_of;
    for (size_t n = 0; n < nodes.size(); ++n) {
      Placed placed = place(nodes[n]);
      if (placed.cost == kInfinity) {
        const bool pins = std::any_of(nodes[n].in.begin(), nodes[n].in.end(),
                                      [&](TensorId id) { return pinned_.contains(id); });
        fail("layouts", "{} ({}) has no legal layout on axis {} for its inputs{}", nodes[n].op,
             graph_->tensor(nodes[n].out.empty() ? nodes[n].in[0] : nodes[n].out[0]).name,
             mesh_.axes[no_layout_on_].name,
             pins ? ", of which plan.layouts says how some lie" : "");
      }
      std::move(placed.wanted.begin(), placed.wanted.end(), std::back_inserter(result_.node));
      if (!placed.nodes.empty()) {
        in_place_of[n] = std::move(placed.nodes);
      }
    }
    find_where_all_lies();
    if (!in_place_of.empty()) {
      put_together(nodes, in_place_of);
    }
    return std::move(result_);
  }

 private:
  /// The layout in which each parameter is updated, and which tensors have it then: the parameter,
  /// its states, and the total of its gradient; with split gradients all that goes into that.
  void share_updates() {
    for (size_t index = 0; index < graph_->grads.size(); ++index) {
      const graph::ParamGrad& grad = graph_->grads[index];
      const Layout& used = result_.tensor[grad.param];
      result_.update.push_back(sharding_.any() ? sharded(tensor(grad.param).type, used, mesh_)
                                               : used);
      updated_[grad.param] = static_cast<int32_t>(index);
      if (grad.total != kNone) {
        updated_[grad.total] = static_cast<int32_t>(index);
      }
      if (sharding_.grads == Shard::all) {
        for (TensorId id : grad.contributions) {
          updated_[id] = static_cast<int32_t>(index);
        }
      }
    }
    for (const graph::Node& node : graph_->nodes) {
      if (node.phase != graph::Phase::optimizer) continue;
      const auto param = std::find_if(node.in.begin(), node.in.end(), [&](TensorId id) {
        return tensor(id).kind == TensorKind::param;
      });
      if (param == node.in.end()) continue;
      for (TensorId id : node.in) {
        if (tensor(id).kind == TensorKind::state) {
          updated_[id] = updated_[*param];
        }
      }
    }
  }

  /// See Layouts::lies.
  void find_where_all_lies() {
    result_.lies = result_.tensor;
    int64_t all = 0;
    int64_t whole = 0;
    for (size_t id = 0; id < graph_->tensors.size(); ++id) {
      const graph::Tensor& tensor = graph_->tensors[id];
      Layout& lies = result_.lies[id];
      if (tensor.kind == TensorKind::param && sharding_.any()) {
        const Layout split = sharded(tensor.type, lies, mesh_);
        all += tensor.type.bytes();
        if (split == lies) {
          whole += tensor.type.bytes();
        }
        for (size_t axis = 0; axis < mesh_.axes.size(); ++axis) {
          const graph::Axis& ranks = mesh_.axes[axis];
          if (ranks.size > 1 && splits_tokens(ranks.name) && split[axis].is_replicate()) {
            log_debug("{} {} stays whole over {}: no dim divides into {}", tensor.name,
                      to_string(tensor.type), ranks.name, ranks.size);
          }
        }
        if (sharding_.params == Shard::all) {
          lies = split;
        }
      }
      if (tensor.kind == TensorKind::state && updated_[id] != kNone) {
        lies = result_.update[static_cast<size_t>(updated_[id])];
      }
    }
    if (2 * whole > all && !graph_->grads.empty()) {
      log_warning(
          "plan.shard splits {:.0f} % of the parameters: the others have no dim that the "
          "data-parallel ranks divide",
          100 * static_cast<double>(all - whole) / static_cast<double>(all));
    }
    if (sharding_.grads != Shard::all) return;
    for (size_t index = 0; index < graph_->grads.size(); ++index) {
      for (TensorId id : graph_->grads[index].contributions) {
        result_.lies[id] = result_.update[index];
      }
    }
  }

  /// Where the node at hand finds a tensor. Those of the optimizer find parameters, states and the
  /// totals of gradients where the update is.
  const Layout& found(TensorId id) const {
    const bool update = in_step_ && updated_[id] != kNone;
    return update ? result_.update[static_cast<size_t>(updated_[id])] : result_.tensor[id];
  }

  /// A node with layouts, or the nodes that are there in its place.
  struct Placed {
    double cost = 0, bytes = 0;
    std::vector<Node> nodes;  ///< empty: the node itself
    std::vector<NodeLayouts> wanted;
  };

  /// Inputs that are not added to.
  static size_t num_inputs(const Node& node) { return node.in.size() - node.accumulate.size(); }
  const graph::Tensor& tensor(TensorId id) const { return graph_->tensor(id); }
  bool is_used(size_t axis) const {
    return mesh_.axes[axis].size > 1 && mesh_.axes[axis].name != kStageAxis;
  }
  std::vector<TensorType> types_of(const std::vector<TensorId>& ids, size_t count) const {
    std::vector<TensorType> types;
    for (size_t i = 0; i < count; ++i) {
      types.push_back(tensor(ids[i]).type);
    }
    return types;
  }

  Placed place(const Node& node) {
    // First as one task. If that moves something, and the op has a definition, then as its nodes,
    // through which fewer bytes must move (that they are more messages counts little: such ops are
    // few, and what they would need whole is large). What their trial has left behind is taken back
    // if they don't.
    const size_t before = log_.size();
    in_step_ = node.phase == graph::Phase::optimizer;
    Placed whole;
    whole.wanted.resize(1);
    whole.cost = place_whole(node, &whole.wanted[0], &whole.bytes);
    const ops::Op& op = ops::find(node.op);
    const bool may_unfold =
        op.define && node.phase != graph::Phase::optimizer && node.accumulate.empty();
    if (whole.cost > 0 && may_unfold) {
      const ops::Unfolded unfolded =
          ops::unfold(op, node.attrs, types_of(node.in, num_inputs(node)));
      if (!unfolded.out.empty()) {
        forget(before);
        const size_t tensors = graph_->tensors.size();
        Placed steps = place_steps(node, unfolded);
        const bool possible = steps.cost < kInfinity;
        if (possible && (whole.cost == kInfinity || steps.bytes < whole.bytes)) return steps;
        forget(before);
        resize_tensors(tensors);
        whole.bytes = 0;
        place_whole(node, &whole.wanted[0], &whole.bytes);
      }
    }
    if (whole.cost == kInfinity && !node.accumulate.empty()) {
      forget(before);
      return place_apart(node);
    }
    follow_rows(node);
    return whole;
  }

  /// A node that would add in place to what lies otherwise than what it adds: without that, and the
  /// sums as nodes of their own.
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

  Placed place_steps(const Node& node, const ops::Unfolded& unfolded) {
    // Values of the definition become tensors: the node's inputs and outputs are there, those
    // between them are new.
    std::vector<TensorId> tensors(unfolded.types.size(), kNone);
    std::copy(node.in.begin(), node.in.end(), tensors.begin());
    for (size_t i = 0; i < unfolded.out.size(); ++i) {
      tensors[static_cast<size_t>(unfolded.out[i])] = node.out[i];
    }
    Placed all;
    for (const ops::Unfolded::Step& step : unfolded.steps) {
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
          id = add_tensor(node, inner.op, unfolded.types[static_cast<size_t>(value)]);
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
    if (!own_) {
      own_ = *graph_;
      graph_ = &*own_;
    }
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
    result_.tensor.resize(tensors);
    result_.counts_of.resize(tensors, kNone);
    param_of_.resize(tensors, kNone);
    updated_.resize(tensors, kNone);
    supported_.resize(tensors, 0);
    counts_of_rows_.resize(tensors, kNone);
    brought_.resize(tensors);
  }

  void put_together(const std::vector<Node>& nodes,
                    std::map<size_t, std::vector<Node>>& in_place_of) {
    // The nodes of the graph that came, with those that are in the place of some.
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
    for (size_t n = 0; n < all.size(); ++n) {
      for (TensorId id : all[n].out) {
        own_->tensors[static_cast<size_t>(id)].producer = static_cast<graph::NodeId>(n);
      }
    }
    own_->nodes = std::move(all);
    result_.unfolded = std::move(own_);
  }

  /// The layouts of a node as one task: on every axis its cheapest signature. What it adds to lies
  /// as what it adds. Returns what bringing its inputs costs; infinity if it cannot be. `bytes` are
  /// added to.
  double place_whole(const Node& node, NodeLayouts* wanted, double* bytes) {
    const size_t inputs = num_inputs(node);
    const std::vector<ops::AxisSignature> all = ops::signatures(
        ops::find(node.op), types_of(node.in, inputs), types_of(node.out, node.out.size()));
    *wanted = {};
    wanted->in.resize(node.in.size());
    double total = 0;
    for (size_t axis : order_of_axes(node)) {
      if (!is_used(axis)) continue;
      double cost = kInfinity;
      const ops::AxisSignature* const best = cheapest(node, all, *wanted, axis, &cost);
      if (!best) {
        no_layout_on_ = axis;
        return kInfinity;
      }
      total += cost;
      for (size_t i = 0; i < inputs; ++i) {
        *bytes += bytes_to_bring(node.in[i], best->in[i], axis);
        note_brought(node.in[i], best->in[i], axis);
        wanted->in[i].set(axis, best->in[i]);
      }
      for (size_t output = 0; output < node.out.size(); ++output) {
        result_.tensor[node.out[output]].set(axis, best->out[output]);
        note_support(node, *best, output, axis);
      }
    }
    size_t accumulator = inputs;
    for (size_t output = 0; output < node.out.size(); ++output) {
      if (node.accumulate.contains(output)) {
        wanted->in[accumulator++] = result_.tensor[node.out[output]];
      }
    }
    return total;
  }

  /// Outermost first. An update has what it updates in the order in which that is split; heads that
  /// ranks of cp exchange are split over tp before.
  std::vector<size_t> order_of_axes(const Node& node) const {
    std::vector<size_t> axes;
    const auto add = [&](size_t axis) {
      if (std::find(axes.begin(), axes.end(), axis) == axes.end()) {
        axes.push_back(axis);
      }
    };
    if (in_step_) {
      for (TensorId id : node.in) {
        for (int dim = 0; dim < static_cast<int>(tensor(id).type.dims.size()); ++dim) {
          for (int32_t axis : found(id).axes_of(dim)) {
            add(static_cast<size_t>(axis));
          }
        }
      }
    }
    const bool exchange = exchanges_heads(node) || has_exchanged_heads(node);
    for (size_t axis = 0; axis < mesh_.axes.size(); ++axis) {
      if (!exchange || !splits_sequences(mesh_.axes[axis].name)) {
        add(axis);
      }
    }
    for (size_t axis = 0; axis < mesh_.axes.size(); ++axis) {
      add(axis);
    }
    return axes;
  }

  /// Whether ranks of cp give each other heads for tokens before the node, if they have parts of a
  /// sequence.
  bool exchanges_heads(const Node& node) const {
    return activations_.exchange_heads && !ops::find(node.op).layout.support.empty();
  }
  /// Whether an input has axes of cp inside of one of tp.
  bool has_exchanged_heads(const Node& node) const {
    const auto exchanged = [&](TensorId id) {
      const Layout& layout = found(id);
      for (int dim = 0; dim < static_cast<int>(tensor(id).type.dims.size()); ++dim) {
        const std::vector<int32_t> axes = layout.axes_of(dim);
        if (!std::is_sorted(axes.begin(), axes.end())) return true;
      }
      return false;
    };
    return activations_.exchange_heads && std::any_of(node.in.begin(), node.in.end(), exchanged);
  }

  const ops::AxisSignature* cheapest(const Node& node, const std::vector<ops::AxisSignature>& all,
                                     const NodeLayouts& wanted, size_t axis, double* cost) {
    at_pin_ = std::any_of(node.in.begin(), node.in.end(),
                          [&](TensorId id) { return is_pinned(id, axis); });
    const ops::AxisSignature* best = nullptr;
    for (const ops::AxisSignature& signature : all) {
      if (!may_be(node, signature, axis) || lacks_keys(node, signature, wanted, axis)) continue;
      const double here = cost_of(node, signature, axis);
      if (here < *cost) {
        best = &signature;
        *cost = here;
      }
    }
    return best;
  }

  /// What a plan has to say of it; and nobody begins a split.
  bool may_be(const Node& node, const ops::AxisSignature& signature, size_t axis) const {
    const std::string& name = mesh_.axes[axis].name;
    const ops::Op& op = ops::find(node.op);
    if (splits_expert_widths(name) && op.routing.counts >= 0) {
      // Ranks with parts of the same experts have the rows of the same tokens.
      return std::all_of(signature.in.begin(), signature.in.end(),
                         [](Placement placed) { return placed.is_replicate(); });
    }
    if (activations_.sequence_parallel && splits_parameters(name) && !in_step_ &&
        splits_tokens_of_heads(node, signature)) {
      return false;
    }
    if (splits_sequences(name) && exchanges_heads(node)) {
      if (signature.tied && splits_as_before(node, signature, axis)) return true;
      // Heads are split instead of tokens, which are what the input with one dim has.
      const ops::Letters letters = ops::letters(op, types_of(node.in, num_inputs(node)),
                                                types_of(node.out, node.out.size()));
      for (size_t i = 0; i < num_inputs(node); ++i) {
        const Placement here = found(node.in[i])[axis];
        if (!here.is_split() || tensor(node.in[i]).type.dims.size() > 1) continue;
        const char token = letters.in[i][static_cast<size_t>(here.dim())];
        return signature.letter != 0 &&
               ops::tied(op.layout, token) != ops::tied(op.layout, signature.letter);
      }
    }
    return begins_no_split(node, signature, axis);
  }

  /// Whether an activation of three dims is split along its first: tokens of heads, which attention
  /// needs on all ranks of tp (cp may have them in an order of its own).
  bool splits_tokens_of_heads(const Node& node, const ops::AxisSignature& signature) const {
    const auto splits = [&](TensorId id, Placement placed) {
      const graph::Tensor& one = tensor(id);
      const bool activation = one.producer != kNone && param_of_[id] == kNone;
      return placed == Placement::split(0) && activation && !one.type.routed() &&
             one.type.dims.size() == 3;
    };
    for (size_t i = 0; i < num_inputs(node); ++i) {
      if (splits(node.in[i], signature.in[i])) return true;
    }
    for (size_t output = 0; output < node.out.size(); ++output) {
      if (splits(node.out[output], signature.out[output])) return true;
    }
    return false;
  }

  /// Whether every input lies on the axis as the signature has it.
  bool splits_as_before(const Node& node, const ops::AxisSignature& signature, size_t axis) const {
    for (size_t i = 0; i < num_inputs(node); ++i) {
      if (found(node.in[i])[axis] != signature.in[i]) return false;
    }
    return true;
  }

  /// What is split was split before: tokens with the inputs, other dims with parameters. Or it is a
  /// sum over tokens of which every rank takes those that it has.
  bool begins_no_split(const Node& node, const ops::AxisSignature& signature, size_t axis) const {
    if (signature.letter == 0) return true;
    for (size_t i = 0; i < num_inputs(node); ++i) {
      const Placement here = found(node.in[i])[axis];
      if (!signature.in[i].is_split()) continue;
      if (here == signature.in[i] || is_pinned(node.in[i], axis)) return true;
      if (here.is_partial() && may_scatter(node.in[i], signature.in[i].dim(), axis)) return true;
      if (here.is_split() && tensor(node.in[i]).type.routed()) return true;
      // Tokens that were given for heads come back.
      if (here.is_split() && activations_.exchange_heads &&
          splits_sequences(mesh_.axes[axis].name)) {
        return true;
      }
    }
    for (size_t output = 0; output < node.out.size(); ++output) {
      const TensorId param = param_of_[node.out[output]];
      if (param != kNone && signature.out[output].is_split() &&
          result_.tensor[param][axis] == signature.out[output]) {
        return true;
      }
    }
    // An input that is a sum over the letter is one of the part's own.
    return std::any_of(signature.in.begin(), signature.in.end(),
                       [](Placement placed) { return placed.is_partial(); });
  }

  /// True if letters that support ties cannot be split together on this axis, inside of those that
  /// have been chosen: some part would lack what it needs.
  bool lacks_keys(const Node& node, const ops::AxisSignature& signature, const NodeLayouts& wanted,
                  size_t axis) const {
    if (!signature.tied) return false;
    const ops::Op& op = ops::find(node.op);
    const ops::Letters letters =
        ops::letters(op, types_of(node.in, num_inputs(node)), types_of(node.out, node.out.size()));
    std::map<char, int64_t> part;  // of every letter that would be split
    for (size_t i = 0; i < num_inputs(node); ++i) {
      if (!signature.in[i].is_split()) continue;
      const int dim = signature.in[i].dim();
      const graph::Dim& size = tensor(node.in[i]).type.dims[static_cast<size_t>(dim)];
      int64_t parts = mesh_.axes[axis].size;
      for (int32_t outer : wanted.in[i].axes_of(dim)) {
        parts *= mesh_.axes[static_cast<size_t>(outer)].size;
      }
      if (size.symbolic()) return false;
      if (size % parts != 0) return true;
      part[letters.in[i][static_cast<size_t>(dim)]] = size / parts;
    }
    return !ops::cut_support(op, node.attrs, signature.letter, [&](char letter) {
              return part.at(letter);
            }).empty();
  }

  double cost_of(const Node& node, const ops::AxisSignature& signature, size_t axis) {
    double cost = 0;
    bool passes_on = false;  // parts of a sum
    for (size_t i = 0; i < num_inputs(node); ++i) {
      cost += cost_to_bring(node.in[i], signature.in[i], axis);
      if (signature.in[i].is_partial() && is_supported(node.in[i], axis)) return kInfinity;
      passes_on = passes_on || (signature.in[i].is_partial() &&
                                tensor(node.in[i]).type.dtype != graph::DType::i64);
    }
    size_t accumulator = num_inputs(node);
    for (size_t output = 0; output < node.out.size(); ++output) {
      if (node.accumulate.contains(output)) {
        cost += cost_to_bring(node.in[accumulator++], signature.out[output], axis);
      }
      cost += cost_after(node, output, signature.out[output], passes_on, axis);
    }
    return cost;
  }

  /// Of the parts of a sum that needs only some indices of its letter (Support), ranks have the
  /// whole sum for some of their elements: nothing is computed of them before they are added up.
  bool is_supported(TensorId id, size_t axis) const { return (supported_[id] >> axis & 1) != 0; }
  void note_support(const Node& node, const ops::AxisSignature& signature, size_t output,
                    size_t axis) {
    const bool parts =
        signature.letter != 0 && signature.out[output].is_partial() &&
        ops::find(node.op).layout.support_of(signature.letter, static_cast<int>(output)) != nullptr;
    uint32_t& axes = supported_[node.out[output]];
    axes = (axes & ~(1u << axis)) | (uint32_t{parts} << axis);
  }

  /// What an output costs later. Of a gradient, which is reduced once per step whatever the choice,
  /// only the impossible counts, and a block that is taken of it; of a sum whose parts come from
  /// before and are passed on, that somebody has to add them up.
  double cost_after(const Node& node, size_t output, Placement placed, bool passes_on,
                    size_t axis) {
    const TensorId id = node.out[output];
    const TensorType& type = tensor(id).type;
    if (const TensorId param = param_of_[id]; param != kNone) {
      const Placement to = result_.tensor[param][axis];
      if (placed == to) return 0;
      if (placed.is_partial() && to.is_split()) return kInfinity;
      const double cost = reshard_cost(type, placed, to, &paths_[axis]);
      return placed.is_partial() && cost < kInfinity ? 0 : cost;
    }
    if (!passes_on || !placed.is_partial() || node.phase == graph::Phase::optimizer) return 0;
    const double whole = reshard_cost(type, placed, Placement::replicate(), &paths_[axis]);
    const double part = may_scatter(id, 0, axis)
                            ? reshard_cost(type, placed, Placement::split(0), &paths_[axis])
                            : kInfinity;
    const double least = std::min(whole, part);
    return least < kInfinity ? least : 0;
  }

  /// True if a sum may become parts: of tokens, on the ranks that have them. Sharding is the plan's
  /// choice, not the lowering's: gradients end up as their parameter lies, and what ranks with the
  /// same tokens have is whole, unless the plan has them split by token what is a vector for each
  /// (a number per token is not worth it: what is split has to be gathered again; heads are split
  /// among themselves).
  bool may_scatter(TensorId id, int dim, size_t axis) const {
    const graph::NodeId producer = tensor(id).producer;
    const bool in_step =
        producer != kNone && graph_->nodes[producer].phase == graph::Phase::optimizer;
    if (param_of_[id] != kNone || in_step) return false;
    const std::string& name = mesh_.axes[axis].name;
    return splits_tokens(name) || (activations_.sequence_parallel && splits_parameters(name) &&
                                   dim == 0 && tensor(id).type.dims.size() == 2);
  }

  /// Whether the plan says how a tensor lies on the axis.
  bool is_pinned(TensorId id, size_t axis) const {
    const auto found = pinned_.find(id);
    return found != pinned_.end() && found->second.axes[axis];
  }

  /// Persistent tensors stay where the plan put them.
  double cost_to_bring(TensorId id, Placement to, size_t axis) {
    const graph::Tensor& moved = tensor(id);
    const Placement from = found(id)[axis];
    if (is_pinned(id, axis) && pinned_.at(id).layout[axis] != to) return kInfinity;
    if (from == to) return 0;
    if (moved.kind == TensorKind::param || moved.kind == TensorKind::state) return kInfinity;
    // Numbers of rows are those of the tokens at hand; parts of rows are added up with their token.
    if (counts_of_rows_[id] != kNone) return kInfinity;
    if (moved.type.routed() && from.is_partial()) return kInfinity;
    // Ranks of tp go by the positions of all their tokens, whatever order cp has these in.
    if (moved.kind == TensorKind::input && to.is_split() &&
        splits_parameters(mesh_.axes[axis].name)) {
      return kInfinity;
    }
    if (from.is_partial() && to.is_split() && moved.type.dtype != graph::DType::i64 &&
        !may_scatter(id, to.dim(), axis) && (!at_pin_ || param_of_[id] != kNone)) {
      return kInfinity;
    }
    if (is_brought(id, to, axis)) return 0;
    return reshard_cost(moved.type, from, to, &paths_[axis]);
  }

  /// Of what can be brought.
  double bytes_to_bring(TensorId id, Placement to, size_t axis) {
    double bytes = 0;
    const Placement from = found(id)[axis];
    if (from != to && !is_brought(id, to, axis)) {
      reshard_cost(tensor(id).type, from, to, &paths_[axis], &bytes);
    }
    return bytes;
  }

  bool is_brought(TensorId id, Placement to, size_t axis) const {
    return std::find(brought_[id].begin(), brought_[id].end(), std::pair{axis, to}) !=
           brought_[id].end();
  }

  /// Who asks for it again finds it there.
  void note_brought(TensorId id, Placement to, size_t axis) {
    if (found(id)[axis] == to) return;
    brought_[id].emplace_back(axis, to);
    log_.push_back(id);
  }
  /// What was noted since the log had this length.
  void forget(size_t length) {
    while (log_.size() > length) {
      brought_[log_.back()].pop_back();
      log_.pop_back();
    }
  }

  /// Every routed tensor learns which counts tensor says how many rows each expert has.
  void follow_rows(const Node& node) {
    const ops::Op& op = ops::find(node.op);
    if (op.routing.counts >= 0) {
      counts_of_rows_[node.out[op.routing.row_of]] = node.out[op.routing.counts];
    }
    TensorId counts = kNone;
    for (TensorId id : node.in) {
      if (counts == kNone) {
        counts = result_.counts_of[id];
      }
      if (counts == kNone) {
        counts = counts_of_rows_[id];
      }
    }
    for (TensorId id : node.out) {
      if (tensor(id).type.routed()) {
        result_.counts_of[id] = counts;
      }
    }
  }

  const Graph* graph_;
  std::optional<Graph> own_;  // with tensors of definitions
  const Mesh& mesh_;
  const Sharding sharding_;
  const ActivationLayouts activations_;
  const std::map<TensorId, Pinned> pinned_;
  bool in_step_ = false;  // the node at hand is the optimizer's
  bool at_pin_ = false;   // the plan says how an input of the node at hand lies on the axis at hand
  Layouts result_;
  std::vector<ReshardPaths> paths_;       // per axis, as a mesh of its own
  std::vector<TensorId> param_of_;        // whose gradient it becomes a part of
  std::vector<int32_t> updated_;          // the gradient in whose update it takes part, or kNone
  std::vector<TensorId> counts_of_rows_;  // by row_of: counts of the same routing
  std::vector<uint32_t> supported_;       // by tensor: axes, as bits, see is_supported
  /// By tensor: axes and placements that it was brought to; the order of all of them.
  std::vector<std::vector<std::pair<size_t, Placement>>> brought_;
  std::vector<TensorId> log_;
  size_t no_layout_on_ = 0;
};

}  // namespace

double reshard_cost(TensorType type, Placement from, Placement to, ReshardPaths* axis,
                    double* bytes) {
  if (from.is_split()) {
    // Sizes that do not divide are refused where the value is made: here only the cost counts.
    const int64_t ranks = axis->mesh().size();
    graph::Dim& size = type.dims[from.dim()];
    if (!size.divides_into(ranks)) {
      size = (size + ranks - 1) / ranks * ranks;
    }
  }
  Layout has;
  Layout wants;
  has.set(0, from);
  wants.set(0, to);
  const ReshardPath* const path = axis->path(type, has, wants);
  if (!path) return kInfinity;
  if (bytes) {
    *bytes = path->bytes;
  }
  const bool slices = std::any_of(path->steps.begin(), path->steps.end(),
                                  [](const ReshardStep& step) { return !step.op; });
  const bool even = !to.is_split() || type.dims[to.dim()].divides_into(axis->mesh().size());
  return slices && !even ? kInfinity : path->cost;
}

Layouts choose_layouts(const Graph& graph, const Mesh& mesh, const std::vector<std::string>& pins,
                       const Sharding& sharding, const ActivationLayouts& activations) {
  return LayoutChoice(graph, mesh, stored_layouts(graph, mesh, pins),
                      pinned_activations(graph, mesh, pins), sharding, activations)
      .run();
}

Layout sharded(const TensorType& type, Layout layout, const Mesh& mesh) {
  // A dim that is split already is left alone: what is inside of what is decided by the mesh.
  const auto divides = [&](int dim, int64_t ranks) {
    return layout.axes_of(dim).empty() && type.dims[static_cast<size_t>(dim)].divides_into(ranks);
  };
  const int dims = static_cast<int>(type.dims.size());
  std::vector<size_t> axes;
  int64_t ranks = 1;
  for (size_t axis = mesh.axes.size(); axis-- > 0;) {
    if (mesh.axes[axis].size == 1 || !layout[axis].is_replicate()) continue;
    if (!splits_tokens(mesh.axes[axis].name)) continue;
    axes.push_back(axis);
    ranks *= mesh.axes[axis].size;
  }
  for (int dim = 0; dim < dims; ++dim) {
    if (!divides(dim, ranks)) continue;
    for (size_t axis : axes) {
      layout.set(axis, Placement::split(dim));
    }
    return layout;
  }
  for (size_t axis : axes) {
    for (int dim = 0; dim < dims; ++dim) {
      if (!divides(dim, mesh.axes[axis].size)) continue;
      layout.set(axis, Placement::split(dim));
      break;
    }
  }
  return layout;
}

graph::Layout summed(graph::Layout layout, const graph::Mesh& mesh) {
  for (size_t axis = 0; axis < mesh.axes.size(); ++axis) {
    if (layout[axis].is_partial() && mesh.axes[axis].size > 1) {
      layout.set(axis, graph::Placement::replicate());
    }
  }
  return layout;
}

}  // namespace hocket::parallel
