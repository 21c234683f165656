// SPDX-License-Identifier: Apache-2.0
// The stages of a pipeline rank: nodes become tasks over values, with the communication that brings
// their inputs into the layouts that they want.
#include <algorithm>
#include <cstdlib>
#include <iterator>

#include "base/log.h"
#include "parallel/lowering/begins.h"
#include "parallel/lowering/rank_lowering.h"
#include "program/memory.h"

namespace hocket::parallel {

namespace {

/// Work and workspace of a kind of `op`; `experts`: of the whole tensors.
void set_cost(Kind* kind, const ops::Op& op, int64_t experts, const Program& program) {
  const ops::Cost cost =
      ops::cost_of(op, {kind->attrs, kind->in, kind->out, experts, program.symbols});
  kind->flops = cost.flops;
  kind->bytes = cost.bytes;
  kind->workspace = cost.workspace;
}

}  // namespace

Lane RankLowering::comm_lane(program::GroupId group) {
  const auto [known, fresh] = group_lane_.try_emplace(group);
  if (fresh) {
    const bool leaves = program_.leaves_node(program_.groups[group], cls_);
    known->second = program::link_lane(comm::Role::collective, leaves);
  }
  return known->second;
}

Lane RankLowering::peer_lane(int32_t peer, comm::Role role) {
  const auto [known, fresh] = peer_leaves_node_.try_emplace(peer);
  if (fresh) {
    known->second = program_.leaves_node({pp_axis_, peer}, cls_);
  }
  return program::link_lane(role, known->second);
}

/// What the ranks of the class have of a tensor.
TensorType RankLowering::local_type(TensorId tensor, const Layout& layout) const {
  return graph::local_type(graph_.tensor(tensor).type, layout, mesh_, coords_);
}

ValueId RankLowering::add_value(TensorId tensor, Layout layout, Value::Life life) {
  Value value;
  value.tensor = tensor;
  value.layout = layout;
  value.type = local_type(tensor, layout);
  value.life = life;
  value.name = graph_.tensor(tensor).name;
  const TensorType& whole = graph_.tensor(tensor).type;
  if (whole.routed() && value.type.dims[0] < whole.dims[0]) {
    // Ragged: what even routing brings here, with the headroom that the plan counts on.
    const double rows =
        program::kExpectedRows * static_cast<double>(value.type.dims[1] * value.type.top_k) *
        static_cast<double>(value.type.dims[0]) / static_cast<double>(whole.dims[0]);
    value.expected_bytes =
        std::min(value.type.bytes(),
                 static_cast<int64_t>(rows + 1) * value.type.bytes_of(value.type.row_size()));
  }
  if (const auto home = home_of_.find(tensor); home != home_of_.end()) {
    value.base = home->second.base;
    value.begin = home->second.begin;
  }
  out_.values.push_back(std::move(value));
  ValueId id = static_cast<ValueId>(out_.values.size() - 1);
  values_of_[tensor].push_back(id);
  return id;
}

/// What every micro-batch adds to, whichever route it takes: one value of the rank.
ValueId RankLowering::accumulator(TensorId tensor, const Layout& layout) {
  for (ValueId known : values_of_[tensor]) {
    if (out_.values[known].accumulator && out_.values[known].layout == layout) return known;
  }
  const ValueId made = add_value(tensor, layout, Value::Life::step);
  out_.values[made].accumulator = true;
  return made;
}

/// Micro-batches of another route bring their own values; what outlives a micro-batch stays. And
/// what one rank makes others read: those that have the readers' stages on this route.
void RankLowering::begin_route(int32_t route) {
  route_ = route;
  gathered_.clear();
  sizes_of_.clear();
  for (std::vector<ValueId>& values : values_of_) {
    std::erase_if(
        values, [&](ValueId value) { return out_.values[value].life == Value::Life::micro_batch; });
  }
  remote_consumers_.assign(graph_.tensors.size(), {});
  for (const graph::Node& node : graph_.nodes) {
    if (node.phase == graph::Phase::optimizer) continue;
    for (TensorId id : node.in) {
      const graph::NodeId producer = graph_.tensor(id).producer;
      const int32_t reader = rank_of(stage_of(node));
      if (producer != kNone && rank_of(stage_of(graph_.nodes[producer])) != reader) {
        remote_consumers_[id].emplace(reader, stage_of(node));
      }
    }
  }
}

ValueId RankLowering::find(TensorId tensor, const Layout& layout) const {
  for (ValueId id : values_of_[tensor]) {
    if (out_.values[id].layout == layout) return id;
  }
  return kNone;
}

TaskTemplate RankLowering::make(Kind kind, Lane lane, Phase phase, int32_t layer) {
  TaskTemplate made;
  made.task.kind = program_.intern(std::move(kind));
  made.task.lane = lane;
  made.task.phase = phase;
  made.task.layer = layer;
  made.task.stage = stage_;
  return made;
}

/// Who is not told how many rows there are writes all that a ragged buffer can hold.
void RankLowering::expect_all_unless_counted(const Kind& kind, const std::vector<ValueId>& out) {
  if (ops::reads_counts(kind.in)) return;
  for (ValueId value : out) {
    out_.values[value].expected_bytes = kNone;
  }
}

/// A task that no node of the graph asks for: what it means is all there is to it.
TaskTemplate RankLowering::make_local(ops::Meaning meaning, graph::Attrs attrs,
                                      std::vector<ValueId> in, ValueId out, Phase phase,
                                      int32_t layer) {
  const ops::Op& op = ops::of(meaning);
  Kind kind{.op = op.name, .attrs = std::move(attrs), .in = {}, .out = {out_.values[out].type}};
  for (ValueId input : in) {
    kind.in.push_back(out_.values[input].type);
  }
  set_cost(&kind, op, 0, program_);
  expect_all_unless_counted(kind, {out});
  TaskTemplate made = make(std::move(kind), Lane::compute, phase, layer);
  made.in = std::move(in);
  made.out = {out};
  return made;
}

Kind RankLowering::communication_kind(const comm::Op& op, graph::Attrs attrs,
                                      const std::vector<ValueId>& in,
                                      const std::vector<ValueId>& out) const {
  std::vector<TensorType> in_types;
  std::vector<TensorType> out_types;
  for (ValueId input : in) {
    in_types.push_back(out_.values[input].type);
  }
  for (ValueId output : out) {
    out_types.push_back(out_.values[output].type);
  }
  return program::communication_kind(op.id, std::move(attrs), std::move(in_types),
                                     std::move(out_types), program_.symbols);
}

TaskTemplate& RankLowering::add_communication(const comm::Op& op, graph::Attrs attrs,
                                              const Group& group, std::vector<ValueId> in,
                                              std::vector<ValueId> out, List& list, Phase phase,
                                              int32_t layer) {
  const program::GroupId id = program_.intern(group);
  TaskTemplate made =
      make(communication_kind(op, std::move(attrs), in, out), comm_lane(id), phase, layer);
  made.task.group = id;
  made.in = std::move(in);
  made.out = std::move(out);
  list.push_back(std::move(made));
  return list.back();
}

/// From this rank to that of another stage: as many ranks as there are stages between them, where
/// the stages lie around the ranks; else the way along them.
int32_t RankLowering::offset_to(int32_t stage) const {
  const int32_t stages = stage - stage_;
  const bool around = mesh_.wrap(pp_axis_, int64_t{rank_} + stages) == rank_of(stage);
  return around && std::abs(stages) < pipeline_.num_ranks ? stages : rank_of(stage) - rank_;
}

/// One end of a message to or from a stage of another rank. The tensor is its tag.
TaskTemplate& RankLowering::add_message(comm::Role role, int32_t stage, ValueId value_id,
                                        List& list, Phase phase, int32_t layer) {
  const bool sends = role == comm::Role::send;
  const std::vector<ValueId> value{value_id};
  const std::vector<ValueId> nothing;
  Kind kind =
      communication_kind(comm::message(role), {}, sends ? value : nothing, sends ? nothing : value);
  TaskTemplate made = make(std::move(kind), peer_lane(offset_to(stage), role), phase, layer);
  made.task.peer_axis = pp_axis_;
  made.task.peer = offset_to(stage);
  made.task.tag = out_.values[value_id].tensor;
  (sends ? made.in : made.out) = value;
  list.push_back(std::move(made));
  return list.back();
}

/// Sums `from` as `step` says, as one coalesced task. Accumulators and other once-per-step values
/// are reduced in place; per-micro-batch values may have readers of the partial form.
void RankLowering::all_reduce(const std::vector<ValueId>& from, const std::vector<Layout>& to,
                              const ReshardStep& step, List& list, Phase phase, int32_t layer) {
  std::vector<ValueId> outs;
  for (size_t i = 0; i < from.size(); ++i) {
    const Value value = out_.values[from[i]];
    outs.push_back(
        add_value(value.tensor, to[i],
                  value.life == Value::Life::step ? Value::Life::step : Value::Life::micro_batch));
  }
  TaskTemplate& made = add_communication(*step.op, step.attrs, program::group_over(step.axes), from,
                                         outs, list, phase, layer);
  for (size_t i = 0; i < from.size(); ++i) {
    if (out_.values[from[i]].life == Value::Life::step) {
      made.shares.push_back({static_cast<int>(i), from[i]});
    }
  }
}

/// The sizes of an exchange over `axis` of rows whose experts are split `over` some axes already,
/// made once: the counts of the experts that the rank then has come with them, as a value of the
/// tensor in the new layout.
ValueId RankLowering::sizes(TensorId counts, const std::vector<int32_t>& over, int32_t axis,
                            List& list, Phase phase, int32_t layer) {
  std::vector<int32_t> axes = over;
  axes.push_back(axis);
  if (const auto known = sizes_of_.find({counts, axes}); known != sizes_of_.end()) {
    return known->second;
  }
  Layout from = layouts_.tensor[counts];
  for (int32_t outer : over) {
    from.set(static_cast<size_t>(outer), Placement::split(0));
  }
  if (!over.empty() && find(counts, from) == kNone) {
    sizes(counts, {over.begin(), over.end() - 1}, over.back(), list, phase, layer);
  }
  Layout to = from;
  to.set(axis, Placement::split(0));
  ValueId in = find(counts, from);
  HOCKET_CHECK(in != kNone, "counts {} are not on stage {}", graph_.tensor(counts).name, stage_);
  ValueId local = add_value(counts, to, Value::Life::micro_batch);
  const auto exchange = comm::resharding(out_.values[in].type, from[axis], to[axis],
                                         mesh_.axes[axis].size, {.me = coords_[axis]});
  if (!exchange || !exchange->op->makes_sizes) {
    fail_with(Error::Code::layout, "lower", "the rows of {} can't be exchanged from {} to {}",
              graph_.tensor(counts).name, to_string(from, mesh_), to_string(to, mesh_));
  }
  // The sizes matrix is an auxiliary value of the counts tensor: no layout of its own.
  Value value;
  value.tensor = counts;
  value.type = exchange->out[0];
  value.name = graph_.tensor(counts).name + ".sizes";
  out_.values.push_back(value);
  const ValueId sizes = static_cast<ValueId>(out_.values.size() - 1);
  sizes_of_[{counts, axes}] = sizes;
  add_communication(*exchange->op, exchange->attrs, program::group_over({axis}), {in},
                    {sizes, local}, list, phase, layer);
  return sizes;
}

/// A copy of the rank's block of a value, of which a view shows it.
ValueId RankLowering::slice(ValueId from, const ReshardStep& step, List& list, Phase phase,
                            int32_t layer) {
  const TensorId tensor = out_.values[from].tensor;
  const TensorType& whole = graph_.tensor(tensor).type;
  const Layout had = out_.values[from].layout;
  const ValueId to =
      add_value(tensor, step.to, in_step_ ? Value::Life::step : Value::Life::micro_batch);
  // Where the block begins in what the rank had: on the axes of the dim, in the mesh's order.
  program::Table table;
  table.axes = step.to.axes_of(step.dim);
  std::sort(table.axes.begin(), table.axes.end());
  const auto dim = static_cast<size_t>(step.dim);
  graph::for_each_coords(mesh_, table.axes, [&](const std::vector<int32_t>& coords) {
    table.values.push_back(graph::local_runs(whole, step.to, mesh_, coords)[dim].begin -
                           graph::local_runs(whole, had, mesh_, coords)[dim].begin);
  });
  Value view;
  view.tensor = tensor;
  view.layout = step.to;
  view.type = out_.values[to].type;
  view.life = out_.values[from].life;
  view.name = out_.values[from].name;
  view.base = from;
  view.dim = step.dim;
  view.by = program_.intern(std::move(table));
  out_.values.push_back(std::move(view));
  const ValueId block = static_cast<ValueId>(out_.values.size() - 1);
  list.push_back(make_local(ops::Meaning::identity, {}, {block}, to, phase, layer));
  return to;
}

/// The attributes of a step from a layout for the ranks of this class, which get `type` of a
/// tensor. How much the members of a group have together, and each, differs from group to group: it
/// is said where they do not divide it.
graph::Attrs RankLowering::attrs_here(const ReshardStep& step, const Layout& from,
                                      const TensorType& whole, const TensorType& type) const {
  graph::Attrs attrs = step.attrs;
  attrs.erase("size");
  const bool slot = step.op->move.placed == comm::Move::Placed::slot;
  const bool block = step.op->move.part == comm::Move::Part::block;
  for (const auto& [moves, attribute, layout] :
       {std::tuple{slot, comm::kSlots, &from}, {block, comm::kBlocks, &step.to}}) {
    attrs.erase(attribute);
    const std::vector<int64_t> lengths =
        unlike_lengths(*layout, whole, mesh_, step.axes[0], coords_);
    if (moves && !lengths.empty()) {
      comm::set_lengths(lengths, attribute, &attrs);
    }
  }
  if (!slot || type.routed() || attrs.has(comm::kSlots)) return attrs;
  int64_t members = 1;
  for (int32_t axis : step.axes) {
    members *= mesh_.axes[static_cast<size_t>(axis)].size;
  }
  const int dim = comm::dim_of(attrs, step.op->move.slot_dim);
  const graph::Dim& together = type.dims[static_cast<size_t>(dim)];
  if (!together.divides_into(members)) {
    attrs.set("size", int64_t{together});
  }
  return attrs;
}

ValueId RankLowering::reshard(ValueId from, const Layout& to, List& list, Phase phase,
                              int32_t layer) {
  // The steps of the cheapest path from the layout that the value has to the one that is wanted.
  // Every layout between them is a value of its own, found again by whoever asks for it. A step
  // that exchanges routing counts gives the local counts and the sizes; one that moves rows needs
  // the sizes of their routing.
  const TensorId tensor = out_.values[from].tensor;
  const graph::Tensor& logical = graph_.tensor(tensor);
  const Layout has = out_.values[from].layout;
  if (has == to) return from;
  log_debug("stage {}: reshard {} from {} to {}", stage_, logical.name, to_string(has, mesh_),
            to_string(to, mesh_));
  const ReshardPath* const path = paths_.path(logical.type, has, to);
  if (!path) {
    fail_with(Error::Code::layout, "lower", "no resharding of {} from {} to {}: {}", logical.name,
              to_string(has, mesh_), to_string(to, mesh_), why_no_path(has, to, mesh_));
  }
  for (const ReshardStep& step : path->steps) {
    if (step.op == &comm::summing()) {
      if (find(tensor, step.to) == kNone) {
        all_reduce({from}, {step.to}, step, list, phase, layer);
      }
      from = find(tensor, step.to);
      continue;
    }
    if (!step.op) {
      from = slice(from, step, list, phase, layer);
      continue;
    }
    const int32_t axis = step.axes[0];
    // The axes that split experts besides, before the step and after it.
    std::vector<int32_t> over = out_.values[from].layout.axes_of(0);
    std::erase(over, axis);
    if (step.op->makes_sizes) {
      sizes(tensor, over, axis, list, phase, layer);
      from = find(tensor, step.to);
      HOCKET_CHECK(from != kNone, "no size exchange of {}", logical.name);
      continue;
    }
    std::vector<ValueId> in{from};
    if (step.op->needs_sizes) {
      in.push_back(sizes(layouts_.counts_of[tensor], over, axis, list, phase, layer));
    }
    const Layout before = out_.values[from].layout;
    from = add_value(tensor, step.to, in_step_ ? Value::Life::step : Value::Life::micro_batch);
    add_communication(*step.op, attrs_here(step, before, logical.type, out_.values[from].type),
                      program::group_over(step.axes), std::move(in), {from}, list, phase, layer);
  }
  return from;
}

ValueId RankLowering::base(TensorId tensor, List& list, const graph::Node& user) {
  // The value of a tensor in the layout that it has where it is made, or lies. Parameters, states
  // and inputs come into being when first asked for. An activation is here already if its node runs
  // on this rank; otherwise the rank that makes it sends it, and the receive stands here.
  const graph::Tensor& asked = graph_.tensor(tensor);
  const bool persistent = asked.kind == TensorKind::param || asked.kind == TensorKind::state;
  const Layout& layout = persistent ? layouts_.lies[tensor] : layouts_.tensor[tensor];
  if (ValueId value = find(tensor, layout); value != kNone) return value;
  if (persistent) return add_value(tensor, layout, Value::Life::persistent);
  if (asked.kind == TensorKind::input) {
    return add_value(tensor, layout, asked.per_step ? Value::Life::step_input : Value::Life::input);
  }
  HOCKET_CHECK(asked.producer != kNone && user.phase != graph::Phase::optimizer,
               "{} is not on stage {}", asked.name, stage_);
  const int32_t from = stage_of(graph_.nodes[asked.producer]);
  HOCKET_CHECK(rank_of(from) != rank_, "{} is used before it is made", asked.name);
  ValueId value = add_value(tensor, layout, Value::Life::micro_batch);
  add_message(comm::Role::receive, from, value, list, phase_of(user), user.layer);
  return value;
}

void RankLowering::emit_send(TensorId tensor, List& list, Phase phase, int32_t layer) {
  ValueId value = find(tensor, layouts_.tensor[tensor]);
  for (const auto& [rank, stage] : remote_consumers_[tensor]) {
    add_message(comm::Role::send, stage, value, list, phase, layer);
  }
}

ValueId RankLowering::get(TensorId tensor, const Layout& layout, List& list,
                          const graph::Node& user) {
  if (ValueId value = find(tensor, layout); value != kNone) return value;
  const bool gathers = graph_.tensor(tensor).kind == TensorKind::param && !in_step_;
  if (gathers && !layouts_.reshard_after_backward) return get_for_step(tensor, layout, user);
  const size_t before = list.size();
  const ValueId value = reshard(base(tensor, list, user), layout, list,
                                in_step_ ? Phase::grad : phase_of(user), user.layer);
  if (gathers && list.size() > before) {
    for (size_t i = before; i < list.size(); ++i) {
      list[i].ahead = true;
    }
    gathered_.push_back(tensor);
  }
  note_gathered_again(tensor, list, before);
  return value;
}

/// A parameter in a layout in which all micro-batches read it, brought there before the first one.
ValueId RankLowering::get_for_step(TensorId param, const Layout& layout, const graph::Node& user) {
  in_step_ = true;
  const ValueId value =
      reshard(base(param, out_.begin, user), layout, out_.begin, Phase::forward, user.layer);
  in_step_ = false;
  return value;
}

/// What the tasks from `begin` on gathered for a forward node over axes along which backward nodes
/// gather it again.
void RankLowering::note_gathered_again(TensorId tensor, const List& list, size_t begin) {
  for (size_t i = begin; i < list.size(); ++i) {
    const program::Task& task = list[i].task;
    if (task.phase != Phase::forward || task.group == kNone) continue;
    const program::Kind& kind = program_.kinds[task.kind];
    const comm::Move& move = comm::op(kind.communication).move;
    const bool gathers =
        move.part == comm::Move::Part::whole && move.placed == comm::Move::Placed::slot;
    const std::vector<int32_t>& axes = program_.groups[task.group].axes;
    const bool again = std::all_of(axes.begin(), axes.end(), [&](int32_t axis) {
      return layouts_.gathers_again[static_cast<size_t>(axis)];
    });
    if (gathers && again && out_.values[list[i].out.back()].tensor == tensor) {
      gathered_again_.emplace_back(tensor, list[i].out.back());
    }
  }
}

/// Between the forward pass and the backward pass of a stage.
void RankLowering::free_gathered_again() {
  for (const auto& [tensor, value] : gathered_again_) {
    std::erase(values_of_[tensor], value);
  }
  gathered_again_.clear();
}

/// Who uses a gathered parameter from here on gathers it again.
void RankLowering::free_gathered() {
  for (TensorId tensor : gathered_) {
    std::erase_if(values_of_[tensor], [&](ValueId value) {
      return out_.values[value].life != Value::Life::persistent;
    });
  }
  gathered_.clear();
}

/// Sums several partial inputs of a node over the same axes in one collective.
void RankLowering::reduce_inputs_together(const graph::Node& node, const NodeLayouts& wanted,
                                          List& list) {
  // Partial inputs that are summed first on their way would each get an all_reduce of their own
  // from get(). Grouped by what they are summed over, each group of two and more becomes one
  // coalesced all_reduce; get() then finds the results.
  struct Sums {
    ReshardStep step;
    std::vector<ValueId> from;
    std::vector<Layout> to;
  };
  std::map<std::pair<std::vector<int32_t>, graph::Attrs>, Sums> groups;
  for (size_t i = 0; i < node.in.size(); ++i) {
    if (find(node.in[i], wanted.in[i]) != kNone) continue;
    const ValueId value = base(node.in[i], list, node);
    const ReshardPath* const path =
        paths_.path(graph_.tensor(node.in[i]).type, out_.values[value].layout, wanted.in[i]);
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
      all_reduce(sums.from, sums.to, sums.step, list, in_step_ ? Phase::grad : phase_of(node),
                 node.layer);
    }
  }
}

