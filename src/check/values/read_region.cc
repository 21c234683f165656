// SPDX-License-Identifier: Apache-2.0
// Implements: BufferState (buffer_state.h), reads of buffers that have views.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "check/values/buffer_state.h"

namespace hocket::check {

using graph::Coords;
using graph::CutTable;
using graph::Run;

/// Joins the marks of parts of one term that are read as one value; see CodecMarks::join.
std::optional<MarkId> BufferState::join_marks(const Base& base, std::span<const Entry* const> hits,
                                              CutId region) const {
  std::vector<CodecMarks::Part> parts;
  for (const Entry* hit : hits) {
    const Piece& piece = algebra_.pieces[hit->value.piece];
    parts.push_back(
        {hit->region, piece.cut[static_cast<size_t>(base.dim)], &piece.addends, hit->value.marks});
  }
  const TypeId type = ref_.terms[hits[0]->value.expr].type;
  return algebra_.codec_marks.join(parts, region, base.size, ctx_.types[type].dims[base.dim]);
}

/// Text: the first rank on which a region is not covered, and its missing indices.
std::string BufferState::uncovered(const Base& base, CutId region, CutId covered) const {
  const graph::CutTable& cuts = algebra_.pieces.cuts;
  const char* const what = base.dim == program::kNone ? "elements" : "indices";
  const RankFault lacking =
      text_.first_rank(base.cls, cuts.axes(region) | cuts.axes(covered), [&](const Coords& at) {
        const Run wanted = run_of(base, region, at);
        const std::vector<Run> written = cuts.part_at(covered, at, base.size, 0, -1);
        const std::vector<Run> missing = graph::gaps_in(written, wanted);
        if (missing.empty()) return std::string();
        return fmt::format("has {} {} of [{}:{}); missing {}", what, runs_text(written),
                           wanted.begin, wanted.begin + wanted.length, runs_text(missing));
      });
  if (lacking.text.empty()) return "";
  return fmt::format("{} {}{}", text_.rank_text(base.cls, lacking.at), lacking.text,
                     text_.more_text(lacking.ranks));
}

Value BufferState::read_region(const Base& base, CutId region, size_t dims, Unreadable* why) const {
  // The common cases are an entry of this very region, and an entry that contains it. Otherwise the
  // entries that overlap it must be parts of one term, and are joined. A flat base may hold
  // elements of several tensors, which are joined as a pack.
  constexpr Value kNothing{kUnwritten, kAnyPiece};
  constexpr Value kLost{kUnknown, kAnyPiece};
  for (const Entry& entry : base.entries) {
    if (entry.region == region &&
        (base.dim != program::kNone || algebra_.has_dims(entry.value, dims))) {
      return entry.value;
    }
  }
  std::vector<const Entry*> hits;
  for (const Entry& entry : base.entries) {
    if (!algebra_.pieces.cuts.disjoint(entry.region, region)) {
      hits.push_back(&entry);
    }
  }
  CutId covered = algebra_.pieces.cuts.make(1, 0, {{}});
  for (const Entry* hit : hits) {
    covered =
        algebra_.pieces.cuts.unite(covered, algebra_.pieces.cuts.intersection(hit->region, region));
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
            uncovered(base, algebra_.pieces.cuts.intersection((*nothing)->region, region),
                      algebra_.pieces.cuts.make(1, 0, {{}}))};
    return kLost;
  }
  if (covered != region) {
    *why = {fmt::format("only {} of it was written, of {}", algebra_.pieces.cuts.text(covered),
                        algebra_.pieces.cuts.text(region)),
            uncovered(base, region, covered)};
    return kLost;
  }
  if (std::all_of(hits.begin(), hits.end(), is(kZero))) return {kZero, kAnyPiece};
  if (base.dim == program::kNone) return read_flat(hits, base, region, dims, why);
  if (hits.size() > 1) return read_parts(hits, base, region, why);
  const Value part = part_of(base, *hits[0], region);
  if (part.expr != kUnwritten) return part;
  *why = {"part of its value has no meaning by itself", text_.where(base.cls, hits[0]->value)};
  return kLost;
}

