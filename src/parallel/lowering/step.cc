// SPDX-License-Identifier: Apache-2.0
#include "parallel/lowering/step.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "base/error.h"

namespace hocket::parallel {

using graph::kNone;
using graph::Layout;
using graph::Placement;
using graph::TensorId;
using graph::TensorKind;
using program::Phase;

namespace {

class StepLowering {
 public:
  StepLowering(RankState& rank, NodeLowering& nodes)
      : rank_(rank),
        nodes_(nodes),
        graph_(rank.graph),
        layouts_(rank.layouts),
        owners_(rank.owners),
        values_(rank.values) {}

  void emit_grads();
  void emit_step();

 private:
  /// Returns a site for values that live for the step. `layer` labels its tasks.
  TaskSite site(TaskList& list, Phase phase, int32_t layer) const {
    return {&list, phase, layer, rank_.own_stage(layer), Value::Life::step};
  }
  bool runs_here(graph::NodeId node) const { return contains(owners_.runs(node), rank_.rank); }
  ValueId reshard(ValueId from, const Layout& to, const TaskSite& site) {
    return rank_.resharder.reshard(from, to, site);
  }

  void emit_sum(graph::NodeId node, const TaskSite& site);
  ValueId sum_over_pipeline(ValueId part, TensorId total, const TaskSite& site);
  void restore_layout(const graph::Node& node);
  PipelineRanks gatherers(graph::NodeId gathering) const;
  void make_vectors(graph::NodeId gathering);
  void gather(graph::NodeId gathering);
  void take_totals();
  void emit_losses();
  void sum_outputs_of_step();

