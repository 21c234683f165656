// SPDX-License-Identifier: Apache-2.0
// Buffers with views. What a base holds is a list of regions, each with its value; a write replaces
// what lay in its region, a read finds the value that lies there, or joins those of several regions
// that tile it. Regions are cuts of the base: at every coordinate one run of it.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <map>
#include <set>
#include <tuple>

#include "check/values/values.h"

namespace hocket::check {

namespace {

using graph::Coords;
using graph::CutTable;
using graph::Run;

/// The run of a region at a coordinate; an empty one at 0 if there is none.
Run run_at(const CutTable& cuts, CutId region, int64_t size, const Coords& coords) {
  const std::span<const Run> runs = cuts.at(region, coords);
  if (runs.empty()) return {};
  const int64_t cell = size / cuts[region].cells;
  return {runs[0].begin * cell, runs[0].length * cell};
}

}  // namespace

int64_t Values::begin_at(program::RoleId role, const program::Begin& begin,
                         const Coords& at) const {
  const size_t axes = ctx_.program.roles[role].mesh.axes.size();
  const size_t first = static_cast<size_t>(ctx_.first_axis[role]);
  return ctx_.program.begin_at(begin.begin, begin.by, std::span(at).subspan(first, axes));
}

/// Axes of a table along which there are several ranks.
AxisMask Values::axes_of(ClassId cls, program::TableId table) const {
  AxisMask axes = 0;
  if (table == program::kNone) return axes;
  for (int32_t axis : ctx_.program.tables[table].axes) {
    const int32_t place = ctx_.axis_of(cls, axis);
    if (pieces_.cuts.extents()[place] > 1) {
      axes |= graph::axis_bit(place);
    }
  }
  return axes;
}

/// So many of the `size` indices of a base from where it begins.
CutId Values::region_of(ClassId cls, const program::Begin& from, int64_t length, int64_t size) {
  const AxisMask axes = axes_of(cls, from.by);
  std::vector<std::vector<Run>> rows;
  pieces_.cuts.for_each(axes, {}, [&](const Coords& at) {
    // Inside the base, whatever the table says: view-region tells.
    const int64_t begin =
        std::clamp<int64_t>(begin_at(ctx_.program.classes[cls].role, from, at), 0, size);
    rows.push_back({{begin, std::min(length, size - begin)}});
  });
  return pieces_.cuts.make(size, axes, rows);
}

void Values::find_regions(ClassId cls) {
  // Regions of views are tables of the program. Like pieces they are functions of all coordinates
  // of the role's mesh, of which the class has those of its box.
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
    bases.from.try_emplace({known->second, held.size}, program::Begin{0, view.begin, view.by});
    bases.lengths[{view.dim, view.begin, view.by.value()}].insert(length);
  }
}

size_t Values::dims_of(ClassId cls, BufferId buffer) const {
  return ctx_.program.classes[cls].buffers[buffer].type.dims.size();
}

/// True of what is read as it is through any buffer of so many dims.
bool Values::has_dims(const Value& value, size_t dims) const {
  if (value.expr <= kZero) return true;
  if (is_pack(value)) return false;
  const PieceId piece = parts_of(value)[0].piece;
  return piece != kAnyPiece && pieces_[piece].dims == dims;
}

Values::Base* Values::base_of(ClassId cls, BufferId buffer) {
  if (ctx_.views[cls].meets(buffer).empty()) return nullptr;
  return &bases_[cls].of.at(ctx_.program.classes[cls].root(buffer));
}

Value Values::at(ClassId cls, BufferId buffer) {
  const Base* base = base_of(cls, buffer);
  if (!base) return values_[cls][buffer];
  Why why;
  return read_region(*base, bases_[cls].region[buffer], dims_of(cls, buffer), &why);
}

