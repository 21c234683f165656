// SPDX-License-Identifier: Apache-2.0
#include "parallel/stage.h"

#include <algorithm>
#include <set>

#include "base/error.h"
#include "base/log.h"
#include "ops/op.h"
#include "parallel/begins.h"

namespace hocket::parallel {

using graph::Graph;
using graph::kNone;
using graph::Layout;
using graph::Placement;
using graph::TensorId;
using graph::TensorKind;
using graph::TensorType;
using program::Group;
using program::Kind;
using program::Lane;
using program::Phase;
using program::Program;

namespace {

/// Rows that an expert-parallel rank is planned to receive, relative to even routing. More is legal
/// (addresses are reserved for the worst case) and reported.
constexpr double kExpectedFactor = 1.25;

/// Work and workspace of a kind of `op`; `experts`: of the whole tensors.
void set_cost(Kind* kind, const ops::Op& op, int64_t experts, const Program& program) {
  const ops::Cost cost =
      ops::cost_of(op, {kind->attrs, kind->in, kind->out, experts, program.symbols});
  kind->flops = cost.flops;
  kind->bytes = cost.bytes;
  kind->workspace = cost.workspace;
}

class StageLowering {
 public:
  StageLowering(const Graph& graph, const Plan& plan, const Layouts& layouts,
                const std::vector<int32_t>& stage_of_layer, int32_t stage, Program& program)
      : graph_(graph),
        plan_(plan),
        layouts_(layouts),
        stage_of_layer_(stage_of_layer),
        stage_(stage),
        program_(program),
        mesh_(program.mesh),
        values_of_(graph.tensors.size()),
        remote_consumers_(graph.tensors.size()),
        accumulated_(graph.tensors.size(), false),
        is_output_(graph.tensors.size(), false),
        sizes_of_(graph.tensors.size(), kNone) {
    // What all stages must agree on is found in the whole graph: which tensors add up over
    // micro-batches (losses and contributions to gradients), which the host reads, and which
    // stages read a tensor that another one makes: its maker sends it to each of them.
    for (TensorId id : graph.losses) {
      accumulated_[id] = true;
    }
    for (const auto& grad : graph.grads) {
      for (TensorId id : grad.contributions) {
        accumulated_[id] = true;
      }
    }
    for (TensorId id : graph.outputs) {
      is_output_[id] = true;
    }
    find_gradient_sums();
    for (const graph::Node& node : graph.nodes) {
      if (node.phase == graph::Phase::optimizer) continue;
      for (TensorId id : node.in) {
        const graph::NodeId producer = graph.tensor(id).producer;
        if (producer != kNone && stage_of(graph.nodes[producer]) != stage_of(node)) {
          remote_consumers_[id].insert(stage_of(node));
        }
      }
    }
  }

  StageTemplate run(bool split_backward);

 private:
  using List = std::vector<TaskTemplate>;

  int32_t stage_of_layer(int32_t layer) const {
    if (layer < 0) return 0;
    if (layer >= static_cast<int32_t>(stage_of_layer_.size())) {
      return static_cast<int32_t>(plan_.pp) - 1;
    }
    return stage_of_layer_[layer];
  }
  int32_t stage_of(const graph::Node& node) const { return stage_of_layer(node.layer); }

  void find_gradient_sums();
  Lane comm_lane(program::GroupId group);
  Lane peer_lane(int32_t peer, comm::Role role);

