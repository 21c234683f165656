// SPDX-License-Identifier: Apache-2.0
#include "parallel/lowering/task_builder.h"

#include <utility>

namespace hocket::parallel {

using graph::kNone;
using graph::TensorType;
using program::Kind;
using program::Lane;

Lane TaskBuilder::comm_lane(program::GroupId group) {
  const auto [known, fresh] = lane_of_group_.try_emplace(group);
  if (fresh) {
    const bool leaves = program_.leaves_node(program_.groups[group], cls_);
    known->second = program::link_lane(comm::Role::collective, leaves);
  }
  return known->second;
}

Lane TaskBuilder::peer_lane(int32_t offset, comm::Role role) {
  const auto [known, fresh] = leaves_node_.try_emplace(offset);
  if (fresh) {
    known->second = program_.leaves_node({pp_axis_, offset}, cls_);
  }
  return program::link_lane(role, known->second);
}

void TaskBuilder::set_cost(Kind* kind, const ops::Op& op, int64_t experts) const {
  const ops::Cost cost =
      ops::cost_of(op, {kind->attrs, kind->in, kind->out, experts, program_.symbols});
  kind->flops = cost.flops;
  kind->bytes = cost.bytes;
  kind->workspace = cost.workspace;
}

TaskTemplate TaskBuilder::make(Kind kind, Lane lane, const TaskSite& site) {
  TaskTemplate made;
  made.task.kind = program_.intern(std::move(kind));
  made.task.lane = lane;
  made.task.phase = site.phase;
  made.task.layer = site.layer;
  made.task.stage = site.stage;
  return made;
}

void TaskBuilder::plan_for_bound_unless_counted(const Kind& kind, const std::vector<ValueId>& out) {
  if (ops::reads_counts(kind.in)) return;
  for (const ValueId value : out) {
    values_[value].expected_bytes = kNone;
  }
}

program::KindId TaskBuilder::sum_kind(const TensorType& type) {
  const ops::Op& op = ops::of(ops::Meaning::sum);
  Kind kind{.op = op.name, .attrs = {}, .in = {type, type}, .out = {type}};
  set_cost(&kind, op, 0);
  return program_.intern(std::move(kind));
}

TaskTemplate& TaskBuilder::add_local(ops::Meaning meaning, graph::Attrs attrs,
                                     std::vector<ValueId> in, ValueId out, const TaskSite& site) {
  const ops::Op& op = ops::of(meaning);
  Kind kind{.op = op.name, .attrs = std::move(attrs), .in = {}, .out = {values_[out].type}};
  for (const ValueId input : in) {
    kind.in.push_back(values_[input].type);
  }
  set_cost(&kind, op, 0);
  plan_for_bound_unless_counted(kind, {out});
  TaskTemplate made = make(std::move(kind), Lane::compute, site);
  made.in = std::move(in);
  made.out = {out};
  site.list->push_back(std::move(made));
  return site.list->back();
}

Kind TaskBuilder::communication_kind(const comm::Op& op, graph::Attrs attrs,
                                     const std::vector<ValueId>& in,
                                     const std::vector<ValueId>& out) const {
  std::vector<TensorType> in_types;
  std::vector<TensorType> out_types;
  for (const ValueId input : in) {
    in_types.push_back(values_[input].type);
  }
  for (const ValueId output : out) {
    out_types.push_back(values_[output].type);
  }
  return program::communication_kind(op.id, std::move(attrs), std::move(in_types),
                                     std::move(out_types), program_.symbols);
}

TaskTemplate& TaskBuilder::add_communication(const comm::Op& op, graph::Attrs attrs,
                                             const program::Group& group, std::vector<ValueId> in,
                                             std::vector<ValueId> out, const TaskSite& site) {
  const program::GroupId id = program_.intern(group);
  TaskTemplate made = make(communication_kind(op, std::move(attrs), in, out), comm_lane(id), site);
  made.task.group = id;
  made.in = std::move(in);
  made.out = std::move(out);
  site.list->push_back(std::move(made));
  return site.list->back();
}

TaskTemplate& TaskBuilder::add_message(comm::Role role, int32_t offset, ValueId value_id,
                                       const TaskSite& site) {
  const bool sends = role == comm::Role::send;
  const std::vector<ValueId> value{value_id};
  const std::vector<ValueId> nothing;
  Kind kind =
      communication_kind(comm::message(role), {}, sends ? value : nothing, sends ? nothing : value);
  TaskTemplate made = make(std::move(kind), peer_lane(offset, role), site);
  made.task.peer_axis = pp_axis_;
  made.task.peer = offset;
  made.task.tag = values_[value_id].tensor;
  (sends ? made.in : made.out) = value;
  site.list->push_back(std::move(made));
  return site.list->back();
}

}  // namespace hocket::parallel
