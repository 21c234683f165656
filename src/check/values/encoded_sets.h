// SPDX-License-Identifier: Apache-2.0
// Sets of addends that a codec encoded at once. The loss of two addends encoded separately differs
// from the loss of their sum, so ranks that formed a sum from other parts hold other values.
#pragma once

#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "check/values/pieces.h"
#include "graph/cut.h"

namespace hocket::check {

using FamilyId = Id<struct Family>;

/// Interned families. A family is a list of sets of addends, each set encoded at once. As in a
/// piece, a set is a function of the coordinates. An empty set of addends stands for a finished
/// value.
class EncodedSets {
 public:
  explicit EncodedSets(graph::CutTable& cuts) : cuts_(cuts) {}

  /// Returns the family of one set.
  FamilyId of(const std::vector<Addends>& addends) { return intern({addends}); }
  FamilyId unite(FamilyId left, FamilyId right);
  /// Returns the family as a receiver sees it.
  FamilyId from_peer(FamilyId id, const graph::Shift& shift);
  /// Returns the family of the rank at these coordinates along `over`.
  FamilyId at(FamilyId id, AxisMask over, const graph::Coords& coords);
  /// Returns the union over all ranks along `over`.
  FamilyId over_all(FamilyId id, AxisMask over);
  /// Drops the axes along which all ranks have the same sets in another order: rank c of a ring has
  /// {c}, {c - 1}, ..
  FamilyId settled(FamilyId id);
  /// A part of a base: its region, its cut along the base's dim, its addends, and the sets of them
  /// that were encoded at once.
  struct Part {
    CutId region, cut;
    FamilyId addends, family;
    auto operator<=>(const Part&) const = default;
  };
  /// Joins parts of one term that are read as one value: at every coordinate, the sets of the parts
  /// that overlap `wanted`. kNone if ranks encoded different sets of one index and addends.
  /// `extent`: size of the base along the dim; `size`: of the term.
  FamilyId join(std::span<const Part> parts, CutId wanted, int64_t extent, int64_t size);
  /// Axes along which the sets differ.
  AxisMask axes(FamilyId id) const;
  /// Shares of all addends that are in the sets: "1/4 and 1/2"; "" if each is a finished value.
  const std::string& shares(FamilyId id) const { return shares_[id]; }
  /// The first few sets: "[0:1)/4, [2:4)/4".
  std::string text(FamilyId id) const;

 private:
  using Sets = std::vector<std::vector<Addends>>;
  class Joining;
  FamilyId intern(Sets sets);
  /// Returns the family that is `families[i]` at the i-th coordinate along `axes`; kNone if these
  /// are of different reductions.
  FamilyId by_coordinate(AxisMask axes, const std::vector<FamilyId>& families);
  std::string shares_of(const Sets& sets) const;
  /// Share of all addends that is in a set. Requires: the set is the same on all ranks.
  double size_of(const std::vector<Addends>& addends) const;

  graph::CutTable& cuts_;
  std::vector<Sets> families_;
  std::vector<std::string> shares_;
  std::map<Sets, FamilyId> index_;
  std::map<std::pair<FamilyId, FamilyId>, FamilyId> unions_;
  std::map<std::pair<FamilyId, graph::Shift>, FamilyId> from_peers_;
  std::map<std::pair<FamilyId, AxisMask>, FamilyId> over_all_;
  std::map<FamilyId, FamilyId> settled_;
  std::map<std::tuple<std::vector<Part>, CutId, int64_t, int64_t>, FamilyId> joins_;
};

}  // namespace hocket::check
