// SPDX-License-Identifier: Apache-2.0
#include "check/values/pieces.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <numeric>
#include <set>

#include "base/error.h"
#include "base/text.h"

namespace hocket::check {

namespace {

using graph::axis_bit;
using graph::Coords;
using graph::CutTable;

constexpr int32_t lowest(AxisMask axes) { return axes ? std::countr_zero(axes) : -1; }

}  // namespace

Pieces::Pieces(const Coords& extents, const OpKeys& keys) : cuts(extents), keys_(keys) {}

PieceId Pieces::intern(Piece piece) {
  // All pieces are made here, in normal form: addends that the cuts do not need are dropped, a
  // reduction with all needed addends is finished, and elements that are whole rows become rows.
  for (Addends& part : piece.addends) {
    if (spaces_[part.space].row == kNone) continue;
    Space space = spaces_[part.space];
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
  const Space& space = spaces_[space_id];
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

SpaceId Pieces::intern_space(const Space& space) {
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

namespace {
/// Size of a dim; of a symbol, the number that all its values are multiples of.
int64_t known_size(const graph::Dim& dim) { return dim.symbolic() ? dim.multiple() : int64_t{dim}; }
}  // namespace

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

MoveResult Pieces::move(PieceId id, AxisMask over, const comm::Movement& movement,
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

MoveResult Pieces::move_parts(const Piece& piece, AxisMask over, const comm::Movement& movement,
                              int64_t size, CutId counted) {
  // First combines all parts, then takes each rank's block of the result, if the op scatters. All
  // ranks must hold equal pieces, except for the cut of the gathered dim, or the sets of addends.
  MoveResult moved;
  Piece result = piece;
  const auto refused = [&](MoveResult::Fault fault, AxisMask axes) {
    moved.fault = fault;
    moved.axis = lowest(axes);
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
      return refused(MoveResult::Fault::not_split, lacking);
    }
    result.cut[slot_dim] = over ? cuts.gather(cut, over, movement.slot_outer) : cut;
    if (result.cut[slot_dim] == kNone) return refused(MoveResult::Fault::not_split, over);
    for (const Addends& part : piece.addends) {
      if (const AxisMask axes = cuts.axes(part.set) & over) {
        return refused(MoveResult::Fault::differs, axes);
      }
    }
  }
  for (int dim = 0; dim < piece.dims; ++dim) {
    const AxisMask axes = cuts.axes(piece.cut[dim]) & over;
    if (axes && !(slot && dim == slot_dim)) {
      return refused(sum ? MoveResult::Fault::split : MoveResult::Fault::differs, axes);
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
bool Pieces::sum_over(Piece* piece, AxisMask over, ops::Monoid monoid, MoveResult* moved) {
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
  moved->axis = lowest(lacking ? lacking : over);
  if (lacking) {
    moved->fault = MoveResult::Fault::not_partial;
  } else if (!alike) {
    moved->fault = MoveResult::Fault::monoid;
  } else if (!repeats && !fills_hull(parts, over)) {
    moved->fault = MoveResult::Fault::overlap;
  }
  return moved->fault == MoveResult::Fault::none;
}

/// True if the boxes of addends that the ranks along `over` hold are disjoint, and fill the box of
/// their union: their sum then has each addend of that box once.
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
    const Space& space = spaces_[part.space];
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

RankFault Pieces::misplaced(CutId cut, char letter, int64_t size, const PieceOffsets& offsets,
                            const graph::CoordBox& box) const {
  RankFault wrong;
  // Begins may differ even on ranks that hold equal cuts.
  const AxisMask axes = cuts.axes(cut) | offsets.axes(letter);
  cuts.for_each(axes, box.begin, [&](const Coords& at) {
    if (!box.contains(at, axes)) return;
    const std::vector<graph::Run> runs = cuts.part_at(cut, at, size, 0, -1);
    if (runs.empty()) return;
    std::string text;
    if (runs.size() > 1) {
      text = fmt::format("its piece along {} is no single run", letter);
    } else if (const int64_t begin = offsets.at(letter, at); begin != runs[0].begin) {
      text = fmt::format("its piece along {} begins at {}; the task says {}", letter, runs[0].begin,
                         begin);
    }
    wrong.add(std::move(text), at);
  });
  wrong.ranks *= box.ranks_beside(axes);
  return wrong;
}

CutId Pieces::made_run(char letter, int64_t class_has, int64_t size, const PieceOffsets& offsets,
                       const graph::CoordBox& box, RankFault* why) {
  // Ranks of the class have as many indices as its type says. Ranks of others, whose type is not at
  // hand, have all indices up to the next begin, so that all classes derive one piece.
  if (class_has == size) return CutTable::kWhole;
  const AxisMask axes = offsets.axes(letter);
  std::set<int64_t> all{size};
  cuts.for_each(axes, {}, [&](const Coords& at) { all.insert(offsets.at(letter, at)); });
  std::vector<std::vector<graph::Run>> rows;
  cuts.for_each(axes, {}, [&](const Coords& at) {
    const int64_t begin = offsets.at(letter, at);
    const auto next = all.upper_bound(begin);
    const bool here = box.contains(at, axes) || next == all.end();
    const int64_t local = here ? class_has : *next - begin;
    if (begin < 0 || begin > size - local) {
      why->add(fmt::format("its piece along {} would be {} from {} on, of {}", letter, local, begin,
                           size),
               at);
    }
    rows.push_back({{begin, local}});
  });
  return why->text.empty() ? cuts.make(size, axes, rows) : CutId(kNone);
}

bool Pieces::take_cuts(const ops::LayoutRule& rule, const ops::Letters& letters,
                       std::span<const PieceId> in, std::span<const TypeId> logical,
                       const TypeTable& types, LetterCuts* held, TakeResult* taken) const {
  // The first input that has a letter defines its cut. All other inputs must agree, and only
  // letters that the op may be split along are cut. Without letters everything is whole.
  for (size_t i = 0; i < in.size(); ++i) {
    const Piece& piece = pieces_[in[i]];
    for (size_t dim = 0; dim < piece.dims; ++dim) {
      const CutId cut = piece.cut[dim];
      const char letter = letters.any || letters.in[i].empty() ? char{0} : letters.in[i][dim];
      const auto refused = [&](AxisMask axes, int32_t other = kNone) {
        taken->fault = TakeResult::Fault::cut;
        taken->axes = axes;
        taken->input = static_cast<int32_t>(i);
        taken->dim = static_cast<int32_t>(dim);
        taken->other = other;
        return false;
      };
      if (letter == 0) {
        if (cut != CutTable::kWhole) return refused(cuts.axes(cut));
        continue;
      }
      LetterCut& known = held->of(letter);
      if (known.cut == kNone) {
        known.cut = cut;
        known.input = static_cast<int32_t>(i);
        known.size = logical[i] < 0 ? 0 : known_size(types[logical[i]].dims[dim]);
        known.symbolic = logical[i] >= 0 && types[logical[i]].dims[dim].symbolic();
      }
      if (known.cut != cut) {
        const AxisMask axes = cuts.axes(known.cut) ^ cuts.axes(cut);
        return refused(axes ? axes : cuts.axes(cut), known.input);
      }
      if (cut != CutTable::kWhole &&
          std::string_view(rule.split).find(letter) == std::string::npos) {
        return refused(cuts.axes(cut));
      }
    }
  }
  return true;
}

bool Pieces::take_positions(const OpKey& op, const ops::Letters& letters,
                            std::span<const TypeId> logical,
                            std::span<const graph::TensorType> local_out, const TypeTable& types,
                            const PieceOffsets& offsets, const graph::CoordBox& box,
                            LetterCuts* held, TakeResult* taken) {
  // Handles positional letters. A letter that no input has gets a run as long as in the outputs,
  // from where the task says. All must begin where the task says, on every rank.
  const auto refused = [&](AxisMask axes) {
    taken->fault = TakeResult::Fault::begin;
    taken->axes = axes;
    return false;
  };
  for (const char* letter = op.rules->layout.positional; *letter; ++letter) {
    LetterCut& known = held->of(*letter);
    if (known.cut == kNone) {
      const auto [output, dim] = ops::place_in_outputs(letters, *letter);
      if (output < 0 || std::count(logical.begin(), logical.end(), kNone) > 0) continue;
      std::vector<graph::TensorType> whole;
      for (const TypeId type : logical) {
        whole.push_back(types[type]);
      }
      const graph::Dim all = op.rules->infer(op.attrs, whole).at(output).dims.at(dim);
      known.size = all;
      known.symbolic = all.symbolic();
      known.cut =
          made_run(*letter, local_out[output].dims[dim], known.size, offsets, box, &taken->wrong);
      if (known.cut == kNone) return refused(offsets.axes(*letter));
      known.cut = canonical(box, known.cut, true);
    }
    if (known.size % cuts[known.cut].cells != 0) continue;
    if (known.symbolic && known.cut != CutTable::kWhole) {
      taken->wrong.add(
          fmt::format("its piece along {} has another begin in every step, since a symbol changes",
                      *letter),
          box.begin);
      return refused(cuts.axes(known.cut));
    }
    taken->wrong = misplaced(known.cut, *letter, known.size, offsets, box);
    if (!taken->wrong.text.empty()) return refused(cuts.axes(known.cut));
  }
  return true;
}

bool Pieces::take_addends(int32_t key, const ops::Letters& letters, std::span<const PieceId> in,
                          LetterCuts* held, std::vector<Addends>* lifted, TakeResult* taken) {
  // An input that the notation calls a sum over a letter must have exactly the addends of the
  // letter's cut. One of the other inputs may be unfinished, if the op is linear in it: its addends
  // are lifted.
  const std::string_view linear = keys_[key].rules->layout.linear;
  int partial_input = -1;
  for (size_t i = 0; i < in.size(); ++i) {
    const Piece piece = pieces_[in[i]];
    const auto refused = [&](AxisMask axes, int32_t other = kNone) {
      taken->fault = TakeResult::Fault::partial;
      taken->axes = axes;
      taken->input = static_cast<int32_t>(i);
      taken->other = other;
      return false;
    };
    if (!letters.any && !letters.in_partial_of[i].empty()) {
      const CutId cut = held->of(letters.in_partial_of[i][0]).cut;
      const CutId set = cut == kNone ? CutId(CutTable::kWhole) : cuts.set_of(cut);
      const bool all = set == CutTable::kWhole;
      if (all ? piece.addends.empty() : piece.addends.size() == 1 && piece.addends[0].set == set) {
        continue;
      }
      const AxisMask axes = partial_axes(in[i]) ^ cuts.axes(set);
      const char letter = letters.in_partial_of[i][0];
      return refused(axes ? axes : cuts.axes(set), held->of(letter).input);
    }
    if (piece.addends.empty()) continue;
    bool may = !letters.any && i < linear.size() && linear[i] == '1' && partial_input < 0;
    for (const Addends& part : piece.addends) {
      const Space& space = spaces_[part.space];
      may = may && space.monoid == ops::Monoid::sum && space.needs < 0;
    }
    if (!may) return refused(partial_axes(in[i]), partial_input);
    partial_input = static_cast<int>(i);
    for (const Addends& part : piece.addends) {
      lifted->push_back(
          {intern_space({.key = key, .input = partial_input, .inner = part.space}), part.set});
    }
  }
  return true;
}

TakeResult Pieces::take(int32_t key, const ops::Letters& letters, std::span<const PieceId> in,
                        std::span<const TypeId> logical,
                        std::span<const graph::TensorType> local_out, const TypeTable& types,
                        const PieceOffsets& offsets, const graph::CoordBox& box) {
  // Every letter must have one cut in all inputs that have it, and be whole unless the op acts
  // index by index along it or contracts it. Where the op goes by position, the cut is one run that
  // begins where the task says. An output has the cuts of its letters, and is an unfinished
  // reduction over every cut letter that it lacks. One input may itself be an unfinished sum if the
  // op is linear in it; all outputs are then unfinished over the same addends. An input that the
  // notation calls a sum ("e/t", counts) has exactly the addends of the letter's cut. A positional
  // letter that no input has gives the output a run that begins where the task says. Of a symbol
  // only rules for every value hold, since begins and needed indices change from step to step.
  const OpKey& op = keys_[key];
  const ops::LayoutRule& rule = op.rules->layout;
  TakeResult taken;
  LetterCuts held;
  std::vector<Addends> lifted;
  if (!take_cuts(rule, letters, in, logical, types, &held, &taken) ||
      !take_positions(op, letters, logical, local_out, types, offsets, box, &held, &taken) ||
      !take_addends(key, letters, in, &held, &lifted, &taken)) {
    return taken;
  }
  for (size_t output = 0; output < letters.out.size(); ++output) {
    const std::string& has = letters.out[output];
    Piece piece{static_cast<uint8_t>(letters.dims_out[output]), {}, lifted};
    for (size_t dim = 0; dim < has.size(); ++dim) {
      const CutId cut = held.of(has[dim]).cut;
      piece.cut[dim] = cut == kNone ? CutId(CutTable::kWhole) : cut;
    }
    for (size_t number = 0; number < held.by_letter.size(); ++number) {
      const char letter = static_cast<char>(number);
      const LetterCut& known = held.of(letter);
      const CutId cut = known.cut;
      if (cut == kNone || has.find(letter) != std::string::npos) continue;
      Space space{.key = key, .letter = letter, .monoid = rule.monoid(letter)};
      // A symbol needs all indices, since its size is not known before the step, unless shares of
      // it need shares: then sizes are counted in parts that every value has.
      const ops::Support* support = rule.support_of(letter, static_cast<int>(output));
      const bool sized = !known.symbolic && !(support && held.of(support->by).symbolic);
      if (support && (sized || support->of_shares)) {
        space.needs = intern_support(support->of);
        space.by_dim = static_cast<int32_t>(has.find(support->by));
        space.size = known.size;
        space.by_size = held.of(support->by).size;
      }
      piece.addends.push_back({intern_space(space), cuts.set_of(cut)});
    }
    taken.out.push_back(intern(std::move(piece)));
  }
  return taken;
}

char Pieces::letter_of(SpaceId space) const {
  while (spaces_[space].letter == 0) {
    space = spaces_[space].inner;
  }
  return spaces_[space].letter;
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

bool Pieces::layout_text(const Piece& piece, const graph::Mesh& mesh, std::string* text) const {
  // Writes a layout like graph::to_string; the axes may be those of several roles.
  std::map<int32_t, std::string> placements;  // by axis
  std::map<int32_t, std::string> words;       // by place in the mesh
  std::vector<int32_t> axes;
  const auto place = [&](CutId cut, const std::string& placement) {
    if (!cuts.is_split(cut, &axes)) return false;
    std::vector<int32_t> places = axes;
    std::sort(places.begin(), places.end());
    for (size_t i = 0; i < axes.size(); ++i) {
      if (placements.emplace(axes[i], placement).first->second != placement) return false;
      words[places[i]] = fmt::format("{}:{}", mesh.axes[axes[i]].name, placement);
    }
    return true;
  };
  for (int dim = 0; dim < piece.dims; ++dim) {
    if (!place(piece.cut[dim], to_string(graph::Placement::split(dim)))) return false;
  }
  for (const Addends& part : piece.addends) {
    const graph::Monoid monoid = spaces_[part.space].monoid;
    if (!place(part.set, to_string(graph::Placement::partial(monoid)))) return false;
  }
  std::vector<std::string> in_order;
  for (const auto& [axis, word] : words) {
    in_order.push_back(word);
  }
  *text = in_order.empty() ? std::string("B") : hocket::join(in_order, " ");
  return true;
}

std::string Pieces::text(PieceId id, const graph::Mesh& mesh) const {
  if (id == kAnyPiece) return "any";
  const Piece& piece = pieces_[id];
  std::string text;
  if (layout_text(piece, mesh, &text)) return text;
  const auto add = [&](const std::string& what, CutId cut) {
    std::string over;
    for (AxisMask left = cuts.axes(cut); left; left &= left - 1) {
      over += (over.empty() ? " by " : ",") + mesh.axes[lowest(left)].name;
    }
    text += fmt::format("{}{} {}{}", text.empty() ? "" : ", ", what, cuts.text(cut), over);
  };
  for (int dim = 0; dim < piece.dims; ++dim) {
    if (!cuts.is_whole(piece.cut[dim])) {
      add(fmt::format("dim {}", dim), piece.cut[dim]);
    }
  }
  for (const Addends& part : piece.addends) {
    add("addends", part.set);
  }
  return text;
}

}  // namespace hocket::check
