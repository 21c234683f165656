// SPDX-License-Identifier: Apache-2.0
// State and services that the interpretation of all tasks shares.
#pragma once

#include "check/values/task_io.h"

namespace hocket::check {

struct Machine {
  Machine(Context& context, Reference& reference, const Hazards& races)
      : ctx(context),
        ref(reference),
        hazards(races),
        algebra(context, reference),
        pieces(algebra.pieces),
        packs(algebra.packs),
        codec_marks(algebra.codec_marks),
        text(context, reference, algebra),
        state(context, reference, algebra, text),
        refusals(context, reference, races, algebra, text, state),
        io(context, reference, races, algebra, text, state, refusals) {}
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;

  Context& ctx;
  Reference& ref;
  const Hazards& hazards;
  ValueAlgebra algebra;
  Pieces& pieces;  ///< of `algebra`, as the next two
  Packs& packs;
  CodecMarks& codec_marks;
  ValueText text;
  BufferState state;
  Refusals refusals;
  TaskIo io;
};

}  // namespace hocket::check
