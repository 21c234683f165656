// SPDX-License-Identifier: Apache-2.0
// What codecs encoded at once of a sum that was not finished: what is lost of two addends by
// themselves is something else than what is lost of their sum, so ranks whose parts were put
// together otherwise do not hold the same.
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

/// EncodedSets of sets of addends, each set encoded at once, interned over the coordinates of one
/// box of ranks: a set is a function of them, as it is in a piece. No addends: all of a finished
/// value.
class EncodedSets {
 public:
  explicit EncodedSets(graph::CutTable& cuts) : cuts_(cuts) {}

  /// Of one set.
  FamilyId of(const std::vector<Addends>& addends) { return intern({addends}); }
  FamilyId unite(FamilyId left, FamilyId right);
  /// What the rank that the shift leads to has.
  FamilyId from_peer(FamilyId id, const graph::Shift& shift);
  /// What the rank at these coordinates along `over` has.
  FamilyId at(FamilyId id, AxisMask over, const graph::Coords& coords);
  /// What all ranks along `over` have together.
  FamilyId over_all(FamilyId id, AxisMask over);
  /// The same on every rank, but without the axes along which all ranks have the same sets, if in
  /// another order: rank c of a ring {c}, {c - 1}, ..
  FamilyId settled(FamilyId id);
  /// What lies in a region of a base, has indices of a dim as the cut says, and of a sum these
  /// addends, and lost this of them.
  struct Part {
    CutId region, cut;
    FamilyId addends, family;
    auto operator<=>(const Part&) const = default;
  };
  /// Parts of one term, read together: at every coordinate the sets of those that overlap `wanted`
  /// there. kNone if an index of the same addends lost something of other sets on one rank than on
  /// another. `extent`: of the base along the dim; `size`: of the term.
  FamilyId join(std::span<const Part> parts, CutId wanted, int64_t extent, int64_t size);
  /// Axes along which sets differ.
  AxisMask axes(FamilyId id) const;
  /// How much of all addends is in the sets: "1/4 and 2/4"; "" if each is a finished value.
  const std::string& shares(FamilyId id) const { return shares_[id]; }
  /// The first few sets: "[0:1)/4, [2:4)/4".
  std::string text(FamilyId id) const;

 private:
  using Sets = std::vector<std::vector<Addends>>;
  class Joining;
  FamilyId intern(Sets sets);
  /// A family that is these at the coordinates along `axes`, one after the other; kNone if they are
  /// of different reductions.
  FamilyId by_coordinate(AxisMask axes, const std::vector<FamilyId>& families);
  std::string shares_of(const Sets& sets) const;
  /// How much of all addends is in sets that are the same everywhere.
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
