// SPDX-License-Identifier: Apache-2.0
#include "check/values/task_io.h"

#include <fmt/format.h>

#include <algorithm>

namespace hocket::check {

void TaskIo::invalidate_outputs(TaskRef ref) {
  for (BufferId output : ctx_.task(ref).out) {
    invalidate(ref.cls, output);
  }
}

Value TaskIo::read(TaskRef ref, BufferId buffer) {
  if (const Value* const value = state_.plain(ref.cls, buffer)) return *value;
  Unreadable why;
  const Value value = state_.read(ref.cls, buffer, &why);
  const TypeId type = ctx_.buffer_type[ref.cls][buffer];
  if (why.text.empty() && value.expr >= 0 && !algebra_.fits(value, type, ref.cls)) {
    why = {"it holds a value of another shape", text_.where_of_size(ref.cls, value, type)};
  }
  if (why.text.empty()) return value;
  refusals_.report_untiled(
      ref, buffer, ctx_.global(ref.cls, ref.task),
      fmt::format("{} reads {}: {}", ctx_.name(ref), ctx_.buffer_name(ref.cls, buffer), why.text),
      why.where);
  return {kUnknown, kAnyPiece};
}

Value TaskIo::left_in(ClassId cls, BufferId buffer) {
  if (const Value* const value = state_.plain(cls, buffer)) return *value;
  Unreadable why;
  const Value value = state_.read(cls, buffer, &why);
  if (why.text.empty()) return value;
  const int32_t writer = hazards_.writer(cls, buffer);
  refusals_.report_untiled(writer >= 0 ? ctx_.ref(writer) : TaskRef{cls, -1}, buffer, -1,
                           fmt::format("the step leaves {} without a value: {}",
                                       ctx_.buffer_name(cls, buffer), why.text),
                           why.where);
  return {kUnknown, kAnyPiece};
}

void TaskIo::write(TaskRef ref, size_t output, Value made, TypeId* fitting) {
  const Task& task = ctx_.task(ref);
  const KindInfo& info = ctx_.kind(task);
  const TypeId logical = ref_.terms[made.expr].type;
  if (!fitting || *fitting != logical) {
    bool uniform = true;
    if (!algebra_.fits(made, info.out[output], ref.cls, &uniform)) {
      ctx_.report(
          "local-size", ProblemClass::value, ref, {},
          fmt::format("{} makes {} of type {}; under layout {} the local part of {} differs",
                      ctx_.name(ref), text_.describe(made.expr),
                      graph::to_string(ctx_.types[info.out[output]]), text_.piece_text(made),
                      logical < 0 ? "it" : graph::to_string(ctx_.types[logical])),
          "give the task the local types that its layout implies",
          text_.where_of_size(ref.cls, made, info.out[output]));
      invalidate(ref.cls, task.out[output]);
      return;
    }
    if (fitting && uniform) {
      *fitting = logical;
    }
  }
  if (task.accumulate.contains(output)) {
    const Value value = read(ref, task.out[output]);
    if (value.expr < 0) return invalidate(ref.cls, task.out[output]);
    const std::optional<Value> sum = algebra_.add(value, made);
    if (!sum) {
      refusals_.refuse("sum-layout", ref, task.out[output],
                       fmt::format("it would add a value of layout {}", text_.piece_text(made)),
                       "reduce both to one layout before adding",
                       text_.where(ref.cls, value, " in it; to be added: ", made, ""));
      return invalidate(ref.cls, task.out[output]);
    }
    made = *sum;
  }
  state_.put(ref.cls, task.out[output], made);
  if (ctx_.options.on_write) {
    report_written(ref, output, made);
  }
  if (task.accumulate.contains(output)) return;
  check_expected(ref, output, made.piece);
}

/// Refuses a ragged buffer that is planned for fewer rows than even routing brings. The layout
/// gives the rank's share of the experts, and so of the rows. An op without row counts writes the
/// whole buffer, and so does a zero.
void TaskIo::check_expected(TaskRef ref, size_t output, PieceId piece) {
  const ClassId cls = ref.cls;
  const Task& task = ctx_.task(ref);
  const BufferId id = task.out[output];
  const program::Buffer& buffer = ctx_.program.classes[cls].buffers[id];
  if (buffer.expected_bytes == program::kNone) return;
  if (buffer.expected_bytes >= buffer.type.bytes()) return;
  if (!buffer.type.routed()) return;  // expected-routed
  const KindInfo& info = ctx_.kind(task);
  const bool has_counts =
      info.comm ? info.comm->needs_sizes : ops::reads_counts(ctx_.program.kind(task).in);
  if (!has_counts || piece == kAnyPiece) {
    ctx_.report(
        "expected-rows", ProblemClass::memory, ref, {},
        fmt::format("{} writes all {} bytes of {}, planned to hold {}: it reads no row counts",
                    ctx_.name(ref), buffer.type.bytes(), ctx_.buffer_name(cls, id),
                    buffer.expected_bytes),
        "drop the expected size: the buffer holds exactly its type's rows",
        text_.where(cls, state_.at(cls, id)));
    return;
  }
  // The share is equal on all ranks of the class, since the buffer's type is.
  const CutId experts = algebra_.pieces[piece].cut[0];
  const int64_t cells = algebra_.pieces.cuts[experts].cells;
  const double share =
      static_cast<double>(algebra_.pieces.cuts.local_size(experts, cells, ctx_.boxes[cls])) /
      static_cast<double>(cells);
  const int64_t row_bytes = buffer.type.bytes_of(buffer.type.row_size());
  const double even =
      static_cast<double>(buffer.type.dims[1] * buffer.type.top_k * row_bytes) * share;
  const double factor = static_cast<double>(buffer.expected_bytes) / even;
  least_factor_ = least_factor_ == 0 ? factor : std::min(least_factor_, factor);
  if (factor >= 1) return;
  ctx_.report("expected-rows", ProblemClass::memory, ref, {},
              fmt::format("{} writes {}, planned to hold {} bytes; even routing brings {:.0f}{}",
                          ctx_.name(ref), ctx_.buffer_name(cls, id), buffer.expected_bytes, even,
                          share == 1 ? ", always: all experts are here" : ""),
              share == 1 ? "drop the expected size: the buffer holds exactly its type's rows"
                         : "expect at least the rows of even routing, and some more",
              text_.where(cls, state_.at(cls, id)));
}

Pieces::PieceOffsets TaskIo::piece_offsets_of(ClassId cls, const Task& task) const {
  Pieces::PieceOffsets offsets;
  offsets.at = [this, cls, &task](char letter, const graph::Coords& at) {
    const program::PieceOffset* const begin = task.piece_offset(letter);
    return begin ? ctx_.begin_at(ctx_.program.classes[cls].role, *begin, at) : 0;
  };
  offsets.axes = [this, cls, &task](char letter) {
    const program::PieceOffset* const begin = task.piece_offset(letter);
    return begin ? ctx_.table_axes(cls, begin->by) : AxisMask{0};
  };
  return offsets;
}

void TaskIo::report_written(TaskRef ref, size_t output, const Value& value) {
  Value unmarked = value;
  const bool exact = algebra_.take_marks(&unmarked) == 0;
  ctx_.options.on_write({ref, output, ref_, exact, [&](int32_t rank) {
                           return text_.held_at(unmarked, ctx_.coords_of(rank));
                         }});
}

}  // namespace hocket::check