Value BufferState::read_parts(std::span<const Entry* const> hits, const Base& base, CutId region,
                              Unreadable* why) const {
  // Joins parts of one term along the dim. Row numbers can't be joined: they count local rows.
  constexpr Value kLost{kUnknown, kAnyPiece};
  const Value& first = hits[0]->value;
  for (const Entry* hit : hits) {
    if (algebra_.is_pack(hit->value)) {
      *why = {"it holds several tensors; views without a dim take parts of them",
              text_.where(base.cls, hit->value)};
      return kLost;
    }
    if (hit->value.expr >= 0 && ref_.terms[hit->value.expr].kind == Expr::Kind::unfinished) {
      return read_sums(hits, base, region, why);
    }
    if (hit->value.expr != first.expr || hit->value.piece == kAnyPiece) {
      *why = {fmt::format("it holds parts of different values: {} and {}",
                          text_.describe(first.expr), text_.describe(hit->value.expr)),
              text_.where(base.cls, first, " in one part, and ", hit->value, " in another")};
      return kLost;
    }
  }
  if (algebra_.local_index(first.expr)) {
    *why = {"row numbers of a routing that are put side by side count other rows",
            text_.where(base.cls, first)};
    return kLost;
  }
  const int64_t size = ctx_.types[ref_.terms[first.expr].type].dims[base.dim];
  std::vector<Pieces::Part> parts;
  std::vector<int64_t> key{region.value(), base.dim, base.size, size, base.cls.value()};
  bool guess = false;
  for (const Entry* hit : hits) {
    guess = guess || algebra_.pieces.is_guess(ctx_.boxes[base.cls],
                                              algebra_.pieces[hit->value.piece].cut[base.dim]);
    parts.push_back({hit->region, hit->value.piece});
    key.push_back(hit->region.value());
    key.push_back(hit->value.piece.value());
  }
  RankFault wrong;
  PieceId& joined = joins_.try_emplace(std::move(key), program::kNone).first->second;
  if (joined == kNone) {
    const graph::CoordBox& box = ctx_.boxes[base.cls];
    joined = algebra_.pieces.join(parts, region, base.size, base.dim, size, box, &guess, &wrong);
    if (joined != kNone) {
      joined = algebra_.pieces.canonical(box, joined, base.dim, guess);
    }
  }
  if (joined == kNone) {
    std::string held;
    for (const Entry* hit : hits) {
      const Run run = run_of(base, hit->region, wrong.at);
      held += fmt::format("{} {} in [{}:{})", held.empty() ? "" : ",",
                          text_.held_text(hit->value, wrong.at), run.begin, run.begin + run.length);
    }
    *why = {wrong.text, fmt::format("{} has{}", text_.rank_text(base.cls, wrong.at), held)};
    return kLost;
  }
  // If the own part of a rank and the received parts differ in losses, ranks hold different parts
  // exactly.
  const bool same = std::all_of(hits.begin(), hits.end(),
                                [&](const Entry* hit) { return hit->value.marks == first.marks; });
  if (same) return {first.expr, joined, first.marks};
  if (const auto marks = join_marks(base, hits, region)) return {first.expr, joined, *marks};
  MarkId marks = first.marks;
  for (const Entry* hit : hits) {
    const AxisMask axes = algebra_.pieces.cuts.axes(hit->region) | algebra_.axes_of(hit->value);
    marks =
        algebra_.codec_marks.unite(marks, hit->value.marks, hit->value.marks == marks ? 0 : axes);
  }
  return {first.expr, joined, marks};
}

