// SPDX-License-Identifier: Apache-2.0
#include "parallel/layouts/layout_rules.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <string>

#include "base/text.h"
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

/// Returns whether all that parts need of tied letters are shares of them.
bool needs_shares(const ops::Op& op) {
  return std::all_of(op.layout.support.begin(), op.layout.support.end(),
                     [](const ops::Support& support) { return support.of_shares; });
}

}  // namespace

LayoutRules::LayoutRules(const Graph& graph, const Mesh& mesh, const LayoutsGiven& given)
    : graph_(&graph),
      mesh_(mesh),
      shares_(graph, mesh, given.tokens),
      sharding_(given.sharding),
      activations_(given.activations),
      pinned_(given.pinned),
      layouts_(given.stored) {
  grown(graph);
  for (const graph::Axis& axis : mesh.axes) {
    paths_.emplace_back(Mesh{{axis}});
  }
  for (const auto& grad : graph.grads) {
    for (TensorId id : grad.contributions) {
      param_of_[id] = grad.param;
    }
  }
  share_updates();
}

void LayoutRules::grown(const Graph& graph) {
  graph_ = &graph;
  const size_t tensors = graph.tensors.size();
  layouts_.resize(tensors);
  counts_of_.resize(tensors, kNone);
  param_of_.resize(tensors, kNone);
  updated_.resize(tensors, kNone);
  supported_.resize(tensors, 0);
  counts_of_rows_.resize(tensors, kNone);
  resharded_.resize(tensors);
}

std::vector<TensorType> LayoutRules::types_of(const std::vector<TensorId>& ids,
                                              size_t count) const {
  std::vector<TensorType> types;
  for (size_t i = 0; i < count; ++i) {
    types.push_back(tensor(ids[i]).type);
  }
  return types;
}

std::vector<ops::AxisSignature> LayoutRules::signatures(const Node& node) const {
  return ops::signatures(ops::find(node.op), types_of(node.in, num_inputs(node)),
                         types_of(node.out, node.out.size()));
}

void LayoutRules::begin(const Node& node) {
  in_step_ = node.phase == graph::Phase::optimizer;
  if (!in_step_ || sharding_.grads == Shard::none) return;
  for (TensorId id : node.in) {
    if (param_of_[id] != kNone) {
      accumulation_layouts_[id] = accumulation_layout(id);
    }
  }
}

/// Computes the layout in which each parameter is updated, and marks the tensors that share it: the
/// parameter, its states, and the total of its gradient.
void LayoutRules::share_updates() {
  for (size_t index = 0; index < graph_->grads.size(); ++index) {
    const graph::ParamGrad& grad = graph_->grads[index];
    const Layout& used = layouts_[grad.param];
    update_.push_back(updated_as(grad.param, sharded_param(grad.param, used, sharding_.update())));
    updated_[grad.param] = index;
    if (grad.total != kNone) {
      updated_[grad.total] = index;
    }
  }
  for (size_t id = 0; id < graph_->tensors.size(); ++id) {
    const graph::Tensor& state = graph_->tensors[id];
    if (state.state == graph::StateKind::optimizer) {
      updated_[id] = updated_[state.of];
    }
  }
}

/// Returns the layout with the pins of the parameter's states or gradient.
Layout LayoutRules::updated_as(TensorId param, Layout layout) const {
  const auto found = pinned_.updates.find(param);
  if (found == pinned_.updates.end()) return layout;
  const Pinned& pin = found->second;
  std::set<int32_t> other;  // axes along which the pin differs
  for (size_t axis = 0; axis < mesh_.axes.size(); ++axis) {
    if (pin.axes[axis] && layout[axis] != pin.layout[axis]) {
      other.insert(axis);
      layout.set(axis, Placement::replicate());
    }
  }
  for (int dim = 0; dim < std::ssize(tensor(param).type.dims); ++dim) {
    for (int32_t axis : pin.layout.axes_of(dim)) {
      if (other.contains(axis)) {
        layout.set(axis, Placement::split(dim));
      }
    }
  }
  return layout;
}

Layout LayoutRules::sharded_param(TensorId param, const Layout& stored, Shard among) const {
  Layout split = sharded(tensor(param).type, stored, mesh_, sharding_, among);
  const auto pinned = pinned_.tensors.find(param);
  if (pinned == pinned_.tensors.end()) return split;
  for (size_t axis = 0; axis < mesh_.axes.size(); ++axis) {
    if (pinned->second.axes[axis] && stored[axis].is_replicate()) {
      split.set(axis, Placement::replicate());
    }
  }
  return split;
}

