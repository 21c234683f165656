// SPDX-License-Identifier: Apache-2.0
#include "parallel/lowering/node_lowering.h"

#include <algorithm>
#include <cstdlib>

#include "base/error.h"
#include "parallel/lowering/piece_offsets.h"

namespace hocket::parallel {

using graph::kNone;
using graph::Layout;
using graph::TensorId;
using graph::TensorKind;
using graph::TensorType;
using program::Kind;
using program::Lane;
using program::Phase;

namespace {

bool in_step(const TaskSite& site) { return site.life == Value::Life::step; }

/// Returns the site of the communication before a task: at the end of the step it is of phase grad.
TaskSite communication_site(const TaskSite& site) {
  TaskSite result = site;
  if (in_step(site)) {
    result.phase = Phase::grad;
  }
  return result;
}

/// Returns the number of experts of the whole tensors, or 0.
int64_t num_experts(const graph::Graph& graph, const graph::Node& node) {
  int64_t experts = 0;
  for (const TensorId id : node.in) {
    if (const TensorType& type = graph.tensor(id).type; type.routed()) {
      experts = type.dims[0];
    }
  }
  return experts;
}

}  // namespace

Phase phase_of(const graph::Node& node) {
  if (node.phase == graph::Phase::forward) return Phase::forward;
  return node.phase == graph::Phase::backward ? Phase::backward : Phase::optimizer;
}

NodeLowering::NodeLowering(RankState& rank)
    : rank_(rank),
      graph_(rank.graph),
      layouts_(rank.layouts),
      values_(rank.values),
      accumulated_(graph_.tensors.size(), false),
      is_output_(graph_.tensors.size(), false),
      total_(graph::read_in_step(graph_)) {
  // All ranks must agree on these, so they follow from the whole graph. Losses and contributions to
  // gradients are summed by their own ops.
  const auto accumulate = [&](TensorId id) {
    accumulated_[id] = true;
    total_[id] = false;
  };
  for (const TensorId id : graph_.losses) {
    accumulate(id);
  }
  for (const graph::ParamGrad& grad : graph_.grads) {
    for (const TensorId id : grad.contributions) {
      accumulate(id);
    }
  }
  for (const TensorId id : graph_.outputs) {
    is_output_[id] = true;
  }
}

void NodeLowering::begin_route(int32_t route) {
  route_ = route;
  gathered_.clear();
  rank_.resharder.forget_sizes();
  for (size_t id = 0; id < graph_.tensors.size(); ++id) {
    values_.hide_if(static_cast<TensorId>(id),
                    [](const Value& value) { return value.life == Value::Life::micro_batch; });
  }
  remote_consumers_.assign(graph_.tensors.size(), {});
  for (const graph::Node& node : graph_.nodes) {
    if (node.phase == graph::Phase::optimizer) continue;
    for (const TensorId id : node.in) {
      const graph::NodeId producer = graph_.tensor(id).producer;
      const int32_t reader = rank_of(rank_.stage_of(node));
      if (producer != kNone && rank_of(rank_.stage_of(graph_.nodes[producer])) != reader) {
        remote_consumers_[id].emplace(reader, rank_.stage_of(node));
      }
    }
  }
}

/// Returns the offset along the pipeline from the rank of one stage to that of another. Where
/// stages go around the ranks, this is the number of stages between them, the same for all ranks.
int32_t NodeLowering::offset_between(int32_t from, int32_t to) const {
  const int32_t stages = to - from;
  const bool around = rank_.mesh.wrap(rank_.pp_axis, int64_t{rank_.rank} + stages) == rank_of(to);
  return around && std::abs(stages) < rank_.pipeline.num_ranks ? stages : rank_of(to) - rank_.rank;
}

/// Returns the value of a tensor in the layout in which it is produced or stored. Adds parameters,
/// states and inputs at their first use. Appends the receive of an activation of another rank.
ValueId NodeLowering::base(TensorId tensor, const TaskSite& site) {
  const graph::Tensor& asked = graph_.tensor(tensor);
  const bool persistent = asked.kind == TensorKind::param || asked.kind == TensorKind::state;
  const Layout& layout = persistent ? layouts_.storage[tensor] : layouts_.tensor[tensor];
  if (const ValueId value = values_.find(tensor, layout); value != kNone) return value;
  if (persistent) return values_.add(tensor, layout, Value::Life::persistent);
  if (asked.kind == TensorKind::input) {
    return values_.add(tensor, layout,
                       asked.per_step ? Value::Life::step_input : Value::Life::input);
  }
  HOCKET_CHECK(asked.producer != kNone && !in_step(site), "{} is not on stage {}", asked.name,
               site.stage);
  const int32_t from = rank_.stage_of(graph_.nodes[asked.producer]);
  HOCKET_CHECK(rank_of(from) != rank_.rank, "{} is used before it is made", asked.name);
  const ValueId value = values_.add(tensor, layout, Value::Life::micro_batch);
  rank_.tasks.add_message(comm::Role::receive, offset_between(site.stage, from), value, site);
  return value;
}

void NodeLowering::emit_send(TensorId tensor, const TaskSite& site) {
  const ValueId value = values_.find(tensor, layouts_.tensor[tensor]);
  for (const auto& [rank, stage] : remote_consumers_[tensor]) {
    rank_.tasks.add_message(comm::Role::send, offset_between(site.stage, stage), value, site);
  }
}

ValueId NodeLowering::get(TensorId tensor, const Layout& layout, const TaskSite& site) {
  if (const ValueId value = values_.find(tensor, layout); value != kNone) return value;
  const bool gathers = graph_.tensor(tensor).kind == TensorKind::param && !in_step(site);
  if (gathers && !layouts_.reshard_after_backward) return get_for_step(tensor, layout, site);
  TaskList& list = *site.list;
  const size_t before = list.size();
  const ValueId value =
      rank_.resharder.reshard(base(tensor, site), layout, communication_site(site));
  if (gathers && list.size() > before) {
    for (size_t i = before; i < list.size(); ++i) {
      list[i].ahead = true;
    }
    gathered_.push_back(tensor);
  }
  note_gathered_again(tensor, list, before);
  return value;
}

/// Returns a parameter in a layout that all micro-batches read, gathered before the first of them.
ValueId NodeLowering::get_for_step(TensorId param, const Layout& layout, const TaskSite& site) {
  TaskSite begin = site;
  begin.list = &rank_.out.begin;
  begin.phase = Phase::forward;
  begin.life = Value::Life::step;
  return rank_.resharder.reshard(base(param, begin), layout, begin);
}

/// Notes the values that tasks from `begin` on gathered for a forward node. Only gathers over axes
/// along which backward nodes gather the tensor again count.
void NodeLowering::note_gathered_again(TensorId tensor, const TaskList& list, size_t begin) {
  for (size_t i = begin; i < list.size(); ++i) {
    const program::Task& task = list[i].task;
    if (task.phase != Phase::forward || task.group == kNone) continue;
    const Kind& kind = rank_.program.kinds[task.kind];
    const comm::Move& move = comm::op(kind.communication).move;
    const bool gathers =
        move.part == comm::Move::Part::whole && move.placed == comm::Move::Placed::slot;
    const std::vector<int32_t>& axes = rank_.program.groups[task.group].axes;
    const bool again = std::all_of(axes.begin(), axes.end(), [&](int32_t axis) {
      return layouts_.gathers_again[static_cast<size_t>(axis)];
    });
    if (gathers && again && values_[list[i].out.back()].tensor == tensor) {
      gathered_again_.emplace_back(tensor, list[i].out.back());
    }
  }
}

void NodeLowering::free_gathered_again() {
  for (const auto& [tensor, value] : gathered_again_) {
    values_.hide(tensor, value);
  }
  gathered_again_.clear();
}

void NodeLowering::free_gathered() {
  for (const TensorId tensor : gathered_) {
    values_.hide_if(tensor,
                    [](const Value& value) { return value.life != Value::Life::persistent; });
  }
  gathered_.clear();
}

void NodeLowering::reduce_inputs_together(const std::vector<TensorId>& inputs,
                                          const std::vector<Layout>& wanted, const TaskSite& site) {
  struct Sums {
    ReshardStep step;
    std::vector<ValueId> from;
    std::vector<Layout> to;
  };
  std::map<std::pair<std::vector<int32_t>, graph::Attrs>, Sums> groups;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (values_.find(inputs[i], wanted[i]) != kNone) continue;
    const ValueId value = base(inputs[i], site);
    const ReshardPath* const path =
        rank_.resharder.path(graph_.tensor(inputs[i]).type, values_[value].layout, wanted[i]);
    if (!path || path->steps.empty() || path->steps[0].op != &comm::summing()) continue;
    const ReshardStep& step = path->steps[0];
    Sums& sums = groups[{step.axes, step.attrs}];
    if (std::find(sums.from.begin(), sums.from.end(), value) != sums.from.end()) continue;
    sums.step = step;
    sums.from.push_back(value);
    sums.to.push_back(step.to);
  }
  for (const auto& [over, sums] : groups) {
    if (sums.from.size() > 1) {
      rank_.resharder.all_reduce(sums.from, sums.to, sums.step, communication_site(site));
    }
  }
}

