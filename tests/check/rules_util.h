// SPDX-License-Identifier: Apache-2.0
// Fault cases for every rule of the check: a generated program, and an edit of it that the rule
// refuses. A rule that refuses several things has a case for each.
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

inline graph::TensorType f32(graph::Dims dims) { return {graph::DType::f32, std::move(dims)}; }

/// A program without faults, and edits of it. Added buffers, kinds and tasks are complete: types,
/// costs, memory and dependencies are those that lowering and the memory plan would give.
class Edit {
 public:
  explicit Edit(Case start);

  graph::Graph graph;
  Program program;
  CheckOptions options;
  int32_t reference_micro_batches;  ///< of the reference that the program is checked against

  RankClass& cls(int32_t c = 0) { return program.classes[c]; }
  /// Returns the n-th task of this op in the class; n < 0 counts from the end. Throws if absent.
  TaskId find(const std::string& op, int n = 0, int32_t c = 0) const;
  Task& at(TaskId t, int32_t c = 0) { return cls(c).tasks[t]; }
  Task& task(const std::string& op, int n = 0, int32_t c = 0) { return at(find(op, n, c), c); }
  const Kind& kind(const Task& t) const { return program.kind(t); }
  program::Buffer& buffer(BufferId b, int32_t c = 0) { return cls(c).buffers[b]; }
  /// Returns the buffer of this name (of a micro-batch). Throws if absent.
  BufferId named(const std::string& name, int32_t micro_batch = kNone, int32_t c = 0) const;
  int32_t axis(const std::string& name) const { return program.roles[0].mesh.axis(name); }

  /// Changes the kind of this task only.
  void rekind(Task& t, const std::function<void(Kind&)>& change);
  /// Sets FLOPs, bytes and workspace to those of the kind's op.
  static void set_cost(Kind& kind);
  /// Adds a step buffer at the end of the arena.
  BufferId add_buffer(const graph::TensorType& type, int32_t c = 0, Space space = Space::device);
  /// Adds a step buffer of the type of `like`.
  BufferId add_like(BufferId like, int32_t c = 0, Space space = Space::device) {
    return add_buffer(buffer(like, c).type, c, space);
  }
  /// Adds a view of rows [begin, begin + length) of a buffer.
  BufferId add_rows(BufferId base, int64_t begin, int64_t length, int32_t c = 0);
  /// Makes a task without inserting it. Its kind has the types of the buffers, and their cost.
  Task make(const std::string& op, const graph::Attrs& attrs, std::vector<BufferId> in,
            std::vector<BufferId> out, int32_t c = 0);
  Task make_collective(const std::string& op, const graph::Attrs& attrs, std::vector<int32_t> axes,
                       std::vector<BufferId> in, std::vector<BufferId> out, int32_t c = 0);
  /// Makes a send or a recv, by `op`.
  Task make_message(const std::string& op, BufferId buffer, int32_t axis, int32_t peer, int32_t tag,
                    int32_t c = 0);
  /// Inserts before task `at`; dependencies follow. `ordered`: the task waits for all tasks before
  /// it in the list, and all tasks after it wait for it.
  Task& insert(TaskId at, Task t, int32_t c = 0, bool ordered = true);
  Task& append(Task t, int32_t c = 0) { return insert(cls(c).tasks.size(), std::move(t), c); }
  void erase(TaskId at, int32_t c = 0);
  /// Moves a task to another place of the list, with all its edges.
  void move(TaskId from, TaskId to, int32_t c = 0);
  /// Plans dependencies and memory again, as after lowering.
  void replan();

  Verdict check() const;
  /// Checks with one rule left out.
  Verdict check_without(const std::string& rule) const;
};

struct FaultCase {
  const char* rule;
  const char* fault;  ///< in words
  Case (*start)();    ///< the program without the fault
  std::function<void(Edit&)> edit;
  /// The rule that refuses the fault if `rule` is off; "": none does, and the program is accepted.
  const char* back_up = "";
  const char* why = "";  ///< reason of the back-up, and why the rule is needed besides
  /// True if the check can't run with the rule off, since ids would be out of range. Every rule has
  /// another case without this.
  bool only_refused = false;
};

// The smallest programs with the objects that the cases change.
Case one_rank();              ///< dense, 2 micro-batches
Case two_ranks();             ///< dense, dp=2, 2 micro-batches
Case two_stages();            ///< dense, pp=2, 2 micro-batches
Case three_stages();          ///< dense, pp=3
Case tied_stages();           ///< dense with tied embeddings, pp=2; a collective over the stages
Case four_experts();          ///< MoE, dp=4, ep=2
Case four_ranks();            ///< dense, dp=4
Case two_stages_two_ranks();  ///< dense, pp=2, dp=2
Case forward_only();          ///< dense, the loss only

std::vector<FaultCase> structure_cases();
std::vector<FaultCase> order_cases();
std::vector<FaultCase> memory_cases();
std::vector<FaultCase> value_cases();
std::vector<FaultCase> collective_cases();

}  // namespace hocket::check::test
