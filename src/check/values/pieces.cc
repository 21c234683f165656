// SPDX-License-Identifier: Apache-2.0
#include "check/values/pieces.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"

namespace hocket::check {

namespace {

using graph::axis_bit;
using graph::Coords;
using graph::CutTable;

}  // namespace

Pieces::Pieces(const Coords& extents, const OpKeys& keys) : cuts(extents), keys_(keys) {}

PieceId Pieces::intern(Piece piece) {
  // All pieces are made here, in normal form: addends that the cuts do not need are dropped, a
  // reduction with all needed addends is finished, and elements that are whole rows become rows.
  for (Addends& part : piece.addends) {
    if (spaces_[part.space].row == kNone) continue;
    AddendSpace space = spaces_[part.space];
    if (space.size % cuts[part.set].cells != 0) continue;
    space.row = kNone;
    space.size = 0;
    part.space = intern_space(space);
  }
  std::erase_if(piece.addends, [&](Addends& part) {
    if (spaces_[part.space].needs < 0) return part.set == CutTable::kWhole;
    const CutId need = needed(part.space, piece);
    part.set = cuts.intersection(part.set, need);
    return part.set == need;
  });
  std::sort(piece.addends.begin(), piece.addends.end());
  const auto [known, fresh] = index_.try_emplace(piece, pieces_.size());
  if (fresh) {
    pieces_.push_back(std::move(piece));
  }
  return known->second;
}

CutId Pieces::needed(SpaceId space_id, const Piece& piece) {
  const AddendSpace& space = spaces_[space_id];
  const CutId by = piece.cut[space.by_dim];
  const auto [known, fresh] = needed_.try_emplace({space_id, by}, CutTable::kWhole);
  if (!fresh) return known->second;
  const AxisMask axes = cuts.axes(by);
  const graph::Attrs& attrs = keys_[space.key].attrs;
  if (space.by_size % cuts[by].cells != 0) return known->second;  // refused by local-size
  std::vector<std::vector<graph::Run>> rows;
  cuts.for_each(axes, {}, [&](const Coords& at) {
    std::vector<graph::Run>& row = rows.emplace_back();
    for (const graph::Run& run : cuts.part_at(by, at, space.by_size, 0, -1)) {
      row.push_back(support_[space.needs](attrs, run, space.by_size, space.size));
    }
    row = graph::united(std::move(row));
  });
  known->second = cuts.make(space.size, axes, rows);
  return known->second;
}

int32_t Pieces::intern_support(decltype(ops::Support::of) needs) {
  const auto known = std::find(support_.begin(), support_.end(), needs);
  if (known != support_.end()) return static_cast<int32_t>(known - support_.begin());
  support_.push_back(needs);
  return static_cast<int32_t>(support_.size() - 1);
}

SpaceId Pieces::intern_space(const AddendSpace& space) {
  const auto [known, fresh] = space_index_.try_emplace(space, spaces_.size());
  if (fresh) {
    spaces_.push_back(space);
  }
  return known->second;
}

PieceId Pieces::of(const graph::Layout& layout, const graph::TensorType& logical,
                   int32_t first_axis) {
  Piece piece{static_cast<uint8_t>(logical.dims.size()), {}, {}};
  for (size_t dim = 0; dim < logical.dims.size(); ++dim) {
    std::vector<int32_t> axes = layout.axes_of(static_cast<int>(dim));
    AxisMask mask = 0;
    for (int32_t& axis : axes) {
      axis += first_axis;
      mask |= graph::axis_bit(axis);
    }
    std::erase_if(axes, [&](int32_t axis) { return cuts.extents()[axis] == 1; });
    const graph::Dim& size = logical.dims[dim];
    if (size.symbolic()) {
      piece.cut[dim] = cuts.split(axes);
    } else if (layout.sizes_of(static_cast<int>(dim)).empty()) {
      piece.cut[dim] = cuts.split(axes, size);
    } else {
      std::vector<graph::Run> blocks;
      for (int64_t number = 0; number < cuts.ranks(mask); ++number) {
        blocks.push_back(layout.block(static_cast<int>(dim), size, cuts.ranks(mask), number));
      }
      piece.cut[dim] = cuts.split(axes, size, blocks);
    }
  }
  return intern(std::move(piece));
}

bool Pieces::equal_on(PieceId one, PieceId other, const graph::TensorType& logical,
                      const graph::CoordBox& box) const {
  if (one == other) return true;
  const Piece& left = pieces_[one];
  const Piece& right = pieces_[other];
  if (left.dims != right.dims || left.addends != right.addends) return false;
  for (size_t dim = 0; dim < left.dims; ++dim) {
    const graph::Dim& size = logical.dims[dim];
    if (left.cut[dim] == right.cut[dim]) continue;
    if (size.symbolic() || !equal_on(left.cut[dim], right.cut[dim], size, box)) return false;
  }
  return true;
}

bool Pieces::equal_on(CutId one, CutId other, int64_t size, const graph::CoordBox& box) const {
  if (one == other) return true;
  if (size % cuts[one].cells != 0 || size % cuts[other].cells != 0) return false;
  const AxisMask axes = cuts.axes(one) | cuts.axes(other);
  bool same = true;
  cuts.for_each(axes, {}, [&](const graph::Coords& coords) {
    if (!same || !box.contains(coords, axes)) return;
    same = cuts.part_at(one, coords, size, 0, -1) == cuts.part_at(other, coords, size, 0, -1);
  });
  return same;
}

AxisMask Pieces::partial_axes(PieceId id) const {
  AxisMask axes = 0;
  for (const Addends& part : pieces_[id].addends) {
    axes |= cuts.axes(part.set);
  }
  return axes;
}

AxisMask Pieces::cut_axes(PieceId id) const {
  AxisMask axes = 0;
  for (CutId cut : pieces_[id].cut) {
    axes |= cuts.axes(cut);
  }
  return axes;
}

TypeId Pieces::cut_type(PieceId id, TypeId logical, TypeTable& types, const graph::CoordBox* box) {
  graph::TensorType type = types[logical];
  if (type.dims.size() != pieces_[id].dims) return kNone;
  for (size_t dim = 0; dim < type.dims.size(); ++dim) {
    const CutId cut = pieces_[id].cut[dim];
    graph::Dim& size = type.dims[dim];
    if (!size.symbolic()) {
      size = box ? cuts.local_size(cut, size, *box) : cuts.local_size(cut, size);
      if (size < 0) return kNone;
      continue;
    }
    // A symbol can be cut only into equal cells, of which a rank has one of several equal parts.
    const int64_t cells = cuts[cut].cells;
    const int64_t held = cuts.local_size(cut, cells);
    if (held <= 0 || cells % held != 0 || !size.divides_into(cells)) return kNone;
    size /= cells / held;
  }
  return types.intern(type);
}

TypeId Pieces::local_type(PieceId id, TypeId logical, TypeTable& types) {
  const auto [known, fresh] = local_types_.try_emplace({id, logical}, kNone);
  if (fresh) {
    known->second = cut_type(id, logical, types, nullptr);
  }
  return known->second;
}

TypeId Pieces::local_type(PieceId id, TypeId logical, TypeTable& types,
                          const graph::CoordBox& box) {
  if (const TypeId all = local_type(id, logical, types); all != kNone) return all;
  const auto [known, fresh] = box_types_.try_emplace({id, logical, box.begin, box.count}, kNone);
  if (fresh) {
    known->second = cut_type(id, logical, types, &box);
  }
  return known->second;
}

PieceId Pieces::restrict_to(PieceId id, int dim, int64_t size, AxisMask axes,
                            std::span<const graph::Run> ranges) {
  Piece piece = pieces_[id];
  piece.cut[dim] = cuts.restrict_to(piece.cut[dim], size, axes, ranges);
  return piece.cut[dim] == kNone ? PieceId(kNone) : intern(std::move(piece));
}

PieceId Pieces::canonical(const graph::CoordBox& box, PieceId id, int dim, bool guess) {
  Piece piece = pieces_[id];
  piece.cut[dim] = canonical(box, piece.cut[dim], guess);
  return piece.cut[dim] == pieces_[id].cut[dim] ? id : intern(std::move(piece));
}

CutId Pieces::canonical(const graph::CoordBox& box, CutId cut, bool guess) {
  // The key of a cut is its restriction to the box, extended to other ranks by the nearest rank.
  const AxisMask axes = cuts.axes(cut);
  const int64_t cells = cuts[cut].cells;
  bool all = true;
  for (AxisMask left = axes; left; left &= left - 1) {
    const int axis = std::countr_zero(left);
    all = all && box.count[axis] == cuts.extents()[axis];
  }
  if (all) return cut;
  std::vector<std::vector<graph::Run>> rows;
  cuts.for_each(axes, {}, [&](const Coords& coords) {
    Coords nearest = coords;
    for (AxisMask left = axes; left; left &= left - 1) {
      const int axis = std::countr_zero(left);
      const int32_t last = box.begin[axis] + box.count[axis] - 1;
      nearest[axis] = std::clamp(coords[axis], box.begin[axis], last);
    }
    rows.push_back(cuts.part_at(cut, nearest, cells, 0, -1));
  });
  const std::tuple here{box.begin, box.count, axes, cuts.make(cells, axes, rows)};
  Known& known = known_in_.try_emplace(here, Known{cut, {}}).first->second;
  if (!guess) {
    known.certain.insert(cut);
  }
  if (known.certain.contains(cut)) return cut;
  if (!known.certain.contains(known.first)) {
    guesses_.insert({box.begin, box.count, known.first});
  }
  return known.first;
}

bool Pieces::is_guess(const graph::CoordBox& box, CutId cut) const {
  return guesses_.contains({box.begin, box.count, cut});
}

Held Pieces::held(PieceId id, const graph::TensorType& logical, const Coords& at) {
  // Addends are counted in their own cells. Missing are those of the addends that the local indices
  // need.
  Held held;
  const Piece piece = pieces_[id];
  for (size_t dim = 0; dim < piece.dims; ++dim) {
    const CutId cut = piece.cut[dim];
    const bool fits = dim < logical.dims.size() && !logical.dims[dim].symbolic() &&
                      logical.dims[dim] % cuts[cut].cells == 0;
    const int64_t size = fits ? int64_t{logical.dims[dim]} : cuts[cut].cells;
    held.dims.push_back({size, cuts.part_at(cut, at, size, 0, -1)});
  }
  for (const Addends& part : piece.addends) {
    HeldAddends& addends = held.addends.emplace_back();
    addends.letter = letter_of(part.space);
    const CutId need =
        spaces_[part.space].needs < 0 ? CutId(CutTable::kWhole) : needed(part.space, piece);
    addends.cells = std::lcm(cuts[part.set].cells, cuts[need].cells);
    addends.here = cuts.part_at(part.set, at, addends.cells, 0, -1);
    for (const graph::Run& run : cuts.part_at(need, at, addends.cells, 0, -1)) {
      for (const graph::Run& gap : graph::gaps_in(addends.here, run)) {
        addends.missing.push_back(gap);
      }
    }
  }
  return held;
}

}  // namespace hocket::check