Layout LayoutRules::accumulation_layout(TensorId contribution) const {
  const TensorId param = param_of_[contribution];
  const Layout split = sharded_param(param, layouts_[param], sharding_.grads);
  Layout layout = layouts_[contribution];
  for (int dim = 0; dim < std::ssize(tensor(param).type.dims); ++dim) {
    for (int32_t axis : split.axes_of(dim)) {
      layout.set(axis, Placement::split(dim));
    }
  }
  return layout;
}

const Layout& LayoutRules::found(TensorId id) const {
  if (!in_step_) return layouts_[id];
  if (updated_[id] != kNone) return update_[updated_[id]];
  const auto contribution = accumulation_layouts_.find(id);
  return contribution == accumulation_layouts_.end() ? layouts_[id] : contribution->second;
}

std::vector<size_t> LayoutRules::order_of_axes(const Node& node) const {
  std::vector<size_t> axes;
  const auto add = [&](size_t axis) {
    if (std::find(axes.begin(), axes.end(), axis) == axes.end()) {
      axes.push_back(axis);
    }
  };
  if (in_step_) {
    for (TensorId id : node.in) {
      for (int dim = 0; dim < std::ssize(tensor(id).type.dims); ++dim) {
        for (int32_t axis : found(id).axes_of(dim)) {
          add(axis);
        }
      }
    }
  }
  const bool exchange = exchanges_heads(node) || has_exchanged_heads(node);
  for (size_t axis = 0; axis < mesh_.axes.size(); ++axis) {
    if (exchange && !splits_sequences(mesh_.axes[axis].name)) {
      add(axis);
    }
  }
  while (axes.size() < mesh_.axes.size()) {
    add(next_axis(node, axes));
  }
  return axes;
}

/// Returns the first axis of the mesh, not among `axes`, that lies inside of no other remaining
/// axis. The order of axes is that of an input or of the parameter of a gradient. A pin may have
/// cut a parameter in another order than the mesh's.
size_t LayoutRules::next_axis(const Node& node, const std::vector<size_t>& axes) const {
  std::set<int32_t> open;
  for (size_t axis = 0; axis < mesh_.axes.size(); ++axis) {
    if (std::find(axes.begin(), axes.end(), axis) == axes.end()) {
      open.insert(axis);
    }
  }
  const auto cuts_first = [&](const Layout& layout, int32_t axis) {
    const Placement here = layout[axis];
    if (!here.is_split()) return true;
    const std::vector<int32_t> cut = layout.axes_of(here.dim());
    return std::none_of(cut.begin(), std::find(cut.begin(), cut.end(), axis),
                        [&](int32_t outer) { return open.contains(outer); });
  };
  const auto is_outermost = [&](int32_t axis) {
    return std::all_of(node.in.begin(), node.in.end(),
                       [&](TensorId id) { return cuts_first(found(id), axis); }) &&
           std::all_of(node.out.begin(), node.out.end(), [&](TensorId id) {
             return param_of_[id] == kNone || cuts_first(layouts_[param_of_[id]], axis);
           });
  };
  const auto next = std::find_if(open.begin(), open.end(), is_outermost);
  return next == open.end() ? *open.begin() : *next;
}

/// Returns whether ranks of cp exchange heads for tokens before the node, if they have parts of a
/// sequence.
bool LayoutRules::exchanges_heads(const Node& node) const {
  return activations_.exchange_heads && !ops::find(node.op).layout.support.empty();
}

/// Returns whether an input is split over axes of cp inside of one of tp.
bool LayoutRules::has_exchanged_heads(const Node& node) const {
  const auto exchanged = [&](TensorId id) {
    const Layout& layout = found(id);
    for (int dim = 0; dim < std::ssize(tensor(id).type.dims); ++dim) {
      const std::vector<int32_t> axes = layout.axes_of(dim);
      if (!std::is_sorted(axes.begin(), axes.end())) return true;
    }
    return false;
  };
  return activations_.exchange_heads && std::any_of(node.in.begin(), node.in.end(), exchanged);
}

bool LayoutRules::may_take(const Node& node, const ops::AxisSignature& signature,
                           const NodeLayouts& wanted, size_t axis) {
  at_pin_ =
      std::any_of(node.in.begin(), node.in.end(), [&](TensorId id) { return is_pinned(id, axis); });
  return may_be(node, signature, axis) && !lacks_keys(node, signature, wanted, axis);
}

