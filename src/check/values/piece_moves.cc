// SPDX-License-Identifier: Apache-2.0
// Implements: move, from_peer, unite (pieces.h): what collectives and transfers make of pieces.
#include <algorithm>
#include <numeric>

#include "check/values/pieces.h"

namespace hocket::check {

using graph::Coords;

CollectiveResult Pieces::move(PieceId id, AxisMask over, const comm::Movement& movement,
                              const graph::TensorType& logical, CutId counted) {
  const comm::Move& move = movement.move;
  int64_t size = 0;  // of the dim that is scattered
  if (move.part == comm::Move::Part::block) {
    const graph::Dim& dim = logical.dims[static_cast<size_t>(movement.part_dim)];
    size = dim.symbolic() ? 0 : int64_t{dim};
  }
  const auto [known, fresh] = moves_.try_emplace(
      {id, over, static_cast<int>(move.part), static_cast<int>(move.placed), movement.part_dim,
       movement.slot_dim, static_cast<int>(movement.monoid), size, movement.part_outer,
       movement.slot_outer, counted, movement.blocks});
  if (fresh) {
    known->second = move_parts(Piece(pieces_[id]), over, movement, size, counted);
  }
  return known->second;
}

CollectiveResult Pieces::move_parts(const Piece& piece, AxisMask over,
                                    const comm::Movement& movement, int64_t size, CutId counted) {
  // First combines all parts, then takes each rank's block of the result, if the op scatters. All
  // ranks must hold equal pieces, except for the cut of the gathered dim, or the sets of addends.
  CollectiveResult moved;
  Piece result = piece;
  const auto refused = [&](CollectiveResult::Fault fault, AxisMask axes) {
    moved.fault = fault;
    moved.axis = lowest_axis(axes);
    return moved;
  };
  const comm::Move& move = movement.move;
  const int part_dim = movement.part_dim;
  const int slot_dim = movement.slot_dim;
  const bool slot = move.placed == comm::Move::Placed::slot;
  const bool sum = move.placed == comm::Move::Placed::sum;
  if (slot) {
    const CutId cut = piece.cut[slot_dim];
    if (const AxisMask lacking = over & ~cuts.axes(cut)) {
      return refused(CollectiveResult::Fault::not_split, lacking);
    }
    result.cut[slot_dim] = over ? cuts.gather(cut, over, movement.slot_outer) : cut;
    if (result.cut[slot_dim] == kNone) return refused(CollectiveResult::Fault::not_split, over);
    for (const Addends& part : piece.addends) {
      if (const AxisMask axes = cuts.axes(part.set) & over) {
        return refused(CollectiveResult::Fault::differs, axes);
      }
    }
  }
  for (int dim = 0; dim < piece.dims; ++dim) {
    const AxisMask axes = cuts.axes(piece.cut[dim]) & over;
    if (axes && !(slot && dim == slot_dim)) {
      return refused(sum ? CollectiveResult::Fault::split : CollectiveResult::Fault::differs, axes);
    }
  }
  if (sum && over && !sum_over(&result, over, movement.monoid, &moved)) return moved;
  if (move.part == comm::Move::Part::block && over) {
    const CutId all = result.cut[part_dim];
    const CutId back = counted == kNone ? CutId(kNone) : cuts.block_like(all, over, counted);
    const bool given = size > 0 && std::ssize(movement.blocks) == cuts.ranks(over);
    if (back != kNone) {
      result.cut[part_dim] = back;
    } else if (given) {
      result.cut[part_dim] = cuts.block_of(all, over, size, movement.blocks);
    } else {
      result.cut[part_dim] = movement.part_outer > 1 ? cuts.block(all, over, movement.part_outer)
                                                     : cuts.block_of(all, over, size);
    }
  }
  moved.piece = intern(std::move(result));
  return moved;
}

/// Unites the addends of all ranks along `over`. Returns false, and fills `moved`, if they do not
/// add up.
bool Pieces::sum_over(Piece* piece, AxisMask over, ops::Monoid monoid, CollectiveResult* moved) {
  AxisMask lacking = over;
  std::vector<Addends> parts;
  bool alike = true;
  for (Addends& part : piece->addends) {
    if (!(cuts.axes(part.set) & over)) continue;
    lacking &= ~cuts.axes(part.set);
    parts.push_back(part);
    alike = alike && spaces_[part.space].monoid == monoid;
    part.set = cuts.unite_over(part.set, over);
  }
  // Parts of one maximum may overlap.
  const bool repeats = monoid == ops::Monoid::max && parts.size() == 1;
  moved->axis = lowest_axis(lacking ? lacking : over);
  if (lacking) {
    moved->fault = CollectiveResult::Fault::not_partial;
  } else if (!alike) {
    moved->fault = CollectiveResult::Fault::monoid;
  } else if (!repeats && !fills_hull(parts, over)) {
    moved->fault = CollectiveResult::Fault::overlap;
  }
  return moved->fault == CollectiveResult::Fault::none;
}

/// Returns whether the boxes of addends that the ranks along `over` hold are disjoint, and fill the
/// box of their union. Their sum then has each addend of that box once.
bool Pieces::fills_hull(const std::vector<Addends>& parts, AxisMask over) {
  // A rank holds a box: one set per reduction. Boxes fill their hull if their volumes add up to its
  // volume and no two overlap. With one reduction the hull is the union, so volumes suffice.
  AxisMask rest = 0;
  std::vector<int64_t> cells;
  std::vector<CutId> hull;
  for (const Addends& part : parts) {
    rest |= cuts.axes(part.set) & ~over;
    cells.push_back(cuts[part.set].cells);
    hull.push_back(cuts.unite_over(part.set, over));
    cells.back() = std::lcm(cells.back(), cuts[hull.back()].cells);
  }
  bool fills = true;
  cuts.for_each(rest, {}, [&](const Coords& at) {
    if (!fills) return;
    int64_t whole = 1;
    for (size_t i = 0; i < parts.size(); ++i) {
      whole *= cuts.volume(hull[i], at, cells[i]);
    }
    int64_t held = 0;
    std::vector<Coords> members;
    cuts.for_each(over, at, [&](const Coords& member) {
      int64_t box = 1;
      for (size_t i = 0; i < parts.size(); ++i) {
        box *= cuts.volume(parts[i].set, member, cells[i]);
      }
      held += box;
      if (box > 0) {
        members.push_back(member);
      }
    });
    fills = held == whole;
    if (parts.size() == 1) return;
    for (size_t i = 0; i < members.size() && fills; ++i) {
      for (size_t j = 0; j < i && fills; ++j) {
        fills = std::any_of(parts.begin(), parts.end(), [&](const Addends& part) {
          return cuts.apart(part.set, members[i], members[j]);
        });
      }
    }
  });
  return fills;
}

PieceId Pieces::from_peer(PieceId id, const graph::Shift& shift) {
  const auto [known, fresh] = from_peers_.try_emplace({id, shift}, kNone);
  if (fresh) {
    Piece piece = pieces_[id];
    for (CutId& cut : piece.cut) {
      cut = cuts.moved(cut, shift);
    }
    for (Addends& part : piece.addends) {
      part.set = cuts.moved(part.set, shift);
    }
    known->second = intern(std::move(piece));
  }
  return known->second;
}

PieceId Pieces::unite(PieceId left, PieceId right, ops::Monoid monoid) {
  // All reductions but one must be equal. A part that lacks the space of that one has all addends.
  const Piece& one = pieces_[left];
  const Piece& other = pieces_[right];
  if (one.cut != other.cut) return kNone;
  const auto lacking = [&](const Piece& from, const Piece& in) {
    std::vector<Addends> list;
    for (const Addends& part : from.addends) {
      if (std::find(in.addends.begin(), in.addends.end(), part) == in.addends.end()) {
        list.push_back(part);
      }
    }
    return list;
  };
  const std::vector<Addends> mine = lacking(one, other);
  const std::vector<Addends> theirs = lacking(other, one);
  if (mine.size() > 1 || theirs.size() > 1 || mine.size() + theirs.size() == 0) return kNone;
  if (mine.size() == 1 && is_identity(left, monoid)) return right;
  if (theirs.size() == 1 && is_identity(right, monoid)) return left;
  if (mine.size() != theirs.size() || mine[0].space != theirs[0].space) return kNone;
  if (spaces_[mine[0].space].monoid != monoid) return kNone;
  if (monoid != ops::Monoid::max && !cuts.disjoint(mine[0].set, theirs[0].set)) return kNone;
  Piece united = one;
  for (Addends& part : united.addends) {
    if (part == mine[0]) {
      part.set = cuts.unite(mine[0].set, theirs[0].set);
    }
  }
  return intern(std::move(united));
}

ops::Monoid Pieces::monoid(PieceId id) const {
  for (const Addends& part : pieces_[id].addends) {
    if (spaces_[part.space].monoid != ops::Monoid::sum) return spaces_[part.space].monoid;
  }
  return ops::Monoid::sum;
}

bool Pieces::has_support(PieceId id, int dim) const {
  const auto& addends = pieces_[id].addends;
  return std::any_of(addends.begin(), addends.end(), [&](const Addends& part) {
    const AddendSpace& space = spaces_[part.space];
    return space.needs >= 0 && space.by_dim == dim;
  });
}

bool Pieces::is_identity(PieceId id, ops::Monoid monoid) const {
  // An empty part is the identity of its own reduction: 0 for a sum, -inf for a maximum.
  const auto& addends = pieces_[id].addends;
  const bool empty = std::any_of(addends.begin(), addends.end(),
                                 [&](const Addends& part) { return cuts.empty(part.set); });
  return empty && std::all_of(addends.begin(), addends.end(), [&](const Addends& part) {
           return spaces_[part.space].monoid == monoid;
         });
}

}  // namespace hocket::check
