// SPDX-License-Identifier: Apache-2.0
// One fault per row for every rule of the check: a generated program, and an edit of it that this
// rule refuses. Where a rule can refuse several things, each has its row.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "check/check.h"
#include "tests/check/check_util.h"

namespace hocket::check::test {

using graph::Placement;
using program::BufferId;
using program::BufferKind;
using program::Kind;
using program::kNone;
using program::Lane;
using program::Program;
using program::RankClass;
using program::Space;
using program::Task;
using program::TaskId;

/// A good program and what is done to it. Buffers, kinds and tasks that are added are complete:
/// types, costs, memory and dependencies are what lowering and the memory plan would give.
class Edit {
 public:
  explicit Edit(Case start);

  graph::Graph graph;
  Program program;
  CheckOptions options;
  int32_t reference_micro_batches;  ///< of the reference that the program is checked against

  RankClass& cls(int32_t c = 0) { return program.classes[c]; }
  /// The n-th task of this op in the class; n < 0 counts from the end. Throws if there is none.
  TaskId find(const std::string& op, int n = 0, int32_t c = 0) const;
  Task& at(TaskId t, int32_t c = 0) { return cls(c).tasks[t]; }
  Task& task(const std::string& op, int n = 0, int32_t c = 0) { return at(find(op, n, c), c); }
  const Kind& kind(const Task& t) const { return program.kind(t); }
  program::Buffer& buffer(BufferId b, int32_t c = 0) { return cls(c).buffers[b]; }
  /// The buffer of this name (of a micro-batch). Throws if there is none.
  BufferId named(const std::string& name, int32_t micro_batch = kNone, int32_t c = 0) const;
  int32_t axis(const std::string& name) const { return program.roles[0].mesh.axis(name); }

  /// Changes the kind of one task only.
  void rekind(Task& t, const std::function<void(Kind&)>& change);
  /// FLOPs, bytes and workspace of what the kind does.
  static void set_cost(Kind& kind);
  /// A new step buffer, at the end of the arena.
  BufferId add_buffer(const graph::TensorType& type, int32_t c = 0, Space space = Space::device);
  /// Another step buffer of the type of `like`.
  BufferId add_like(BufferId like, int32_t c = 0, Space space = Space::device) {
    return add_buffer(buffer(like, c).type, c, space);
  }
  /// A view of rows [begin, begin + length) of a buffer.
  BufferId add_rows(BufferId base, int64_t begin, int64_t length, int32_t c = 0);
  /// A task that is not yet in the program; its kind has the types of the buffers and their cost.
  Task make(const std::string& op, const graph::Attrs& attrs, std::vector<BufferId> in,
            std::vector<BufferId> out, int32_t c = 0);
  Task make_collective(const std::string& op, const graph::Attrs& attrs, std::vector<int32_t> axes,
                       std::vector<BufferId> in, std::vector<BufferId> out, int32_t c = 0);
  /// send if `in`, else recv.
  Task make_message(const std::string& op, BufferId buffer, int32_t axis, int32_t peer, int32_t tag,
                    int32_t c = 0);
  /// Inserts before task `at`; dependencies follow. With `ordered`, the task waits for all before
  /// it in the list, and all after it wait for it.
  Task& insert(TaskId at, Task t, int32_t c = 0, bool ordered = true);
  Task& append(Task t, int32_t c = 0) { return insert(cls(c).tasks.size(), std::move(t), c); }
  void erase(TaskId at, int32_t c = 0);
  /// Moves a task to another place of the list; all edges stay.
  void move(TaskId from, TaskId to, int32_t c = 0);
  /// Dependencies and memory anew, as after lowering.
  void replan();

  Verdict check() const;
  /// With one rule left out.
  Verdict check_without(const std::string& rule) const;
};

struct Row {
  const char* rule;
  const char* fault;  ///< in words
  Case (*start)();    ///< a good program
  std::function<void(Edit&)> edit;
  /// The rule that refuses when this one is off: "" none does (the program is then accepted).
  const char* back_up = "";
  const char* why = "";  ///< why the back-up sees it too, and why the rule exists all the same
  /// The fault can't be followed with the rule off: ids would be used that name nothing. Every rule
  /// has another row that can.
  bool only_refused = false;
};

// The smallest programs that have what the rows change.
Case one_rank();              ///< dense, 2 micro-batches
Case two_ranks();             ///< dense, dp=2, 2 micro-batches
Case two_stages();            ///< dense, pp=2, 2 micro-batches
Case three_stages();          ///< dense, pp=3
Case tied_stages();           ///< dense with tied embeddings, pp=2: a collective over the stages
Case four_experts();          ///< MoE, dp=4, ep=2
Case four_ranks();            ///< dense, dp=4
Case two_stages_two_ranks();  ///< dense, pp=2, dp=2
Case forward_only();          ///< dense, the loss alone

std::vector<Row> structure_rows();
std::vector<Row> order_rows();
std::vector<Row> memory_rows();
std::vector<Row> value_rows();
std::vector<Row> collective_rows();

}  // namespace hocket::check::test
