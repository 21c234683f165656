// SPDX-License-Identifier: Apache-2.0
#include "check/values/local_ops.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "check/values/pack_op.h"

namespace hocket::check {

LocalOps::LocalOps(Machine& machine)
    : m_(machine), signatures_(machine.ctx.kinds.size()), experts_(machine.ctx.kinds.size(), 0) {}

/// Returns the result of the op's rule for the pieces of the inputs. A kind meets few different
/// pieces in a program, so a list per kind is searched.
LocalOps::Signature& LocalOps::signature(ClassId cls, const Task& task, const KindInfo& info) {
  const ClassId asked = *info.rules->layout.positional ? cls : ClassId(program::kNone);
  auto& list = signatures_[task.kind];
  for (Signature& signature : list) {
    if (signature.in == in_.pieces && signature.in_types == in_.types &&
        signature.piece_offsets == task.piece_offsets && signature.cls == asked) {
      return signature;
    }
  }
  Signature signature;
  signature.cls = asked;
  signature.in = in_.pieces;
  signature.in_types = in_.types;
  signature.piece_offsets = task.piece_offsets;
  const Pieces::PieceOffsets offsets = m_.io.piece_offsets_of(cls, task);
  const program::Kind& kind = m_.ctx.program.kind(task);
  signature.fitting.assign(kind.out.size(), -1);
  try {
    const ops::Letters letters = ops::letters(*info.rules, kind.in, kind.out);
    signature.taken = m_.pieces.apply(info.key, letters, in_.pieces, in_.types, kind.out,
                                      m_.ctx.types, offsets, m_.ctx.boxes[cls]);
  } catch (const Error&) {
    signature.taken.fault =
        LocalOpResult::Fault::cut;  // no rule for operands with this number of dims
  }
  list.push_back(std::move(signature));
  return list.back();
}

void LocalOps::step(ClassId cls, TaskId task_id) {
  const TaskRef ref{cls, task_id};
  const Task& task = m_.ctx.task(ref);
  const KindInfo& info = m_.ctx.kind(task);
  in_.exprs.clear();
  in_.pieces.clear();
  in_.types.clear();
  in_.marks.clear();
  in_.all_marks = 0;
  bool known = true;
  for (BufferId input : task.in) {
    const Value value = m_.io.read(ref, input);
    in_.all_marks =
        in_.exprs.empty() ? value.marks : m_.codec_marks.unite(in_.all_marks, value.marks, 0);
    in_.marks.push_back(value.marks);
    known = known && value.expr >= 0;
    in_.exprs.push_back(value.expr);
    in_.pieces.push_back(value.piece);
  }
  if (!known) return m_.io.invalidate_outputs(ref);
  switch (info.op_class) {
    case OpClass::zero:
      return m_.io.write(ref, 0, {kZero, kAnyPiece});
    case OpClass::copy:
      return m_.io.write(ref, 0, in_.marked(0));
    case OpClass::add:
      return add_inputs(ref, task);
    case OpClass::merge:
      return merge(ref, task, info);
    case OpClass::regroup:
      return regroup(ref, task);
    case OpClass::encode:
      return encode(ref, task, info);
    case OpClass::decode:
      return decode(ref, task, info);
    default:
      return compute(ref, task, info);
  }
}

void LocalOps::compute(TaskRef ref, const Task& task, const KindInfo& info) {
  // A zero has any piece; an op takes it as a whole tensor. Terms are looked up, not made: an
  // application that the single-device step does not contain is refused here, and its outputs
  // become unknown, so that nothing is refused twice.
  for (size_t i = 0; i < in_.pieces.size(); ++i) {
    if (m_.algebra.is_pack(in_.value(i))) return compute_packs(ref, task, info);
  }
  for (size_t i = 0; i < in_.pieces.size(); ++i) {
    in_.types.push_back(m_.ref.terms[in_.exprs[i]].type);
    if (in_.pieces[i] == kAnyPiece) {
      in_.pieces[i] = m_.pieces.whole(m_.ctx.program.kind(task).in[i].dims.size());
    }
    if (m_.ref.terms[in_.exprs[i]].kind == Expr::Kind::unfinished) {
      m_.refusals.explain_unfinished(ref, i);
      return m_.io.invalidate_outputs(ref);
    }
  }
  Signature& pieces = signature(ref.cls, task, info);
  if (pieces.taken.fault == LocalOpResult::Fault::begin) {
    return refuse_begin(ref, pieces.taken.wrong);
  }
  if (pieces.taken.fault != LocalOpResult::Fault::none) {
    m_.refusals.explain_pieces(ref, in_, pieces.taken);
    return m_.io.invalidate_outputs(ref);
  }
  const AppId app = m_.ref.find(info.key, in_.exprs);
  if (app < 0 || m_.ref.terms.app(app).num_out != static_cast<int32_t>(task.out.size())) {
    m_.refusals.explain_unknown(ref, in_);
    return m_.io.invalidate_outputs(ref);
  }
  m_.state.set_application(m_.ctx.global(ref.cls, ref.task), app);
  for (const TypeId logical : in_.types) {
    if (logical >= 0 && m_.ctx.types[logical].routed()) {
      experts_[task.kind] = m_.ctx.types[logical].dims[0];
    }
  }
  for (size_t output = 0; output < task.out.size(); ++output) {
    const ExprId expr = m_.ref.terms.output(app, static_cast<int32_t>(output));
    m_.io.write(ref, output, {expr, pieces.taken.out[output], in_.all_marks},
                &pieces.fitting[output]);
  }
}

void LocalOps::refuse_begin(TaskRef ref, const RankFault& wrong) {
  m_.refusals.refuse_begin(ref, wrong);
  m_.io.invalidate_outputs(ref);
}

void LocalOps::add_inputs(TaskRef ref, const Task& task) {
  const std::optional<Value> sum = m_.algebra.add(in_.marked(0), in_.marked(1));
  if (!sum && (m_.algebra.is_coded(in_.value(0)) || m_.algebra.is_coded(in_.value(1)))) {
    m_.refusals.refuse("codes-summed", ref, task.in[0], "codes can't be added",
                       "decode them first, and add the decoded values");
    return m_.io.invalidate_outputs(ref);
  }
  if (!sum) {
    LocalOpResult taken;
    taken.fault = LocalOpResult::Fault::partial;
    taken.axes = m_.algebra.partial_axes(in_.value(0)) ^ m_.algebra.partial_axes(in_.value(1));
    taken.input = 0;
    taken.other = 1;
    m_.refusals.explain_pieces(ref, in_, taken);
    return m_.io.invalidate_outputs(ref);
  }
  m_.io.write(ref, 0, *sum);
}

void LocalOps::merge(TaskRef ref, const Task& task, const KindInfo& info) {
  // Each half of the inputs is all outputs of one application, as parts of one reduction. The
  // outputs unite both halves.
  const size_t half = task.in.size() / 2;
  const graph::Monoid monoid =
      info.rules->meaning == Meaning::merge_max ? graph::Monoid::max : graph::Monoid::softmax;
  const auto refuse_parts = [&](size_t input) {
    const Value other = in_.value(input + half);
    m_.refusals.refuse(
        "merge-parts", ref, task.in[input],
        fmt::format("it and {} of layout {} are not disjoint parts of one reduction",
                    m_.text.describe(other.expr), m_.text.piece_text(other)),
        "merge parts of one result, each once",
        m_.text.where(ref.cls, in_.value(input),
                      " in " + m_.ctx.buffer_name(ref.cls, task.in[input]) + ", and ", other,
                      " in " + m_.ctx.buffer_name(ref.cls, task.in[input + half])));
    m_.io.invalidate_outputs(ref);
  };
  std::vector<PieceId> united;
  for (size_t i = 0; i < half; ++i) {
    const Expr& term = m_.ref.terms[in_.exprs[i]];
    const bool together =
        i == 0 || (term.kind == Expr::Kind::output && term.a == m_.ref.terms[in_.exprs[0]].a &&
                   term.b == m_.ref.terms[in_.exprs[0]].b + static_cast<int32_t>(i));
    if (!together || in_.exprs[i] != in_.exprs[i + half] || in_.pieces[i] == kAnyPiece ||
        in_.pieces[i + half] == kAnyPiece) {
      return refuse_parts(i);
    }
    if (i > 0 && (m_.pieces[in_.pieces[i]].addends != m_.pieces[in_.pieces[0]].addends ||
                  m_.pieces[in_.pieces[i + half]].addends != m_.pieces[in_.pieces[half]].addends)) {
      return refuse_parts(i);
    }
    united.push_back(m_.pieces.unite(in_.pieces[i], in_.pieces[i + half], monoid));
    if (united.back() == kNone) return refuse_parts(i);
  }
  if (!m_.codec_marks.equal_losses(in_.marks[0], in_.marks[half])) {
    in_.all_marks = m_.codec_marks.unite(
        in_.marks[0], in_.marks[half],
        m_.algebra.axes_of(in_.value(0)) | m_.algebra.axes_of(in_.value(half)));
  }
  for (size_t i = 0; i < half; ++i) {
    m_.io.write(ref, i, {in_.exprs[i], united[i], in_.all_marks});
  }
}

void LocalOps::regroup(TaskRef ref, const Task& task) {
  // Inputs: chunks of one routed tensor by expert; the exchanged sizes of each chunk; the sizes of
  // the chunks to make. Sizes carry the piece of the counts before the exchange: the experts, and
  // the rank's own tokens. All must belong to one axis and to the routing that placed the rows. A
  // rank must hold the part of each chunk that the members of the exchange gave.
  const auto& attrs = m_.ctx.program.kind(task).attrs;
  const size_t from = static_cast<size_t>(attrs.i("from"));
  const Expr& first = m_.ref.terms[in_.exprs[from]];
  const auto refuse_part = [&](size_t input, const char* what) {
    m_.refusals.refuse(
        "regroup-parts", ref, task.in[input], what,
        "regroup all chunks of one routed tensor, each with the sizes of its own exchange",
        m_.text.where(ref.cls, in_.value(input),
                      " in " + m_.ctx.buffer_name(ref.cls, task.in[input]) + ", and ", in_.value(0),
                      " in " + m_.ctx.buffer_name(ref.cls, task.in[0])));
    m_.io.invalidate_outputs(ref);
  };
  const Piece rows = m_.pieces[in_.pieces[0]];
  const TypeId logical = m_.ref.terms[in_.exprs[0]].type;
  const int64_t experts = logical < 0 ? 0 : int64_t{m_.ctx.types[logical].dims[0]};
  AxisMask over = 0;
  std::vector<CutId> held, had, wanted;
  for (size_t i = 0; i < in_.pieces.size(); ++i) {
    if (in_.pieces[i] == kAnyPiece) return refuse_part(i, "it is zero, wherever it lies");
    const Piece& piece = m_.pieces[in_.pieces[i]];
    if (i < from) {
      Piece alike = piece;
      alike.cut[1] = rows.cut[1];
      // Rows of an unfinished sum may be reordered like any other rows.
      if (in_.exprs[i] != in_.exprs[0] || alike != rows ||
          m_.pieces.has_support(in_.pieces[i], 1) || first.kind != Expr::Kind::sizes ||
          m_.algebra.route_of(in_.value(i)) != first.a) {
        return refuse_part(i, "it is no chunk of the same rows");
      }
      held.push_back(piece.cut[1]);
      continue;
    }
    const Expr& expr = m_.ref.terms[in_.exprs[i]];
    if (expr.kind != Expr::Kind::sizes || expr.a != first.a || expr.b != first.b) {
      return refuse_part(i, "these are not sizes of the same routing and axis");
    }
    over = expr.b < 0 ? 0 : graph::axis_bit(expr.b);
    if (piece.addends.size() > 1 ||
        m_.pieces.cuts.block_of(piece.cut[0], over, experts) != rows.cut[0]) {
      return refuse_part(i, "these are the sizes of other experts");
    }
    (i < 2 * from ? had : wanted)
        .push_back(piece.addends.empty() ? CutId(graph::CutTable::kWhole) : piece.addends[0].set);
  }
  const RankFault misplaced = m_.pieces.misplaced(
      rows.cut[0], 'e', experts, m_.io.piece_offsets_of(ref.cls, task), m_.ctx.boxes[ref.cls]);
  if (!misplaced.text.empty()) return refuse_begin(ref, misplaced);
  const std::vector<CutId> made = m_.pieces.cuts.regroup(held, had, wanted, over);
  if (made.empty()) return refuse_part(0, "the chunks do not hold the tokens of their sizes");
  for (size_t chunk = 0; chunk < made.size(); ++chunk) {
    Piece piece = rows;
    piece.cut[1] = made[chunk];
    m_.io.write(ref, chunk, {in_.exprs[0], m_.pieces.intern(piece), in_.all_marks});
  }
}

void LocalOps::compute_packs(TaskRef ref, const Task& task, const KindInfo& info) {
  const std::optional<std::vector<Value>> made = PackOp(m_, in_, ref, task, info).run();
  if (!made) return m_.io.invalidate_outputs(ref);
  for (size_t output = 0; output < made->size(); ++output) {
    m_.io.write(ref, output, (*made)[output]);
  }
}

}  // namespace hocket::check