void RankLowering::emit(const graph::Node& node, const NodeLayouts& wanted, int32_t origin,
                        List& list) {
  // One node becomes one compute task: its inputs are found, or brought into the layouts that the
  // node wants (which may put communication before it); its outputs become values in the layouts
  // that it gives. An output shares the buffer of the input that it updates in place, or of the
  // accumulator that it adds to. What other stages need is sent right away.
  const ops::Op& op = ops::find(node.op);
  const size_t n_in = node.in.size() - node.accumulate.size();
  reduce_inputs_together(node, wanted, list);
  std::vector<ValueId> in;
  for (size_t i = 0; i < node.in.size(); ++i) {
    in.push_back(get(node.in[i], wanted.in[i], list, node));
  }

  Kind kind;
  kind.op = node.op;
  kind.attrs = node.attrs;
  TaskTemplate operands;
  for (size_t i = 0; i < n_in; ++i) {
    operands.in.push_back(in[i]);
    kind.in.push_back(out_.values[in[i]].type);
  }
  size_t acc = n_in;
  for (size_t output = 0; output < node.out.size(); ++output) {
    const TensorId tensor = node.out[output];
    const bool accumulates = !in_step_ && accumulated_[tensor] && !scatters(tensor);
    const Value::Life life = in_step_ ? Value::Life::step : Value::Life::micro_batch;
    const auto updates = std::find_if(op.inplace.begin(), op.inplace.end(), [&](const auto& pair) {
      return pair.second == static_cast<int>(output);
    });
    const ValueId value_id = accumulates ? accumulator(tensor, layouts_.tensor[tensor])
                                         : add_value(tensor, layouts_.tensor[tensor], life);
    Value& value = out_.values[value_id];
    value.output = is_output_[tensor] && !value.accumulator && !accumulated_[tensor] &&
                   summed(value.layout, mesh_) == value.layout;
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
  int64_t experts = 0;  // of the whole tensors
  for (TensorId id : node.in) {
    if (const TensorType& type = graph_.tensor(id).type; type.routed()) {
      experts = type.dims[0];
    }
  }
  set_cost(&kind, op, experts, program_);
  expect_all_unless_counted(kind, operands.out);
  OperandLayouts operand_layouts{wanted.in, {}, {}, {}};
  for (TensorId id : node.in) {
    operand_layouts.whole_in.push_back(graph_.tensor(id).type);
  }
  for (TensorId id : node.out) {
    operand_layouts.out.push_back(layouts_.tensor[id]);
    operand_layouts.whole_out.push_back(graph_.tensor(id).type);
  }
  std::vector<program::Begin> begins = begins_of(op, kind, operand_layouts, 0, program_);
  TaskTemplate made = make(std::move(kind), Lane::compute, phase_of(node), node.layer);
  made.task.begins = std::move(begins);
  made.task.accumulate = node.accumulate;
  made.task.recompute = node.recompute;
  made.task.origin = layouts_.origin.empty() ? origin : layouts_.origin[origin];
  made.in = std::move(operands.in);
  made.out = std::move(operands.out);
  made.shares = std::move(operands.shares);
  list.push_back(std::move(made));
  if (in_step_) return;
  for (TensorId id : node.out) {
    emit_send(id, list, phase_of(node), node.layer);
  }
  for (TensorId id : node.out) {
    if (scatters(id)) {
      scatter(id, list, node.layer);
    } else if (total_[id]) {
      add_to_total(id, list, node);
    }
  }
}

/// A contribution to a gradient that is brought to where it adds up micro-batch by micro-batch.
bool RankLowering::scatters(TensorId tensor) const {
  return accumulated_[tensor] && layouts_.lies[tensor] != layouts_.tensor[tensor];
}

void RankLowering::scatter(TensorId contribution, List& list, int32_t layer) {
  // The last task on the way writes the accumulator of the first micro-batch; of others, a value
  // that is added to it. Nobody reads what the rank has of the contribution before that.
  const ValueId made = find(contribution, layouts_.tensor[contribution]);
  const size_t before = list.size();
  const Layout& lies = layouts_.lies[contribution];
  const ValueId part = reshard(made, lies, list, Phase::grad, layer);
  scattered_.insert(made);
  for (size_t i = before; i < list.size(); ++i) {
    scattered_.insert(list[i].out.begin(), list[i].out.end());
  }
  std::erase_if(values_of_[contribution],
                [&](ValueId value) { return !out_.values[value].accumulator; });
  bring(part, accumulator(contribution, lies), &list.back());
}

/// Lets a task that makes `part` write the sum over micro-batches in the first of them; in later
/// ones it makes the part, which is then added.
void RankLowering::bring(ValueId part, ValueId sum, TaskTemplate* task) {
  task->out = {sum};
  task->part = part;
  if (program_.num_micro_batches == 1) return;
  const TensorType& type = out_.values[sum].type;
  const ops::Op& op = ops::of(ops::Meaning::sum);
  Kind kind{.op = op.name, .attrs = {}, .in = {type, type}, .out = {type}};
  set_cost(&kind, op, 0, program_);
  task->adds = program_.intern(std::move(kind));
}

/// The host reads whole values: outputs of a micro-batch that the rank has partial sums of are
/// summed at the end of a stage, unless somebody needed the sum before. (What is added up over
/// micro-batches is summed once per step, in emit_grads.)
void RankLowering::emit_sums_of_outputs(List& list) {
  graph::Node host;
  NodeLayouts wanted;
  for (TensorId tensor : graph_.outputs) {
    const Layout& layout = layouts_.tensor[tensor];
    const ValueId value = find(tensor, layout);
    if (value == kNone || out_.values[value].accumulator || summed(layout, mesh_) == layout)
      continue;
    host.layer = graph_.tensor(tensor).layer;
    host.in.push_back(tensor);
    wanted.in.push_back(summed(layout, mesh_));
  }
  reduce_inputs_together(host, wanted, list);
  for (size_t i = 0; i < host.in.size(); ++i) {
    out_.values[get(host.in[i], wanted.in[i], list, host)].output = true;
  }
}

/// An output may take over a value's buffer only if nobody reads the value later; otherwise a copy
/// is made first. `lists` in an order of time in which every reader that may come later does.
void RankLowering::protect_shared(const std::vector<List*>& lists) {
  // First pass: the last task that reads each value. Second pass: wherever an output takes over the
  // buffer of a value of this micro-batch that is read later, or that the host reads, the task
  // takes over a copy instead, which is made right before it.
  std::vector<int64_t> last_read(out_.values.size(), -1);
  int64_t place = 0;
  for (const List* list : lists) {
    for (const TaskTemplate& made : *list) {
      for (ValueId input : made.in) {
        for (ValueId read = input; read != kNone; read = out_.values[read].base) {
          last_read[read] = place;
        }
      }
      // A later taker of the same buffer is a reader as well.
      for (const auto& [output, value] : made.shares) {
        last_read[value] = place;
      }
      ++place;
    }
  }
  place = 0;
  for (List* list : lists) {
    List result;
    for (TaskTemplate& made : *list) {
      stage_ = made.task.stage;
      for (auto& [output, taken] : made.shares) {
        const Value value = out_.values[taken];
        if (value.life != Value::Life::micro_batch) continue;
        if (last_read[taken] <= place && !value.output) continue;
        ValueId copy = add_value(value.tensor, value.layout, Value::Life::micro_batch);
        values_of_[value.tensor].pop_back();
        result.push_back(make_local(ops::Meaning::identity, {}, {taken}, copy, made.task.phase,
                                    made.task.layer));
        taken = copy;
      }
      result.push_back(std::move(made));
      ++place;
    }
    *list = std::move(result);
  }
}

void RankLowering::emit_stage(StageTemplate& stage, graph::Phase phase, List& list) {
  // The nodes of the stage, layer by layer. A parameter that lies split is gathered for a layer and
  // freed after it: each layer begins with the tasks that do so, and those of a layer stand before
  // the layer that precedes it, so that they run beside its compute and no more than two layers are
  // gathered at a time.
  stage_ = stage.stage;
  List previous;  // the layer that waits for the next one's gathers
  List layer;
  int32_t which = graph::kNoLayer;
  const auto end_layer = [&] {
    const auto work = std::stable_partition(layer.begin(), layer.end(),
                                            [](const TaskTemplate& made) { return made.ahead; });
    std::move(layer.begin(), work, std::back_inserter(list));
    std::move(previous.begin(), previous.end(), std::back_inserter(list));
    previous.assign(std::move_iterator(work), std::move_iterator(layer.end()));
    layer.clear();
    if (layouts_.reshard_after_forward) {
      free_gathered();
    }
  };
  for (size_t n = 0; n < graph_.nodes.size(); ++n) {
    const graph::Node& node = graph_.nodes[n];
    if (node.phase != phase || stage_of(node) != stage_) continue;
    if (node.layer != which) {
      end_layer();
      which = node.layer;
    }
    emit(node, layouts_.node[n], static_cast<int32_t>(n), layer);
  }
  end_layer();
  end_layer();
}

void RankLowering::emit_route(int32_t route, bool split_backward, std::vector<List>* weights) {
  // Forward passes from the first stage of the rank to the last, then backward passes the other
  // way, each in the graph's order: as they follow each other for a micro-batch, so that a value
  // that a later stage finds is there. With a split backward, the tasks that only add to gradient
  // accumulators (dW) are kept apart, so that the schedule can run them later.
  begin_route(route);
  for (StageTemplate& stage : out_.stages) {
    if (stage.route != route) continue;
    emit_stage(stage, graph::Phase::forward, stage.forward);
    emit_sums_of_outputs(stage.forward);
    free_gathered_again();
  }
  const auto is_weight_grad = [&](const TaskTemplate& made) {
    return !made.out.empty() && std::all_of(made.out.begin(), made.out.end(), [&](ValueId value) {
      return out_.values[value].accumulator || scattered_.contains(value);
    });
  };
  for (size_t i = out_.stages.size(); i-- > 0;) {
    StageTemplate& stage = out_.stages[i];
    if (stage.route != route) continue;
    emit_stage(stage, graph::Phase::backward, stage.backward);
    if (!split_backward) continue;
    const auto begin =
        std::stable_partition(stage.backward.begin(), stage.backward.end(),
                              [&](const TaskTemplate& made) { return !is_weight_grad(made); });
    (*weights)[i].assign(std::move_iterator(begin), std::move_iterator(stage.backward.end()));
    stage.backward.erase(begin, stage.backward.end());
  }
}

RankTemplate RankLowering::run(bool split_backward) {
  // The stages, route by route. In-place updates are then protected over all lists together, since
  // a backward task may still read what a forward task would overwrite; the dW tasks, which go to
  // the end of the backward list, count as the last readers of all. Reductions of gradients and the
  // optimizer's step come last.
  std::vector<List> weights(out_.stages.size());
  for (int32_t route = 0; route < pipeline_.num_routes(); ++route) {
    emit_route(route, split_backward, &weights);
  }
  std::vector<List*> in_time;
  for (StageTemplate& stage : out_.stages) {
    in_time.push_back(&stage.forward);
  }
  for (size_t i = out_.stages.size(); i-- > 0;) {
    in_time.push_back(&out_.stages[i].backward);
  }
  for (List& list : weights) {
    in_time.push_back(&list);
  }
  protect_shared(in_time);
  for (size_t i = 0; i < out_.stages.size(); ++i) {
    StageTemplate& stage = out_.stages[i];
    stage.weights_begin = stage.backward.size();
    std::move(weights[i].begin(), weights[i].end(), std::back_inserter(stage.backward));
  }
  free_gathered();  // an update that is less split than the parameter gathers it by itself
  emit_grads();
  emit_step();
  return std::move(out_);
}

RankTemplate lower_rank(const Graph& graph, const Layouts& layouts, const Pipeline& pipeline,
                        const Places& places, int32_t rank, bool split_backward,
                        program::ClassId cls, Program& program) {
  return RankLowering(graph, layouts, pipeline, places, rank, cls, program).run(split_backward);
}

}  // namespace hocket::parallel