  ValueId add_value(TensorId tensor, Layout layout, Value::Life life);
  ValueId find(TensorId tensor, const Layout& layout) const;
  ValueId get(TensorId tensor, const Layout& layout, List& list, const graph::Node& user);
  ValueId base(TensorId tensor, List& list, const graph::Node& user);
  ValueId reshard(ValueId from, const Layout& to, List& list, Phase phase, int32_t layer);
  void all_reduce(const std::vector<ValueId>& from, const std::vector<Layout>& to,
                  const std::vector<int32_t>& axes, List& list, Phase phase, int32_t layer);
  ValueId sizes(TensorId counts, int32_t axis, List& list, Phase phase, int32_t layer);
  void reduce_inputs_together(const graph::Node& node, const NodeLayouts& wanted, List& list);
  void emit(const graph::Node& node, const NodeLayouts& wanted, int32_t origin, List& list);
  void emit_send(TensorId tensor, List& list, Phase phase, int32_t layer);
  void emit_sums_of_outputs(List& list);
  void emit_grads();
  void emit_step();
  bool runs_here(const graph::Node& node) const;
  void gather_norms(const graph::Node& clip, List& list);
  TaskTemplate make(Kind kind, Lane lane, Phase phase, int32_t layer);
  void expect_all_unless_counted(const Kind& kind, const std::vector<ValueId>& out);
  TaskTemplate make_local(ops::Meaning meaning, graph::Attrs attrs, std::vector<ValueId> in,
                          ValueId out, Phase phase, int32_t layer);
  Kind communication_kind(const comm::Op& op, graph::Attrs attrs, const std::vector<ValueId>& in,
                          const std::vector<ValueId>& out) const;
  TaskTemplate& add_communication(const comm::Op& op, graph::Attrs attrs, const Group& group,
                                  std::vector<ValueId> in, std::vector<ValueId> out, List& list,
                                  Phase phase, int32_t layer);
  TaskTemplate& add_message(comm::Role role, int32_t stage, ValueId value, List& list, Phase phase,
                            int32_t layer);
  void protect_shared(List& list);
  std::vector<int32_t> holders(TensorId param) const;

  Phase phase_of(const graph::Node& node) const {
    if (node.phase == graph::Phase::forward) return Phase::forward;
    return node.phase == graph::Phase::backward ? Phase::backward : Phase::optimizer;
  }