/// Returns whether the plan allows the signature, and whether it begins no split.
bool LayoutRules::may_be(const Node& node, const ops::AxisSignature& signature, size_t axis) const {
  const std::string& name = mesh_.axes[axis].name;
  const ops::Op& op = ops::find(node.op);
  if (splits_expert_widths(name) && op.routing.counts >= 0) {
    // Ranks that split the widths of the same experts have rows of the same tokens.
    return std::all_of(signature.in.begin(), signature.in.end(),
                       [](Placement placed) { return placed.is_replicate(); });
  }
  if (activations_.sequence_parallel && splits_parameters(name) && !in_step_ &&
      splits_tokens_of_heads(node, signature)) {
    return false;
  }
  if (splits_sequences(name) && exchanges_heads(node)) {
    if (signature.tied && splits_as_before(node, signature, axis)) return true;
    // Heads are split instead of tokens. Tokens are the dim of the input with one dim.
    const ops::Letters letters =
        ops::letters(op, types_of(node.in, num_inputs(node)), types_of(node.out, node.out.size()));
    for (size_t i = 0; i < num_inputs(node); ++i) {
      const Placement here = found(node.in[i])[axis];
      if (!here.is_split() || tensor(node.in[i]).type.dims.size() > 1) continue;
      const char token = letters.in[i][here.dim()];
      return signature.letter != 0 &&
             ops::tied(op.layout, token) != ops::tied(op.layout, signature.letter);
    }
  }
  return begins_no_split(node, signature, axis);
}

/// Returns whether a node reads only parameters: it makes weights in another type.
bool LayoutRules::is_of_parameters(graph::NodeId node) const {
  const std::vector<TensorId>& in = graph_->nodes[node].in;
  return !in.empty() && std::all_of(in.begin(), in.end(), [&](TensorId id) {
    return tensor(id).kind == TensorKind::param;
  });
}