/// Returns whether the node makes the same values for all micro-batches: from parameters alone, as
/// the rank stores them. Of gathered parameters each micro-batch makes its own.
bool NodeLowering::is_of_step(const graph::Node& node, const NodeLayouts& wanted) const {
  if (rank_.program.num_micro_batches == 1) return false;
  if (node.in.empty() || node.recompute || !node.accumulate.empty()) return false;
  for (size_t i = 0; i < node.in.size(); ++i) {
    const TensorId id = node.in[i];
    if (graph_.tensor(id).kind != TensorKind::param) return false;
    if (wanted.in[i] != layouts_.storage[id]) return false;
  }
  return std::none_of(node.out.begin(), node.out.end(), [&](TensorId id) {
    return accumulated_[id] || is_output_[id] || total_[id] || !remote_consumers_[id].empty();
  });
}

void NodeLowering::emit(const graph::Node& node, const NodeLayouts& wanted, int32_t origin,
                        const TaskSite& site) {
  if (in_step(site) || !is_of_step(node, wanted)) return emit_task(node, wanted, origin, site);
  // The stages of an earlier route of this rank have the same values.
  const auto known = [&](TensorId id) { return values_.find(id, layouts_.tensor[id]) != kNone; };
  if (std::all_of(node.out.begin(), node.out.end(), known)) return;
  TaskSite begin = site;
  begin.list = &rank_.out.begin;
  begin.life = Value::Life::step;
  emit_task(node, wanted, origin, begin);
}

