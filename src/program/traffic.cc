// SPDX-License-Identifier: Apache-2.0
#include "program/traffic.h"

#include <algorithm>
#include <limits>

#include "collectives/comm_op.h"

namespace hocket::program {

std::array<double, kNumLanes> bytes_sent(const Program& program, ClassId cls) {
  std::array<double, kNumLanes> bytes = {};
  for (const Task& task : program.classes[cls].tasks) {
    const Kind& kind = program.kind(task);
    if (!is_communication(kind)) continue;
    const comm::Op& op = comm::op(kind.communication);
    double& lane = bytes[static_cast<size_t>(task.lane)];
    if (op.role == comm::Role::send) {
      lane += static_cast<double>(kind.in[0].bytes());
      continue;
    }
    if (!op.algorithms || op.role == comm::Role::receive) continue;
    const Group& group = program.groups[task.group];
    const auto members = program.members(group, program.ranks_of(cls).front()).size();
    double least = std::numeric_limits<double>::infinity();
    for (const comm::Algorithm& algorithm :
         op.algorithms(static_cast<double>(members), static_cast<double>(kind.bytes))) {
      least = std::min(least, algorithm.bytes);
    }
    lane += least;
  }
  return bytes;
}

namespace {

/// Returns whether a reference is in range.
template <class Number>
bool exists(Number id, size_t count) {
  return static_cast<size_t>(id) < count;
}

/// Ranks of an instance of the group; 0: it is none.
int64_t size_of(const Program& program, const Group& group) {
  if (!exists(group.role, program.roles.size())) return 0;
  if (group.with != kNone && !exists(group.with, program.roles.size())) return 0;
  for (const int32_t axis : group.axes) {
    if (!exists(axis, program.roles[group.role].mesh.axes.size())) return 0;
  }
  return program.size_of(group);
}

}  // namespace

std::vector<int64_t> most_members(const Program& program) {
  std::vector<int64_t> sizes;
  for (const Group& group : program.groups) {
    sizes.push_back(size_of(program, group));
  }
  std::vector<int64_t> most(program.kinds.size(), 0);
  for (const RankClass& cls : program.classes) {
    for (const Task& task : cls.tasks) {
      if (!exists(task.kind, most.size()) || !exists(task.group, sizes.size())) continue;
      most[task.kind] = std::max(most[task.kind], sizes[task.group]);
    }
  }
  return most;
}

}  // namespace hocket::program
