// SPDX-License-Identifier: Apache-2.0
#include "check/values/packs.h"

#include <algorithm>
#include <bit>

#include "base/hash.h"

namespace hocket::check {

namespace {

using graph::axis_bit;
using graph::Coords;
using graph::kMaxCutAxes;

int64_t total(const PackRow& row) {
  int64_t length = 0;
  for (const PackRun& run : row) {
    length += run.length;
  }
  return length;
}

/// Appends a run, merged with the last one if it continues that.
void append(PackRow* row, const PackRun& run) {
  if (run.length == 0) return;
  if (!row->empty()) {
    PackRun& last = row->back();
    const bool zeros = run.component == kNone;
    if (last.component == run.component && (zeros || last.begin + last.length == run.begin)) {
      last.length += run.length;
      return;
    }
  }
  row->push_back(run);
}

/// Appends how components compare, unless they are distinct and ascending, as those of a pack are.
/// A normal form depends on nothing else of its components.
void append_order(std::span<const Value> components, std::vector<int64_t>* order) {
  const auto in_order = [](const Value& left, const Value& right) { return left < right; };
  const bool zeros = std::any_of(components.begin(), components.end(),
                                 [](const Value& value) { return value.expr == kZero; });
  const auto break_at = std::adjacent_find(
      components.begin(), components.end(),
      [&](const Value& left, const Value& right) { return !in_order(left, right); });
  if (!zeros && break_at == components.end()) return;
  std::vector<Value> sorted(components.begin(), components.end());
  std::sort(sorted.begin(), sorted.end());
  sorted.erase(std::unique(sorted.begin(), sorted.end()), sorted.end());
  for (const Value& value : components) {
    const auto place = std::lower_bound(sorted.begin(), sorted.end(), value);
    order->push_back(value.expr == kZero ? kNone : place - sorted.begin());
  }
}

}  // namespace

PackRow slice(const PackRow& row, int64_t begin, int64_t length) {
  PackRow part;
  int64_t at = 0;
  for (const PackRun& run : row) {
    const int64_t from = std::max(begin, at);
    const int64_t to = std::min(begin + length, at + run.length);
    if (from < to) {
      const int64_t first = run.component == kNone ? 0 : run.begin + from - at;
      append(&part, {run.component, first, to - from});
    }
    at += run.length;
  }
  return part;
}

int64_t Packs::number(AxisMask over, const Coords& coords) const {
  int64_t number = 0;
  for (AxisMask left = over; left; left &= left - 1) {
    const int axis = std::countr_zero(left);
    number = number * cuts_.extents()[axis] + coords[axis];
  }
  return number;
}

const PackRow& Packs::at(PackId id, const Coords& coords) const {
  return rows(id)[static_cast<size_t>(number(packs_[id].axes, coords))];
}

AxisMask Packs::axes(std::span<const PackId> ids) const {
  AxisMask axes = 0;
  for (PackId id : ids) {
    axes |= packs_[id].axes;
  }
  return axes;
}

PackId Packs::make(std::span<const Value> components, AxisMask axes, const RowAt& row) {
  return pack_of(normal(components, axes, row), components);
}

PackId Packs::make(Key key, std::span<const Value> components, AxisMask axes, const RowAt& row) {
  append_order(components, &key.of);
  const auto [known, fresh] = made_.try_emplace(std::move(key));
  if (fresh) {
    known->second = normal(components, axes, row);
  }
  return pack_of(known->second, components);
}

Packs::Result Packs::normal(std::span<const Value> components, AxisMask axes, const RowAt& row) {
  // Takes the rows, then normalises: keeps the components that some rank has, sorted, with equal
  // ones merged; then drops axes without influence. A small part of a long pack has few of its many
  // components, so only these are sorted.
  std::vector<std::pair<Coords, PackRow>> rows;
  std::vector<int32_t> place(components.size(), kNone);
  std::vector<int32_t> used;
  cuts_.for_each(axes, {}, [&](const Coords& coords) {
    PackRow come = row(coords);
    for (PackRun& run : come) {
      if (run.component != kNone && components[run.component].expr == kZero) {
        run.component = kNone;
      }
      if (run.component == kNone) {
        run.begin = 0;
      } else if (run.length > 0 && place[run.component] == kNone) {
        place[run.component] = 0;
        used.push_back(run.component);
      }
    }
    rows.emplace_back(coords, std::move(come));
  });
  std::sort(used.begin(), used.end(),
            [&](int32_t left, int32_t right) { return components[left] < components[right]; });
  Result made;
  for (int32_t component : used) {
    if (made.components.empty() || components[made.components.back()] != components[component]) {
      made.components.push_back(component);
    }
    place[component] = static_cast<int32_t>(made.components.size()) - 1;
  }
  for (auto& [coords, runs] : rows) {
    PackRow normal;
    for (PackRun run : runs) {
      run.component = run.component == kNone ? kNone : place[run.component];
      append(&normal, run);
    }
    runs = std::move(normal);
  }
  // `rows` are in the order of their numbers along `axes`.
  PackShape shape;
  shape.axes = axes;
  for (int32_t axis = 0; axis < kMaxCutAxes; ++axis) {
    if (!(axes & axis_bit(axis))) continue;
    const bool matters = std::any_of(rows.begin(), rows.end(), [&](const auto& one) {
      Coords first = one.first;
      first[axis] = 0;
      return rows[static_cast<size_t>(number(axes, first))].second != one.second;
    });
    if (!matters) {
      shape.axes &= ~axis_bit(axis);
    }
  }
  for (auto& [coords, runs] : rows) {
    bool first = true;  // among the coordinates that differ on dropped axes only
    for (int32_t axis = 0; axis < kMaxCutAxes; ++axis) {
      first = first && ((shape.axes & axis_bit(axis)) || coords[axis] == 0);
    }
    if (first) {
      shape.rows.push_back(std::move(runs));
    }
  }
  made.shape = intern(std::move(shape));
  return made;
}

PackId Packs::pack_of(const Result& made, std::span<const Value> components) {
  if (made.shape == kNone) return kNone;
  Pack pack;
  pack.shape = made.shape;
  pack.axes = shapes_[made.shape].axes;
  for (int32_t component : made.components) {
    pack.components.push_back(components[component]);
  }
  const auto [known, fresh] = index_.try_emplace(pack, packs_.size());
  if (fresh) {
    packs_.push_back(std::move(pack));
  }
  return known->second;
}

ShapeId Packs::intern(PackShape shape) {
  uint64_t hash = shape.axes;
  for (const PackRow& row : shape.rows) {
    hash = hash_combine(hash, row.size());
    for (const PackRun& run : row) {
      hash = hash_combine(hash_combine(hash_combine(hash, static_cast<uint64_t>(run.component)),
                                       static_cast<uint64_t>(run.begin)),
                          static_cast<uint64_t>(run.length));
    }
  }
  const auto [first, last] = shape_index_.equal_range(hash);
  for (auto known = first; known != last; ++known) {
    if (shapes_[known->second] == shape) return known->second;
  }
  const int64_t length = total(shape.rows[0]);
  const bool same = std::all_of(shape.rows.begin(), shape.rows.end(),
                                [&](const PackRow& row) { return total(row) == length; });
  lengths_.push_back(same ? length : -1);
  const ShapeId id = shapes_.size();
  shape_index_.emplace(hash, id);
  shapes_.push_back(std::move(shape));
  return id;
}

int64_t Packs::length(PackId id) const { return lengths_[packs_[id].shape]; }

int64_t Packs::length(PackId id, const graph::CoordBox& box) const {
  int64_t length = -1;
  bool same = true;
  const AxisMask axes = packs_[id].axes;
  cuts_.for_each(axes, {}, [&](const Coords& coords) {
    if (!box.contains(coords, axes)) return;
    const int64_t here = total(at(id, coords));
    same = same && (length < 0 || here == length);
    length = here;
  });
  return same ? length : -1;
}

Packs::Result Packs::restricted(PackId id, AxisMask axes, const RangeAt& range) {
  const Pack& pack = packs_[id];
  bool inside = true;
  Result made = normal(pack.components, pack.axes | axes, [&](const Coords& coords) {
    const graph::Run wanted = range(coords);
    PackRow row = slice(at(id, coords), wanted.begin, wanted.length);
    inside = inside && total(row) == wanted.length;
    return row;
  });
  return inside ? made : Result{};
}

PackId Packs::restrict_to(PackId id, AxisMask axes, const RangeAt& range) {
  return pack_of(restricted(id, axes, range), packs_[id].components);
}

PackId Packs::restrict_to(PackId id, AxisMask axes, std::vector<int64_t> by, const RangeAt& range) {
  by.push_back(packs_[id].shape.value());
  const auto [known, fresh] = made_.try_emplace({Op::restricted, std::move(by)});
  if (fresh) {
    known->second = restricted(id, axes, range);
  }
  return pack_of(known->second, packs_[id].components);
}

PackId Packs::block(PackId id, AxisMask over) {
  const int64_t blocks = cuts_.ranks(over);
  const Pack& pack = packs_[id];
  return make(pack.components, pack.axes | over, [&](const Coords& coords) {
    const PackRow& row = at(id, coords);
    const int64_t length = total(row) / blocks;
    return slice(row, number(over, coords) * length, length);
  });
}

PackId Packs::gather(PackId id, AxisMask over, bool blocks) {
  const int64_t ranks = cuts_.ranks(over);
  const Pack& pack = packs_[id];
  const AxisMask axes = blocks ? pack.axes | over : pack.axes & ~over;
  return make(pack.components, axes, [&](const Coords& coords) {
    PackRow all;
    cuts_.for_each(over, coords, [&](const Coords& member) {
      PackRow row = at(id, member);
      if (blocks) {
        const int64_t length = total(row) / ranks;
        row = slice(row, number(over, coords) * length, length);
      }
      all.insert(all.end(), row.begin(), row.end());
    });
    return all;
  });
}

PackId Packs::moved(PackId id, std::span<const Value> components, const graph::Shift& shift) {
  std::vector<int64_t> of{packs_[id].shape.value(), shift.axis, shift.axes};
  of.insert(of.end(), shift.offsets.begin(), shift.offsets.end());
  return make({Op::moved, std::move(of)}, components, packs_[id].axes | shift.axes,
              [&](const Coords& coords) { return at(id, cuts_.shifted(coords, shift)); });
}

PackId Packs::with(PackId id, std::span<const Value> components) {
  return make({Op::renamed, {packs_[id].shape.value()}}, components, packs_[id].axes,
              [&](const Coords& coords) { return at(id, coords); });
}

bool Packs::for_each_aligned(
    std::span<const PackId> ids,
    const std::function<void(const Coords&, const AlignedRuns&)>& visit) const {
  bool same = true;
  cuts_.for_each(axes(ids), {}, [&](const Coords& coords) {
    if (!same) return;
    const int64_t length = total(at(ids[0], coords));
    // By pack: the current run, and the elements of it that are done.
    std::vector<size_t> next(ids.size(), 0);
    std::vector<int64_t> done(ids.size(), 0);
    for (PackId id : ids) {
      same = same && total(at(id, coords)) == length;
    }
    for (int64_t at_element = 0; same && at_element < length;) {
      AlignedRuns meeting;
      int64_t step = length;
      for (size_t i = 0; i < ids.size(); ++i) {
        const PackRun& run = at(ids[i], coords)[next[i]];
        step = std::min(step, run.length - done[i]);
        const int64_t begin = run.component == kNone ? 0 : run.begin + done[i];
        meeting.runs.push_back({run.component, begin, 0});
      }
      for (size_t i = 0; i < ids.size(); ++i) {
        meeting.runs[i].length = step;
        done[i] += step;
        if (done[i] == at(ids[i], coords)[next[i]].length) {
          done[i] = 0;
          ++next[i];
        }
      }
      visit(coords, meeting);
      at_element += step;
    }
  });
  return same;
}

}  // namespace hocket::check