void NodeLowering::emit_task(const graph::Node& node, const NodeLayouts& wanted, int32_t origin,
                             const TaskSite& site) {
  // Inputs first, then the operands: an output shares the buffer of the input that it updates in
  // place, or of the accumulator that it adds to. Sends to other stages follow at once.
  const ops::Op& op = ops::find(node.op);
  const size_t n_in = node.in.size() - node.accumulate.size();
  reduce_inputs_together(node.in, wanted.in, site);
  std::vector<ValueId> in;
  for (size_t i = 0; i < node.in.size(); ++i) {
    in.push_back(get(node.in[i], wanted.in[i], site));
  }

  Kind kind;
  kind.op = node.op;
  kind.attrs = node.attrs;
  TaskTemplate operands;
  for (size_t i = 0; i < n_in; ++i) {
    operands.in.push_back(in[i]);
    kind.in.push_back(values_[in[i]].type);
  }
  size_t acc = n_in;
  for (size_t output = 0; output < node.out.size(); ++output) {
    const TensorId tensor = node.out[output];
    const bool accumulates = !in_step(site) && accumulated_[tensor] && !scatters(tensor);
    const auto updates = std::find_if(op.inplace.begin(), op.inplace.end(), [&](const auto& pair) {
      return pair.second == static_cast<int>(output);
    });
    const ValueId value_id = accumulates ? values_.accumulator(tensor, layouts_.tensor[tensor])
                                         : values_.add(tensor, layouts_.tensor[tensor], site.life);
    Value& value = values_[value_id];
    value.output = is_output_[tensor] && !value.accumulator && !accumulated_[tensor] &&
                   summed(value.layout, rank_.mesh) == value.layout;
    if (value.accumulator && !op.accumulates.contains(output)) {
      fail("lower", "{} can't accumulate {} over micro-batches", node.op, value.name);
    }
    if (updates != op.inplace.end()) {
      operands.shares.push_back({static_cast<int>(output), in[updates->first]});
    }
    if (node.accumulate.contains(output)) {
      operands.shares.push_back({static_cast<int>(output), in[acc++]});
    }
    operands.out.push_back(value_id);
    kind.out.push_back(value.type);
  }
  rank_.tasks.set_cost(&kind, op, num_experts(graph_, node));
  rank_.tasks.plan_for_bound_unless_counted(kind, operands.out);
  OperandLayouts operand_layouts{wanted.in, {}, {}, {}};
  for (const TensorId id : node.in) {
    operand_layouts.whole_in.push_back(graph_.tensor(id).type);
  }
  for (const TensorId id : node.out) {
    operand_layouts.out.push_back(layouts_.tensor[id]);
    operand_layouts.whole_out.push_back(graph_.tensor(id).type);
  }
  std::vector<program::PieceOffset> offsets =
      piece_offsets(op, kind, operand_layouts, 0, rank_.program);
  TaskTemplate made = rank_.tasks.make(std::move(kind), Lane::compute, site);
  made.task.piece_offsets = std::move(offsets);
  made.task.accumulate = node.accumulate;
  made.task.recompute = node.recompute;
  made.task.origin = layouts_.origin.empty() ? origin : layouts_.origin[origin];
  made.in = std::move(operands.in);
  made.out = std::move(operands.out);
  made.shares = std::move(operands.shares);
  site.list->push_back(std::move(made));
  if (in_step(site)) return;
  for (const TensorId id : node.out) {
    emit_send(id, site);
  }
  for (const TensorId id : node.out) {
    if (scatters(id)) {
      scatter(id, site);
    } else if (total_[id]) {
      add_to_total(id, site);
    }
  }
}

