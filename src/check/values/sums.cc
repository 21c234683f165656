// SPDX-License-Identifier: Apache-2.0
// Sums of values. Two parts of one reduction become one part; two terms in one piece become the sum
// of the terms in that piece; what is neither stays a list of parts, to which more is added until
// it is, or which one reduction finishes.
#include <algorithm>
#include <set>

#include "check/values/values.h"

namespace hocket::check {

std::vector<Value> Values::parts_of(const Value& value) const {
  if (value.expr < 0 || ref_.terms[value.expr].kind != Expr::Kind::unfinished) return {value};
  // The marks are those of the whole.
  std::vector<Value> parts = unfinished_[ref_.terms[value.expr].a];
  for (Value& part : parts) {
    part.marks = value.marks;
  }
  return parts;
}

AxisMask Values::partial_axes(const Value& value) const {
  if (is_pack(value)) {
    AxisMask axes = 0;
    for (const Value& component : packs_[pack_of(value)].components) {
      for (const Value& part : parts_of(component)) {
        axes |= partial_axes(part);
      }
    }
    return axes;
  }
  return value.piece == kAnyPiece ? 0 : pieces_.partial_axes(value.piece);
}

ExprId Values::terms_in(const Value& value) {
  if (value.expr < 0) return value.expr;
  ExprId all = kZero;
  for (const Value& part : parts_of(value)) {
    all = ref_.terms.sum(all, part.expr);
  }
  return all;
}

/// Unites the part with another part of the same term, as long as there is one; the union may meet
/// a further one.
void Values::insert_part(std::vector<Value>* parts, Value part) {
  for (size_t i = 0; i < parts->size(); ++i) {
    if ((*parts)[i].expr != part.expr) continue;
    const PieceId united = pieces_.unite((*parts)[i].piece, part.piece, graph::Monoid::sum);
    if (united == kNone) continue;
    parts->erase(parts->begin() + static_cast<std::ptrdiff_t>(i));
    return insert_part(parts, {part.expr, united});
  }
  parts->push_back(part);
}

std::optional<Value> Values::sum_of(const std::vector<Value>& parts) {
  // Codes are not added up; marks are those of all parts, which may tell ranks apart.
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
    marks = unite_marks(marks, parts[i].marks, axes);
    unmarked[i].marks = 0;
  }
  std::optional<Value> sum = sum_of_terms(unmarked);
  if (sum) {
    sum->marks = marks;
  }
  return sum;
}

std::optional<Value> Values::sum_of_terms(const std::vector<Value>& parts) {
  // The normal form, whatever the order of adding: each term by itself, united as far as it goes;
  // then terms in one piece under one sum.
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
  // A part without addends adds nothing.
  std::vector<Value> full = sums;
  std::erase_if(
      full, [&](const Value& sum) { return pieces_.is_identity(sum.piece, graph::Monoid::sum); });
  if (!full.empty()) {
    sums = full;
  }
  for (const Value& sum : sums) {
    if (partial_axes(sum) != partial_axes(sums[0])) return std::nullopt;
    if (pieces_.monoid(sum.piece) != graph::Monoid::sum) return std::nullopt;
    if (pieces_[sum.piece].cut != pieces_[sums[0].piece].cut) return std::nullopt;
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

AxisMask Values::axes_apart(const Value& left, const Value& right) const {
  if (lost_alike(left.marks, right.marks)) return 0;
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

std::optional<Value> Values::add(const Value& left, const Value& right) {
  if (is_coded(left) || is_coded(right)) return std::nullopt;
  // Zeros add nothing, and lose nothing.
  if (left.expr == kZero) return right;
  if (right.expr == kZero) return left;
  // The marks of a pack are those of its tensors.
  if (is_pack(left) || is_pack(right)) return add_packs(left, right);
  std::optional<Value> sum = add_terms({left.expr, left.piece}, {right.expr, right.piece});
  if (sum) {
    sum->marks = unite_marks(left.marks, right.marks, axes_apart(left, right));
  }
  return sum;
}

std::optional<Value> Values::add_terms(const Value& left, const Value& right) {
  // Most sums are of two terms in one piece, or of two parts of the same sum of terms. Two copies
  // of an unfinished part are no such case to unite: they stay a sum that has it twice.
  const bool finished = left.piece != kAnyPiece && right.piece != kAnyPiece;
  const auto adds_up = [&](PieceId piece) { return pieces_.monoid(piece) == graph::Monoid::sum; };
  if (finished && left.piece == right.piece && adds_up(left.piece)) {
    return Value{ref_.terms.sum(left.expr, right.expr), left.piece};
  }
  if (finished && left.expr == right.expr) {
    if (const PieceId united = pieces_.unite(left.piece, right.piece, graph::Monoid::sum);
        united != kNone) {
      return Value{left.expr, united};
    }
  }
  std::vector<Value> parts = parts_of(left);
  const std::vector<Value> more = parts_of(right);
  parts.insert(parts.end(), more.begin(), more.end());
  return sum_of(parts);
}

}  // namespace hocket::check
