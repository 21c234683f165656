// SPDX-License-Identifier: Apache-2.0
// Words for values: names of terms and layouts, a rank's part of a value, and the first rank
// at which a rule fails. Used only in texts of problems.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "check/values/value_algebra.h"

namespace hocket::check {

class ValueText {
 public:
  ValueText(Context& ctx, const Reference& reference, ValueAlgebra& algebra)
      : ctx_(ctx), ref_(reference), algebra_(algebra) {}

  /// "linear L3 mb2 ('x')", "'w' as it was before the step", "a sum of 4 terms (..)".
  std::string describe(ExprId expr) const;
  /// " L3 mb2": layer and micro-batch of a node, as far as it has them.
  std::string coordinates(const graph::Node& node, int32_t micro_batch) const;
  /// "edp:S0 ep:P"; the parts of an unfinished sum joined by " + ".
  std::string piece_text(const Value& value) const;
  /// "[0:5) of 'a' | [5:8) of 'a', 2 zeros by dp": the first few coordinates.
  std::string pack_text(PackId id) const;
  /// Name of the first axis of a mask; "any axis" if the mask is empty.
  const std::string& axis_name(AxisMask axes) const;
  /// "exactly", or "up to ~int8 of ..". `sets`: prints which addends were encoded at once instead
  /// of their share.
  std::string marks_text(MarkId marks, bool sets) const;

  /// Returns a rank's data: the tensors of a pack one after the other, else the parts of a sum.
  std::vector<Held> held_at(const Value& value, const graph::Coords& at) const;
  std::string held_text(const Value& value, const graph::Coords& at) const;
  /// "rank 2 (edp 1, ep 0)".
  std::string rank_text(ClassId cls, const graph::Coords& at) const;
  /// Returns the first rank of a class for which `wrong` returns a text, and counts these ranks.
  /// `axes`: axes on which `wrong` depends.
  RankFault first_rank(ClassId cls, AxisMask axes,
                       const std::function<std::string(const graph::Coords&)>& wrong) const;
  std::string at_rank_text(ClassId cls, const RankFault& wrong) const;
  /// "; so on 3 more ranks", for a count that includes the first rank.
  static std::string more_text(int64_t ranks);

  // Texts of Problem::where.
  /// The first rank that lacks something of the value, else the first rank of the class.
  std::string where(ClassId cls, const Value& value) const;
  /// The first rank at which two values differ: "rank 0 has {value}{between}{other}{behind}".
  std::string where(ClassId cls, const Value& value, const std::string& between, const Value& other,
                    const std::string& behind) const;
  /// The first rank of the class, and the next rank along an axis.
  std::string where_along(ClassId cls, const Value& value, int32_t axis) const;
  /// The first rank with a part of another local type than its buffer's.
  std::string where_of_size(ClassId cls, const Value& value, TypeId local) const;
  /// The first rank of each of two classes that should hold the same value.
  std::string where_of_two(TaskRef ref, const Value& value, TaskRef other,
                           const Value& theirs) const;
  /// "; missing [8:16) of dim 0": indices of a dim that the first rank of the class lacks.
  std::string missing_dim_text(ClassId cls, const Value& value, int32_t dim) const;

 private:
  Context& ctx_;
  const Reference& ref_;
  ValueAlgebra& algebra_;  ///< interns values for texts; values do not change
};

}  // namespace hocket::check