/// Returns whether each micro-batch brings the contribution into the layout of its accumulator.
bool NodeLowering::scatters(TensorId tensor) const {
  return accumulated_[tensor] && layouts_.storage[tensor] != layouts_.tensor[tensor];
}

void NodeLowering::scatter(TensorId contribution, const TaskSite& site) {
  // The last task on the path writes to the accumulator. No other task reads the values before it.
  TaskSite grad = site;
  grad.phase = Phase::grad;
  const ValueId made = values_.find(contribution, layouts_.tensor[contribution]);
  TaskList& list = *site.list;
  const size_t before = list.size();
  const Layout& stored = layouts_.storage[contribution];
  const ValueId part = rank_.resharder.reshard(made, stored, grad);
  scattered_.insert(made);
  for (size_t i = before; i < list.size(); ++i) {
    scattered_.insert(list[i].out.begin(), list[i].out.end());
  }
  values_.hide_if(contribution, [](const Value& value) { return !value.accumulator; });
  add_to_sum(part, values_.accumulator(contribution, stored), &list.back());
}

/// Adds a copy of a node's output to the sum over micro-batches that the optimizer reads; other
/// nodes read the output itself.
void NodeLowering::add_to_total(TensorId tensor, const TaskSite& site) {
  const Layout& layout = layouts_.tensor[tensor];
  const ValueId value = values_.find(tensor, layout);
  const ValueId part = values_.add_hidden(tensor, layout, Value::Life::micro_batch);
  TaskTemplate& copy = rank_.tasks.add_local(ops::Meaning::identity, {}, {value}, part, site);
  add_to_sum(part, values_.accumulator(tensor, layout), &copy);
}

/// Lets a task that makes `part` write `sum` in the first micro-batch; in later ones it makes the
/// part, which a second task adds.
void NodeLowering::add_to_sum(ValueId part, ValueId sum, TaskTemplate* task) {
  task->out = {sum};
  task->part = part;
  if (rank_.program.num_micro_batches == 1) return;
  task->adds = rank_.tasks.sum_kind(values_[sum].type);
}

bool NodeLowering::makes_weight_gradients(const TaskTemplate& made) const {
  return !made.out.empty() && std::all_of(made.out.begin(), made.out.end(), [&](ValueId value) {
    return values_[value].accumulator || scattered_.contains(value);
  });
}

}  // namespace hocket::parallel