Value Values::read(TaskRef ref, BufferId buffer) {
  const Base* base = base_of(ref.cls, buffer);
  if (!base) return values_[ref.cls][buffer];
  Why why;
  const Value value =
      read_region(*base, bases_[ref.cls].region[buffer], dims_of(ref.cls, buffer), &why);
  const TypeId type = ctx_.buffer_type[ref.cls][buffer];
  if (why.text.empty() && value.expr >= 0 && !fits(value, type, ref.cls)) {
    why = {"it holds a value of another shape", where_of_size(ref.cls, value, type)};
  }
  if (why.text.empty()) return value;
  report_untiled(
      ref, buffer, ctx_.global(ref.cls, ref.task),
      fmt::format("{} reads {}: {}", ctx_.name(ref), ctx_.buffer_name(ref.cls, buffer), why.text),
      why.where);
  return {kUnknown, kAnyPiece};
}

Value Values::left_in(ClassId cls, BufferId buffer) {
  const Base* base = base_of(cls, buffer);
  if (!base) return values_[cls][buffer];
  Why why;
  const Value value = read_region(*base, bases_[cls].region[buffer], dims_of(cls, buffer), &why);
  if (why.text.empty()) return value;
  const int32_t writer = hazards_.writer(cls, buffer);
  report_untiled(writer >= 0 ? ctx_.ref(writer) : TaskRef{cls, -1}, buffer, -1,
                 fmt::format("the step leaves {} without a value: {}",
                             ctx_.buffer_name(cls, buffer), why.text),
                 why.where);
  return {kUnknown, kAnyPiece};
}

void Values::report_untiled(TaskRef ref, BufferId buffer, int32_t reader, const std::string& text,
                            std::string at_rank) {
  std::vector<TaskRef> related;
  for (BufferId other : ctx_.views[ref.cls].meets(buffer)) {
    const int32_t writer = hazards_.writer(ref.cls, other, reader);
    if (writer >= 0 && related.size() < 8) {
      related.push_back(ctx_.ref(writer));
    }
  }
  std::sort(related.begin(), related.end());
  related.erase(std::unique(related.begin(), related.end()), related.end());
  ctx_.report("view-tiled", ProblemClass::value, ref, related, text,
              "write all of what is read, in parts of one value that are cut alike elsewhere",
              std::move(at_rank));
}

void Values::put(ClassId cls, BufferId buffer, const Value& value) {
  Base* base = base_of(cls, buffer);
  if (base) {
    write_region(base, bases_[cls].region[buffer], value);
  } else {
    values_[cls][buffer] = value;
  }
}

void Values::write_region(Base* base, CutId region, const Value& value) {
  // Entries are disjoint: one that has the region is the only one that meets it. Most other writes
  // meet nothing: the slots of a base are filled one by one.
  const auto same = std::find_if(base->entries.begin(), base->entries.end(),
                                 [&](const Entry& entry) { return entry.region == region; });
  if (same != base->entries.end()) {
    base->entries.erase(same);
    base->entries.push_back({region, value});
    return;
  }
  const auto meets = [&](const Entry& entry) {
    return !pieces_.cuts.disjoint(entry.region, region);
  };
  if (std::any_of(base->entries.begin(), base->entries.end(), meets)) {
    std::vector<Entry> kept;
    for (const Entry& entry : base->entries) {
      if (!meets(entry)) {
        kept.push_back(entry);
        continue;
      }
      // What is left before the region, and behind it.
      for (const bool behind : {false, true}) {
        const CutId rest = rest_of(*base, entry.region, region, behind);
        if (!pieces_.cuts.empty(rest)) {
          kept.push_back({rest, part_of(*base, entry, rest)});
        }
      }
    }
    base->entries = std::move(kept);
  }
  base->entries.push_back({region, value});
}

/// The part of one region before another, or behind it.
CutId Values::rest_of(const Base& base, CutId of, CutId without, bool behind) {
  const auto [known, fresh] = rests_.try_emplace(
      {of.value(), without.value(), static_cast<int64_t>(behind), base.size}, program::kNone);
  if (!fresh) return known->second;
  graph::CutTable& cuts = pieces_.cuts;
  const AxisMask axes = cuts.axes(of) | cuts.axes(without);
  std::vector<std::vector<Run>> rows;
  cuts.for_each(axes, {}, [&](const Coords& coords) {
    const Run mine = run_at(cuts, of, base.size, coords);
    const Run taken = run_at(cuts, without, base.size, coords);
    const int64_t end = mine.begin + mine.length;
    const int64_t from =
        behind ? std::clamp(taken.begin + taken.length, mine.begin, end) : mine.begin;
    const int64_t to = behind ? end : std::clamp(taken.begin, mine.begin, end);
    // Where they do not meet, all of it counts once: as before.
    const bool apart = taken.begin >= end || taken.begin + taken.length <= mine.begin;
    if (apart) {
      rows.push_back(behind ? std::vector<Run>{} : std::vector<Run>{mine});
    } else {
      rows.push_back({{from, to - from}});
    }
  });
  known->second = cuts.make(base.size, axes, rows);
  return known->second;
}

