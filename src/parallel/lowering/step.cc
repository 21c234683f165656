// SPDX-License-Identifier: Apache-2.0
// The end of a step on a pipeline rank: gradients summed over their uses and over ranks, norms, the
// optimizer, and the losses that the host reads.
#include <algorithm>

#include "parallel/lowering/rank_lowering.h"

namespace hocket::parallel {

/// A sum of what this rank has: a task if these are several, else that alone, as the sum has it.
void RankLowering::emit_sum(graph::NodeId node, List& list) {
  const graph::Node& sum = graph_.nodes[node];
  const NodeLayouts& wanted = layouts_.node[node];
  std::vector<size_t> present;
  for (size_t i = 0; i < sum.in.size(); ++i) {
    if (find(sum.in[i], layouts_.lies[sum.in[i]]) != kNone) {
      present.push_back(i);
    }
  }
  const auto brought = [&](size_t i) {
    const ValueId value = find(sum.in[i], layouts_.lies[sum.in[i]]);
    return reshard(value, wanted.in[i], list, Phase::grad, sum.layer);
  };
  if (present.size() == 1) {
    values_of_[sum.out[0]].push_back(brought(present[0]));
    return;
  }
  for (size_t i : present) {
    if (layouts_.lies[sum.in[i]] != layouts_.tensor[sum.in[i]]) {
      brought(i);
    }
  }
  emit(sum, wanted, node, list);
}

/// The sum of the parts that ranks of the pipeline have of a gradient or loss, in the place of this
/// one.
ValueId RankLowering::sum_over_pipeline(ValueId part, TensorId total, List& list) {
  Layout layout = out_.values[part].layout;
  layout.set(pp_axis_, Placement::replicate());
  const ValueId sum = add_value(total, layout, Value::Life::step);
  TaskTemplate& made =
      add_communication(comm::summing(), {}, over_ranks(places_.has(total)), {part}, {sum}, list,
                        Phase::grad, graph_.tensor(total).layer);
  made.shares.push_back({0, part});
  return sum;
}

/// Adds what a node made to the sum over micro-batches that the step reads. A copy is added, since
/// others read the value in its micro-batch.
void RankLowering::add_to_total(TensorId tensor, List& list, const graph::Node& node) {
  const Layout& layout = layouts_.tensor[tensor];
  const ValueId value = find(tensor, layout);
  const ValueId part = add_value(tensor, layout, Value::Life::micro_batch);
  values_of_[tensor].pop_back();
  list.push_back(make_local(ops::Meaning::identity, {}, {value}, part, phase_of(node), node.layer));
  bring(part, accumulator(tensor, layout), &list.back());
}

/// Per parameter: sum over its uses here, over the pipeline ranks that hold it, over the
/// data-parallel ranks, in this order, so that the bits do not depend on the pipeline.
void RankLowering::emit_grads() {
  // For each parameter with uses on this rank, what happens to its accumulators when the last
  // micro-batch has added to them: the uses are summed as the graph does it, a sum that is partial
  // along the pipeline (tied embeddings, copies of a stage) over the ranks that have parts of it,
  // and then it is brought to the layout in which the parameter is updated, which sums over the
  // data-parallel ranks and may leave each of them a part. The tasks are kept apart per parameter:
  // the stamper places them as soon as the contributions are complete.
  in_step_ = true;
  for (size_t index = 0; index < graph_.grads.size(); ++index) {
    const graph::ParamGrad& grad = graph_.grads[index];
    GradReduction reduction;
    const graph::Tensor& param = graph_.tensor(grad.param);
    stage_ = own_stage(param.layer);
    for (TensorId id : grad.contributions) {
      if (ValueId value = find(id, layouts_.lies[id]); value != kNone) {
        reduction.contributions.push_back(value);
      }
    }
    if (reduction.contributions.empty()) continue;
    List& list = reduction.tasks;
    const TensorId total = grad.total;
    HOCKET_CHECK(total != kNone, "gradients of {} are not summed", param.name);
    for (graph::NodeId node : places_.sums_of(index)) {
      if (runs_here(node)) {
        emit_sum(node, list);
      }
    }
    ValueId sum = find(total, layouts_.lies[total]);
    HOCKET_CHECK(sum != kNone, "stage {} has no part of {}", stage_, param.name);
    if (places_.partial(total)) {
      reduction.at_end = true;
      sum = sum_over_pipeline(sum, total, list);
    }
    ValueId reduced = reshard(sum, layouts_.update[index], list, Phase::grad, param.layer);
    if (is_output_[total]) {
      out_.values[reduced].output = true;
      out_.values[reduced].name = graph_.tensor(total).name;
    }
    out_.grads.push_back(std::move(reduction));
  }
}

/// What was updated in parts, of a parameter that lies otherwise, is put together where that lies.
void RankLowering::bring_back(const graph::Node& node, List& list) {
  for (const auto& [input, output] : ops::find(node.op).inplace) {
    const TensorId tensor = node.in[static_cast<size_t>(input)];
    const TensorId made = node.out[static_cast<size_t>(output)];
    if (graph_.tensor(tensor).kind != TensorKind::param) continue;
    const Layout& lies = layouts_.lies[tensor];
    if (layouts_.tensor[made] == lies) continue;
    reshard(find(made, layouts_.tensor[made]), lies, list, Phase::optimizer, node.layer);
    list.back().shares.push_back({0, find(tensor, lies)});
  }
}

/// The ranks that have an input of the node or run it. Others (they have no parameter) take no
/// part.
PipelineRanks RankLowering::gatherers(graph::NodeId gathering) const {
  PipelineRanks ranks = places_.runs(gathering);
  for (TensorId id : graph_.nodes[gathering].in) {
    ranks = united(ranks, places_.has(id));
  }
  return ranks;
}

void RankLowering::make_room(graph::NodeId gathering, List& list) {
  // What is gathered over the pipeline lies in a vector for each element type, in the order of the
  // inputs; every rank has all of it, zero where another rank has the input.
  std::map<graph::DType, std::vector<TensorId>> by_type;
  for (TensorId id : graph_.nodes[gathering].in) {
    HOCKET_CHECK(places_.has(id).size() == 1, "{} is on several ranks", graph_.tensor(id).name);
    by_type[graph_.tensor(id).type.dtype].push_back(id);
  }
  for (const auto& [dtype, tensors] : by_type) {
    int64_t elements = 0;
    const ValueId vector = static_cast<ValueId>(out_.values.size());
    for (TensorId id : tensors) {
      home_of_[id] = {vector, elements};
      elements += graph_.tensor(id).type.numel();
    }
    Value value;
    value.type = {dtype, {elements}};
    value.life = Value::Life::step;
    out_.values.push_back(std::move(value));
    list.push_back(make_local(ops::Meaning::empty, {{"type", to_string(out_.values[vector].type)}},
                              {}, vector, Phase::grad, graph_.nodes[gathering].layer));
  }
}

void RankLowering::gather(graph::NodeId gathering, List& list) {
  // The inputs that are made here are partial sums, first over the ranks that split a parameter;
  // then each vector is summed over the pipeline, in place, and so all inputs are here.
  const graph::Node& node = graph_.nodes[gathering];
  graph::Node present = node;
  NodeLayouts wanted;
  present.in.clear();
  std::set<ValueId> vectors;
  for (TensorId id : node.in) {
    vectors.insert(home_of_[id].base);
    if (!values_of_[id].empty()) {
      Layout whole;
      whole.set(pp_axis_, Placement::partial());
      present.in.push_back(id);
      wanted.in.push_back(whole);
    }
  }
  reduce_inputs_together(present, wanted, list);
  for (size_t i = 0; i < present.in.size(); ++i) {
    const ValueId value = get(present.in[i], wanted.in[i], list, present);
    out_.values[value].layout = {};
  }
  for (ValueId vector : vectors) {
    const ValueId sum = static_cast<ValueId>(out_.values.size());
    out_.values.push_back(out_.values[vector]);
    TaskTemplate& made = add_communication(comm::summing(), {}, over_ranks(gatherers(gathering)),
                                           {vector}, {sum}, list, Phase::grad, node.layer);
    made.shares.push_back({0, vector});
  }
  for (TensorId id : node.in) {
    if (find(id, {}) == kNone) {
      add_value(id, {}, Value::Life::step);
    }
  }
}

/// The host reads whole values: what the step made as parts of a sum, and nobody read as the sum,
/// is summed.
void RankLowering::sum_outputs_of_step() {
  for (const TensorId tensor : graph_.outputs) {
    const graph::NodeId producer = graph_.tensor(tensor).producer;
    if (producer == kNone || graph_.nodes[producer].phase != graph::Phase::optimizer ||
        places_.sums_gradients(producer)) {
      continue;
    }
    const Layout& layout = layouts_.tensor[tensor];
    const ValueId value = find(tensor, layout);
    if (value == kNone || summed(layout, mesh_) == layout) continue;
    stage_ = own_stage(graph_.tensor(tensor).layer);
    const ValueId whole = reshard(value, summed(layout, mesh_), out_.step, Phase::optimizer,
                                  graph_.tensor(tensor).layer);
    out_.values[whole].output = true;
  }
}

/// From here on, what a micro-batch made stands for its sum over all of them.
void RankLowering::take_totals() {
  for (size_t tensor = 0; tensor < total_.size(); ++tensor) {
    if (!total_[tensor]) continue;
    const TensorId id = static_cast<TensorId>(tensor);
    std::erase_if(values_of_[tensor],
                  [&](ValueId value) { return !out_.values[value].accumulator; });
    if (values_of_[tensor].empty() || places_.has(id).size() == 1) continue;
    stage_ = own_stage(graph_.tensor(id).layer);
    values_of_[tensor] = {sum_over_pipeline(values_of_[tensor][0], id, out_.step)};
  }
}

void RankLowering::emit_step() {
  // The optimizer's nodes, once per step, on the ranks where their parameter lies. What a node
  // reads that no rank has all of (norms of gradients) is made in a vector that is summed over the
  // pipeline before the node. Last, the losses: their partial sums become the outputs that the host
  // reads.
  in_step_ = true;
  take_totals();
  const auto optimizer_nodes = [&](auto&& visit) {
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      const graph::NodeId node = static_cast<graph::NodeId>(n);
      if (graph_.nodes[n].phase != graph::Phase::optimizer || places_.sums_gradients(node))
        continue;
      stage_ = own_stage(graph_.nodes[n].layer);
      visit(node);
    }
  };
  optimizer_nodes([&](graph::NodeId node) {
    if (places_.gathers(node) && contains(gatherers(node), rank_)) {
      make_room(node, out_.step);
    }
  });
  optimizer_nodes([&](graph::NodeId node) {
    if (places_.gathers(node) && contains(gatherers(node), rank_)) {
      gather(node, out_.step);
    }
    if (runs_here(node)) {
      emit(graph_.nodes[node], layouts_.node[node], node, out_.step);
      bring_back(graph_.nodes[node], out_.step);
    }
  });
  for (TensorId loss : graph_.losses) {
    ValueId value = find(loss, layouts_.tensor[loss]);
    if (value == kNone) continue;
    stage_ = own_stage(graph_.tensor(loss).layer);
    if (places_.partial(loss)) {
      value = sum_over_pipeline(value, loss, out_.step);
    }
    value = reshard(value, Layout{}, out_.step, Phase::grad, graph_.tensor(loss).layer);
    out_.values[value].output = true;
  }
  sum_outputs_of_step();
}

}  // namespace hocket::parallel
