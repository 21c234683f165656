// SPDX-License-Identifier: Apache-2.0
#include "check/values/value_algebra.h"

#include <algorithm>
#include <set>

namespace hocket::check {

namespace {

/// Extents of all meshes. Pieces are functions of all coordinates; a class holds them in its box.
graph::Coords extents_of(const Context& ctx) {
  graph::Coords extents;
  extents.fill(1);
  for (size_t axis = 0; axis < ctx.mesh.axes.size(); ++axis) {
    extents[axis] = ctx.mesh.axes[axis].size;
  }
  return extents;
}

}  // namespace

ValueAlgebra::ValueAlgebra(Context& ctx, Reference& reference)
    : pieces(extents_of(ctx), reference.keys),
      packs(pieces.cuts),
      codec_marks(pieces.cuts),
      ctx_(ctx),
      ref_(reference) {}

std::vector<Value> ValueAlgebra::parts_of(const Value& value) const {
  if (value.expr < 0 || ref_.terms[value.expr].kind != Expr::Kind::unfinished) return {value};
  // Each part has the marks of the whole.
  std::vector<Value> parts = unfinished_[ref_.terms[value.expr].a];
  for (Value& part : parts) {
    part.marks = value.marks;
  }
  return parts;
}

AxisMask ValueAlgebra::partial_axes(const Value& value) const {
  if (is_pack(value)) {
    AxisMask axes = 0;
    for (const Value& component : packs[pack_of(value)].components) {
      for (const Value& part : parts_of(component)) {
        axes |= partial_axes(part);
      }
    }
    return axes;
  }
  return value.piece == kAnyPiece ? 0 : pieces.partial_axes(value.piece);
}

ExprId ValueAlgebra::terms_in(const Value& value) {
  if (value.expr < 0) return value.expr;
  ExprId all = kZero;
  for (const Value& part : parts_of(value)) {
    all = ref_.terms.sum(all, part.expr);
  }
  return all;
}

/// Adds a part, united with parts of the same term. The union may unite with a further part.
void ValueAlgebra::insert_part(std::vector<Value>* parts, Value part) {
  for (size_t i = 0; i < parts->size(); ++i) {
    if ((*parts)[i].expr != part.expr) continue;
    const PieceId united = pieces.unite((*parts)[i].piece, part.piece, graph::Monoid::sum);
    if (united == kNone) continue;
    parts->erase(parts->begin() + static_cast<std::ptrdiff_t>(i));
    return insert_part(parts, {part.expr, united});
  }
  parts->push_back(part);
}

std::optional<Value> ValueAlgebra::sum_of(const std::vector<Value>& parts) {
  // Codes can't be added. The sum has the marks of all parts.
  if (parts.size() == 1) return parts[0];
  if (std::any_of(parts.begin(), parts.end(), [&](const Value& part) { return is_coded(part); })) {
    return std::nullopt;
  }
  std::vector<Value> unmarked = parts;
  MarkId marks = parts[0].marks;
  for (size_t i = 0; i < parts.size(); ++i) {
    AxisMask axes = 0;
    for (size_t before = 0; before < i; ++before) {
      axes |= axes_apart(parts[before], parts[i]);
    }
    marks = codec_marks.unite(marks, parts[i].marks, axes);
    unmarked[i].marks = 0;
  }
  std::optional<Value> sum = sum_of_terms(unmarked);
  if (sum) {
    sum->marks = marks;
  }
  return sum;
}

std::optional<Value> ValueAlgebra::sum_of_terms(const std::vector<Value>& parts) {
  // Normal form, independent of the order of addition: the parts of each term united as far as
  // possible, then all terms of one piece in one sum.
  std::vector<Value> terms;
  for (const Value& part : parts) {
    for (ExprId term : ref_.terms.terms_of(part.expr)) {
      insert_part(&terms, {term, part.piece});
    }
  }
  std::vector<Value> sums;
  for (const Value& term : terms) {
    const auto same = std::find_if(sums.begin(), sums.end(),
                                   [&](const Value& sum) { return sum.piece == term.piece; });
    if (same == sums.end()) {
      sums.push_back(term);
    } else {
      same->expr = ref_.terms.sum(same->expr, term.expr);
    }
  }
  if (sums.empty()) return Value{kZero, kAnyPiece};
  // A part without addends adds nothing, unless there is no other part.
  std::vector<Value> full = sums;
  std::erase_if(
      full, [&](const Value& sum) { return pieces.is_identity(sum.piece, graph::Monoid::sum); });
  if (!full.empty()) {
    sums = full;
  }
  for (const Value& sum : sums) {
    if (partial_axes(sum) != partial_axes(sums[0])) return std::nullopt;
    if (pieces.monoid(sum.piece) != graph::Monoid::sum) return std::nullopt;
    if (pieces[sum.piece].cut != pieces[sums[0].piece].cut) return std::nullopt;
  }
  if (sums.size() == 1) return sums[0];
  std::sort(sums.begin(), sums.end());
  const auto [known, fresh] = unfinished_index_.try_emplace(sums, kZero);
  if (fresh) {
    known->second = ref_.terms.unfinished(static_cast<int32_t>(unfinished_.size()),
                                          ref_.terms[sums[0].expr].type);
    unfinished_.push_back(sums);
  }
  return Value{known->second, kAnyPiece};
}

AxisMask ValueAlgebra::axes_apart(const Value& left, const Value& right) const {
  if (codec_marks.equal_losses(left.marks, right.marks)) return 0;
  AxisMask axes = 0;
  std::set<ExprId> first;
  bool of_one = false;
  for (const Value& value : {left, right}) {
    std::set<ExprId> terms;
    for (const Value& part : parts_of(value)) {
      axes |= partial_axes(part);
      for (const ExprId term : ref_.terms.terms_of(part.expr)) {
        of_one = of_one || first.contains(term);
        terms.insert(term);
      }
    }
    first = std::move(terms);
  }
  return of_one ? axes : 0;
}

std::optional<Value> ValueAlgebra::add(const Value& left, const Value& right) {
  if (is_coded(left) || is_coded(right)) return std::nullopt;
  // Zeros add nothing, and have lost nothing.
  if (left.expr == kZero) return right;
  if (right.expr == kZero) return left;
  // Marks of packs are kept per tensor.
  if (is_pack(left) || is_pack(right)) return add_packs(left, right);
  std::optional<Value> sum = add_terms({left.expr, left.piece}, {right.expr, right.piece});
  if (sum) {
    sum->marks = codec_marks.unite(left.marks, right.marks, axes_apart(left, right));
  }
  return sum;
}

std::optional<Value> ValueAlgebra::add_terms(const Value& left, const Value& right) {
  // Fast paths: two terms in one piece, and two parts of one term. Two copies of one unfinished
  // part must not unite: they stay a sum that has the part twice.
  const bool finished = left.piece != kAnyPiece && right.piece != kAnyPiece;
  const auto adds_up = [&](PieceId piece) { return pieces.monoid(piece) == graph::Monoid::sum; };
  if (finished && left.piece == right.piece && adds_up(left.piece)) {
    return Value{ref_.terms.sum(left.expr, right.expr), left.piece};
  }
  if (finished && left.expr == right.expr) {
    if (const PieceId united = pieces.unite(left.piece, right.piece, graph::Monoid::sum);
        united != kNone) {
      return Value{left.expr, united};
    }
  }
  std::vector<Value> parts = parts_of(left);
  const std::vector<Value> more = parts_of(right);
  parts.insert(parts.end(), more.begin(), more.end());
  return sum_of(parts);
}

bool ValueAlgebra::has_dims(const Value& value, size_t dims) const {
  if (value.expr <= kZero) return true;
  if (is_pack(value)) return false;
  const PieceId piece = parts_of(value)[0].piece;
  return piece != kAnyPiece && pieces[piece].dims == dims;
}

bool ValueAlgebra::fits(const Value& value, TypeId local, ClassId cls, bool* uniform) {
  for (const Value& part : parts_of(value)) {
    if (is_pack(part)) {
      const Pack& pack = packs[pack_of(part)];
      const graph::TensorType& type = ctx_.types[local];
      if (type.dims.size() != 1) return false;
      if (packs.length(pack_of(part)) != type.dims[0]) {
        if (uniform) {
          *uniform = false;
        }
        if (packs.length(pack_of(part), ctx_.boxes[cls]) != type.dims[0]) return false;
      }
      for (const Value& component : pack.components) {
        if (ctx_.types[ref_.terms[component.expr].type].dtype != type.dtype) return false;
      }
      continue;
    }
    const TypeId logical = ref_.terms[part.expr].type;
    if (logical < 0 || part.piece == kAnyPiece) continue;
    if (pieces.local_type(part.piece, logical, ctx_.types) == local) continue;
    if (uniform) {
      *uniform = false;
    }
    if (pieces.local_type(part.piece, logical, ctx_.types, ctx_.boxes[cls]) != local) return false;
  }
  return true;
}

bool ValueAlgebra::local_index(ExprId expr) const {
  const Expr& term = ref_.terms[expr];
  if (term.kind == Expr::Kind::sizes) return true;
  if (term.kind != Expr::Kind::output) return false;
  return term.b == ref_.keys[ref_.terms.app(term.a).key].rules->routing.row_of;
}

AppId ValueAlgebra::route_of(const Value& rows) {
  AppId route = -1;
  for (const Value& part : parts_of(rows)) {
    for (ExprId row : ref_.terms.terms_of(part.expr)) {
      if (ref_.terms[row].kind == Expr::Kind::output) {
        route = ref_.terms.app(ref_.terms[row].a).route;
      }
    }
  }
  return route;
}

CutId ValueAlgebra::tokens_counted(const Value& sizes) const {
  if (sizes.expr < 0 || sizes.piece == kAnyPiece) return kNone;
  const auto& addends = pieces[sizes.piece].addends;
  if (addends.empty()) return graph::CutTable::kWhole;
  return addends.size() == 1 ? addends[0].set : CutId(kNone);
}

bool ValueAlgebra::depends_on(const Value& value, int32_t axis) const {
  return axes_of(value) & graph::axis_bit(axis);
}

bool ValueAlgebra::is_coded(const Value& value) const {
  return value.expr >= 0 && ref_.terms[value.expr].kind == Expr::Kind::coded;
}

MarkId ValueAlgebra::take_marks(Value* value) {
  MarkId marks = value->marks;
  value->marks = 0;
  if (!is_pack(*value)) return marks;
  std::vector<Value> components = packs[pack_of(*value)].components;
  for (Value& component : components) {
    marks = codec_marks.unite(marks, component.marks, 0);
    component.marks = 0;
  }
  if (marks != 0) {
    *value = unflat(packs.with(pack_of(*value), components), 1);
  }
  return marks;
}

}  // namespace hocket::check
