// SPDX-License-Identifier: Apache-2.0
// Marks of values that went through lossy codecs. A decoded value has the term of the original, so
// its mark is the only trace of the loss. Marks follow the value through tasks and communication.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "check/values/encoded_sets.h"

namespace hocket::check {

/// One loss of a value: a term that was encoded and decoded on the way.
struct CodecMark {
  std::string codec;
  ExprId term;       ///< that was encoded
  FamilyId addends;  ///< sets of its addends encoded at once, if it was an unfinished sum
  auto operator<=>(const CodecMark&) const = default;
};

/// All losses of one value.
struct MarkSet {
  std::vector<CodecMark> list;  ///< sorted, at most one per codec and term
  /// Axes along which replicas hold different parts exactly: each rank its own part, and the parts
  /// of other ranks as decoded.
  AxisMask apart = 0;
  auto operator<=>(const MarkSet&) const = default;
};

/// Interns mark sets. Equal ids mean equal losses; id 0 is the empty set.
class CodecMarks {
 public:
  explicit CodecMarks(graph::CutTable& cuts) : sets_(cuts) {}

  MarkId intern(MarkSet marks);
  const MarkSet& operator[](MarkId id) const { return marks_[id]; }
  /// Returns whether no value has lost anything.
  bool none() const { return marks_.size() == 1; }
  EncodedSets& sets() { return sets_; }
  const EncodedSets& sets() const { return sets_; }

  /// Returns the union. `axes`: axes along which ranks hold a different one of the two values.
  MarkId unite(MarkId left, MarkId right, AxisMask axes);
  /// Returns whether both lost equal shares of the same terms, whichever addends these shares are.
  bool equal_losses(MarkId left, MarkId right) const;
  /// Returns the marks as a receiver sees them.
  MarkId from_peer(MarkId marks, const graph::Shift& shift);
  /// Returns the marks of all that the ranks along `over` hold together.
  MarkId over_all(MarkId marks, AxisMask over);
  /// Drops the axes along which all ranks lost the same sets (EncodedSets::settled).
  MarkId settled(MarkId marks);
  /// Returns the marks at one coordinate.
  MarkId at(MarkId marks, const graph::Coords& coords);
  /// Axes along which ranks encoded different addends.
  AxisMask axes(MarkId marks) const;

  /// A part of a value: its region in the buffer, its cut along the buffer's dim, its addends.
  struct Part {
    CutId region, cut;
    const std::vector<Addends>* addends;
    MarkId marks;
  };
  /// Joins the marks of parts of one term that are read as one value. Returns nothing if the parts
  /// lost unequal shares, or if ranks lost different sets of one index. `wanted`: region that is
  /// read; `extent`: size of the buffer along its dim; `size`: size of the term along that dim.
  std::optional<MarkId> join(std::span<const Part> parts, CutId wanted, int64_t extent,
                             int64_t size);

 private:
  MarkId with_addends(MarkId marks, const std::function<FamilyId(FamilyId)>& change);

  EncodedSets sets_;
  std::vector<MarkSet> marks_{1};
  std::map<MarkSet, MarkId> index_{{MarkSet{}, 0}};
  std::map<MarkId, MarkId> settled_;
};

}  // namespace hocket::check
