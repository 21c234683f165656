// SPDX-License-Identifier: Apache-2.0
// Implements: LocalOps (local_ops.h), encoders and decoders of codecs.
#include <fmt/format.h>

#include <algorithm>

#include "check/values/local_ops.h"

namespace hocket::check {

/// Returns the pieces of all outputs of an encoder or a decoder, by the letters of its notation,
/// with the addends of the operands. Returns nothing, and reports, where the operands do not fit.
std::vector<PieceId> LocalOps::coded_pieces(TaskRef ref, const Task& task, const KindInfo& info) {
  // A codec acts on the local part, finished or not, so addends pass through it unchanged.
  const std::vector<Addends> addends = m_.pieces[in_.pieces[0]].addends;
  for (size_t i = 0; i < in_.pieces.size(); ++i) {
    Piece piece = m_.pieces[in_.pieces[i]];
    const bool by_position =
        std::any_of(piece.addends.begin(), piece.addends.end(),
                    [&](const Addends& part) { return m_.pieces.has_support(part.space); });
    if (piece.addends != addends || by_position) {
      m_.refusals.refuse("codec-parts", ref, task.in[i],
                         "it is another part of the sum than input 0",
                         "decode codes and scales of one value together");
      return {};
    }
    piece.addends.clear();
    in_.pieces[i] = m_.pieces.intern(std::move(piece));
    in_.types.push_back(m_.ref.terms[in_.exprs[i]].type);
  }
  const LocalOpResult taken = signature(ref.cls, task, info).taken;
  if (taken.fault != LocalOpResult::Fault::none) {
    m_.refusals.explain_pieces(ref, in_, taken);
    return {};
  }
  std::vector<PieceId> out;
  for (const PieceId id : taken.out) {
    Piece piece = m_.pieces[id];
    piece.addends = addends;
    out.push_back(m_.pieces.intern(std::move(piece)));
  }
  return out;
}

void LocalOps::encode(TaskRef ref, const Task& task, const KindInfo& info) {
  const Value value = in_.value(0);
  if (value.piece == kAnyPiece || m_.algebra.is_coded(value)) {
    m_.refusals.refuse("codec-parts", ref, task.in[0],
                       m_.algebra.is_coded(value)
                           ? "it is codes already"
                           : "it is a zero or an unfinished sum, without a layout",
                       "encode one value, or one part of a sum");
    return m_.io.invalidate_outputs(ref);
  }
  const std::vector<PieceId> pieces = coded_pieces(ref, task, info);
  if (pieces.empty()) return m_.io.invalidate_outputs(ref);
  const std::vector<graph::TensorType> types = info.rules->infer(
      m_.ctx.program.kind(task).attrs, std::vector{m_.ctx.types[m_.ref.terms[value.expr].type]});
  for (size_t output = 0; output < task.out.size(); ++output) {
    const ExprId codes = m_.ref.terms.coded(value.expr, info.key, static_cast<int32_t>(output),
                                            m_.ctx.types.intern(types[output]));
    m_.io.write(ref, output, {codes, pieces[output], in_.all_marks});
  }
}

void LocalOps::decode(TaskRef ref, const Task& task, const KindInfo& info) {
  // Requires all outputs of one encoder of this codec, for one term, in order.
  const Expr& first = m_.ref.terms[in_.exprs[0]];
  for (size_t i = 0; i < in_.exprs.size(); ++i) {
    const bool codes = m_.algebra.is_coded(in_.value(i)) && in_.pieces[i] != kAnyPiece;
    const Expr& expr = m_.ref.terms[in_.exprs[i]];
    const Terms::Codes made = codes ? m_.ref.terms.codes_of(in_.exprs[i]) : Terms::Codes{-1, -1};
    if (!codes ||
        std::string_view(m_.ref.keys[made.key].rules->codec.name) != info.rules->codec.name ||
        expr.a != first.a || made.part != static_cast<int32_t>(i)) {
      m_.refusals.refuse("codec-parts", ref, task.in[i],
                         fmt::format("it is {}; expected output {} of the {} encoder",
                                     m_.text.describe(in_.exprs[i]), i, info.rules->codec.name),
                         "decode codes and scales of one value together");
      return m_.io.invalidate_outputs(ref);
    }
  }
  const ExprId term = first.a;
  const std::vector<PieceId> pieces = coded_pieces(ref, task, info);
  if (pieces.empty()) return m_.io.invalidate_outputs(ref);
  MarkId marks = in_.all_marks;
  if (!info.rules->codec.lossless) {
    const CodecMark mark{info.rules->codec.name, term,
                         m_.codec_marks.sets().of(m_.pieces[pieces[0]].addends)};
    marks = m_.codec_marks.unite(marks, m_.codec_marks.intern({{mark}, 0}), 0);
  }
  m_.io.write(ref, 0, {term, pieces[0], marks});
}

}  // namespace hocket::check