  RankState& rank_;
  NodeLowering& nodes_;
  const graph::Graph& graph_;
  const Layouts& layouts_;
  const PipelineOwners& owners_;
  ValueTable& values_;
};

/// Adds up those addends of a sum that this rank has. A single one is the sum, in its layout.
void StepLowering::emit_sum(graph::NodeId node, const TaskSite& site) {
  const graph::Node& sum = graph_.nodes[node];
  const NodeLayouts& wanted = layouts_.node[node];
  TaskSite grad = site;
  grad.layer = sum.layer;
  std::vector<size_t> present;
  for (size_t i = 0; i < sum.in.size(); ++i) {
    if (values_.find(sum.in[i], layouts_.storage[sum.in[i]]) != kNone) {
      present.push_back(i);
    }
  }
  const auto brought = [&](size_t i) {
    const ValueId value = values_.find(sum.in[i], layouts_.storage[sum.in[i]]);
    return reshard(value, wanted.in[i], grad);
  };
  if (present.size() == 1) {
    values_.alias(sum.out[0], brought(present[0]));
    return;
  }
  for (const size_t i : present) {
    if (layouts_.storage[sum.in[i]] != layouts_.tensor[sum.in[i]]) {
      brought(i);
    }
  }
  TaskSite optimizer = grad;
  optimizer.phase = phase_of(sum);
  nodes_.emit(sum, wanted, node, optimizer);
}

/// Appends the all-reduce over the pipeline ranks that have a part of a gradient or loss, in place
/// of this rank's part.
ValueId StepLowering::sum_over_pipeline(ValueId part, TensorId total, const TaskSite& site) {
  Layout layout = values_[part].layout;
  layout.set(rank_.pp_axis, Placement::replicate());
  const ValueId sum = values_.add(total, layout, Value::Life::step);
  TaskTemplate& made = rank_.tasks.add_communication(
      comm::summing(), {}, rank_.over_pipeline(owners_.has(total)), {part}, {sum}, site);
  made.shares.push_back({0, part});
  return sum;
}

void StepLowering::emit_grads() {
  // For each parameter with uses on this rank, sums the accumulators after the last micro-batch
  // over the uses here. Then sums over pipeline ranks with a part (tied embeddings, copies of a
  // stage), then over data-parallel ranks. This order keeps the bits independent of the pipeline.
  // The last sum is the path to the layout of the update, which may leave each rank a part
  // (reduce-scatter). Tasks are kept apart per parameter: the stamper places them as soon as the
  // contributions are complete.
  for (size_t index = 0; index < graph_.grads.size(); ++index) {
    const graph::ParamGrad& grad = graph_.grads[index];
    GradReduction reduction;
    const graph::Tensor& param = graph_.tensor(grad.param);
    const TaskSite here = site(reduction.tasks, Phase::grad, param.layer);
    for (const TensorId id : grad.contributions) {
      if (const ValueId value = values_.find(id, layouts_.storage[id]); value != kNone) {
        reduction.contributions.push_back(value);
      }
    }
    if (reduction.contributions.empty()) continue;
    const TensorId total = grad.total;
    HOCKET_CHECK(total != kNone, "gradients of {} are not summed", param.name);
    for (const graph::NodeId node : owners_.sums_of(index)) {
      if (runs_here(node)) {
        emit_sum(node, here);
      }
    }
    ValueId sum = values_.find(total, layouts_.storage[total]);
    HOCKET_CHECK(sum != kNone, "stage {} has no part of {}", here.stage, param.name);
    if (owners_.partial(total)) {
      reduction.at_end = true;
      TaskSite over_pipeline = here;
      over_pipeline.layer = graph_.tensor(total).layer;
      sum = sum_over_pipeline(sum, total, over_pipeline);
    }
    const ValueId reduced = reshard(sum, layouts_.update[index], here);
    if (nodes_.is_output(total)) {
      values_[reduced].output = true;
      values_[reduced].name = graph_.tensor(total).name;
    }
    rank_.out.grads.push_back(std::move(reduction));
  }
}

/// Brings parameters that were updated in another layout back to the layout in which they are
/// stored.
void StepLowering::restore_layout(const graph::Node& node) {
  for (const auto& [input, output] : ops::find(node.op).inplace) {
    const TensorId tensor = node.in[static_cast<size_t>(input)];
    const TensorId made = node.out[static_cast<size_t>(output)];
    if (graph_.tensor(tensor).kind != TensorKind::param) continue;
    const Layout& stored = layouts_.storage[tensor];
    if (layouts_.tensor[made] == stored) continue;
    reshard(values_.find(made, layouts_.tensor[made]), stored,
            site(rank_.out.step, Phase::optimizer, node.layer));
    rank_.out.step.back().shares.push_back({0, values_.find(tensor, stored)});
  }
}

/// Returns the ranks that have an input of the node or run it. Others (they have no parameter) take
/// no part.
PipelineRanks StepLowering::gatherers(graph::NodeId gathering) const {
  PipelineRanks ranks = owners_.runs(gathering);
  for (const TensorId id : graph_.nodes[gathering].in) {
    ranks = united(ranks, owners_.has(id));
  }
  return ranks;
}

/// Places the inputs of a node that gathers them over the pipeline in one vector per element type,
/// in the order of the inputs. Every rank has the whole vector, zero where another rank has the
/// input.
void StepLowering::make_vectors(graph::NodeId gathering) {
  std::map<graph::DType, std::vector<TensorId>> by_type;
  for (const TensorId id : graph_.nodes[gathering].in) {
    HOCKET_CHECK(owners_.has(id).size() == 1, "{} is on several ranks", graph_.tensor(id).name);
    by_type[graph_.tensor(id).type.dtype].push_back(id);
  }
  for (const auto& [dtype, tensors] : by_type) {
    int64_t elements = 0;
    const ValueId vector = static_cast<ValueId>(values_.size());
    for (const TensorId id : tensors) {
      values_.place_in_vector(id, vector, elements);
      elements += graph_.tensor(id).type.numel();
    }
    Value value;
    value.type = {dtype, {elements}};
    value.life = Value::Life::step;
    values_.add(std::move(value));
    rank_.tasks.add_local(ops::Meaning::empty, {{"type", to_string(values_[vector].type)}}, {},
                          vector, site(rank_.out.step, Phase::grad, graph_.nodes[gathering].layer));
  }
}

void StepLowering::gather(graph::NodeId gathering) {
  // Inputs made here are partial sums, first over the ranks that split a parameter. Then each
  // vector is summed over the pipeline, in place, which brings all inputs here.
  const graph::Node& node = graph_.nodes[gathering];
  const TaskSite here = site(rank_.out.step, Phase::grad, node.layer);
  std::vector<TensorId> present;
  std::vector<Layout> wanted;
  std::set<ValueId> vectors;
  for (const TensorId id : node.in) {
    vectors.insert(values_.vector_of(id));
    if (!values_.of(id).empty()) {
      Layout whole;
      whole.set(rank_.pp_axis, Placement::partial());
      present.push_back(id);
      wanted.push_back(whole);
    }
  }
  nodes_.reduce_inputs_together(present, wanted, here);
  for (size_t i = 0; i < present.size(); ++i) {
    values_[nodes_.get(present[i], wanted[i], here)].layout = {};
  }
  for (const ValueId vector : vectors) {
    const ValueId sum = values_.add(Value(values_[vector]));
    TaskTemplate& made = rank_.tasks.add_communication(
        comm::summing(), {}, rank_.over_pipeline(gatherers(gathering)), {vector}, {sum}, here);
    made.shares.push_back({0, vector});
  }
  for (const TensorId id : node.in) {
    if (values_.find(id, {}) == kNone) {
      values_.add(id, {}, Value::Life::step);
    }
  }
}

/// Sums the outputs of optimizer nodes that are partial: the host reads whole values.
void StepLowering::sum_outputs_of_step() {
  for (const TensorId tensor : graph_.outputs) {
    const graph::NodeId producer = graph_.tensor(tensor).producer;
    if (producer == kNone || graph_.nodes[producer].phase != graph::Phase::optimizer ||
        owners_.sums_gradients(producer)) {
      continue;
    }
    const Layout& layout = layouts_.tensor[tensor];
    const ValueId value = values_.find(tensor, layout);
    if (value == kNone || summed(layout, rank_.mesh) == layout) continue;
    const ValueId whole =
        reshard(value, summed(layout, rank_.mesh),
                site(rank_.out.step, Phase::optimizer, graph_.tensor(tensor).layer));
    values_[whole].output = true;
  }
}

/// Replaces the value of one micro-batch by the sum over all of them, for tensors that the step
/// reads.
void StepLowering::take_totals() {
  for (size_t tensor = 0; tensor < graph_.tensors.size(); ++tensor) {
    const TensorId id = static_cast<TensorId>(tensor);
    if (!nodes_.has_total(id)) continue;
    values_.hide_if(id, [](const Value& value) { return !value.accumulator; });
    if (values_.of(id).empty() || owners_.has(id).size() == 1) continue;
    const std::vector<ValueId> parts = values_.of(id);
    for (const ValueId part : parts) {
      values_.hide(id, part);
    }
    sum_over_pipeline(parts[0], id, site(rank_.out.step, Phase::grad, graph_.tensor(id).layer));
  }
}

/// Sums the partial losses, which the host reads.
void StepLowering::emit_losses() {
  for (const TensorId loss : graph_.losses) {
    ValueId value = values_.find(loss, layouts_.tensor[loss]);
    if (value == kNone) continue;
    const TaskSite here = site(rank_.out.step, Phase::grad, graph_.tensor(loss).layer);
    if (owners_.partial(loss)) {
      value = sum_over_pipeline(value, loss, here);
    }
    value = reshard(value, Layout{}, here);
    values_[value].output = true;
  }
}

void StepLowering::emit_step() {
  // Optimizer nodes run once per step, on the ranks of their parameter. For some nodes (norms of
  // gradients) no rank has all inputs. These are made in a vector that is summed over the pipeline
  // before the node.
  take_totals();
  const auto optimizer_nodes = [&](auto&& visit) {
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      const graph::NodeId node = static_cast<graph::NodeId>(n);
      if (graph_.nodes[n].phase == graph::Phase::optimizer && !owners_.sums_gradients(node)) {
        visit(node);
      }
    }
  };
  const auto gathers_here = [&](graph::NodeId node) {
    return owners_.gathers(node) && contains(gatherers(node), rank_.rank);
  };
  optimizer_nodes([&](graph::NodeId node) {
    if (gathers_here(node)) {
      make_vectors(node);
    }
  });
  optimizer_nodes([&](graph::NodeId node) {
    if (gathers_here(node)) {
      gather(node);
    }
    if (runs_here(node)) {
      const graph::Node& update = graph_.nodes[node];
      nodes_.emit(update, layouts_.node[node], node,
                  site(rank_.out.step, phase_of(update), update.layer));
      restore_layout(update);
    }
  });
  emit_losses();
  sum_outputs_of_step();
}

}  // namespace

void lower_step(RankState& rank, NodeLowering& nodes) {
  StepLowering step(rank, nodes);
  step.emit_grads();
  step.emit_step();
}

}  // namespace hocket::parallel