/// Where a region lies inside that of an entry, at a coordinate.
Run Values::place_in(const Base& base, CutId entry, CutId region, const Coords& coords) const {
  const Run from = run_at(pieces_.cuts, entry, base.size, coords);
  const Run part = run_at(pieces_.cuts, region, base.size, coords);
  return {part.length == 0 ? 0 : part.begin - from.begin, part.length};
}

/// Axes along which ranks of other classes have other parts of an entry that holds this cut.
AxisMask Values::other_classes(const Base& base, CutId entry, CutId region, CutId cut) const {
  const graph::CoordBox& box = ctx_.boxes[base.cls];
  const AxisMask axes =
      pieces_.cuts.axes(entry) | pieces_.cuts.axes(region) | pieces_.cuts.axes(cut);
  AxisMask others = 0;
  for (AxisMask left = axes; left; left &= left - 1) {
    const int axis = std::countr_zero(left);
    if (box.count[axis] < pieces_.cuts.extents()[axis]) {
      others |= graph::axis_bit(axis);
    }
  }
  return others == 0 ? 0 : axes;
}

/// Where what begins at an index of `own` begins in `all`: as far in, or, where that is between two
/// indices, at the same of as many parts, the fewest of which one begins there.
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

std::vector<Run> Values::places_in(const Base& base, CutId entry, CutId region, CutId cut,
                                   int64_t size, AxisMask axes, bool* told) const {
  // What ranks of other classes have of a base may be more or less, and so may their views of it.
  // What is said of them is never relied on, only compared, when classes meet: all are to speak of
  // one piece. Where a table says where they begin, their class has a view that begins so. Else
  // they are taken to have as large a part of theirs.
  const graph::CutTable& cuts = pieces_.cuts;
  const graph::CoordBox& box = ctx_.boxes[base.cls];
  std::vector<Place> places;
  int64_t own = 0;  // of what a rank of the class has
  cuts.for_each(axes, box.begin, [&](const Coords& coords) {
    Place& place = places.emplace_back();
    place.part = place_in(base, entry, region, coords);
    place.all = cuts.volume(cut, coords, size);
    const bool here = box.contains(coords, axes);
    place.known = here || has_same_views(base.cls, class_at(base.cls, coords));
    own = here ? place.all : own;
  });
  std::vector<Run> rows = told_there(base, entry, region, axes, places);
  if (!rows.empty()) return rows;
  *told = false;
  for (const Place& place : places) {
    rows.push_back(place.part);
    if (place.known || place.all == own || own == 0) continue;
    const int64_t end = place.part.begin + place.part.length;
    rows.back().begin = counterpart(std::min(place.part.begin, own), own, place.all);
    rows.back().length = counterpart(std::min(end, own), own, place.all) - rows.back().begin;
  }
  return rows;
}

ClassId Values::class_at(ClassId like, const Coords& coords) const {
  return ctx_.program.class_of(rank_at(ctx_.program.classes[like].role, coords));
}

