// SPDX-License-Identifier: Apache-2.0
// Transfers between roles: which part of a tensor a task gives or takes, and who gives what to
// whom.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "collectives/parts.h"
#include "program/program.h"

namespace hocket::program {

/// The part that a transfer's task gives or takes on a rank of its class: from where its begins
/// say, as long as its type.
comm::Region region_of(const Program& program, const Task& task, int32_t rank);

/// What the tasks of one meeting copy: those of all classes of both roles.
class Transfer {
 public:
  Transfer(const Program& program, std::vector<std::pair<ClassId, TaskId>> tasks);

  /// What a rank that takes copies, by the numbers of the group's members. Nothing if the ranks
  /// that give lack some of it.
  std::optional<std::vector<comm::Copy>> copies(int32_t rank) const;
  /// What the ranks that take copy of this one; Copy::source is then the number of who takes. Only
  /// where none lacks any of it.
  std::vector<comm::Copy> given(int32_t rank) const;
  /// Bytes through the busiest link: what a rank takes, or what one gives, if all give alike.
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
