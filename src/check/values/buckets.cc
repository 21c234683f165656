// SPDX-License-Identifier: Apache-2.0
// Flat buffers of several tensors. A value in one is a pack (packs.h) whose components are values,
// maybe unfinished sums: all that is done to it is done to its components, and to the runs that say
// which of their elements lie where.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/error.h"
#include "check/values/values.h"
#include "program/contract.h"

namespace hocket::check {

using graph::Coords;
using graph::CutTable;
using graph::Run;

bool Values::is_pack(const Value& value) const {
  return value.expr > kZero && ref_.terms[value.expr].kind == Expr::Kind::pack;
}

AxisMask Values::axes_of(const Value& value) const {
  if (value.expr <= kZero) return 0;
  if (is_pack(value)) {
    const Pack& pack = packs_[pack_of(value)];
    AxisMask axes = pack.axes;
    for (const Value& component : pack.components) {
      axes |= axes_of(component);
    }
    return axes;
  }
  AxisMask axes = 0;
  for (const Value& part : parts_of(value)) {
    if (part.piece == kAnyPiece) continue;
    axes |= pieces_.cut_axes(part.piece) | pieces_.partial_axes(part.piece);
  }
  return axes;
}

int64_t Values::row_width(const Value& component) {
  const Value part = parts_of(component)[0];
  const graph::TensorType& type = ctx_.types[ref_.terms[part.expr].type];
  int64_t width = 1;
  for (size_t dim = 1; dim < type.dims.size(); ++dim) {
    const int64_t size = pieces_.cuts.local_size(pieces_[part.piece].cut[dim], type.dims[dim]);
    if (size < 0) return -1;
    width *= size;
  }
  return width;
}

int64_t Values::elements_of(const Value& component) {
  const Value part = parts_of(component)[0];
  return ctx_.types[ref_.terms[part.expr].type].dims[0] * row_width(component);
}

PackId Values::flat(const Value& value, int64_t zeros) {
  // A component has all rows; which of them are here the runs say, as elements. Where which addends
  // a piece needs depends on its rows they can't be taken apart so.
  if (value.expr == kZero) {
    return packs_.make({}, 0, [&](const Coords&) { return PackRow{{program::kNone, 0, zeros}}; });
  }
  if (value.expr < 0) return kNone;
  if (is_pack(value)) return pack_of(value);
  std::vector<Value> parts = parts_of(value);
  const TypeId logical = ref_.terms[parts[0].expr].type;
  if (logical < 0 || ctx_.types[logical].routed() || parts[0].piece == kAnyPiece) return kNone;
  if (ctx_.types[logical].symbolic() || ctx_.types[logical].granule() != 1) return kNone;
  const int64_t size = ctx_.types[logical].dims[0];
  const CutId rows = pieces_[parts[0].piece].cut[0];
  for (Value& part : parts) {
    if (local_index(part.expr) || is_coded(part) || pieces_.has_support(part.piece, 0)) {
      return kNone;
    }
    Piece piece = pieces_[part.piece];
    piece.cut[0] = CutTable::kWhole;
    part.piece = pieces_.intern(std::move(piece));
  }
  const std::optional<Value> component = sum_of(parts);
  if (!component || size % pieces_.cuts[rows].cells != 0) return kNone;
  const int64_t width = row_width(*component);
  if (width < 0) return kNone;
  const auto row = [&](const Coords& coords) {
    PackRow runs;
    for (const Run& run : pieces_.cuts.part_at(rows, coords, size, 0, -1)) {
      runs.push_back({0, run.begin * width, run.length * width});
    }
    return runs;
  };
  return packs_.make({Packs::Op::flat, {rows.value(), size, width}}, {&*component, 1},
                     pieces_.cuts.axes(rows), row);
}

/// The runs of a pack of one component, if they begin and end with rows of so many elements, as a
/// cut of `size` rows; kNone: they do not, or hold something twice.
CutId Values::rows_of(PackId id, int64_t width, int64_t size) {
  const auto [known, fresh] =
      row_cuts_.try_emplace({packs_[id].shape.value(), width, size}, program::kNone);
  if (!fresh) return known->second;
  std::vector<std::vector<Run>> rows;
  for (const PackRow& row : packs_.rows(id)) {
    std::vector<Run>& runs = rows.emplace_back();
    for (const PackRun& run : row) {
      if (run.component == program::kNone) return program::kNone;
      if (run.begin % width != 0 || run.length % width != 0) return program::kNone;
      runs.push_back({run.begin / width, run.length / width});
    }
  }
  if (!graph::holds_twice(rows)) {
    known->second = pieces_.cuts.make(size, packs_[id].axes, rows);
  }
  return known->second;
}

Value Values::unflat(PackId id, size_t dims) {
  // The runs, if they are all of one tensor and begin and end with its rows, are its cut.
  const Pack pack = packs_[id];
  if (pack.components.empty()) return {kZero, kAnyPiece};
  const Value neither = dims == 1 ? pack_value(id) : Value{kUnwritten, kAnyPiece};
  std::vector<Value> parts = parts_of(pack.components[0]);
  if (pack.components.size() > 1 || pieces_[parts[0].piece].dims != dims) return neither;
  const int64_t size = ctx_.types[ref_.terms[parts[0].expr].type].dims[0];
  const CutId cut = rows_of(id, row_width(pack.components[0]), size);
  if (cut == program::kNone) return neither;
  for (Value& part : parts) {
    Piece piece = pieces_[part.piece];
    piece.cut[0] = cut;
    part.piece = pieces_.intern(std::move(piece));
  }
  const std::optional<Value> value = sum_of(parts);
  return value ? *value : neither;
}

const char* Values::bad_slots(ClassId cls, const program::Buffer& buffer) {
  // Slot by slot: that its tensor can lie among others, that its layout divides it, and that what a
  // rank has of it fits between the slot before it and the end of the bucket.
  const int32_t first = ctx_.axis_of(cls, 0);
  const graph::Mesh& mesh = ctx_.program.mesh_of(cls);
  const int64_t bucket = program::elements_of(buffer, mesh);
  if (const std::vector<int64_t>& given = buffer.layout.sizes_of(0); !given.empty()) {
    for (int32_t rank : ctx_.program.ranks_of(cls)) {
      const graph::BlockNumber mine =
          graph::block_number(buffer.layout, 0, mesh, ctx_.program.coords(rank));
      const bool known = std::cmp_equal(given.size(), mine.blocks);
      if (!known || given[static_cast<size_t>(mine.number)] != buffer.type.numel()) {
        return "has another size than its layout gives";
      }
    }
  }
  int64_t end = 0;
  for (const program::Slot& slot : buffer.slots) {
    const int32_t tensor = ref_.find(slot.tensor);
    const graph::TensorType& type = ref_.graph().tensor(tensor).type;
    if (type.symbolic() || type.granule() != 1) return "holds a tensor that can't be cut anywhere";
    if (type.dtype != buffer.type.dtype || type.routed()) {
      return "holds a tensor of another element type";
    }
    if (!graph::why_invalid(slot.layout, type, mesh).empty()) {
      return "holds a tensor that has no such dims, or not of such sizes";
    }
    const TypeId local =
        pieces_.local_type(pieces_.of(slot.layout, type, first), ref_.type_of[tensor], ctx_.types);
    if (local < 0) return "holds a tensor whose layout does not divide it";
    if (slot.begin < end) return "has a slot that begins before the one in front of it ends";
    end = slot.begin + ctx_.types[local].numel();
  }
  return end > bucket ? "is too small for its slots" : nullptr;
}

Value Values::contents(ClassId cls, const program::Buffer& buffer, std::span<const ExprId> terms) {
  // One after the other what every rank has of the tensors, with zeros between them; of that, each
  // rank's block.
  std::vector<Value> components;
  std::vector<PackId> packs;
  AxisMask axes = 0;
  const int32_t first = ctx_.axis_of(cls, 0);
  for (size_t i = 0; i < terms.size(); ++i) {
    const graph::TensorType& type = ctx_.types[ref_.terms[terms[i]].type];
    packs.push_back(flat({terms[i], pieces_.of(buffer.slots[i].layout, type, first)}, 0));
    HOCKET_CHECK(packs[i] != kNone, "the slot of {} has no order", buffer.slots[i].tensor);
    HOCKET_CHECK(packs_[packs[i]].components.size() == 1, "a slot is one tensor");
    components.push_back(packs_[packs[i]].components[0]);
    axes |= packs_[packs[i]].axes;
  }
  const graph::Mesh& mesh = ctx_.program.mesh_of(cls);
  const int64_t bucket = program::elements_of(buffer, mesh);
  const PackId all = packs_.make(components, axes, [&](const Coords& coords) {
    PackRow row;
    int64_t at = 0;
    for (size_t i = 0; i < packs.size(); ++i) {
      row.push_back({program::kNone, 0, buffer.slots[i].begin - at});
      at = buffer.slots[i].begin;
      for (const PackRun& run : packs_.at(packs[i], coords)) {
        row.push_back({static_cast<int32_t>(i), run.begin, run.length});
        at += run.length;
      }
    }
    row.push_back({program::kNone, 0, bucket - at});
    return row;
  });
  AxisMask split = 0;
  for (int32_t axis : buffer.layout.axes_of(0)) {
    split |= graph::axis_bit(first + axis);
  }
  const PackId mine = packs_.restrict_to(all, split, [&](const Coords& coords) {
    const std::vector<int32_t> here(coords.begin() + first,
                                    coords.begin() + first + std::ssize(mesh.axes));
    const graph::BlockNumber block = graph::block_number(buffer.layout, 0, mesh, here);
    return buffer.layout.block(0, bucket, block.blocks, block.number);
  });
  return unflat(mine, 1);
}

/// Components that meet in two packs, in the order in which they do; nothing if the packs differ in
/// length, or elements of a component meet others than themselves.
const std::optional<std::vector<Values::Pair>>& Values::pairs_of(PackId left, PackId right) {
  const auto [known, fresh] =
      pairs_.try_emplace({packs_[left].shape.value(), packs_[right].shape.value()});
  if (!fresh) return known->second;
  std::vector<Pair> pairs;
  std::set<Pair> seen;
  bool fits = true;
  const std::array<PackId, 2> ids{left, right};
  const bool alike = packs_.side_by_side(ids, [&](const Coords&, const Packs::Meeting& meeting) {
    const PackRun& one = meeting.runs[0];
    const PackRun& other = meeting.runs[1];
    const bool both = one.component != program::kNone && other.component != program::kNone;
    fits = fits && (!both || one.begin == other.begin);
    if (seen.insert({one.component, other.component}).second) {
      pairs.push_back({one.component, other.component});
    }
  });
  if (alike && fits) {
    known->second = std::move(pairs);
  }
  return known->second;
}

std::optional<Value> Values::add_packs(const Value& left, const Value& right) {
  // What lies in the same places is added as it is outside of buckets: parts of one reduction
  // unite, terms make a sum. Zeros add nothing.
  const std::array<PackId, 2> ids{flat(left, 0), flat(right, 0)};
  if (ids[0] == kNone || ids[1] == kNone) return std::nullopt;
  const std::optional<std::vector<Pair>>& pairs = pairs_of(ids[0], ids[1]);
  if (!pairs) return std::nullopt;
  const auto value_of = [&](PackId id, int32_t component) {
    return component == program::kNone ? Value{kZero, kAnyPiece} : packs_[id].components[component];
  };
  std::vector<Value> sums;
  std::map<Pair, int32_t> place;
  for (const auto& [one, other] : *pairs) {
    place[{one, other}] = static_cast<int32_t>(sums.size());
    const std::optional<Value> sum = add(value_of(ids[0], one), value_of(ids[1], other));
    if (!sum) return std::nullopt;
    sums.push_back(*sum);
  }
  std::map<Coords, PackRow> rows;
  const auto row = [&](const Coords& coords) {
    if (rows.empty()) {
      packs_.side_by_side(ids, [&](const Coords& at, const Packs::Meeting& meeting) {
        const PackRun& one = meeting.runs[0];
        const PackRun& other = meeting.runs[1];
        rows[at].push_back({place.at({one.component, other.component}),
                            std::max(one.begin, other.begin), one.length});
      });
    }
    return rows[coords];
  };
  const Packs::Question question{Packs::Op::summed,
                                 {packs_[ids[0]].shape.value(), packs_[ids[1]].shape.value()}};
  return unflat(packs_.make(question, sums, packs_.axes(ids), row), 1);
}

bool Values::move_pack(TaskRef ref, const KindInfo& info, AxisMask over,
                       const comm::Movement& movement, size_t operand, Value* value) {
  // Where parts are added up, ranks must hold the same elements, and each component is moved as it
  // is in a buffer of its own. Where they are put side by side, components are the same on all
  // ranks, and their elements are moved.
  if (over == 0) return true;
  const PackId before = pack_of(*value);
  const comm::Move& move = movement.move;
  const bool slot = move.placed == comm::Move::Placed::slot;
  const bool block = move.part == comm::Move::Part::block;
  std::vector<Value> components = packs_[before].components;
  const auto refused = [&](Moved::Fault fault, AxisMask axes) {
    Moved moved;
    moved.fault = fault;
    moved.axis = axes ? std::countr_zero(axes) : -1;
    refuse_move(ref, info, ctx_.task(ref).in[operand], *value, moved);
    return false;
  };
  if (info.comm->needs_sizes || info.comm->makes_sizes) {
    return refused(Moved::Fault::differs, over);
  }
  if (slot) {
    if (const AxisMask lacking = over & ~packs_[before].axes) {
      return refused(Moved::Fault::not_split, lacking);
    }
    for (const Value& component : components) {
      if (const AxisMask axes = axes_of(component) & over) {
        return refused(Moved::Fault::differs, axes);
      }
    }
    for (Value& component : components) {
      component.marks = over_all(component.marks, over);
    }
    *value = unflat(packs_.with(packs_.gather(before, over, block), components), 1);
    return true;
  }
  if (const AxisMask axes = packs_[before].axes & over) {
    return refused(Moved::Fault::split, axes);
  }
  comm::Movement whole = movement;
  whole.move.part = comm::Move::Part::whole;
  for (Value& component : components) {
    if (!move_parts(ref, info, over, whole, operand, kNone, &component)) return false;
  }
  const PackId moved = packs_.with(before, components);
  *value = unflat(block ? packs_.block(moved, over) : moved, 1);
  return true;
}

std::optional<Value> Values::pack_from_peer(const Value& value, const graph::Shift& shift) {
  std::vector<Value> components = packs_[pack_of(value)].components;
  for (Value& component : components) {
    std::vector<Value> parts = parts_of(component);
    for (Value& part : parts) {
      part.piece = pieces_.from_peer(part.piece, shift);
    }
    const std::optional<Value> sum = sum_of(parts);
    if (!sum) return std::nullopt;
    component = *sum;
    component.marks = from_peer(component.marks, shift);
  }
  return unflat(packs_.moved(pack_of(value), components, shift), 1);
}

std::string Values::pack_text(PackId id) const {
  // Coordinate by coordinate, the first few of each: "[0:5) of 'a' | [5:8) of 'a', 2 zeros by dp".
  const Pack& pack = packs_[id];
  const std::vector<PackRow>& rows = packs_.rows(id);
  std::string text;
  size_t shown = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (i == 4) {
      text += " | ..";
      break;
    }
    text += i ? " | " : "";
    for (size_t k = 0; k < rows[i].size(); ++k) {
      const PackRun& run = rows[i][k];
      if (++shown > 16) continue;
      text += k ? ", " : "";
      text += run.component == program::kNone
                  ? fmt::format("{} zeros", run.length)
                  : fmt::format("[{}:{}) of {}", run.begin, run.begin + run.length,
                                describe(pack.components[run.component].expr));
    }
  }
  std::string over;
  for (size_t axis = 0; axis < ctx_.mesh.axes.size(); ++axis) {
    if (pack.axes & graph::axis_bit(static_cast<int32_t>(axis))) {
      over += (over.empty() ? "" : ",") + ctx_.mesh.axes[axis].name;
    }
  }
  return text + (over.empty() ? "" : " by " + over);
}

}  // namespace hocket::check