/// True if views in two classes are the same parts of bases of the same types.
bool Values::has_same_views(ClassId one, ClassId other) const {
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

/// What the views of all ranks say: those of a class with the same ones, or else that begin by the
/// table of this one. Nothing if it has none, or some class no such view.
std::vector<Run> Values::told_there(const Base& base, CutId entry, CutId region, AxisMask axes,
                                    std::span<const Place> places) const {
  const auto& from = bases_[base.cls].from;
  const auto by_table = [&](CutId id) {
    const auto known = from.find({id, base.size});
    return known != from.end() && known->second.by != program::kNone;
  };
  const bool all = entry == CutTable::kWhole;
  const bool tables = by_table(region) && (all || by_table(entry));
  const program::RoleId role = ctx_.program.classes[base.cls].role;
  std::vector<Run> rows;
  bool told = true;
  pieces_.cuts.for_each(axes, ctx_.boxes[base.cls].begin, [&](const Coords& coords) {
    const Place& place = places[rows.size()];
    Run& row = rows.emplace_back(place.part);
    if (place.known || !tables) {
      told = told && place.known;
      return;
    }
    const program::Begin& inner = from.at({region, base.size});
    row.begin = begin_at(role, inner, coords) -
                (all ? 0 : begin_at(role, from.at({entry, base.size}), coords));
    row.length = length_there(base, inner, region, class_at(base.cls, coords));
    told = told && row.length > 0 && row.begin >= 0 && row.begin + row.length <= place.all;
  });
  return told ? rows : std::vector<Run>{};
}

/// How long the view of another class is that begins by the same table, of several the one that has
/// this one's place among those of its class; -1 if there is none.
int64_t Values::length_there(const Base& base, const program::Begin& begin, CutId region,
                             ClassId there) const {
  const auto lengths = [&](ClassId cls) {
    const auto known = bases_[cls].lengths.find({base.dim, begin.begin, begin.by.value()});
    return known == bases_[cls].lengths.end() ? std::set<int64_t>() : known->second;
  };
  const std::set<int64_t> mine = lengths(base.cls);
  const std::set<int64_t> theirs = lengths(there);
  const int64_t own = pieces_.cuts.local_size(region, base.size, ctx_.boxes[base.cls]);
  const auto place = mine.find(own);
  if (place != mine.end() && mine.size() == theirs.size()) {
    return *std::next(theirs.begin(), std::distance(mine.begin(), place));
  }
  return theirs.contains(own) ? own : program::kNone;
}

/// The part of a piece of a tensor that lies in an entry, `size` along the dim of the base.
PieceId Values::part_of(const Base& base, CutId entry, CutId region, PieceId piece, int64_t size) {
  const graph::CutTable& cuts = pieces_.cuts;
  const CutId cut = pieces_[piece].cut[base.dim];
  const bool fits = size % cuts[cut].cells == 0;
  AxisMask axes = fits ? other_classes(base, entry, region, cut) : 0;
  const int64_t cls = axes != 0 ? int64_t{base.cls.value()} : program::kNone;
  const auto [known, fresh] = parts_.try_emplace(
      {entry.value(), region.value(), piece.value(), base.dim, base.size, size, cls},
      program::kNone);
  if (!fresh) return known->second;
  std::vector<Run> rows;
  bool told = true;
  if (axes != 0) {
    rows = places_in(base, entry, region, cut, size, axes, &told);
  } else {
    axes = cuts.axes(entry) | cuts.axes(region);
    cuts.for_each(axes, {}, [&](const Coords& coords) {
      rows.push_back(place_in(base, entry, region, coords));
    });
  }
  known->second = pieces_.restrict_to(piece, base.dim, size, axes, rows);
  if (cls != program::kNone && known->second != kNone) {
    const graph::CoordBox& box = ctx_.boxes[base.cls];
    const bool guess = !told || pieces_.is_guess(box, cut);
    known->second = pieces_.known_as(box, known->second, base.dim, guess);
  }
  return known->second;
}

/// The value of a region inside that of an entry; nothing, if a part of that value means nothing.
Value Values::part_of(const Base& base, const Entry& entry, CutId region) {
  if (entry.value.expr < 0 || entry.region == region) return entry.value;
  if (base.dim == program::kNone) {
    if (entry.value.expr == kZero) return entry.value;
    const PackId all = flat(entry.value, 0);
    if (all == kNone) return {kUnwritten, kAnyPiece};
    const AxisMask axes = pieces_.cuts.axes(entry.region) | pieces_.cuts.axes(region);
    const PackId rest = packs_.restrict_to(
        all, axes, {entry.region.value(), region.value(), base.size},
        [&](const Coords& coords) { return place_in(base, entry.region, region, coords); });
    return rest == kNone ? Value{kUnwritten, kAnyPiece} : pack_value(rest);
  }
  std::vector<Value> parts = parts_of(entry.value);
  for (Value& part : parts) {
    if (part.piece == kAnyPiece) continue;
    if (is_pack(part) || local_index(part.expr)) return {kUnwritten, kAnyPiece};
    const int64_t size = ctx_.types[ref_.terms[part.expr].type].dims[base.dim];
    part.piece = part_of(base, entry.region, region, part.piece, size);
    if (part.piece == kNone) return {kUnwritten, kAnyPiece};
  }
  const std::optional<Value> sum = sum_of(parts);
  return sum ? *sum : Value{kUnwritten, kAnyPiece};
}

/// The first rank where not all of a region is covered, and what is missing there.
std::string Values::uncovered(const Base& base, CutId region, CutId covered) const {
  const graph::CutTable& cuts = pieces_.cuts;
  const char* const what = base.dim == program::kNone ? "elements" : "indices";
  const AtRank lacking =
      first_rank(base.cls, cuts.axes(region) | cuts.axes(covered), [&](const Coords& at) {
        const Run wanted = run_at(cuts, region, base.size, at);
        const std::vector<Run> written = cuts.part_at(covered, at, base.size, 0, -1);
        const std::vector<Run> missing = graph::gaps_in(written, wanted);
        if (missing.empty()) return std::string();
        return fmt::format("has {} {} of [{}:{}); missing {}", what, runs_text(written),
                           wanted.begin, wanted.begin + wanted.length, runs_text(missing));
      });
  if (lacking.text.empty()) return "";
  return fmt::format("{} {}{}", rank_text(base.cls, lacking.at), lacking.text,
                     more_text(lacking.ranks));
}

Value Values::read_region(const Base& base, CutId region, size_t dims, Why* why) {
  // One entry that has the region is the common case; then one that contains it. Otherwise all that
  // overlap it are parts of one term, which are joined. Elements of a flat base are joined whatever
  // they are of: they may make a tensor, or several.
  constexpr Value kNothing{kUnwritten, kAnyPiece};
  constexpr Value kLost{kUnknown, kAnyPiece};
  for (const Entry& entry : base.entries) {
    if (entry.region == region && (base.dim != program::kNone || has_dims(entry.value, dims))) {
      return entry.value;
    }
  }
  std::vector<const Entry*> hits;
  for (const Entry& entry : base.entries) {
    if (!pieces_.cuts.disjoint(entry.region, region)) {
      hits.push_back(&entry);
    }
  }
  CutId covered = pieces_.cuts.make(1, 0, {{}});
  for (const Entry* hit : hits) {
    covered = pieces_.cuts.unite(covered, pieces_.cuts.intersection(hit->region, region));
  }
  if (hits.empty()) {
    *why = {"nothing has written it", uncovered(base, region, covered)};
    return kNothing;
  }
  const auto is = [&](ExprId expr) {
    return [expr](const Entry* hit) { return hit->value.expr == expr; };
  };
  if (std::any_of(hits.begin(), hits.end(), is(kUnknown))) return kLost;
  if (const auto nothing = std::find_if(hits.begin(), hits.end(), is(kUnwritten));
      nothing != hits.end()) {
    *why = {"some of it holds nothing",
            uncovered(base, pieces_.cuts.intersection((*nothing)->region, region),
                      pieces_.cuts.make(1, 0, {{}}))};
    return kLost;
  }
  if (covered != region) {
    *why = {fmt::format("only {} of it was written, of {}", pieces_.cuts.text(covered),
                        pieces_.cuts.text(region)),
            uncovered(base, region, covered)};
    return kLost;
  }
  if (std::all_of(hits.begin(), hits.end(), is(kZero))) return {kZero, kAnyPiece};
  if (base.dim == program::kNone) return read_flat(hits, base, region, dims, why);
  if (hits.size() > 1) return read_parts(hits, base, region, why);
  const Value part = part_of(base, *hits[0], region);
  if (part.expr != kUnwritten) return part;
  *why = {"a part of what it holds has no value of its own", where(base.cls, hits[0]->value)};
  return kLost;
}

Value Values::read_parts(std::span<const Entry* const> hits, const Base& base, CutId region,
                         Why* why) {
  // Of one term, side by side along the dim. Row numbers are of the rows beside them: they can't.
  constexpr Value kLost{kUnknown, kAnyPiece};
  const Value& first = hits[0]->value;
  for (const Entry* hit : hits) {
    if (is_pack(hit->value)) {
      *why = {"it holds several tensors: parts of those are views without a dim",
              where(base.cls, hit->value)};
      return kLost;
    }
    if (hit->value.expr >= 0 && ref_.terms[hit->value.expr].kind == Expr::Kind::unfinished) {
      return read_sums(hits, base, region, why);
    }
    if (hit->value.expr != first.expr || hit->value.piece == kAnyPiece) {
      *why = {fmt::format("it holds parts of different values: {} and {}", describe(first.expr),
                          describe(hit->value.expr)),
              where(base.cls, first, " in one part, and ", hit->value, " in another")};
      return kLost;
    }
  }
  if (local_index(first.expr)) {
    *why = {"row numbers of a routing that are put side by side count other rows",
            where(base.cls, first)};
    return kLost;
  }
  const int64_t size = ctx_.types[ref_.terms[first.expr].type].dims[base.dim];
  std::vector<Pieces::Part> parts;
  std::vector<int64_t> question{region.value(), base.dim, base.size, size, base.cls.value()};
  bool guess = false;
  for (const Entry* hit : hits) {
    guess =
        guess || pieces_.is_guess(ctx_.boxes[base.cls], pieces_[hit->value.piece].cut[base.dim]);
    parts.push_back({hit->region, hit->value.piece});
    question.push_back(hit->region.value());
    question.push_back(hit->value.piece.value());
  }
  AtRank wrong;
  PieceId& joined = joins_.try_emplace(std::move(question), program::kNone).first->second;
  if (joined == kNone) {
    const graph::CoordBox& box = ctx_.boxes[base.cls];
    joined = pieces_.join(parts, region, base.size, base.dim, size, box, &guess, &wrong);
    if (joined != kNone) {
      joined = pieces_.known_as(box, joined, base.dim, guess);
    }
  }
  if (joined == kNone) {
    std::string held;
    for (const Entry* hit : hits) {
      const Run run = run_at(pieces_.cuts, hit->region, base.size, wrong.at);
      held += fmt::format("{} {} in [{}:{})", held.empty() ? "" : ",",
                          held_text(hit->value, wrong.at), run.begin, run.begin + run.length);
    }
    *why = {wrong.text, fmt::format("{} has{}", rank_text(base.cls, wrong.at), held)};
    return kLost;
  }
  // Where one's own part and those that came from others differ by what a codec lost, ranks have
  // different ones exact.
  const bool same = std::all_of(hits.begin(), hits.end(),
                                [&](const Entry* hit) { return hit->value.marks == first.marks; });
  if (same) return {first.expr, joined, first.marks};
  if (const auto marks = join_marks(base, hits, region)) return {first.expr, joined, *marks};
  MarkId marks = first.marks;
  for (const Entry* hit : hits) {
    const AxisMask axes = pieces_.cuts.axes(hit->region) | axes_of(hit->value);
    marks = unite_marks(marks, hit->value.marks, hit->value.marks == marks ? 0 : axes);
  }
  return {first.expr, joined, marks};
}

/// Of sums that are not finished, each term is put together by itself: they are of the same terms,
/// of which the ranks may have added up other parts from one to the next.
Value Values::read_sums(std::span<const Entry* const> hits, const Base& base, CutId region,
                        Why* why) {
  constexpr Value kLost{kUnknown, kAnyPiece};
  std::map<ExprId, std::vector<Entry>> by_term;
  for (const Entry* hit : hits) {
    for (const Value& part : parts_of(hit->value)) {
      for (ExprId term : ref_.terms.terms_of(part.expr)) {
        by_term[term].push_back({hit->region, {term, part.piece, part.marks}});
      }
    }
  }
  std::vector<Value> terms;
  for (const auto& [term, entries] : by_term) {
    const bool everywhere =
        entries.size() == hits.size() && std::equal(entries.begin(), entries.end(), hits.begin(),
                                                    [](const Entry& entry, const Entry* hit) {
                                                      return entry.region == hit->region;
                                                    });
    if (!everywhere) {
      *why = {fmt::format("it holds sums, not all of which have {} once", describe(term)),
              where(base.cls, hits[0]->value)};
      return kLost;
    }
    std::vector<const Entry*> parts;
    for (const Entry& entry : entries) {
      parts.push_back(&entry);
    }
    terms.push_back(read_parts(parts, base, region, why));
    if (terms.back().expr == kUnknown) return kLost;
  }
  const std::optional<Value> sum = sum_of(terms);
  if (sum) return *sum;
  *why = {"it holds parts of sums that do not add up", where(base.cls, hits[0]->value)};
  return kLost;
}

Value Values::read_flat(std::span<const Entry* const> hits, const Base& base, CutId region,
                        size_t dims, Why* why) {
  // Coordinate by coordinate the elements of what overlaps the region there, in order. That they
  // fill it was seen before.
  constexpr Value kLost{kUnknown, kAnyPiece};
  graph::CutTable& cuts = pieces_.cuts;
  const int64_t size = base.size;
  std::vector<PackId> packs;
  std::vector<int32_t> first;  // of the pack's components among all
  AxisMask axes = cuts.axes(region);
  Packs::Question question{Packs::Op::joined, {region.value(), size, std::ssize(hits)}};
  for (const Entry* hit : hits) {
    const PackId id = flat(hit->value, 0);
    if (id == kNone) {
      *why = {fmt::format("it holds {}, which has no order in memory that all ranks share",
                          describe(hit->value.expr)),
              where(base.cls, hit->value)};
      return kLost;
    }
    packs.push_back(id);
    axes |= cuts.axes(hit->region) | packs_[id].axes;
    const bool zero = hit->value.expr == kZero;
    question.of.push_back(hit->region.value());
    question.of.push_back(zero ? program::kNone : packs_[id].shape.value());
  }
  // Of one pack, of which this may be a small part, the components are taken where they are.
  std::vector<Value> joint;
  for (PackId id : packs) {
    first.push_back(static_cast<int32_t>(joint.size()));
    if (packs.size() > 1) {
      joint.insert(joint.end(), packs_[id].components.begin(), packs_[id].components.end());
    }
  }
  const std::vector<Value>& components = packs.size() > 1 ? joint : packs_[packs[0]].components;
  const auto row_at = [&](const Coords& coords) {
    const Run wanted = run_at(cuts, region, size, coords);
    std::vector<std::pair<int64_t, size_t>> order;
    for (size_t i = 0; i < hits.size(); ++i) {
      order.push_back({run_at(cuts, hits[i]->region, size, coords).begin, i});
    }
    std::sort(order.begin(), order.end());
    PackRow row;
    for (const auto& [begin, i] : order) {
      const int64_t length = run_at(cuts, hits[i]->region, size, coords).length;
      const int64_t from = std::max(begin, wanted.begin);
      const int64_t to = std::min(begin + length, wanted.begin + wanted.length);
      if (from >= to) continue;
      if (hits[i]->value.expr == kZero) {
        row.push_back({program::kNone, 0, to - from});
        continue;
      }
      for (PackRun run : slice(packs_.at(packs[i], coords), from - begin, to - from)) {
        if (run.component != program::kNone) {
          run.component += first[i];
        }
        row.push_back(run);
      }
    }
    return row;
  };
  const PackId joined = packs_.make(std::move(question), components, axes, row_at);
  const Value value = unflat(joined, dims);
  if (value.expr != kUnwritten) return value;
  *why = {fmt::format("it is not exactly one tensor, nor whole rows of one: it holds {}",
                      pack_text(joined)),
          where(base.cls, pack_value(joined))};
  return kLost;
}

}  // namespace hocket::check
