// SPDX-License-Identifier: Apache-2.0
// Transfers between roles: the part of a tensor that a task gives or takes, and the copies between
// ranks.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "collectives/parts.h"
#include "program/program.h"

namespace hocket::program {

/// Returns the part that a transfer's task gives or takes on a rank of its class: from its offsets,
/// of the size of its type.
comm::Region region_of(const Program& program, const Task& task, int32_t rank);

/// The copies of one meeting: tasks of all classes of both roles.
class Transfer {
 public:
  Transfer(const Program& program, std::vector<std::pair<ClassId, TaskId>> tasks);

  /// Returns the copies of a receiving rank, by the numbers of the group's members; nothing if the
  /// givers lack some of it.
  std::optional<std::vector<comm::Copy>> copies(int32_t rank) const;
  /// Returns the copies from a giving rank; Copy::source is the number of the receiver. Requires:
  /// no receiver lacks anything.
  std::vector<comm::Copy> given(int32_t rank) const;
  /// Returns the bytes through the busiest link: those of a receiver, or those of a giver if all
  /// give the same.
  int64_t traffic() const;

 private:
  const Program& program_;
  std::vector<std::pair<ClassId, TaskId>> tasks_;
  std::vector<comm::Region> held_;  ///< by rank of the role that gives
  int32_t first_giver_ = 0;         ///< number of its first rank among the members
};

/// The transfers of a program by the order of their tasks: the k-th of a group in each class.
class Transfers {
 public:
  explicit Transfers(const Program& program) : program_(program) {}
  /// The one that the task takes part in. Throws Error when a class lacks its task.
  Transfer of(ClassId cls, TaskId task);

 private:
  const Program& program_;
  std::map<GroupId, std::vector<std::vector<TaskId>>> tasks_;  ///< by class
};

}  // namespace hocket::program
