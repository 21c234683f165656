// SPDX-License-Identifier: Apache-2.0
// Reports of refused tasks and buffers: the task, its operands, their writers, and the expected
// values. Runs only once something is refused, and changes no buffer.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "check/hazards.h"
#include "check/values/buffer_state.h"

namespace hocket::check {

/// Values of the inputs of a local task, by input.
struct Operands {
  std::vector<ExprId> exprs;
  std::vector<PieceId> pieces;
  std::vector<TypeId> types;  ///< logical
  std::vector<MarkId> marks;
  MarkId all_marks = 0;  ///< union of `marks`
  Value value(size_t input) const { return {exprs[input], pieces[input]}; }
  Value marked(size_t input) const { return {exprs[input], pieces[input], marks[input]}; }
};

class Refusals {
 public:
  Refusals(Context& ctx, Reference& reference, const Hazards& hazards, ValueAlgebra& algebra,
           const ValueText& text, const BufferState& state)
      : ctx_(ctx),
        ref_(reference),
        hazards_(hazards),
        algebra_(algebra),
        text_(text),
        state_(state) {}

  /// Reports that a task can't take a buffer's value. `buffer`: -1 if the fault is in no buffer;
  /// `at_rank`: see Problem::where; "": that of the buffer's value.
  void refuse(const char* rule, TaskRef ref, BufferId buffer, const std::string& why,
              const char* fix, std::string at_rank = {}) const;
  /// Reports a piece of an op's letter that begins elsewhere than the task says.
  void refuse_begin(TaskRef ref, const RankFault& wrong) const;
  /// Reports a movement that a collective can't do.
  void refuse_move(TaskRef ref, const KindInfo& info, BufferId buffer, const Value& value,
                   const CollectiveResult& moved) const;
  /// Reports classes with different values that no collective unites.
  void refuse_meeting(std::span<const TaskRef> tasks) const;
  /// Reports a read of regions that make no value. `reader`: global task, -1 after the last one.
  void report_untiled(TaskRef ref, BufferId buffer, int32_t reader, const std::string& text,
                      std::string at_rank) const;

  /// Reports an application that the single-device step does not contain.
  void explain_unknown(TaskRef ref, const Operands& operands) const;
  /// Reports an operand that is an unfinished sum.
  void explain_unfinished(TaskRef ref, size_t input) const;
  /// Reports operands with pieces that the op can't take.
  void explain_pieces(TaskRef ref, const Operands& operands, const LocalOpResult& taken) const;
  /// Reports a named buffer that ends the step with another term than expected.
  void explain_final(ClassId cls, BufferId buffer, ExprId want, ExprId got) const;

 private:
  std::string difference(ExprId want, ExprId got, std::vector<TaskRef>* tasks) const;
  std::string whereabouts(ClassId cls, ExprId want, ExprId got, std::vector<TaskRef>* tasks) const;
  std::vector<TaskRef> makers(ExprId expr, ClassId only_class = kNone) const;
  std::vector<TaskRef> carriers(ExprId expr, ClassId only_class = kNone) const;
  TaskRef misplaced_ancestor(TaskRef ref) const;
  AppId closest(const Task& task, const KindInfo& info, const Operands& operands) const;

  Context& ctx_;
  Reference& ref_;
  const Hazards& hazards_;
  ValueAlgebra& algebra_;
  const ValueText& text_;
  const BufferState& state_;
};

}  // namespace hocket::check
