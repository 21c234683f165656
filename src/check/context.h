// SPDX-License-Identifier: Apache-2.0
// Context of a check of one program, shared by all its parts: kinds with their rules, interned
// types, groups as sets of axes, the position of every task in its lane, and the problems found so
// far.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "check/check.h"
#include "check/reference.h"
#include "check/terms.h"
#include "graph/cut.h"
#include "program/peer_map.h"
#include "program/views.h"

namespace hocket::check {

using graph::Layout;
using program::BufferId;
using program::BufferKind;
using program::ClassId;
using program::Program;
using program::RankClass;
using program::Task;
using program::TaskId;

/// Class of a kind's op. Sums, copies and zeros are interpreted by their meaning.
enum class OpClass : uint8_t {
  compute,
  add,
  copy,
  zero,
  merge,
  regroup,
  encode,
  decode,
  communication,
  unknown
};

struct KindInfo {
  OpClass op_class = OpClass::unknown;
  const ops::Op* rules = nullptr;   ///< local ops
  const comm::Op* comm = nullptr;   ///< communication ops
  int32_t key = -1;                 ///< OpKeys of the reference
  uint32_t lanes = 0;               ///< bit per allowed lane
  std::vector<TypeId> in, out;      ///< local types
  std::vector<int32_t> shares;      ///< by output: input that it updates in place, -1
  std::vector<int32_t> overwrites;  ///< by output: a further input with a buffer to reuse, -1
};
inline bool is_local(const KindInfo& info) {
  return !info.comm && info.op_class != OpClass::unknown;
}
/// Returns whether a kind is communication between two roles.
inline bool is_transfer(const KindInfo& info) {
  return info.comm && info.comm->role == comm::Role::between;
}
inline bool is_collective(const KindInfo& info) {
  return is_transfer(info) || (info.comm && info.comm->role == comm::Role::collective);
}
inline bool is_message(const KindInfo& info) { return info.comm && !is_collective(info); }
inline bool is_receive(const KindInfo& info) {
  return info.comm && info.comm->role == comm::Role::receive;
}

struct GroupInfo {
  std::vector<int32_t> axes;  ///< axes of the role's mesh with more than one rank
  int64_t ranks = 1;          ///< ranks in one instance of the group
  /// Program::meetings: the classes in each sort of instance.
  std::vector<std::vector<ClassId>> meetings;
};

/// A class that holds a tensor, and the buffer.
struct Holder {
  ClassId cls;
  const program::Buffer* buffer;
};

/// Problems found. The first `limit` are kept, all are counted.
struct Problems {
  int limit = 20;
  int64_t count = 0;
  std::vector<Problem> list;
  bool full() const { return static_cast<int>(list.size()) >= limit; }
  void add(Problem problem);
};

struct Context {
  /// Uses no ids, which may be out of range. Requires: all arguments outlive it.
  Context(const Program& program, const CheckOptions& options, TypeTable& types, OpKeys& keys,
          Problems& problems);

  const Program& program;
  const CheckOptions& options;
  TypeTable& types;
  OpKeys& keys;
  Problems& problems;
  /// The axes of all roles, one role after the other: a value on ranks of a role depends on the
  /// axes of that role. With several roles an axis is named "role.axis".
  graph::Mesh mesh;
  std::vector<int32_t> first_axis;  ///< by role
  std::vector<KindInfo> kinds;
  bool planned = false;                 ///< step buffers have offsets
  mutable program::PeerMaps peer_maps;  ///< of messages

  // Filled by index_tasks(). Requires: ids are in range. A task is addressed by its global index.
  void index_tasks();
  std::vector<GroupInfo> groups;
  std::vector<int32_t> first_task;                                         ///< by class
  std::vector<ClassId> task_class;                                         ///< by global task
  std::vector<int32_t> position;                                           ///< in its lane
  std::vector<uint8_t> lane_of;                                            ///< by global task
  std::vector<std::array<std::vector<TaskId>, program::kNumLanes>> lanes;  ///< by class
  std::vector<std::vector<TypeId>> buffer_type;                            ///< by class, buffer
  std::vector<program::Views> views;                                       ///< by class

