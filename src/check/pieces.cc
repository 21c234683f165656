// SPDX-License-Identifier: Apache-2.0
#include "check/pieces.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <numeric>

#include "base/error.h"

namespace hocket::check {

namespace {

using graph::axis_bit;
using graph::Coords;
using graph::CutTable;
using graph::kMaxAxes;

constexpr int32_t lowest(AxisMask axes) { return axes ? std::countr_zero(axes) : -1; }

}  // namespace

Pieces::Pieces(const Coords& extents, const OpKeys& keys) : cuts(extents), keys_(keys) {}

PieceId Pieces::intern(Piece piece) {
  std::erase_if(piece.addends, [](const Addends& part) { return part.set == CutTable::kWhole; });
  std::sort(piece.addends.begin(), piece.addends.end());
  const auto [known, fresh] = index_.try_emplace(piece, pieces_.size());
  if (fresh) {
    pieces_.push_back(std::move(piece));
  }
  return known->second;
}

SpaceId Pieces::intern_space(const Space& space) {
  const auto [known, fresh] = space_index_.try_emplace(space, spaces_.size());
  if (fresh) {
    spaces_.push_back(space);
  }
  return known->second;
}

PieceId Pieces::of(const graph::Layout& layout, size_t dims) {
  Piece piece{static_cast<uint8_t>(dims), {}, {}};
  for (size_t dim = 0; dim < dims; ++dim) {
    std::vector<int32_t> axes;
    for (int32_t axis = 0; axis < kMaxAxes; ++axis) {
      if (layout[axis] == graph::Placement::split(static_cast<int>(dim)) &&
          cuts.extents()[axis] > 1) {
        axes.push_back(axis);
      }
    }
    piece.cut[dim] = cuts.split(axes);
  }
  return intern(std::move(piece));
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

TypeId Pieces::local_type(PieceId id, TypeId logical, TypeTable& types) {
  const auto [known, fresh] = local_types_.try_emplace({id, logical}, kNone);
  if (!fresh) return known->second;
  graph::TensorType type = types[logical];
  if (type.dims.size() != pieces_[id].dims) return kNone;
  for (size_t dim = 0; dim < type.dims.size(); ++dim) {
    const CutId cut = pieces_[id].cut[dim];
    graph::Dim& size = type.dims[dim];
    if (!size.symbolic()) {
      size = cuts.local_size(cut, size);
      if (size < 0) return kNone;
      continue;
    }
    // Whatever its value: equal cells, and of these one of so many equal parts.
    const int64_t cells = cuts[cut].cells;
    const int64_t held = cuts.local_size(cut, cells);
    if (held <= 0 || cells % held != 0 || !size.divides_into(cells)) return kNone;
    size /= cells / held;
  }
  known->second = types.intern(type);
  return known->second;
}

Moved Pieces::move(PieceId id, AxisMask over, const comm::Move& move, int part_dim, int slot_dim) {
  const auto [known, fresh] = moves_.try_emplace(
      {id, over, static_cast<int>(move.part), static_cast<int>(move.placed), part_dim, slot_dim});
  if (fresh) {
    known->second = move_parts(Piece(pieces_[id]), over, move, part_dim, slot_dim);
  }
  return known->second;
}

Moved Pieces::move_parts(const Piece& piece, AxisMask over, const comm::Move& move, int part_dim,
                         int slot_dim) {
  // First all parts are put together, then each rank takes its block of that, if it takes one. What
  // is put together must be alike on all ranks but for what tells the parts apart: the cut of the
  // dim along which they are placed side by side, or the sets of addends.
  Moved moved;
  Piece result = piece;
  const auto refused = [&](Moved::Fault fault, AxisMask axes) {
    moved.fault = fault;
    moved.axis = lowest(axes);
    return moved;
  };
  const bool slot = move.placed == comm::Move::Placed::slot;
  const bool sum = move.placed == comm::Move::Placed::sum;
  if (slot) {
    const CutId cut = piece.cut[slot_dim];
    if (const AxisMask lacking = over & ~cuts.axes(cut)) {
      return refused(Moved::Fault::not_split, lacking);
    }
    result.cut[slot_dim] = over ? cuts.gather(cut, over) : cut;
    if (result.cut[slot_dim] == kNone) return refused(Moved::Fault::not_split, over);
    for (const Addends& part : piece.addends) {
      if (const AxisMask axes = cuts.axes(part.set) & over) {
        return refused(Moved::Fault::differs, axes);
      }
    }
  }
  for (int dim = 0; dim < piece.dims; ++dim) {
    const AxisMask axes = cuts.axes(piece.cut[dim]) & over;
    if (axes && !(slot && dim == slot_dim)) {
      return refused(sum ? Moved::Fault::split : Moved::Fault::differs, axes);
    }
  }
  if (sum && over && !sum_over(&result, over, &moved)) return moved;
  if (move.part == comm::Move::Part::block && over) {
    result.cut[part_dim] = cuts.block(result.cut[part_dim], over);
  }
  moved.piece = intern(std::move(result));
  return moved;
}

/// Unites the addends of all ranks along `over`; false, and `moved` says why, if they do not add
/// up.
bool Pieces::sum_over(Piece* piece, AxisMask over, Moved* moved) {
  AxisMask lacking = over;
  std::vector<Addends> parts;
  for (Addends& part : piece->addends) {
    if (!(cuts.axes(part.set) & over)) continue;
    lacking &= ~cuts.axes(part.set);
    parts.push_back(part);
    part.set = cuts.unite_over(part.set, over);
  }
  moved->axis = lowest(lacking ? lacking : over);
  if (lacking) {
    moved->fault = Moved::Fault::not_partial;
  } else if (!fills_hull(parts, over)) {
    moved->fault = Moved::Fault::overlap;
  }
  return moved->fault == Moved::Fault::none;
}

/// True if the boxes of addends that the ranks along `over` hold are disjoint and fill the box of
/// what they hold together: then their sum has each addend of that box once.
bool Pieces::fills_hull(const std::vector<Addends>& parts, AxisMask over) {
  // A rank holds a box: a set per reduction. Boxes fill their hull if their volumes add up to its
  // volume and no two overlap. With one reduction the hull is the union: the volumes say it all.
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

PieceId Pieces::from_peer(PieceId id, int32_t axis, int32_t offset) {
  const auto [known, fresh] = from_peers_.try_emplace({id, axis, offset}, kNone);
  if (fresh) {
    Piece piece = pieces_[id];
    for (CutId& cut : piece.cut) {
      cut = cuts.moved(cut, axis, offset);
    }
    for (Addends& part : piece.addends) {
      part.set = cuts.moved(part.set, axis, offset);
    }
    known->second = intern(std::move(piece));
  }
  return known->second;
}

PieceId Pieces::unite(PieceId left, PieceId right) {
  const Piece& one = pieces_[left];
  const Piece& other = pieces_[right];
  if (one.cut != other.cut || one.addends.size() != other.addends.size()) return kNone;
  int differing = -1;
  for (size_t i = 0; i < one.addends.size(); ++i) {
    if (one.addends[i].space != other.addends[i].space) return kNone;
    if (one.addends[i].set == other.addends[i].set) continue;
    if (differing >= 0) return kNone;
    differing = static_cast<int>(i);
  }
  if (differing < 0) return kNone;
  const CutId mine = one.addends[differing].set;
  const CutId theirs = other.addends[differing].set;
  if (!cuts.disjoint(mine, theirs)) return kNone;
  Piece united = one;
  united.addends[differing].set = cuts.unite(mine, theirs);
  return intern(std::move(united));
}

Taken Pieces::take(int32_t key, const ops::Letters& letters, std::span<const PieceId> in,
                   std::span<const TypeId> logical, const TypeTable& types) {
  // Every letter must have one cut in all inputs that have it, and be whole unless the op acts
  // index by index along it or contracts it. An output has the cuts of its letters, and is an
  // unfinished sum over every cut letter that it lacks. One input may itself be an unfinished sum,
  // if the op is linear in it: then all outputs are, over the same addends. An input that is a sum
  // over a letter ("e/t", counts) has exactly the addends that the cut of the letter says.
  const OpKey& op = keys_[key];
  Taken taken;
  const auto refused = [&](Taken::Fault fault, AxisMask axes) {
    taken.fault = fault;
    taken.axes = axes;
    return taken;
  };
  std::array<CutId, 256> cut_of;
  cut_of.fill(kNone);
  for (size_t i = 0; i < in.size(); ++i) {
    const Piece& piece = pieces_[in[i]];
    for (size_t dim = 0; dim < piece.dims; ++dim) {
      const CutId cut = piece.cut[dim];
      const char letter = letters.any ? 0 : letters.in[i].empty() ? 0 : letters.in[i][dim];
      if (letter == 0) {
        if (cut != CutTable::kWhole) return refused(Taken::Fault::cut, cuts.axes(cut));
        continue;
      }
      CutId& known = cut_of[static_cast<unsigned char>(letter)];
      if (known != kNone && known != cut) {
        const AxisMask axes = cuts.axes(known) ^ cuts.axes(cut);
        return refused(Taken::Fault::cut, axes ? axes : cuts.axes(cut));
      }
      known = cut;
      if (cut == CutTable::kWhole) continue;
      const ops::LayoutRule& rule = op.rules->layout;
      if (std::string_view(rule.split).find(letter) == std::string_view::npos) {
        return refused(Taken::Fault::cut, cuts.axes(cut));
      }
      if (letter != rule.runs.letter) continue;
      // Of a symbol, what every value is a multiple of.
      const graph::Dim& whole = types[logical[i]].dims[dim];
      const int64_t size = whole.symbolic() ? whole.multiple() : int64_t{whole};
      const int64_t run = op.attrs.i_or(rule.runs.length, 0);
      if (run > 0 && cuts.holds_whole_runs(cut, size, run)) continue;
      const int64_t part = cuts.local_size(cut, size);
      taken.text =
          run <= 0 ? fmt::format("its {} elements are a part of one run", part)
                   : fmt::format("its {} are no multiple of {}={}", part, rule.runs.length, run);
      return refused(Taken::Fault::runs, cuts.axes(cut));
    }
  }
  std::vector<Addends> lifted;
  int partial_input = -1;
  for (size_t i = 0; i < in.size(); ++i) {
    const Piece& piece = pieces_[in[i]];
    if (!letters.any && !letters.in_partial_of[i].empty()) {
      const CutId cut = cut_of[static_cast<unsigned char>(letters.in_partial_of[i][0])];
      const CutId set = cut == kNone ? CutId(CutTable::kWhole) : cuts.set_of(cut);
      const bool all = set == CutTable::kWhole;
      if (all ? piece.addends.empty() : piece.addends.size() == 1 && piece.addends[0].set == set) {
        continue;
      }
      AxisMask axes = partial_axes(in[i]) ^ cuts.axes(set);
      return refused(Taken::Fault::partial, axes ? axes : cuts.axes(set));
    }
    if (piece.addends.empty()) continue;
    const std::string_view linear = op.rules->layout.linear;
    const bool may = !letters.any && i < linear.size() && linear[i] == '1' && partial_input < 0;
    if (!may) return refused(Taken::Fault::partial, partial_axes(in[i]));
    partial_input = static_cast<int>(i);
    for (const Addends& part : piece.addends) {
      lifted.push_back({intern_space({key, 0, partial_input, part.space}), part.set});
    }
  }
  for (size_t output = 0; output < letters.out.size(); ++output) {
    const std::string& has = letters.out[output];
    Piece piece{static_cast<uint8_t>(letters.dims_out[output]), {}, lifted};
    for (size_t dim = 0; dim < has.size(); ++dim) {
      const CutId cut = cut_of[static_cast<unsigned char>(has[dim])];
      piece.cut[dim] = cut == kNone ? CutId(CutTable::kWhole) : cut;
    }
    for (size_t letter = 0; letter < cut_of.size(); ++letter) {
      const CutId cut = cut_of[letter];
      if (cut == kNone || has.find(static_cast<char>(letter)) != std::string::npos) continue;
      piece.addends.push_back(
          {intern_space({key, static_cast<char>(letter), -1, kNone}), cuts.set_of(cut)});
    }
    taken.out.push_back(intern(std::move(piece)));
  }
  return taken;
}

bool Pieces::layout_text(const Piece& piece, const graph::Mesh& mesh, std::string* text) const {
  graph::Layout layout;
  std::vector<int32_t> axes;
  const auto place = [&](CutId cut, graph::Placement placement) {
    if (!cuts.is_split(cut, &axes) || !std::is_sorted(axes.begin(), axes.end())) return false;
    for (int32_t axis : axes) {
      if (!layout[axis].is_replicate() && layout[axis] != placement) return false;
      layout[axis] = placement;
    }
    return true;
  };
  for (int dim = 0; dim < piece.dims; ++dim) {
    if (!place(piece.cut[dim], graph::Placement::split(dim))) return false;
  }
  for (const Addends& part : piece.addends) {
    if (!place(part.set, graph::Placement::partial())) return false;
  }
  *text = graph::to_string(layout, mesh);
  return true;
}

std::string Pieces::text(PieceId id, const graph::Mesh& mesh) const {
  if (id == kAnyPiece) return "any";
  const Piece& piece = pieces_[id];
  std::string text;
  if (layout_text(piece, mesh, &text)) return text;
  const auto add = [&](const std::string& what, CutId cut) {
    std::string over;
    for (int32_t axis = 0; axis < kMaxAxes; ++axis) {
      if (cuts.axes(cut) & axis_bit(axis)) {
        over += (over.empty() ? " by " : ",") + mesh.axes[axis].name;
      }
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