/// Returns whether the signature splits an activation of three dims along its first: tokens of
/// heads, which attention needs on all ranks of tp (cp may have them in its own order).
bool LayoutRules::splits_tokens_of_heads(const Node& node,
                                         const ops::AxisSignature& signature) const {
  const auto splits = [&](TensorId id, Placement placed) {
    const graph::Tensor& one = tensor(id);
    const bool activation =
        one.producer != kNone && param_of_[id] == kNone && !is_of_parameters(one.producer);
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

/// Returns whether every input already has the signature's placement on the axis.
bool LayoutRules::splits_as_before(const Node& node, const ops::AxisSignature& signature,
                                   size_t axis) const {
  for (size_t i = 0; i < num_inputs(node); ++i) {
    if (found(node.in[i])[axis] != signature.in[i]) return false;
  }
  return true;
}

/// Returns whether the signature begins no split. Either a split operand was split before: tokens
/// by the inputs, other dims by parameters. Or a sum over tokens leaves every rank the tokens that
/// it has.
bool LayoutRules::begins_no_split(const Node& node, const ops::AxisSignature& signature,
                                  size_t axis) const {
  if (signature.letter == 0) return true;
  for (size_t i = 0; i < num_inputs(node); ++i) {
    const Placement here = found(node.in[i])[axis];
    if (!signature.in[i].is_split()) continue;
    if (here == signature.in[i] || is_pinned(node.in[i], axis)) return true;
    if (here.is_partial() && may_scatter(node.in[i], signature.in[i].dim(), axis)) return true;
    if (here.is_split() && tensor(node.in[i]).type.routed()) return true;
    // Heads go back to tokens.
    if (here.is_split() && activations_.exchange_heads && splits_sequences(mesh_.axes[axis].name)) {
      return true;
    }
  }
  for (size_t output = 0; output < node.out.size(); ++output) {
    const TensorId param = param_of_[node.out[output]];
    if (param != kNone && signature.out[output].is_split() &&
        layouts_[param][axis] == signature.out[output]) {
      return true;
    }
  }
  // A partial input: every rank sums its own part of the letter.
  return std::any_of(signature.in.begin(), signature.in.end(),
                     [](Placement placed) { return placed.is_partial(); });
}

/// Returns whether the letters that support ties cannot be split together on this axis, inside of
/// the axes already chosen: some part would lack indices that it needs.
bool LayoutRules::lacks_keys(const Node& node, const ops::AxisSignature& signature,
                             const NodeLayouts& wanted, size_t axis) const {
  if (!signature.tied) return false;
  const ops::Op& op = ops::find(node.op);
  const ops::Letters letters =
      ops::letters(op, types_of(node.in, num_inputs(node)), types_of(node.out, node.out.size()));
  std::map<char, int64_t> part;  // by letter that is split: a common divisor of its blocks
  int64_t num_parts = 2;
  for (size_t i = 0; i < num_inputs(node); ++i) {
    if (!signature.in[i].is_split()) continue;
    const int dim = signature.in[i].dim();
    const graph::Dim& size = tensor(node.in[i]).type.dims[dim];
    std::vector<int32_t> axes = wanted.in[i].axes_of(dim);
    axes.push_back(axis);
    int64_t parts = 1;
    for (int32_t one : axes) {
      parts *= mesh_.axes[one].size;
    }
    num_parts = parts;
    if (size.symbolic()) {
      if (!size.divides_into(parts) || !needs_shares(op)) return true;
      part[letters.in[i][dim]] = size.multiple() / parts;
      continue;
    }
    const std::vector<int64_t> blocks = shares_.sizes(*graph_, node.in[i], dim, axes);
    if (blocks.empty() && size % parts != 0) return true;
    int64_t divides = blocks.empty() ? size / parts : 0;
    for (int64_t block : blocks) {
      divides = std::gcd(divides, block);
    }
    part[letters.in[i][dim]] = divides;
  }
  return !ops::cut_support(
              op, node.attrs, signature.letter, [&](char letter) { return part.at(letter); },
              num_parts)
              .empty();
}

double LayoutRules::cost_of(const Node& node, const ops::AxisSignature& signature, size_t axis) {
  double cost = 0;
  bool passes_on = false;  // passes on partial sums
  for (size_t i = 0; i < num_inputs(node); ++i) {
    cost += cost_to_reshard(node.in[i], signature.in[i], axis);
    if (signature.in[i].is_partial() && is_supported(node.in[i], axis)) return kInfinity;
    passes_on = passes_on || (signature.in[i].is_partial() &&
                              tensor(node.in[i]).type.dtype != graph::DType::i64);
  }
  size_t accumulator = num_inputs(node);
  for (size_t output = 0; output < node.out.size(); ++output) {
    if (node.accumulate.contains(output)) {
      cost += cost_to_reshard(node.in[accumulator++], signature.out[output], axis);
    }
    cost += cost_after(node, output, signature.out[output], passes_on, axis);
  }
  return cost;
}

bool LayoutRules::supports(const Node& node, const ops::AxisSignature& signature, size_t output) {
  return signature.letter != 0 && signature.out[output].is_partial() &&
         ops::find(node.op).layout.support_of(signature.letter, output) != nullptr;
}

void LayoutRules::place(TensorId id, Placement placed, bool supported, size_t axis) {
  layouts_[id].set(axis, placed);
  uint32_t& axes = supported_[id];
  axes = (axes & ~(1u << axis)) | (uint32_t{supported} << axis);
}

void LayoutRules::place(const Node& node, const ops::AxisSignature& signature, size_t axis) {
  for (size_t output = 0; output < node.out.size(); ++output) {
    place(node.out[output], signature.out[output], supports(node, signature, output), axis);
  }
}

/// Returns the later cost of an output. A gradient is reduced once per step in any case, so only
/// impossibility counts, and the cost of taking a block. For a partial sum that is passed on, the
/// cost of adding up the parts counts.
double LayoutRules::cost_after(const Node& node, size_t output, Placement placed, bool passes_on,
                               size_t axis) {
  const TensorId id = node.out[output];
  const TensorType& type = tensor(id).type;
  if (const TensorId param = param_of_[id]; param != kNone) {
    const Placement to = layouts_[param][axis];
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

/// Returns whether a partial sum may be reduce-scattered. Over axes that split tokens it may: each
/// rank then has the sums of its own tokens. The plan alone decides on sharding: gradients end in
/// their parameter's layout, and tensors are whole on ranks with the same tokens, unless
/// sequence_parallel splits them by token. It does so for tensors of two dims, a vector per token.
/// A number per token is not worth it, since it has to be gathered again; heads are split among
/// themselves.
bool LayoutRules::may_scatter(TensorId id, int dim, size_t axis) const {
  const graph::NodeId producer = tensor(id).producer;
  const bool in_step =
      producer != kNone && graph_->nodes[producer].phase == graph::Phase::optimizer;
  if (param_of_[id] != kNone || in_step) return false;
  const std::string& name = mesh_.axes[axis].name;
  return splits_tokens(name) || (activations_.sequence_parallel && splits_parameters(name) &&
                                 dim == 0 && tensor(id).type.dims.size() == 2 && all_have(id));
}

/// Returns whether there is a token for every rank. A training without is refused; an evaluation
/// has the tokens that it has, and keeps them whole over tp.
bool LayoutRules::all_have(TensorId id) const {
  const graph::Dim& tokens = tensor(id).type.dims[0];
  if (tokens.symbolic() || shares_.are_given()) return true;
  int64_t ranks = 1;
  for (const graph::Axis& axis : mesh_.axes) {
    ranks *= axis.name == kStageAxis ? 1 : axis.size;
  }
  return tokens >= ranks;
}

bool LayoutRules::is_pinned(TensorId id, size_t axis) const {
  const auto found = pinned_.tensors.find(id);
  return tensor(id).producer != kNone && found != pinned_.tensors.end() && found->second.axes[axis];
}

std::string LayoutRules::pins_at(const Node& node) const {
  std::set<std::string> pins;
  for (const std::vector<TensorId>* ids : {&node.in, &node.out}) {
    for (TensorId id : *ids) {
      if (const auto one = pinned_.tensors.find(id); one != pinned_.tensors.end()) {
        pins.insert("'" + one->second.text + "'");
      }
    }
  }
  return join({pins.begin(), pins.end()}, ", ");
}

double LayoutRules::cost_to_reshard(TensorId id, Placement to, size_t axis) {
  const graph::Tensor& moved = tensor(id);
  const Placement from = found(id)[axis];
  if (is_pinned(id, axis) && pinned_.tensors.at(id).layout[axis] != to) return kInfinity;
  if (from == to) return 0;
  if (moved.kind == TensorKind::param || moved.kind == TensorKind::state) return kInfinity;
  // Nor do weights in another type, such as those cast to 8 bits, move for a micro-batch.
  if (moved.producer != kNone && is_of_parameters(moved.producer)) return kInfinity;
  // Counts of rows belong to the rank's own tokens. Partial rows are added up with their token.
  if (counts_of_rows_[id] != kNone) return kInfinity;
  if (moved.type.routed() && from.is_partial()) return kInfinity;
  // Ranks of tp index by the positions of all their tokens, in whatever order cp has them.
  if (moved.kind == TensorKind::input && to.is_split() &&
      splits_parameters(mesh_.axes[axis].name)) {
    return kInfinity;
  }
  if (from.is_partial() && to.is_split() && moved.type.dtype != graph::DType::i64 &&
      !may_scatter(id, to.dim(), axis) && (!at_pin_ || param_of_[id] != kNone)) {
    return kInfinity;
  }
  if (is_resharded(id, to, axis)) return 0;
  return reshard_cost(moved.type, from, to, &paths_[axis]);
}

double LayoutRules::bytes_to_reshard(TensorId id, Placement to, size_t axis) {
  double bytes = 0;
  const Placement from = found(id)[axis];
  if (from != to && !is_resharded(id, to, axis)) {
    reshard_cost(tensor(id).type, from, to, &paths_[axis], &bytes);
  }
  return bytes;
}

bool LayoutRules::is_resharded(TensorId id, Placement to, size_t axis) const {
  return std::find(resharded_[id].begin(), resharded_[id].end(), std::pair{axis, to}) !=
         resharded_[id].end();
}

void LayoutRules::note_resharded(TensorId id, Placement to, size_t axis) {
  if (found(id)[axis] == to) return;
  resharded_[id].emplace_back(axis, to);
  log_.push_back(id);
}

void LayoutRules::forget(size_t noted) {
  while (log_.size() > noted) {
    resharded_[log_.back()].pop_back();
    log_.pop_back();
  }
}

void LayoutRules::follow_rows(const Node& node) {
  const ops::Op& op = ops::find(node.op);
  if (op.routing.counts >= 0) {
    counts_of_rows_[node.out[op.routing.row_of]] = node.out[op.routing.counts];
  }
  TensorId counts = kNone;
  for (TensorId id : node.in) {
    if (counts == kNone) {
      counts = counts_of_[id];
    }
    if (counts == kNone) {
      counts = counts_of_rows_[id];
    }
  }
  for (TensorId id : node.out) {
    if (tensor(id).type.routed()) {
      counts_of_[id] = counts;
    }
  }
}

}  // namespace hocket::parallel
