// SPDX-License-Identifier: Apache-2.0
// Codecs. An encoder gives codes of its operand's term, in the operand's piece; they are moved like
// any value, but not added up. A decoder gives the term back, in the piece in which its codes then
// lie, with the mark of the codec if that loses something. Marks go wherever the value goes.
#include <fmt/format.h>

#include <algorithm>

#include "check/values.h"

namespace hocket::check {

MarkId Values::unite_marks(MarkId left, MarkId right, AxisMask axes) {
  if (left == right) return left;
  Marks all = marks_[left];
  const Marks& more = marks_[right];
  std::vector<std::pair<std::string, ExprId>> list;
  std::set_union(all.list.begin(), all.list.end(), more.list.begin(), more.list.end(),
                 std::back_inserter(list));
  all.list = std::move(list);
  all.apart |= more.apart | axes;
  return intern_marks(std::move(all));
}

MarkId Values::intern_marks(Marks marks) {
  const auto found = std::find(marks_.begin(), marks_.end(), marks);
  if (found == marks_.end()) {
    marks_.push_back(std::move(marks));
    return static_cast<MarkId>(marks_.size()) - 1;
  }
  return static_cast<MarkId>(found - marks_.begin());
}

bool Values::is_coded(const Value& value) const {
  return value.expr >= 0 && ref_.terms[value.expr].kind == Expr::Kind::coded;
}

/// The pieces of all outputs of an encoder or a decoder, by the letters of its notation; addends of
/// an unfinished sum are those of the operands. Nothing, and reported, where they do not fit.
std::vector<PieceId> Values::coded_pieces(ClassId cls, const Task& reader, const KindInfo& info,
                                          TaskRef ref) {
  // A codec acts on what a rank has, whatever part of a sum that is.
  const std::vector<Addends> addends = pieces_[ins_[0]].addends;
  for (size_t i = 0; i < ins_.size(); ++i) {
    Piece piece = pieces_[ins_[i]];
    const bool by_position =
        std::any_of(piece.addends.begin(), piece.addends.end(),
                    [&](const Addends& part) { return pieces_.has_support(part.space); });
    if (piece.addends != addends || by_position) {
      refuse("codec-parts", ref, reader.in[i], "it is another part of a sum than what it goes with",
             "decode codes and scales of one value together");
      return {};
    }
    piece.addends.clear();
    ins_[i] = pieces_.intern(std::move(piece));
    in_types_.push_back(ref_.terms[exprs_[i]].type);
  }
  const Taken taken = signature(cls, reader, info).taken;
  if (taken.fault != Taken::Fault::none) {
    explain_pieces(ref, taken);
    return {};
  }
  std::vector<PieceId> out;
  for (const PieceId id : taken.out) {
    Piece piece = pieces_[id];
    piece.addends = addends;
    out.push_back(pieces_.intern(std::move(piece)));
  }
  return out;
}

void Values::encode(ClassId cls, const Task& reader, const KindInfo& info, TaskRef ref) {
  const Value value{exprs_[0], ins_[0]};
  if (value.piece == kAnyPiece || is_coded(value)) {
    refuse("codec-parts", ref, reader.in[0],
           is_coded(value) ? "it is codes already" : "its parts lie nowhere in particular",
           "encode one value, or one part of a sum");
    return lose_outputs(cls, reader);
  }
  const std::vector<PieceId> pieces = coded_pieces(cls, reader, info, ref);
  if (pieces.empty()) return lose_outputs(cls, reader);
  const std::vector<graph::TensorType> types = info.rules->infer(
      ctx_.program.kind(reader).attrs, std::vector{ctx_.types[ref_.terms[value.expr].type]});
  for (size_t output = 0; output < reader.out.size(); ++output) {
    const ExprId codes = ref_.terms.coded(value.expr, info.key, static_cast<int32_t>(output),
                                          ctx_.types.intern(types[output]));
    set(cls, reader, output, {codes, pieces[output], marks_in_}, nullptr, ref);
  }
}

void Values::decode(ClassId cls, const Task& reader, const KindInfo& info, TaskRef ref) {
  // All outputs of one encoder of this codec, for one term, in their order.
  const Expr& first = ref_.terms[exprs_[0]];
  for (size_t i = 0; i < exprs_.size(); ++i) {
    const bool codes = is_coded({exprs_[i], ins_[i]}) && ins_[i] != kAnyPiece;
    const Expr& expr = ref_.terms[exprs_[i]];
    const Terms::Codes made = codes ? ref_.terms.codes_of(exprs_[i]) : Terms::Codes{-1, -1};
    if (!codes ||
        std::string_view(ref_.keys[made.key].rules->codec.name) != info.rules->codec.name ||
        expr.a != first.a || made.part != static_cast<int32_t>(i)) {
      refuse("codec-parts", ref, reader.in[i],
             fmt::format("it is {}; expected output {} of the {} encoder", describe(exprs_[i]), i,
                         info.rules->codec.name),
             "decode codes and scales of one value together");
      return lose_outputs(cls, reader);
    }
  }
  const ExprId term = first.a;
  const std::vector<PieceId> pieces = coded_pieces(cls, reader, info, ref);
  if (pieces.empty()) return lose_outputs(cls, reader);
  MarkId marks = marks_in_;
  if (!info.rules->codec.lossless) {
    marks = unite_marks(marks, intern_marks({{{info.rules->codec.name, term}}, 0}), 0);
  }
  set(cls, reader, 0, {term, pieces[0], marks}, nullptr, ref);
}

MarkId Values::take_marks(Value* value) {
  MarkId marks = value->marks;
  value->marks = 0;
  if (!is_pack(*value)) return marks;
  std::vector<Value> components = packs_[pack_of(*value)].components;
  for (Value& component : components) {
    marks = unite_marks(marks, component.marks, 0);
    component.marks = 0;
  }
  if (marks != 0) {
    *value = unflat(packs_.with(pack_of(*value), std::move(components)), 1);
  }
  return marks;
}

/// What codecs lost of a named buffer is part of the verdict. What is kept must be the same on all
/// ranks that have it.
void Values::finish_marks(TaskRef at, BufferId buffer, const Value& value) {
  const Marks& marks = marks_[value.marks];
  const std::string& name = ctx_.program.classes[at.cls].buffers[buffer].name;
  for (const auto& [codec, term] : marks.list) {
    const Lossy lossy{name, codec, describe(term)};
    if (std::find(lossy_.begin(), lossy_.end(), lossy) == lossy_.end()) {
      lossy_.push_back(lossy);
    }
  }
  const AxisMask apart = marks.apart & ~axes_of(value);
  const bool kept =
      ctx_.program.classes[at.cls].buffers[buffer].kind == program::BufferKind::persistent;
  if (apart == 0 || !kept) return;
  ctx_.report(
      "replicas-differ", ProblemClass::value, at, {},
      fmt::format("{} keeps '{}' of which ranks along {} have their own part as it was, and "
                  "those of others as a codec left them",
                  ctx_.name(at), name, axis_name(apart)),
      "let every rank use what it decodes of its own part, too", where(at.cls, value));
}

}  // namespace hocket::check
