// SPDX-License-Identifier: Apache-2.0
#include "check/values/buffer_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <map>
#include <set>

namespace hocket::check {

using graph::Coords;
using graph::CutTable;
using graph::Run;

BufferState::BufferState(const Context& ctx, const Reference& reference, ValueAlgebra& algebra,
                         const ValueText& text)
    : ctx_(ctx),
      ref_(reference),
      algebra_(algebra),
      text_(text),
      applications_(ctx.position.size(), -1) {}

void BufferState::add_class(std::vector<Value> before) {
  const ClassId cls(values_.size());
  values_.push_back(std::move(before));
  bases_.emplace_back();
  if (!ctx_.views[cls].any()) return;
  // The host fills a base before any part of it is written.
  find_regions(cls);
  for (auto& [id, base] : bases_[cls].of) {
    if (values_[cls][id].expr != kUnwritten) {
      base.entries.push_back({CutTable::kWhole, values_[cls][id]});
    }
  }
}

/// Returns `length` of the `size` indices of a base, from where the region begins.
CutId BufferState::region_of(ClassId cls, const program::PieceOffset& from, int64_t length,
                             int64_t size) {
  const AxisMask axes = ctx_.table_axes(cls, from.by);
  std::vector<std::vector<Run>> rows;
  algebra_.pieces.cuts.for_each(axes, {}, [&](const Coords& at) {
    // Clamped to the base: view-region refuses tables that leave it.
    const int64_t begin =
        std::clamp<int64_t>(ctx_.begin_at(ctx_.program.classes[cls].role, from, at), 0, size);
    rows.push_back({{begin, std::min(length, size - begin)}});
  });
  return algebra_.pieces.cuts.make(size, axes, rows);
}

void BufferState::find_regions(ClassId cls) {
  // Regions come from tables of the program. Like pieces they are functions of all coordinates of
  // the role's mesh; the class has those of its box.
  const RankClass& rank_class = ctx_.program.classes[cls];
  Bases& bases = bases_[cls];
  std::map<std::array<int64_t, 4>, CutId> made;
  bases.region.assign(rank_class.buffers.size(), CutTable::kWhole);
  for (size_t id = 0; id < rank_class.buffers.size(); ++id) {
    const program::Buffer& view = rank_class.buffers[id];
    if (view.kind != BufferKind::view) continue;
    const program::Buffer& base = rank_class.buffers[view.base];
    Base& held = bases.of[view.base];
    held.cls = cls;
    held.dim = view.dim;
    held.size = view.dim == program::kNone ? base.type.numel() : int64_t{base.type.dims[view.dim]};
    const int64_t length =
        view.dim == program::kNone ? view.type.numel() : int64_t{view.type.dims[view.dim]};
    const auto [known, fresh] =
        made.try_emplace({view.begin, length, view.by.value(), held.size}, CutTable::kWhole);
    if (fresh) {
      known->second = region_of(cls, {0, view.begin, view.by}, length, held.size);
    }
    bases.region[id] = known->second;
    bases.from.try_emplace({known->second, held.size},
                           program::PieceOffset{0, view.begin, view.by});
    bases.lengths[{view.dim, view.begin, view.by.value()}].insert(length);
  }
}

size_t BufferState::dims_of(ClassId cls, BufferId buffer) const {
  return ctx_.program.classes[cls].buffers[buffer].type.dims.size();
}

const BufferState::Base* BufferState::base_of(ClassId cls, BufferId buffer) const {
  if (ctx_.views[cls].meets(buffer).empty()) return nullptr;
  return &bases_[cls].of.at(ctx_.program.classes[cls].root(buffer));
}

Value BufferState::at(ClassId cls, BufferId buffer) const {
  if (const Value* const value = plain(cls, buffer)) return *value;
  Unreadable why;
  return read(cls, buffer, &why);
}

Value BufferState::read(ClassId cls, BufferId buffer, Unreadable* why) const {
  const Base* const base = base_of(cls, buffer);
  if (!base) return values_[cls][buffer];
  return read_region(*base, bases_[cls].region[buffer], dims_of(cls, buffer), why);
}

void BufferState::put(ClassId cls, BufferId buffer, const Value& value) {
  if (!base_of(cls, buffer)) {
    values_[cls][buffer] = value;
    return;
  }
  Bases& bases = bases_[cls];
  Base& base = bases.of.at(ctx_.program.classes[cls].root(buffer));
  write_region(&base, bases.region[buffer], value);
}

void BufferState::write_region(Base* base, CutId region, const Value& value) {
  // Entries are disjoint, so an entry of the same region is the only one that overlaps it. Most
  // other writes overlap nothing: the slots of a base are filled one by one.
  const auto same = std::find_if(base->entries.begin(), base->entries.end(),
                                 [&](const Entry& entry) { return entry.region == region; });
  if (same != base->entries.end()) {
    base->entries.erase(same);
    base->entries.push_back({region, value});
    return;
  }
  const auto meets = [&](const Entry& entry) {
    return !algebra_.pieces.cuts.disjoint(entry.region, region);
  };
  if (std::any_of(base->entries.begin(), base->entries.end(), meets)) {
    std::vector<Entry> kept;
    for (const Entry& entry : base->entries) {
      if (!meets(entry)) {
        kept.push_back(entry);
        continue;
      }
      // Keeps the rest before the region, and the rest behind it.
      for (const bool behind : {false, true}) {
        const CutId rest = rest_of(*base, entry.region, region, behind);
        if (!algebra_.pieces.cuts.empty(rest)) {
          kept.push_back({rest, part_of(*base, entry, rest)});
        }
      }
    }
    base->entries = std::move(kept);
  }
  base->entries.push_back({region, value});
}

/// Returns the part of a region before the region `removed`, or, if `behind`, after it.
CutId BufferState::rest_of(const Base& base, CutId region, CutId removed, bool behind) const {
  const auto [known, fresh] = rests_.try_emplace(
      {region.value(), removed.value(), static_cast<int64_t>(behind), base.size}, program::kNone);
  if (!fresh) return known->second;
  graph::CutTable& cuts = algebra_.pieces.cuts;
  const AxisMask axes = cuts.axes(region) | cuts.axes(removed);
  std::vector<std::vector<Run>> rows;
  cuts.for_each(axes, {}, [&](const Coords& coords) {
    const Run mine = run_of(base, region, coords);
    const Run gone = run_of(base, removed, coords);
    const int64_t end = mine.begin + mine.length;
    const int64_t from =
        behind ? std::clamp(gone.begin + gone.length, mine.begin, end) : mine.begin;
    const int64_t to = behind ? end : std::clamp(gone.begin, mine.begin, end);
    // If the regions are disjoint, all of it counts as the part before.
    const bool apart = gone.begin >= end || gone.begin + gone.length <= mine.begin;
    if (apart) {
      rows.push_back(behind ? std::vector<Run>{} : std::vector<Run>{mine});
    } else {
      rows.push_back({{from, to - from}});
    }
  });
  known->second = cuts.make(base.size, axes, rows);
  return known->second;
}

Run BufferState::run_of(const Base& base, CutId region, const Coords& coords) const {
  const std::span<const Run> runs = algebra_.pieces.cuts.at(region, coords);
  if (runs.empty()) return {};
  const int64_t cell = base.size / algebra_.pieces.cuts[region].cells;
  return {runs[0].begin * cell, runs[0].length * cell};
}

/// Returns where a region lies inside the region of an entry, at a coordinate.
Run BufferState::run_in(const Base& base, CutId entry, CutId region, const Coords& coords) const {
  const Run from = run_of(base, entry, coords);
  const Run part = run_of(base, region, coords);
  return {part.length == 0 ? 0 : part.begin - from.begin, part.length};
}

/// Returns the axes of an entry and its cut if ranks of other classes lie along any of them, else
/// 0.
AxisMask BufferState::other_classes(const Base& base, CutId entry, CutId region, CutId cut) const {
  const graph::CoordBox& box = ctx_.boxes[base.cls];
  const AxisMask axes = algebra_.pieces.cuts.axes(entry) | algebra_.pieces.cuts.axes(region) |
                        algebra_.pieces.cuts.axes(cut);
  AxisMask others = 0;
  for (AxisMask left = axes; left; left &= left - 1) {
    const int axis = std::countr_zero(left);
    if (box.count[axis] < algebra_.pieces.cuts.extents()[axis]) {
      others |= graph::axis_bit(axis);
    }
  }
  return others == 0 ? 0 : axes;
}

/// Scales an index from a size of `own` to a size of `all`. If the scaled index is no integer, cuts
/// `own` into the fewest even parts such that one begins at the index. Then takes the same part of
/// `all`.
static int64_t counterpart(int64_t index, int64_t own, int64_t all) {
  if (index * all % own == 0) return index * all / own;
  for (int64_t parts = 1; parts < own; ++parts) {
    const int64_t least = own / parts;
    const int64_t longer = own % parts;
    const int64_t in_longer = index / (least + 1);
    const int64_t number = in_longer < longer ? in_longer : (index - longer) / least;
    if (graph::share(own, parts, number).begin == index) {
      return graph::share(all, parts, number).begin;
    }
  }
  return graph::share(all, own, index).begin;
}

std::vector<Run> BufferState::shares_in(const Base& base, CutId entry, CutId region, CutId cut,
                                        int64_t size, AxisMask axes, bool* certain) const {
  // Ranks of other classes may have more or less of a base, and other views of it. A guess about
  // them can't make a wrong program pass: it is only compared when classes meet, where all must
  // speak of one piece. Where a table says where their views begin, the lengths come from their
  // class. Else the part is scaled to the size of their entry.
  const graph::CutTable& cuts = algebra_.pieces.cuts;
  const graph::CoordBox& box = ctx_.boxes[base.cls];
  std::vector<Share> shares;
  int64_t own = 0;  // indices that a rank of the class has
  cuts.for_each(axes, box.begin, [&](const Coords& coords) {
    Share& share = shares.emplace_back();
    share.part = run_in(base, entry, region, coords);
    share.entry_length = cuts.volume(cut, coords, size);
    const bool here = box.contains(coords, axes);
    share.exact = here || has_same_views(base.cls, class_at(base.cls, coords));
    own = here ? share.entry_length : own;
  });
  std::vector<Run> rows = shares_of_tables(base, entry, region, axes, shares);
  if (!rows.empty()) return rows;
  *certain = false;
  for (const Share& share : shares) {
    rows.push_back(share.part);
    if (share.exact || share.entry_length == own || own == 0) continue;
    const int64_t end = share.part.begin + share.part.length;
    rows.back().begin = counterpart(std::min(share.part.begin, own), own, share.entry_length);
    rows.back().length =
        counterpart(std::min(end, own), own, share.entry_length) - rows.back().begin;
  }
  return rows;
}

ClassId BufferState::class_at(ClassId like, const Coords& coords) const {
  return ctx_.program.class_of(ctx_.rank_at(ctx_.program.classes[like].role, coords));
}

/// Returns whether the views of two classes are the same parts of bases of the same types.
bool BufferState::has_same_views(ClassId one, ClassId other) const {
  const auto [known, fresh] = same_views_.try_emplace({one, other}, true);
  if (fresh) {
    const auto& mine = ctx_.program.classes[one].buffers;
    const auto& theirs = ctx_.program.classes[other].buffers;
    known->second = std::equal(mine.begin(), mine.end(), theirs.begin(), theirs.end(),
                               [](const program::Buffer& left, const program::Buffer& right) {
                                 return left.type == right.type && left.base == right.base &&
                                        left.dim == right.dim && left.begin == right.begin &&
                                        left.by == right.by;
                               });
  }
  return known->second;
}

/// Returns the part of the entry on each rank, as the views of that rank's class say: equal views,
/// or views that begin by the same table. Returns nothing if there is no table, or if some class
/// has no such view.
std::vector<Run> BufferState::shares_of_tables(const Base& base, CutId entry, CutId region,
                                               AxisMask axes, std::span<const Share> shares) const {
  const auto& from = bases_[base.cls].from;
  const auto by_table = [&](CutId id) {
    const auto known = from.find({id, base.size});
    return known != from.end() && known->second.by != program::kNone;
  };
  const bool all = entry == CutTable::kWhole;
  const bool tables = by_table(region) && (all || by_table(entry));
  const program::RoleId role = ctx_.program.classes[base.cls].role;
  std::vector<Run> rows;
  bool certain = true;
  algebra_.pieces.cuts.for_each(axes, ctx_.boxes[base.cls].begin, [&](const Coords& coords) {
    const Share& share = shares[rows.size()];
    Run& row = rows.emplace_back(share.part);
    if (share.exact || !tables) {
      certain = certain && share.exact;
      return;
    }
    const program::PieceOffset& inner = from.at({region, base.size});
    row.begin = ctx_.begin_at(role, inner, coords) -
                (all ? 0 : ctx_.begin_at(role, from.at({entry, base.size}), coords));
    row.length = length_there(base, inner, region, class_at(base.cls, coords));
    certain =
        certain && row.length > 0 && row.begin >= 0 && row.begin + row.length <= share.entry_length;
  });
  return certain ? rows : std::vector<Run>{};
}

/// Returns the length of the view of another class that begins by the same table; of several, the
/// one with the same place among the lengths of its class. -1: there is none.
int64_t BufferState::length_there(const Base& base, const program::PieceOffset& begin, CutId region,
                                  ClassId there) const {
  const auto lengths = [&](ClassId cls) {
    const auto known = bases_[cls].lengths.find({base.dim, begin.begin, begin.by.value()});
    return known == bases_[cls].lengths.end() ? std::set<int64_t>() : known->second;
  };
  const std::set<int64_t> mine = lengths(base.cls);
  const std::set<int64_t> theirs = lengths(there);
  const int64_t own = algebra_.pieces.cuts.local_size(region, base.size, ctx_.boxes[base.cls]);
  const auto place = mine.find(own);
  if (place != mine.end() && mine.size() == theirs.size()) {
    return *std::next(theirs.begin(), std::distance(mine.begin(), place));
  }
  return theirs.contains(own) ? own : program::kNone;
}

/// Returns the part of a piece that lies in a region of an entry; `size`: of the term along the
/// dim.
PieceId BufferState::part_of(const Base& base, CutId entry, CutId region, PieceId piece,
                             int64_t size) const {
  const graph::CutTable& cuts = algebra_.pieces.cuts;
  const CutId cut = algebra_.pieces[piece].cut[base.dim];
  const bool fits = size % cuts[cut].cells == 0;
  AxisMask axes = fits ? other_classes(base, entry, region, cut) : 0;
  const int64_t cls = axes != 0 ? int64_t{base.cls.value()} : program::kNone;
  const auto [known, fresh] = parts_.try_emplace(
      {entry.value(), region.value(), piece.value(), base.dim, base.size, size, cls},
      program::kNone);
  if (!fresh) return known->second;
  std::vector<Run> rows;
  bool certain = true;
  if (axes != 0) {
    rows = shares_in(base, entry, region, cut, size, axes, &certain);
  } else {
    axes = cuts.axes(entry) | cuts.axes(region);
    cuts.for_each(axes, {}, [&](const Coords& coords) {
      rows.push_back(run_in(base, entry, region, coords));
    });
  }
  known->second = algebra_.pieces.restrict_to(piece, base.dim, size, axes, rows);
  if (cls != program::kNone && known->second != kNone) {
    const graph::CoordBox& box = ctx_.boxes[base.cls];
    const bool guess = !certain || algebra_.pieces.is_guess(box, cut);
    known->second = algebra_.pieces.canonical(box, known->second, base.dim, guess);
  }
  return known->second;
}

/// Returns the part of an entry's value in a region; kUnwritten if such a part has no meaning.
Value BufferState::part_of(const Base& base, const Entry& entry, CutId region) const {
  if (entry.value.expr < 0 || entry.region == region) return entry.value;
  if (base.dim == program::kNone) {
    if (entry.value.expr == kZero) return entry.value;
    const PackId all = algebra_.flat(entry.value, 0);
    if (all == kNone) return {kUnwritten, kAnyPiece};
    const AxisMask axes =
        algebra_.pieces.cuts.axes(entry.region) | algebra_.pieces.cuts.axes(region);
    const PackId rest = algebra_.packs.restrict_to(
        all, axes, {entry.region.value(), region.value(), base.size},
        [&](const Coords& coords) { return run_in(base, entry.region, region, coords); });
    return rest == kNone ? Value{kUnwritten, kAnyPiece} : algebra_.pack_value(rest);
  }
  std::vector<Value> parts = algebra_.parts_of(entry.value);
  for (Value& part : parts) {
    if (part.piece == kAnyPiece) continue;
    if (algebra_.is_pack(part) || algebra_.local_index(part.expr)) return {kUnwritten, kAnyPiece};
    const int64_t size = ctx_.types[ref_.terms[part.expr].type].dims[base.dim];
    part.piece = part_of(base, entry.region, region, part.piece, size);
    if (part.piece == kNone) return {kUnwritten, kAnyPiece};
  }
  const std::optional<Value> sum = algebra_.sum_of(parts);
  return sum ? *sum : Value{kUnwritten, kAnyPiece};
}

BufferState::Saved BufferState::save(TaskRef ref) const {
  Saved saved;
  for (const auto* list : {&ctx_.task(ref).in, &ctx_.task(ref).out}) {
    for (BufferId buffer : *list) {
      if (const Base* base = base_of(ref.cls, buffer)) {
        saved.bases.emplace_back(ctx_.program.classes[ref.cls].root(buffer), *base);
      } else {
        saved.values.emplace_back(buffer, values_[ref.cls][buffer]);
      }
    }
  }
  return saved;
}

void BufferState::restore(ClassId cls, const Saved& saved) {
  for (const auto& [buffer, value] : saved.values) {
    values_[cls][buffer] = value;
  }
  for (const auto& [buffer, base] : saved.bases) {
    bases_[cls].of.at(buffer) = base;
  }
}

}  // namespace hocket::check
