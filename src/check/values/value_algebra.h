// SPDX-License-Identifier: Apache-2.0
// Arithmetic on values: sums with some addends missing, and packs (several tensors in one flat
// buffer). Values are immutable and interned: equal values have equal ids. No function here reads a
// buffer or reports a problem.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "check/context.h"
#include "check/values/codec_marks.h"
#include "check/values/packs.h"
#include "check/values/pieces.h"

namespace hocket::check {

class ValueAlgebra {
 public:
  ValueAlgebra(Context& ctx, Reference& reference);
  ValueAlgebra(const ValueAlgebra&) = delete;
  ValueAlgebra& operator=(const ValueAlgebra&) = delete;

  Pieces pieces;
  Packs packs;
  CodecMarks codec_marks;

  // Sums (value_algebra.cc).
  /// Returns the sum: of two terms in one piece, of two parts of one reduction, or an unfinished
  /// sum of several parts. Returns nothing if the parts run along different axes, since no
  /// reduction could finish them together.
  std::optional<Value> add(const Value& left, const Value& right);
  std::optional<Value> sum_of(const std::vector<Value>& parts);
  /// Returns the parts of an unfinished sum; any other value is its own only part.
  std::vector<Value> parts_of(const Value& value) const;
  /// Axes along which the value is partial.
  AxisMask partial_axes(const Value& value) const;
  /// Axes along which ranks hold something different.
  AxisMask axes_of(const Value& value) const;
  bool depends_on(const Value& value, int32_t axis) const;
  /// Returns the sum of the terms of all parts, whichever indices and addends are there.
  ExprId terms_in(const Value& value);
  /// Returns whether a buffer with this many dims can hold the value as it is.
  bool has_dims(const Value& value, size_t dims) const;
  /// Returns whether the value has the local type on all ranks of the class. Sets `*uniform`, if
  /// given, to false unless that holds on the ranks of all classes.
  bool fits(const Value& value, TypeId local, ClassId cls, bool* uniform = nullptr);

  // Codes, and rows of routed tensors.
  /// Returns whether a value is the output of an encoder.
  bool is_coded(const Value& value) const;
  /// Removes the marks from a value and from all tensors in it, and returns their union.
  MarkId take_marks(Value* value);
  /// Returns whether an expression is row numbers or row counts of a routing. They count rows of
  /// their own rank, so they mean nothing on another.
  bool local_index(ExprId expr) const;
  /// Returns the routing that placed the rows; -1 if the value is not routed.
  AppId route_of(const Value& rows);
  /// Returns the tokens of the rows that the sizes count on each rank; kNone: not known.
  CutId tokens_counted(const Value& sizes) const;

  // Packs (pack_values.cc).
  bool is_pack(const Value& value) const;
  /// Requires: is_pack(value).
  PackId pack_of(const Value& value) const { return PackId(ref_.terms[value.expr].a); }
  Value pack_value(PackId id) { return {ref_.terms.pack(id.value()), kAnyPiece}; }
  /// Returns the elements of a value in memory order; of a zero, `zeros` zeros. kNone: ranks share
  /// no such order.
  PackId flat(const Value& value, int64_t zeros);
  /// Returns a pack as a value with this many dims: a tensor if it is whole rows of one tensor,
  /// else, for one dim, the pack itself. kUnwritten: it is neither.
  Value unflat(PackId id, size_t dims);
  /// Elements in one row of a component, and in all its rows; -1 if ranks differ.
  int64_t row_width(const Value& component);
  int64_t elements_of(const Value& component);
  /// Returns a pack as a receiver gets it; nothing if its components do not add up there.
  std::optional<Value> pack_from_peer(const Value& value, const graph::Shift& shift);

 private:
  std::optional<Value> add_terms(const Value& left, const Value& right);
  std::optional<Value> sum_of_terms(const std::vector<Value>& parts);
  void insert_part(std::vector<Value>* parts, Value part);
  /// Axes along which ranks hold different parts of a sum exactly, if its operands lost unequal
  /// shares to codecs: those of the addends, if both are parts of one term, else none.
  AxisMask axes_apart(const Value& left, const Value& right) const;
  CutId rows_of(PackId id, int64_t width, int64_t size);
  using Pair = std::pair<int32_t, int32_t>;  ///< of components; kNone: zeros
  const std::optional<std::vector<Pair>>& pairs_of(PackId left, PackId right);
  std::optional<Value> add_packs(const Value& left, const Value& right);

  Context& ctx_;
  Reference& ref_;
  std::vector<std::vector<Value>> unfinished_;  ///< by Expr::a of unfinished sums: their parts
  std::map<std::vector<Value>, ExprId> unfinished_index_;
  std::map<std::array<int64_t, 3>, CutId> row_cuts_;        ///< results of rows_of
  std::map<Pair, std::optional<std::vector<Pair>>> pairs_;  ///< results of pairs_of, by shapes
};

}  // namespace hocket::check
