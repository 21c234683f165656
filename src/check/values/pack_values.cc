// SPDX-License-Identifier: Apache-2.0
// Implements: ValueAlgebra (value_algebra.h), packs.
#include <algorithm>
#include <set>

#include "check/values/value_algebra.h"

namespace hocket::check {

using graph::Coords;
using graph::CutTable;
using graph::Run;

bool ValueAlgebra::is_pack(const Value& value) const {
  return value.expr > kZero && ref_.terms[value.expr].kind == Expr::Kind::pack;
}

AxisMask ValueAlgebra::axes_of(const Value& value) const {
  if (value.expr <= kZero) return 0;
  if (is_pack(value)) {
    const Pack& pack = packs[pack_of(value)];
    AxisMask axes = pack.axes;
    for (const Value& component : pack.components) {
      axes |= axes_of(component);
    }
    return axes;
  }
  AxisMask axes = 0;
  for (const Value& part : parts_of(value)) {
    if (part.piece == kAnyPiece) continue;
    axes |= pieces.cut_axes(part.piece) | pieces.partial_axes(part.piece);
  }
  return axes;
}

int64_t ValueAlgebra::row_width(const Value& component) {
  const Value part = parts_of(component)[0];
  const graph::TensorType& type = ctx_.types[ref_.terms[part.expr].type];
  int64_t width = 1;
  for (size_t dim = 1; dim < type.dims.size(); ++dim) {
    const int64_t size = pieces.cuts.local_size(pieces[part.piece].cut[dim], type.dims[dim]);
    if (size < 0) return -1;
    width *= size;
  }
  return width;
}

int64_t ValueAlgebra::elements_of(const Value& component) {
  const Value part = parts_of(component)[0];
  return ctx_.types[ref_.terms[part.expr].type].dims[0] * row_width(component);
}

PackId ValueAlgebra::flat(const Value& value, int64_t zeros) {
  // The component has all rows; the runs say which of its elements are here. That is impossible
  // if the addends that a piece needs depend on its rows.
  if (value.expr == kZero) {
    return packs.make({}, 0, [&](const Coords&) { return PackRow{{program::kNone, 0, zeros}}; });
  }
  if (value.expr < 0) return kNone;
  if (is_pack(value)) return pack_of(value);
  std::vector<Value> parts = parts_of(value);
  const TypeId logical = ref_.terms[parts[0].expr].type;
  if (logical < 0 || ctx_.types[logical].routed() || parts[0].piece == kAnyPiece) return kNone;
  if (ctx_.types[logical].symbolic() || ctx_.types[logical].granule() != 1) return kNone;
  const int64_t size = ctx_.types[logical].dims[0];
  const CutId rows = pieces[parts[0].piece].cut[0];
  for (Value& part : parts) {
    if (local_index(part.expr) || is_coded(part) || pieces.has_support(part.piece, 0)) {
      return kNone;
    }
    Piece piece = pieces[part.piece];
    piece.cut[0] = CutTable::kWhole;
    part.piece = pieces.intern(std::move(piece));
  }
  const std::optional<Value> component = sum_of(parts);
  if (!component || size % pieces.cuts[rows].cells != 0) return kNone;
  const int64_t width = row_width(*component);
  if (width < 0) return kNone;
  const auto row = [&](const Coords& coords) {
    PackRow runs;
    for (const Run& run : pieces.cuts.part_at(rows, coords, size, 0, -1)) {
      runs.push_back({0, run.begin * width, run.length * width});
    }
    return runs;
  };
  return packs.make({Packs::Op::flat, {rows.value(), size, width}}, {&*component, 1},
                    pieces.cuts.axes(rows), row);
}

/// Returns the runs of a pack of one component as a cut of `size` rows, each of `width` elements.
/// kNone: a run begins or ends inside a row, or something is there twice.
CutId ValueAlgebra::rows_of(PackId id, int64_t width, int64_t size) {
  const auto [known, fresh] =
      row_cuts_.try_emplace({packs[id].shape.value(), width, size}, program::kNone);
  if (!fresh) return known->second;
  std::vector<std::vector<Run>> rows;
  for (const PackRow& row : packs.rows(id)) {
    std::vector<Run>& runs = rows.emplace_back();
    for (const PackRun& run : row) {
      if (run.component == program::kNone) return program::kNone;
      if (run.begin % width != 0 || run.length % width != 0) return program::kNone;
      runs.push_back({run.begin / width, run.length / width});
    }
  }
  if (!graph::holds_twice(rows)) {
    known->second = pieces.cuts.make(size, packs[id].axes, rows);
  }
  return known->second;
}

Value ValueAlgebra::unflat(PackId id, size_t dims) {
  // Runs of whole rows of one tensor are a cut of it.
  const Pack pack = packs[id];
  if (pack.components.empty()) return {kZero, kAnyPiece};
  const Value neither = dims == 1 ? pack_value(id) : Value{kUnwritten, kAnyPiece};
  std::vector<Value> parts = parts_of(pack.components[0]);
  if (pack.components.size() > 1 || pieces[parts[0].piece].dims != dims) return neither;
  const int64_t size = ctx_.types[ref_.terms[parts[0].expr].type].dims[0];
  const CutId cut = rows_of(id, row_width(pack.components[0]), size);
  if (cut == program::kNone) return neither;
  for (Value& part : parts) {
    Piece piece = pieces[part.piece];
    piece.cut[0] = cut;
    part.piece = pieces.intern(std::move(piece));
  }
  const std::optional<Value> value = sum_of(parts);
  return value ? *value : neither;
}

/// Returns the pairs of components that lie in the same places of two packs, in order. Returns
/// nothing if the packs differ in length, or if a component meets itself at other elements.
const std::optional<std::vector<ValueAlgebra::Pair>>& ValueAlgebra::pairs_of(PackId left,
                                                                             PackId right) {
  const auto [known, fresh] =
      pairs_.try_emplace({packs[left].shape.value(), packs[right].shape.value()});
  if (!fresh) return known->second;
  std::vector<Pair> pairs;
  std::set<Pair> seen;
  bool fits = true;
  const std::array<PackId, 2> ids{left, right};
  const bool alike =
      packs.for_each_aligned(ids, [&](const Coords&, const Packs::AlignedRuns& meeting) {
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

std::optional<Value> ValueAlgebra::add_packs(const Value& left, const Value& right) {
  // Adds component by component: parts of one reduction unite, terms make a sum, zeros add nothing.
  const std::array<PackId, 2> ids{flat(left, 0), flat(right, 0)};
  if (ids[0] == kNone || ids[1] == kNone) return std::nullopt;
  const std::optional<std::vector<Pair>>& pairs = pairs_of(ids[0], ids[1]);
  if (!pairs) return std::nullopt;
  const auto value_of = [&](PackId id, int32_t component) {
    return component == program::kNone ? Value{kZero, kAnyPiece} : packs[id].components[component];
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
      packs.for_each_aligned(ids, [&](const Coords& at, const Packs::AlignedRuns& meeting) {
        const PackRun& one = meeting.runs[0];
        const PackRun& other = meeting.runs[1];
        rows[at].push_back({place.at({one.component, other.component}),
                            std::max(one.begin, other.begin), one.length});
      });
    }
    return rows[coords];
  };
  const Packs::Key key{Packs::Op::summed,
                       {packs[ids[0]].shape.value(), packs[ids[1]].shape.value()}};
  return unflat(packs.make(key, sums, packs.axes(ids), row), 1);
}

std::optional<Value> ValueAlgebra::pack_from_peer(const Value& value, const graph::Shift& shift) {
  std::vector<Value> components = packs[pack_of(value)].components;
  for (Value& component : components) {
    std::vector<Value> parts = parts_of(component);
    for (Value& part : parts) {
      part.piece = pieces.from_peer(part.piece, shift);
    }
    const std::optional<Value> sum = sum_of(parts);
    if (!sum) return std::nullopt;
    component = *sum;
    component.marks = codec_marks.from_peer(component.marks, shift);
  }
  return unflat(packs.moved(pack_of(value), components, shift), 1);
}

}  // namespace hocket::check
