// SPDX-License-Identifier: Apache-2.0
#include "program/traffic.h"

#include <algorithm>
#include <limits>

#include "comm/ops/comm_op.h"

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

}  // namespace hocket::program