  const Graph& graph_;
  const Plan& plan_;
  const Layouts& layouts_;
  const std::vector<int32_t>& stage_of_layer_;
  const int32_t stage_;
  Program& program_;
  const graph::Mesh& mesh_;
  StageTemplate out_;
  std::vector<std::vector<ValueId>> values_of_;  // per tensor: its values on this stage
  std::vector<std::set<int32_t>> remote_consumers_;
  std::vector<bool> accumulated_, is_output_;
  std::vector<bool> sums_gradients_;  // per node
  std::vector<ValueId> sizes_of_;     // per counts tensor
  std::map<program::GroupId, Lane> group_lane_;
  std::map<int32_t, bool> peer_leaves_node_;  // by offset along the stages
  bool in_step_ = false;
};

/// The optimizer nodes between the contributions to a gradient and their total: stages sum what
/// they have, in emit_grads.
void StageLowering::find_gradient_sums() {
  sums_gradients_.assign(graph_.nodes.size(), false);
  std::vector<TensorId> open;
  for (const graph::ParamGrad& grad : graph_.grads) {
    if (grad.total != kNone) {
      open.push_back(grad.total);
    }
  }
  while (!open.empty()) {
    const graph::NodeId producer = graph_.tensor(open.back()).producer;
    open.pop_back();
    const graph::Node& node = graph_.nodes[producer];
    if (node.phase != graph::Phase::optimizer) {
      continue;  // a contribution
    }
    sums_gradients_[producer] = true;
    open.insert(open.end(), node.in.begin(), node.in.end());
  }
}

Lane StageLowering::comm_lane(program::GroupId group) {
  const auto [known, fresh] = group_lane_.try_emplace(group);
  if (fresh) {
    const bool leaves = program_.leaves_node(program_.groups[group], stage_);
    known->second = program::link_lane(comm::Role::collective, leaves);
  }
  return known->second;
}

Lane StageLowering::peer_lane(int32_t peer, comm::Role role) {
  const auto [known, fresh] = peer_leaves_node_.try_emplace(peer);
  if (fresh) {
    known->second = program_.leaves_node(mesh_.axis("pp"), peer, stage_);
  }
  return program::link_lane(role, known->second);
}

ValueId StageLowering::add_value(TensorId tensor, Layout layout, Value::Life life) {
  Value value;
  value.tensor = tensor;
  value.layout = layout;
  value.type = graph::local_type(graph_.tensor(tensor).type, layout, mesh_);
  value.life = life;
  value.name = graph_.tensor(tensor).name;
  const TensorType& whole = graph_.tensor(tensor).type;
  if (whole.routed() && value.type.dims[0] < whole.dims[0]) {
    // Ragged: what even routing brings here, with the headroom that the plan counts on.
    const double rows =
        kExpectedFactor * static_cast<double>(value.type.dims[1] * value.type.top_k) *
        static_cast<double>(value.type.dims[0]) / static_cast<double>(whole.dims[0]);
    value.expected_bytes =
        std::min(value.type.bytes(),
                 static_cast<int64_t>(rows + 1) * value.type.bytes_of(value.type.row_size()));
  }
  out_.values.push_back(std::move(value));
  ValueId id = static_cast<ValueId>(out_.values.size() - 1);
  values_of_[tensor].push_back(id);
  return id;
}

ValueId StageLowering::find(TensorId tensor, const Layout& layout) const {
  for (ValueId id : values_of_[tensor]) {
    if (out_.values[id].layout == layout) return id;
  }
  return kNone;
}

TaskTemplate StageLowering::make(Kind kind, Lane lane, Phase phase, int32_t layer) {
  TaskTemplate made;
  made.task.kind = program_.intern(std::move(kind));
  made.task.lane = lane;
  made.task.phase = phase;
  made.task.layer = layer;
  return made;
}

/// Who is not told how many rows there are writes all that a ragged buffer can hold.
void StageLowering::expect_all_unless_counted(const Kind& kind, const std::vector<ValueId>& out) {
  if (ops::reads_counts(kind.in)) return;
  for (ValueId value : out) {
    out_.values[value].expected_bytes = kNone;
  }
}

/// A task that no node of the graph asks for: what it means is all there is to it.
TaskTemplate StageLowering::make_local(ops::Meaning meaning, graph::Attrs attrs,
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

Kind StageLowering::communication_kind(const comm::Op& op, graph::Attrs attrs,
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

TaskTemplate& StageLowering::add_communication(const comm::Op& op, graph::Attrs attrs,
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

/// One end of a message to or from another stage. The tensor is its tag.
TaskTemplate& StageLowering::add_message(comm::Role role, int32_t stage, ValueId value_id,
                                         List& list, Phase phase, int32_t layer) {
  const bool sends = role == comm::Role::send;
  const std::vector<ValueId> value{value_id};
  const std::vector<ValueId> nothing;
  Kind kind =
      communication_kind(comm::message(role), {}, sends ? value : nothing, sends ? nothing : value);
  TaskTemplate made = make(std::move(kind), peer_lane(stage - stage_, role), phase, layer);
  made.task.peer_axis = mesh_.axis("pp");
  made.task.peer = stage - stage_;
  made.task.tag = out_.values[value_id].tensor;
  (sends ? made.in : made.out) = value;
  list.push_back(std::move(made));
  return list.back();
}

/// Sums `from` over `axes`, as one coalesced task. Accumulators and other once-per-step values are
/// reduced in place; per-micro-batch values may have readers of the partial form.
void StageLowering::all_reduce(const std::vector<ValueId>& from, const std::vector<Layout>& to,
                               const std::vector<int32_t>& axes, List& list, Phase phase,
                               int32_t layer) {
  std::vector<ValueId> outs;
  for (size_t i = 0; i < from.size(); ++i) {
    const Value value = out_.values[from[i]];
    outs.push_back(
        add_value(value.tensor, to[i],
                  value.life == Value::Life::step ? Value::Life::step : Value::Life::micro_batch));
  }
  TaskTemplate& made =
      add_communication(comm::summing(), {}, Group{axes, {}}, from, outs, list, phase, layer);
  for (size_t i = 0; i < from.size(); ++i) {
    if (out_.values[from[i]].life == Value::Life::step) {
      made.shares.push_back({static_cast<int>(i), from[i]});
    }
  }
}

/// The sizes of an exchange over `axis`, made once per counts tensor: the counts of the experts
/// that the rank then has come with them, as a value of the tensor in the new layout.
ValueId StageLowering::sizes(TensorId counts, int32_t axis, List& list, Phase phase,
                             int32_t layer) {
  ValueId& sizes = sizes_of_[counts];
  if (sizes != kNone) return sizes;
  const Layout from = layouts_.tensor[counts];
  Layout to = from;
  to[axis] = Placement::split(0);
  ValueId in = find(counts, from);
  HOCKET_CHECK(in != kNone, "counts {} are not on stage {}", graph_.tensor(counts).name, stage_);
  ValueId local = add_value(counts, to, Value::Life::micro_batch);
  const auto exchange =
      comm::resharding(out_.values[in].type, from[axis], to[axis], mesh_.axes[axis].size);
  if (!exchange || !exchange->op->makes_sizes) {
    fail("lower", "the rows of {} can't be exchanged from {} to {}", graph_.tensor(counts).name,
         to_string(from, mesh_), to_string(to, mesh_));
  }
  // The sizes matrix is an auxiliary value of the counts tensor: no layout of its own.
  Value value;
  value.tensor = counts;
  value.type = exchange->out[0];
  value.name = graph_.tensor(counts).name + ".sizes";
  out_.values.push_back(value);
  sizes = static_cast<ValueId>(out_.values.size() - 1);
  add_communication(*exchange->op, exchange->attrs, Group{{axis}, {}}, {in}, {sizes, local}, list,
                    phase, layer);
  return sizes;
}

ValueId StageLowering::reshard(ValueId from, const Layout& to, List& list, Phase phase,
                               int32_t layer) {
  // From the layout that the value has to the one that is wanted, a collective at a time. All sums
  // first, in one collective over all their axes. Then axis by axis, innermost first, because a
  // split is nested inside those of the axes before it: the collective whose movement leads from
  // one placement to the other. If that one exchanges routing counts, it gives the local counts and
  // the sizes; if it moves rows, it needs the sizes of their routing. Every intermediate layout is
  // a value of its own, found again by whoever asks for it.
  const TensorId tensor = out_.values[from].tensor;
  const graph::Tensor& logical = graph_.tensor(tensor);
  std::vector<int32_t> sum_axes;
  Layout layout = out_.values[from].layout;
  if (layout != to) {
    log_debug("stage {}: reshard {} from {} to {}", stage_, logical.name, to_string(layout, mesh_),
              to_string(to, mesh_));
  }
  for (size_t axis = 0; axis < mesh_.axes.size(); ++axis) {
    if (layout.on[axis].is_partial() && to.on[axis].is_replicate()) {
      sum_axes.push_back(static_cast<int32_t>(axis));
      layout.on[axis] = to.on[axis];
    }
  }
  if (!sum_axes.empty()) {
    all_reduce({from}, {layout}, sum_axes, list, phase, layer);
    from = find(tensor, layout);
  }
  for (size_t a = mesh_.axes.size(); a-- > 0;) {
    const Placement has = layout.on[a];
    const Placement wants = to.on[a];
    if (has == wants) continue;
    layout.on[a] = wants;
    const int32_t axis = static_cast<int32_t>(a);
    const auto step = comm::resharding(out_.values[from].type, has, wants, mesh_.axes[a].size);
    if (!step) {
      fail("lower", "no resharding of {} from {} to {}", logical.name,
           to_string(out_.values[from].layout, mesh_), to_string(to, mesh_));
    }
    if (step->op->makes_sizes) {
      sizes(tensor, axis, list, phase, layer);
      from = find(tensor, layout);
      HOCKET_CHECK(from != kNone, "size exchange of {} on several axes", logical.name);
      continue;
    }
    std::vector<ValueId> in{from};
    if (step->op->needs_sizes) {
      in.push_back(sizes(layouts_.counts_of[tensor], axis, list, phase, layer));
    }
    const ValueId value =
        add_value(tensor, layout, in_step_ ? Value::Life::step : Value::Life::micro_batch);
    add_communication(*step->op, step->attrs, Group{{axis}, {}}, std::move(in), {value}, list,
                      phase, layer);
    from = value;
  }
  return from;
}

ValueId StageLowering::base(TensorId tensor, List& list, const graph::Node& user) {
  // The value of a tensor in the layout that it has where it is made. Parameters, states and inputs
  // come into being when first asked for. An activation is here already if its node runs on this
  // stage; otherwise the stage that makes it sends it, and the receive stands here.
  const graph::Tensor& asked = graph_.tensor(tensor);
  const Layout& layout = layouts_.tensor[tensor];
  if (ValueId value = find(tensor, layout); value != kNone) return value;
  if (asked.kind == TensorKind::param || asked.kind == TensorKind::state) {
    return add_value(tensor, layout, Value::Life::persistent);
  }
  if (asked.kind == TensorKind::input) {
    return add_value(tensor, layout, asked.per_step ? Value::Life::step_input : Value::Life::input);
  }
  HOCKET_CHECK(asked.producer != kNone && user.phase != graph::Phase::optimizer,
               "{} is not on stage {}", asked.name, stage_);
  const int32_t from = stage_of(graph_.nodes[asked.producer]);
  HOCKET_CHECK(from != stage_, "{} is used before it is made", asked.name);
  ValueId value = add_value(tensor, layout, Value::Life::micro_batch);
  add_message(comm::Role::receive, from, value, list, phase_of(user), user.layer);
  return value;
}

void StageLowering::emit_send(TensorId tensor, List& list, Phase phase, int32_t layer) {
  ValueId value = find(tensor, layouts_.tensor[tensor]);
  for (int32_t to : remote_consumers_[tensor]) {
    add_message(comm::Role::send, to, value, list, phase, layer);
  }
}

ValueId StageLowering::get(TensorId tensor, const Layout& layout, List& list,
                           const graph::Node& user) {
  if (ValueId value = find(tensor, layout); value != kNone) return value;
  return reshard(base(tensor, list, user), layout, list, in_step_ ? Phase::grad : phase_of(user),
                 user.layer);
}

/// Sums several partial inputs of a node over the same axes in one collective.
void StageLowering::reduce_inputs_together(const graph::Node& node, const NodeLayouts& wanted,
                                           List& list) {
  // Partial inputs that want the same sum would each get an all_reduce of their own from get().
  // Grouped by the axes that they are summed over, each group of two and more becomes one
  // coalesced all_reduce; get() then finds the results.
  std::map<std::vector<int32_t>, std::pair<std::vector<ValueId>, std::vector<Layout>>> groups;
  for (size_t i = 0; i < node.in.size(); ++i) {
    if (find(node.in[i], wanted.in[i]) != kNone) continue;
    ValueId value = base(node.in[i], list, node);
    std::vector<int32_t> axes;
    Layout layout = out_.values[value].layout;
    for (size_t axis = 0; axis < mesh_.axes.size(); ++axis) {
      if (layout.on[axis].is_partial() && wanted.in[i].on[axis].is_replicate()) {
        axes.push_back(static_cast<int32_t>(axis));
        layout.on[axis] = wanted.in[i].on[axis];
      }
    }
    auto& group = groups[axes];
    if (axes.empty() ||
        std::find(group.first.begin(), group.first.end(), value) != group.first.end()) {
      continue;
    }
    group.first.push_back(value);
    group.second.push_back(layout);
  }
  for (auto& [axes, group] : groups) {
    if (group.first.size() > 1) {
      all_reduce(group.first, group.second, axes, list, in_step_ ? Phase::grad : phase_of(node),
                 node.layer);
    }
  }
}

void StageLowering::emit(const graph::Node& node, const NodeLayouts& wanted, int32_t origin,
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
    Value::Life life =
        in_step_ || accumulated_[tensor] ? Value::Life::step : Value::Life::micro_batch;
    const auto updates = std::find_if(op.inplace.begin(), op.inplace.end(), [&](const auto& pair) {
      return pair.second == static_cast<int>(output);
    });
    ValueId value_id = add_value(tensor, layouts_.tensor[tensor], life);
    Value& value = out_.values[value_id];
    value.accumulator = !in_step_ && accumulated_[tensor];
    value.output =
        is_output_[tensor] && !value.accumulator && summed(value.layout, mesh_) == value.layout;
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
  std::vector<program::Begin> begins = begins_of(op, kind, wanted.in, program_);
  TaskTemplate made = make(std::move(kind), Lane::compute, phase_of(node), node.layer);
  made.task.begins = std::move(begins);
  made.task.accumulate = node.accumulate;
  made.task.recompute = node.recompute;
  made.task.origin = origin;
  made.in = std::move(operands.in);
  made.out = std::move(operands.out);
  made.shares = std::move(operands.shares);
  list.push_back(std::move(made));
  if (!in_step_) {
    for (TensorId id : node.out) {
      emit_send(id, list, phase_of(node), node.layer);
    }
  }
}

/// The host reads whole values: outputs of a micro-batch that a stage has partial sums of are
/// summed at its end, unless somebody needed the sum before. (What is added up over micro-batches
/// is summed once per step, in emit_grads.)
void StageLowering::emit_sums_of_outputs(List& list) {
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

std::vector<int32_t> StageLowering::holders(TensorId param) const {
  std::set<int32_t> stages;
  for (const graph::Node& node : graph_.nodes) {
    if (node.phase == graph::Phase::forward &&
        std::find(node.in.begin(), node.in.end(), param) != node.in.end()) {
      stages.insert(stage_of(node));
    }
  }
  return {stages.begin(), stages.end()};
}

/// Per parameter: sum over its uses here, over the stages that hold it, over the data-parallel
/// ranks, in this order, so that the bits do not depend on the pipeline.
void StageLowering::emit_grads() {
  // For each parameter with uses on this stage, what happens to its accumulators when the last
  // micro-batch has added to them: the uses are summed (in their order, under the name that
  // autodiff gave the sum), then the stages that share the parameter (tied embeddings) sum over
  // `pp`, then the sum is brought to the layout of the parameter, which sums over the data-parallel
  // ranks. The tasks are kept apart per parameter: the stamper places them as soon as the
  // contributions are complete.
  in_step_ = true;
  for (const auto& grad : graph_.grads) {
    GradReduction reduction;
    const graph::Tensor& param = graph_.tensor(grad.param);
    for (TensorId id : grad.contributions) {
      if (ValueId value = find(id, layouts_.tensor[id]); value != kNone) {
        reduction.contributions.push_back(value);
      }
    }
    if (reduction.contributions.empty()) continue;
    List& list = reduction.tasks;
    const TensorId total = grad.total;
    HOCKET_CHECK(total != kNone, "gradients of {} are not summed", param.name);
    ValueId sum = reduction.contributions[0];
    for (size_t i = 1; i < reduction.contributions.size(); ++i) {
      ValueId next = add_value(total, out_.values[sum].layout, Value::Life::step);
      list.push_back(make_local(ops::Meaning::sum, {}, {sum, reduction.contributions[i]}, next,
                                Phase::grad, param.layer));
      sum = next;
    }
    std::vector<int32_t> stages = holders(grad.param);
    if (stages.size() > 1) {
      reduction.at_end = true;
      Value value = out_.values[sum];
      ValueId next = add_value(total, value.layout, Value::Life::step);
      // The sum over stages replaces the stage's own: both are values of the same tensor.
      std::erase(values_of_[total], sum);
      TaskTemplate& made = add_communication(comm::summing(), {}, Group{{mesh_.axis("pp")}, stages},
                                             {sum}, {next}, list, Phase::grad, param.layer);
      made.shares.push_back({0, sum});
      sum = next;
    }
    ValueId reduced = reshard(sum, layouts_.tensor[grad.param], list, Phase::grad, param.layer);
    if (is_output_[total]) {
      out_.values[reduced].output = true;
      out_.values[reduced].name = graph_.tensor(total).name;
    }
    out_.grads.push_back(std::move(reduction));
  }
}

bool StageLowering::runs_here(const graph::Node& node) const {
  if (node.layer == graph::kEveryStage) return true;
  // Updates run wherever the parameter lives, everything else on the first such stage.
  for (TensorId id : node.in) {
    if (graph_.tensor(id).kind == TensorKind::param) {
      auto stages = holders(id);
      return std::find(stages.begin(), stages.end(), stage_) != stages.end();
    }
  }
  return stage_of(node) == stage_;
}

/// The norm needs every parameter's sum: reduced over the ranks that split the parameter, then
/// over the pipeline, to which stages that lack a parameter contribute zero.
void StageLowering::gather_norms(const graph::Node& clip, List& list) {
  if (plan_.pp == 1) return;
  std::vector<ValueId> in;
  std::vector<ValueId> out;
  for (TensorId id : clip.in) {
    ValueId value = find(id, Layout{});
    if (value == kNone) {
      value = add_value(id, Layout{}, Value::Life::step);
      list.push_back(make_local(ops::Meaning::empty, {{"type", to_string(out_.values[value].type)}},
                                {}, value, Phase::grad, 0));
    }
    in.push_back(value);
    std::erase(values_of_[id], value);
    out.push_back(add_value(id, Layout{}, Value::Life::step));
  }
  TaskTemplate& made = add_communication(comm::summing(), {}, Group{{mesh_.axis("pp")}, {}}, in,
                                         out, list, Phase::grad, 0);
  for (size_t i = 0; i < in.size(); ++i) {
    made.shares.push_back({static_cast<int>(i), in[i]});
  }
}

void StageLowering::emit_step() {
  // The optimizer's nodes, once per step, on the stages where their parameter lives. Before the
  // clip coefficient the per-parameter sums of squares are made whole: over the ranks that split
  // the parameter, then over the stages. Last, the losses: their partial sums become the outputs
  // that the host reads.
  in_step_ = true;
  for (size_t n = 0; n < graph_.nodes.size(); ++n) {
    const graph::Node& node = graph_.nodes[n];
    if (node.phase != graph::Phase::optimizer || !runs_here(node)) continue;
    if (sums_gradients_[n]) {
      continue;  // emit_grads did
    }
    if (node.layer == graph::kEveryStage) {
      // Partial sums first, of the parameters that live here.
      graph::Node present = node;
      NodeLayouts wanted;
      present.in.clear();
      for (TensorId id : node.in) {
        if (!values_of_[id].empty()) {
          present.in.push_back(id);
        }
      }
      wanted.in.resize(present.in.size());
      reduce_inputs_together(present, wanted, out_.step);
      for (TensorId id : present.in) {
        get(id, Layout{}, out_.step, present);
      }
      gather_norms(node, out_.step);
    }
    emit(node, layouts_.node[n], static_cast<int32_t>(n), out_.step);
  }
  for (TensorId loss : graph_.losses) {
    ValueId value = find(loss, layouts_.tensor[loss]);
    if (value == kNone) continue;
    value = reshard(value, Layout{}, out_.step, Phase::grad, graph_.tensor(loss).layer);
    out_.values[value].output = true;
  }
}

/// An output may take over a value's buffer only if nobody reads the value later; otherwise a copy
/// is made first.
void StageLowering::protect_shared(List& list) {
  // First pass: the last task of the list that reads each value. Second pass: wherever an output
  // takes over the buffer of a value of this micro-batch that is read later, or that the host
  // reads, the task takes over a copy instead, which is made right before it.
  std::vector<int64_t> last_read(out_.values.size(), -1);
  for (size_t i = 0; i < list.size(); ++i) {
    for (ValueId input : list[i].in) {
      last_read[input] = static_cast<int64_t>(i);
    }
    // A later taker of the same buffer is a reader as well.
    for (const auto& [output, value] : list[i].shares) {
      last_read[value] = static_cast<int64_t>(i);
    }
  }
  List result;
  for (size_t i = 0; i < list.size(); ++i) {
    TaskTemplate made = std::move(list[i]);
    for (auto& [output, taken] : made.shares) {
      const Value value = out_.values[taken];
      if (value.life != Value::Life::micro_batch) continue;
      if (last_read[taken] <= static_cast<int64_t>(i) && !value.output) continue;
      ValueId copy = add_value(value.tensor, value.layout, Value::Life::micro_batch);
      values_of_[value.tensor].pop_back();
      result.push_back(
          make_local(ops::Meaning::identity, {}, {taken}, copy, made.task.phase, made.task.layer));
      taken = copy;
    }
    result.push_back(std::move(made));
  }
  list = std::move(result);
}

StageTemplate StageLowering::run(bool split_backward) {
  // Forward nodes, then backward nodes, in the graph's order. With a split backward, the tasks that
  // only add to gradient accumulators (dW) go to the end of the backward list, so that the schedule
  // can run them later. In-place updates are then protected over forward and backward as one list,
  // since a backward task may still read what a forward task would overwrite. Reductions of
  // gradients and the optimizer's step come last.
  for (auto [phase, list] : {std::pair{graph::Phase::forward, &out_.forward},
                             std::pair{graph::Phase::backward, &out_.backward}}) {
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      const graph::Node& node = graph_.nodes[n];
      if (node.phase == phase && stage_of(node) == stage_) {
        emit(node, layouts_.node[n], static_cast<int32_t>(n), *list);
      }
    }
    if (phase == graph::Phase::forward) {
      emit_sums_of_outputs(*list);
    }
  }
  const auto is_weight_grad = [&](const TaskTemplate& made) {
    return !made.out.empty() && std::all_of(made.out.begin(), made.out.end(), [&](ValueId value) {
      return out_.values[value].accumulator;
    });
  };
  out_.weights_begin = out_.backward.size();
  if (split_backward) {
    const auto weights =
        std::stable_partition(out_.backward.begin(), out_.backward.end(),
                              [&](const TaskTemplate& made) { return !is_weight_grad(made); });
    out_.weights_begin = static_cast<size_t>(weights - out_.backward.begin());
  }
  // Hazards of in-place updates are judged over forward and backward together.
  const size_t n_weights = out_.backward.size() - out_.weights_begin;
  List both = std::move(out_.forward);
  std::move(out_.backward.begin(), out_.backward.end(), std::back_inserter(both));
  protect_shared(both);
  auto first_backward = std::find_if(both.begin(), both.end(), [](const TaskTemplate& made) {
    return made.task.phase == Phase::backward;
  });
  out_.forward.assign(both.begin(), first_backward);
  out_.backward.assign(first_backward, both.end());
  out_.weights_begin = out_.backward.size() - n_weights;
  emit_grads();
  emit_step();
  return std::move(out_);
}

}  // namespace

StageTemplate lower_stage(const Graph& graph, const Plan& plan, const Layouts& layouts,
                          const std::vector<int32_t>& stage_of_layer, int32_t stage,
                          bool split_backward, Program& program) {
  return StageLowering(graph, plan, layouts, stage_of_layer, stage, program).run(split_backward);
}

}  // namespace hocket::parallel
