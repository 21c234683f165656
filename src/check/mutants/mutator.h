// SPDX-License-Identifier: Apache-2.0
// Mutation operators: each makes one random change of a program (mutate.h).
#pragma once

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "check/mutants/mutate.h"

namespace hocket::check {

using program::Buffer;
using program::BufferId;
using program::BufferKind;
using program::ClassId;
using program::kNone;
using program::OutputSet;
using program::Program;
using program::RankClass;
using program::Task;
using program::TaskId;

struct Random {
  uint64_t state;
  uint64_t next() { return mix64(state += 0x9e3779b97f4a7c15ULL); }
  size_t below(size_t n) { return static_cast<size_t>(next() % n); }
  bool flip() { return next() & 1; }
};

/// Adds the tasks of a class that read or write one of the buffers.
void collect_users(const RankClass& rank_class, ClassId cls, const std::vector<BufferId>& buffers,
                   std::set<TaskRef>* to);
/// Adds the tasks that share a buffer, an edge, a message or a collective with `ref`.
void collect_neighbours(const Program& program, TaskRef ref, std::set<TaskRef>* to);

/// Mutates a program. Every operator makes and records one change; it returns false if the random
/// draw changes nothing.
class Mutator {
 public:
  Mutator(Program& program, uint64_t seed, Mutation* mutation)
      : p_(program), random_{seed}, m_(mutation) {}

  bool drop_task();
  bool double_task();
  bool swap_tasks();
  bool move_task();
  bool change_lane();
  bool change_operand(bool output);
  bool swap_operands();
  bool drop_edge();
  bool change_edge();
  bool add_edge();
  bool change_group();
  bool change_peer();
  bool move_peer_around();
  bool twin_group();
  bool change_offset();
  bool change_space();
  bool change_type();
  bool change_named();
  bool change_attribute();
  bool change_payload();
  bool change_accumulate();
  bool change_kind();
  bool change_workspace();
  bool change_cost();
  bool cut_sequences();
  bool change_expected();
  bool change_begin();
  bool change_view();
  bool change_slot();
  bool drop_plan();
  bool change_parts();
  bool change_part_dep();
  bool change_letter();
  bool add_begin();
  bool change_codec();
  bool change_monoid();
  bool change_merge();
  bool move_both_ends();

 private:
  RankClass& cls(TaskRef ref) { return p_.classes[ref.cls]; }
  Task& task(TaskRef ref) { return cls(ref).tasks[ref.task]; }
  std::string name(TaskRef ref) const { return program::task_name(p_, ref.cls, ref.task); }

  TaskRef any_task() {
    return any_task([](const Task&) { return true; });
  }
  template <typename Filter>
  TaskRef any_task(Filter&& filter) {
    std::vector<TaskRef> list;
    for (size_t cls = 0; cls < p_.classes.size(); ++cls) {
      for (size_t i = 0; i < p_.classes[cls].tasks.size(); ++i) {
        if (filter(p_.classes[cls].tasks[i])) {
          list.push_back({cls, i});
        }
      }
    }
    return list.empty() ? TaskRef{} : list[random_.below(list.size())];
  }
  /// Returns a random buffer: with a place in the arena, or a named one, or any.
  std::pair<ClassId, BufferId> any_buffer(bool arena, bool named = false) {
    std::vector<std::pair<ClassId, BufferId>> list;
    for (size_t cls = 0; cls < p_.classes.size(); ++cls) {
      for (size_t b = 0; b < p_.classes[cls].buffers.size(); ++b) {
        const Buffer& buffer = p_.classes[cls].buffers[b];
        if (arena && (buffer.kind != BufferKind::step || buffer.offset == kNone)) continue;
        if (named && buffer.kind == BufferKind::step) continue;
        list.push_back({cls, b});
      }
    }
    return list.empty() ? std::pair<ClassId, BufferId>{-1, -1} : list[random_.below(list.size())];
  }

  /// Moves a begin by its length or by one, on all ranks or at one coordinate. Returns a text.
  std::string move_begin(int64_t* begin, program::TableId* by, int64_t length);
  /// Returns a peer mapping with the peers of two ranks exchanged, and its inverse.
  std::pair<program::PeerMap, program::PeerMap> with_two_exchanged(
      program::RoleId role, const program::PeerMap& peer_map);
  /// Records a change of a task, and its neighbours before the change.
  void begin(TaskRef ref, const std::string& what);
  /// Records a change of a buffer, and the tasks at which it may show.
  void begin_buffer(ClassId cls, BufferId buffer, const std::string& what);
  /// Reorders tasks: new task i is old task order[i]. Edges, workspaces and records follow. Edges
  /// to a removed task are dropped; edges to a doubled task go to its first copy.
  void permute(ClassId cls, const std::vector<TaskId>& order);

  Program& p_;
  Random random_;
  Mutation* m_;
};

}  // namespace hocket::check