  int32_t global(ClassId cls, TaskId task) const { return first_task[cls] + task; }
  TaskRef ref(int32_t global_task) const {
    const ClassId cls = task_class[global_task];
    return {cls, global_task - first_task[cls]};
  }
  const Task& task(TaskRef ref) const { return program.classes[ref.cls].tasks[ref.task]; }
  const KindInfo& kind(const Task& task) const { return kinds[task.kind]; }
  /// Returns whether a communication task of the class reaches ranks of other nodes.
  bool leaves_node(ClassId cls, const Task& task) const;
  /// Returns the first view of a base that is in range; kNone if it has none.
  BufferId first_view(ClassId cls, BufferId base) const;
  /// "linear L3 mb2 fwd (task 118) of class 1 (ranks 4-7)".
  std::string name(TaskRef ref) const;
  /// "buffer 17 (f32[4,8])" or "parameter 'x' (f32[4,8])".
  std::string buffer_name(ClassId cls, BufferId buffer) const;
  std::string ranks_text(ClassId cls) const;
  /// Returns the index in `mesh` of an axis of a class's mesh.
  int32_t axis_of(ClassId cls, int32_t axis) const {
    return first_axis[program.classes[cls].role] + axis;
  }
  std::vector<graph::CoordBox> boxes;  ///< by class: its ranks, on the axes of `mesh`
  /// Coordinates of a rank on the axes of `mesh`; 0 on the axes of other roles.
  graph::Coords coords_of(int32_t rank) const;
  int32_t rank_at(program::RoleId role, const graph::Coords& at) const;
  /// Returns where `begin` says that a part begins, at coordinates of a role.
  int64_t begin_at(program::RoleId role, const program::PieceOffset& begin,
                   const graph::Coords& at) const;
  // Axes of `mesh`, as a mask.
  graph::AxisMask role_axes(program::RoleId role) const;
  /// The axes of the group of a task.
  graph::AxisMask group_axes(const Task& task) const;
  /// The axes of a table along which there are several ranks.
  graph::AxisMask table_axes(ClassId cls, program::TableId table) const;
  /// Returns whether the ranks of the holders' classes have all parts of a tensor: all parts of one
  /// layout, or, with buckets, all elements.
  bool covers(const graph::Tensor& tensor, const std::vector<Holder>& holders) const;
  /// "elements [8:16) of 16 are on no rank".
  std::string uncovered(const graph::Tensor& tensor, const std::vector<Holder>& holders) const;
  /// Returns the first tasks that read or write the buffer. Scans all tasks: for texts only.
  std::vector<TaskRef> users(ClassId cls, BufferId buffer, size_t at_most = 4) const;
  /// Returns whether a rule is in CheckOptions::skip_rules.
  bool skips(const char* rule) const {
    const auto& list = options.skip_rules;
    return !list.empty() && std::find(list.begin(), list.end(), rule) != list.end();
  }
  /// Adds a problem. Drops repeated tasks of `related`, and adds the ranks of all classes involved.
  void report(const char* rule, ProblemClass problem_class, TaskRef task,
              std::vector<TaskRef> related, std::string text, std::string fix,
              std::string where = {});

 private:
  std::vector<graph::Run> elements_of(const graph::Tensor& tensor,
                                      const std::vector<Holder>& holders) const;
  bool covers_elements(const graph::Tensor& tensor, const std::vector<Holder>& holders) const;
  bool covers_in_one_layout(const std::vector<Holder>& holders) const;
  /// Results of leaves_node, which scans the ranks of a class.
  mutable std::map<std::tuple<ClassId, program::GroupId, program::PeerMap>, bool> leaves_node_;
  mutable std::vector<std::vector<BufferId>> first_views_;  ///< by class, base
};

}  // namespace hocket::check
