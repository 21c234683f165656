// SPDX-License-Identifier: Apache-2.0
#include "program/transfer.h"

#include <algorithm>

#include "base/error.h"

namespace hocket::program {

comm::Region region_of(const Program& program, const Task& task, int32_t rank) {
  const Kind& kind = program.kind(task);
  const TensorType& type = kind.in.empty() ? kind.out[0] : kind.in[0];
  comm::Region region;
  for (size_t dim = 0; dim < type.dims.size(); ++dim) {
    const char letter = static_cast<char>('a' + dim);
    region.push_back({program.begin_at(task, letter, rank), type.dims[dim]});
  }
  return region;
}

Transfer::Transfer(const Program& program, std::vector<std::pair<ClassId, TaskId>> tasks)
    : program_(program), tasks_(std::move(tasks)) {
  RoleId giver = kNone;
  for (const auto& [cls, id] : tasks_) {
    const Task& task = program.classes[cls].tasks[id];
    if (program.kind(task).in.empty()) continue;
    giver = program.classes[cls].role;
    held_.resize(static_cast<size_t>(program.roles[giver].mesh.size()));
    for (int32_t rank : program.ranks_of(cls)) {
      held_[static_cast<size_t>(rank - program.first_rank(giver))] = region_of(program, task, rank);
    }
  }
  if (tasks_.empty() || giver == kNone) return;
  const Task& any = program.classes[tasks_[0].first].tasks[tasks_[0].second];
  const Group& group = program.groups[any.group];
  first_giver_ = giver == group.role ? 0 : program.roles[group.role].mesh.size();
}

std::optional<std::vector<comm::Copy>> Transfer::copies(int32_t rank) const {
  const RoleId role = program_.role_of(rank);
  const ClassId cls = program_.class_of(rank);
  for (const auto& [of, id] : tasks_) {
    const Task& task = program_.classes[of].tasks[id];
    if (of != cls || program_.kind(task).out.empty()) continue;
    const int64_t number = rank - program_.first_rank(role);
    const int64_t takers = program_.roles[role].mesh.size();
    const size_t first = static_cast<size_t>(number * std::ssize(held_) / takers);
    auto copies = comm::plan_copies(held_, region_of(program_, task, rank), first);
    if (!copies) return copies;
    for (comm::Copy& copy : *copies) {
      copy.source += first_giver_;
    }
    return copies;
  }
  return std::vector<comm::Copy>{};
}

std::vector<comm::Copy> Transfer::given(int32_t rank) const {
  std::vector<comm::Copy> given;
  const RoleId role = program_.role_of(rank);
  const int32_t number = first_giver_ + rank - program_.first_rank(role);
  for (const auto& [cls, id] : tasks_) {
    const RoleId taker = program_.classes[cls].role;
    if (program_.kind(program_.classes[cls].tasks[id]).out.empty() || taker == role) continue;
    const int32_t first = first_giver_ == 0 ? program_.roles[role].mesh.size() : 0;
    for (int32_t other : program_.ranks_of(cls)) {
      const auto copies = this->copies(other);
      if (!copies) continue;
      for (comm::Copy copy : *copies) {
        if (copy.source != number) continue;
        copy.source = first + other - program_.first_rank(taker);
        given.push_back(copy);
      }
    }
  }
  return given;
}

int64_t Transfer::traffic() const {
  int64_t most = 0;
  int64_t all = 0;
  for (const auto& [cls, id] : tasks_) {
    const Kind& kind = program_.kind(program_.classes[cls].tasks[id]);
    if (kind.out.empty()) continue;
    most = std::max(most, kind.out[0].bytes());
    all += kind.out[0].bytes() * program_.num_ranks(cls);
  }
  const int64_t givers = std::max<int64_t>(std::ssize(held_), 1);
  return std::max(most, (all + givers - 1) / givers);
}

Transfer Transfers::of(ClassId cls, TaskId task) {
  // The tasks of the group in every class of its roles, listed once; then the place of this one.
  const GroupId id = program_.classes[cls].tasks[task].group;
  const Group& group = program_.groups[id];
  auto [known, fresh] = tasks_.try_emplace(id);
  std::vector<std::vector<TaskId>>& lists = known->second;
  if (fresh) {
    lists.resize(program_.classes.size());
    for (size_t other = 0; other < lists.size(); ++other) {
      const std::vector<Task>& tasks = program_.classes[other].tasks;
      for (size_t i = 0; i < tasks.size(); ++i) {
        if (tasks[i].group == id) {
          lists[other].push_back(i);
        }
      }
    }
  }
  const std::vector<TaskId>& mine = lists[cls];
  const size_t k =
      static_cast<size_t>(std::lower_bound(mine.begin(), mine.end(), task) - mine.begin());
  std::vector<std::pair<ClassId, TaskId>> meeting;
  for (size_t other = 0; other < lists.size(); ++other) {
    const RoleId role = program_.classes[other].role;
    if (role != group.role && role != group.with) continue;
    if (k >= lists[other].size()) {
      fail("transfer", "{} is number {} of its group; class {} has {}",
           task_name(program_, cls, task), k + 1, other, lists[other].size());
    }
    meeting.emplace_back(other, lists[other][k]);
  }
  return Transfer(program_, std::move(meeting));
}

}  // namespace hocket::program