/// Joins unfinished sums term by term. All of them must have the same terms; the parts that the
/// ranks have added up so far may differ.
Value BufferState::read_sums(std::span<const Entry* const> hits, const Base& base, CutId region,
                             Unreadable* why) const {
  constexpr Value kLost{kUnknown, kAnyPiece};
  std::map<ExprId, std::vector<Entry>> by_term;
  for (const Entry* hit : hits) {
    for (const Value& part : algebra_.parts_of(hit->value)) {
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
      *why = {
          fmt::format("its parts are sums, and not all have {} exactly once", text_.describe(term)),
          text_.where(base.cls, hits[0]->value)};
      return kLost;
    }
    std::vector<const Entry*> parts;
    for (const Entry& entry : entries) {
      parts.push_back(&entry);
    }
    terms.push_back(read_parts(parts, base, region, why));
    if (terms.back().expr == kUnknown) return kLost;
  }
  const std::optional<Value> sum = algebra_.sum_of(terms);
  if (sum) return *sum;
  *why = {"it holds parts of sums that do not add up", text_.where(base.cls, hits[0]->value)};
  return kLost;
}

Value BufferState::read_flat(std::span<const Entry* const> hits, const Base& base, CutId region,
                             size_t dims, Unreadable* why) const {
  // Lists, at every coordinate, the elements that overlap the region, in order. Requires: they
  // cover it.
  constexpr Value kLost{kUnknown, kAnyPiece};
  graph::CutTable& cuts = algebra_.pieces.cuts;
  const int64_t size = base.size;
  std::vector<PackId> packs;
  std::vector<int32_t> first;  // by pack: its first component in `joint`
  AxisMask axes = cuts.axes(region);
  Packs::Key key{Packs::Op::joined, {region.value(), size, std::ssize(hits)}};
  for (const Entry* hit : hits) {
    const PackId id = algebra_.flat(hit->value, 0);
    if (id == kNone) {
      *why = {fmt::format("it holds {}, which has no order in memory that all ranks share",
                          text_.describe(hit->value.expr)),
              text_.where(base.cls, hit->value)};
      return kLost;
    }
    packs.push_back(id);
    axes |= cuts.axes(hit->region) | algebra_.packs[id].axes;
    const bool zero = hit->value.expr == kZero;
    key.of.push_back(hit->region.value());
    key.of.push_back(zero ? program::kNone : algebra_.packs[id].shape.value());
  }
  // A single pack is not copied: this may be a small part of it.
  std::vector<Value> joint;
  for (PackId id : packs) {
    first.push_back(static_cast<int32_t>(joint.size()));
    if (packs.size() > 1) {
      joint.insert(joint.end(), algebra_.packs[id].components.begin(),
                   algebra_.packs[id].components.end());
    }
  }
  const std::vector<Value>& components =
      packs.size() > 1 ? joint : algebra_.packs[packs[0]].components;
  const auto row_at = [&](const Coords& coords) {
    const Run wanted = run_of(base, region, coords);
    std::vector<std::pair<int64_t, size_t>> order;
    for (size_t i = 0; i < hits.size(); ++i) {
      order.push_back({run_of(base, hits[i]->region, coords).begin, i});
    }
    std::sort(order.begin(), order.end());
    PackRow row;
    for (const auto& [begin, i] : order) {
      const int64_t length = run_of(base, hits[i]->region, coords).length;
      const int64_t from = std::max(begin, wanted.begin);
      const int64_t to = std::min(begin + length, wanted.begin + wanted.length);
      if (from >= to) continue;
      if (hits[i]->value.expr == kZero) {
        row.push_back({program::kNone, 0, to - from});
        continue;
      }
      for (PackRun run : slice(algebra_.packs.at(packs[i], coords), from - begin, to - from)) {
        if (run.component != program::kNone) {
          run.component += first[i];
        }
        row.push_back(run);
      }
    }
    return row;
  };
  const PackId joined = algebra_.packs.make(std::move(key), components, axes, row_at);
  const Value value = algebra_.unflat(joined, dims);
  if (value.expr != kUnwritten) return value;
  *why = {fmt::format("it is not exactly one tensor, nor whole rows of one: it holds {}",
                      text_.pack_text(joined)),
          text_.where(base.cls, algebra_.pack_value(joined))};
  return kLost;
}

}  // namespace hocket::check
