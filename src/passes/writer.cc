// SPDX-License-Identifier: Apache-2.0
#include "passes/writer.h"

#include <algorithm>
#include <utility>

#include "ops/op.h"
#include "program/receive_throttle.h"

namespace hocket::passes {

using program::BufferId;
using program::Kind;
using program::Task;

const graph::TensorType& Writer::type(BufferId buffer) const { return list().buffers[buffer].type; }

BufferId Writer::step(const graph::TensorType& type, program::Space space) {
  program::Buffer buffer;
  buffer.type = type;
  buffer.space = space;
  list().buffers.push_back(std::move(buffer));
  return BufferId(list().buffers.size() - 1);
}

BufferId Writer::part(BufferId base, int32_t dim, int64_t length, int64_t begin,
                      program::TableId by) {
  program::Buffer view;
  view.kind = program::BufferKind::view;
  view.type = type(base);
  view.type.dims[dim] = length;
  view.space = list().buffers[base].space;
  view.base = base;
  view.dim = dim;
  view.begin = begin;
  view.by = by;
  list().buffers.push_back(std::move(view));
  return BufferId(list().buffers.size() - 1);
}

std::vector<graph::TensorType> Writer::types(const std::vector<BufferId>& buffers) const {
  std::vector<graph::TensorType> list;
  for (BufferId buffer : buffers) {
    list.push_back(type(buffer));
  }
  return list;
}

Task Writer::placed(Kind kind, std::vector<BufferId> in, std::vector<BufferId> out,
                    const Task& stands_for) const {
  Task task;
  task.kind = program_.intern(std::move(kind));
  task.phase = stands_for.phase;
  task.micro_batch = stands_for.micro_batch;
  task.stage = stands_for.stage;
  task.layer = stands_for.layer;
  task.origin = stands_for.origin;
  task.in = std::move(in);
  task.out = std::move(out);
  return task;
}

Task Writer::local(const std::string& op, const graph::Attrs& attrs, std::vector<BufferId> in,
                   std::vector<BufferId> out, const Task& stands_for) const {
  Kind kind{.op = op, .attrs = attrs, .in = types(in), .out = types(out)};
  const ops::Cost cost =
      ops::cost_of(ops::find(op), {kind.attrs, kind.in, kind.out, 0, program_.symbols});
  kind.flops = cost.flops;
  kind.bytes = cost.bytes;
  kind.workspace = cost.workspace;
  return placed(std::move(kind), std::move(in), std::move(out), stands_for);
}

Task Writer::collective(comm::Id op, const graph::Attrs& attrs, program::GroupId group,
                        std::vector<BufferId> in, std::vector<BufferId> out,
                        const Task& stands_for) const {
  Task task =
      placed(program::communication_kind(op, attrs, types(in), types(out), program_.symbols), in,
             out, stands_for);
  task.group = group;
  task.lane = program::link_lane(comm::Role::collective,
                                 program_.leaves_node(program_.groups[group], cls_));
  return task;
}

Task Writer::copy_over(BufferId from, BufferId to, const Task& stands_for) const {
  Task task = local(ops::of(ops::Meaning::identity).name, {}, {from}, {to}, stands_for);
  const bool leaves = list().buffers[from].space == program::Space::device;
  task.lane = leaves ? program::Lane::d2h : program::Lane::h2d;
  return task;
}

Task Writer::message(comm::Role role, BufferId buffer, const program::PeerMap& peer_map,
                     int32_t tag, const Task& stands_for) const {
  const bool sends = role == comm::Role::send;
  const std::vector<BufferId> moved{buffer}, none;
  Task task =
      placed(program::communication_kind(comm::message(role).id, {}, types(sends ? moved : none),
                                         types(sends ? none : moved), program_.symbols),
             sends ? moved : none, sends ? none : moved, stands_for);
  task.peer_axis = peer_map.axis;
  task.peer = peer_map.offset;
  task.peer_by = peer_map.by;
  task.tag = tag;
  task.lane =
      program::link_lane(role, program_.leaves_node(peer_map, cls_), program::Order::collectives);
  return task;
}

void receive_in_order(program::Program& program, int32_t first_tag) {
  for (program::RankClass& cls : program.classes) {
    program::ReceiveThrottle throttle;
    for (size_t id = 0; id < cls.tasks.size(); ++id) {
      program::Task& task = cls.tasks[id];
      if (task.in.empty() && task.tag != program::kNone && task.tag >= first_tag) {
        throttle.delay(&task);
      }
      throttle.observe(id, task);
    }
  }
}

int32_t next_tag(const program::Program& program) {
  int32_t last = -1;
  for (const program::RankClass& cls : program.classes) {
    for (const Task& task : cls.tasks) {
      last = std::max(last, task.tag);
    }
  }
  return last + 1;
}

}  // namespace hocket::passes
