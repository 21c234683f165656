// SPDX-License-Identifier: Apache-2.0
// Reads of operands and writes of outputs, on behalf of a task. A value that can't be read, or does
// not fit its buffer, is reported; the buffers that it would have reached become unknown.
#pragma once

#include "check/values/refusals.h"

namespace hocket::check {

class TaskIo {
 public:
  TaskIo(Context& ctx, Reference& reference, const Hazards& hazards, ValueAlgebra& algebra,
         const ValueText& text, BufferState& state, const Refusals& refusals)
      : ctx_(ctx),
        ref_(reference),
        hazards_(hazards),
        algebra_(algebra),
        text_(text),
        state_(state),
        refusals_(refusals) {}

  /// Returns the value that a task reads; kUnknown, and reported, if there is none.
  Value read(TaskRef ref, BufferId buffer);
  /// Returns the value after the last task; kUnknown, and reported, if there is none.
  Value left_in(ClassId cls, BufferId buffer);
  /// Writes an output, or adds to it where the task accumulates. The logical type of the term, cut
  /// as the piece says, must be the local type of the buffer. `*fitting`: logical type last found
  /// to fit on the ranks of all classes, -1; it spares the comparison.
  void write(TaskRef ref, size_t output, Value made, TypeId* fitting = nullptr);
  /// Marks a buffer with content that follows from something already refused.
  void invalidate(ClassId cls, BufferId buffer) { state_.put(cls, buffer, {kUnknown, kAnyPiece}); }
  void invalidate_outputs(TaskRef ref);
  /// Returns where a task says that its pieces of letters begin, on ranks of the class.
  Pieces::PieceOffsets piece_offsets_of(ClassId cls, const Task& task) const;
  /// The least ratio of the rows that a ragged buffer expects to the rows of even routing; 0: the
  /// program has no such buffer.
  double least_factor() const { return least_factor_; }

 private:
  void check_expected(TaskRef ref, size_t output, PieceId piece);
  void report_written(TaskRef ref, size_t output, const Value& value);

  Context& ctx_;
  Reference& ref_;
  const Hazards& hazards_;
  ValueAlgebra& algebra_;
  const ValueText& text_;
  BufferState& state_;
  const Refusals& refusals_;
  double least_factor_ = 0;
};

}  // namespace hocket::check
