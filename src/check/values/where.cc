// SPDX-License-Identifier: Apache-2.0
// Where a rule fails: the first rank, by its coordinates, what it holds, what it lacks or should
// hold instead, and on how many ranks more it is so. Runs only once something is refused.
#include <fmt/format.h>

#include <algorithm>

#include "check/values/values.h"

namespace hocket::check {

using graph::Coords;
using graph::Run;

std::string runs_text(const std::vector<Run>& runs) {
  constexpr size_t kMost = 6;
  std::string text;
  for (size_t i = 0; i < runs.size() && i < kMost; ++i) {
    text += fmt::format("{}[{}:{})", i ? "+" : "", runs[i].begin, runs[i].begin + runs[i].length);
  }
  if (runs.empty()) return "none";
  return runs.size() > kMost ? text + "+.." : text;
}

bool Held::complete() const {
  return std::all_of(addends.begin(), addends.end(),
                     [](const HeldAddends& part) { return part.missing.empty(); });
}

void AtRank::add(std::string what, const Coords& coords) {
  if (what.empty()) return;
  if (++ranks > 1) return;
  text = std::move(what);
  at = coords;
}

namespace {

bool is_all(const Held::Dim& dim) {
  return dim.indices.size() == 1 && dim.indices[0] == Run{0, dim.size};
}

/// "dim 0 [8:12) of 16 with addends t [0:2) of 4".
std::string text_of(const Held& held) {
  std::string text;
  for (size_t dim = 0; dim < held.dims.size(); ++dim) {
    if (is_all(held.dims[dim])) continue;
    text += fmt::format("{}dim {} {} of {}", text.empty() ? "" : ", ", dim,
                        runs_text(held.dims[dim].indices), held.dims[dim].size);
  }
  if (text.empty()) {
    text = "all of it";
  }
  for (const HeldAddends& part : held.addends) {
    text += fmt::format("{} {} {} of {}", &part == &held.addends[0] ? " with addends" : ",",
                        part.letter, runs_text(part.here), part.cells);
  }
  return text;
}

std::string missing_in(const std::vector<Held>& held) {
  std::string text;
  for (const Held& part : held) {
    for (const HeldAddends& addends : part.addends) {
      if (addends.missing.empty()) continue;
      text += fmt::format("{}{} {}", text.empty() ? "; missing " : ", ", addends.letter,
                          runs_text(addends.missing));
    }
  }
  return text;
}

/// "; both have t [0:1)" if two values of one dim or one reduction have some of it in common.
std::string common_in(const std::vector<Held>& one, const std::vector<Held>& other) {
  if (one.size() != 1 || other.size() != 1) return "";
  for (const HeldAddends& mine : one[0].addends) {
    for (const HeldAddends& theirs : other[0].addends) {
      if (mine.letter != theirs.letter || mine.cells != theirs.cells) continue;
      std::vector<Run> both;
      for (const Run& left : mine.here) {
        for (const Run& right : theirs.here) {
          const int64_t from = std::max(left.begin, right.begin);
          const int64_t to = std::min(left.begin + left.length, right.begin + right.length);
          if (from < to) {
            both.push_back({from, to - from});
          }
        }
      }
      if (!both.empty()) return fmt::format("; both have {} {}", mine.letter, runs_text(both));
    }
  }
  return "";
}

}  // namespace

std::string Values::more_text(int64_t ranks) {
  if (ranks <= 1) return "";
  return fmt::format("; so on {} more rank{}", ranks - 1, ranks == 2 ? "" : "s");
}

std::string Values::rank_text(ClassId cls, const Coords& at) const {
  const program::RoleId role = ctx_.program.classes[cls].role;
  const graph::Mesh& mesh = ctx_.program.roles[role].mesh;
  const auto first = at.begin() + ctx_.first_axis[role];
  const std::vector<int32_t> coords(first, first + std::ssize(mesh.axes));
  std::string text;
  for (size_t axis = 0; axis < mesh.axes.size(); ++axis) {
    if (mesh.axes[axis].size == 1) continue;
    text += fmt::format("{}{} {}", text.empty() ? " (" : ", ", mesh.axes[axis].name, coords[axis]);
  }
  return fmt::format("rank {}{}", ctx_.program.first_rank(role) + mesh.rank(coords),
                     text.empty() ? "" : text + ")");
}

std::vector<Held> Values::held_at(const Value& value, const Coords& at) {
  // Of a sum its parts; of a pack run after run what lies there, of a component that is itself an
  // unfinished sum the first part stands for all.
  if (value.expr < 0) return {};
  if (value.expr == kZero) return {Held{}};
  const auto of_piece = [&](const Value& part) {
    const TypeId logical = ref_.terms[part.expr].type;
    Held held;
    if (part.piece != kAnyPiece) {
      held = pieces_.held(part.piece, logical < 0 ? graph::TensorType{} : ctx_.types[logical], at);
    }
    held.term = part.expr;
    return held;
  };
  std::vector<Held> list;
  if (!is_pack(value)) {
    for (const Value& part : parts_of(value)) {
      list.push_back(of_piece(part));
    }
    return list;
  }
  const Pack pack = packs_[pack_of(value)];
  for (const PackRun& run : packs_.at(pack_of(value), at)) {
    const bool zeros = run.component == program::kNone;
    const std::vector<Value> parts =
        zeros ? std::vector<Value>{} : parts_of(pack.components[run.component]);
    Held held = zeros ? Held{} : of_piece(parts[0]);
    if (parts.size() > 1) {
      held.term = pack.components[run.component].expr;
    }
    held.elements = {run.begin, run.length};
    list.push_back(std::move(held));
  }
  return list;
}

std::string Values::held_text(const Value& value, const Coords& at) {
  constexpr size_t kMost = 6;
  if (value.expr <= kZero) return describe(value.expr);
  if (!is_pack(value) && value.piece == kAnyPiece &&
      ref_.terms[value.expr].kind != Expr::Kind::unfinished) {
    return "all of it";
  }
  const std::vector<Held> held = held_at(value, at);
  std::string text;
  for (size_t i = 0; i < held.size() && i < kMost; ++i) {
    text += i ? (is_pack(value) ? ", " : " + ") : "";
    if (!is_pack(value)) {
      text += text_of(held[i]);
    } else if (held[i].term == kZero) {
      text += fmt::format("{} zeros", held[i].elements.length);
    } else {
      text += fmt::format("{} of {}{}", runs_text({held[i].elements}), describe(held[i].term),
                          held[i].addends.empty() ? "" : " (" + text_of(held[i]) + ")");
    }
  }
  return held.size() > kMost ? text + ", .." : text;
}

AtRank Values::first_rank(ClassId cls, AxisMask axes,
                          const std::function<std::string(const Coords&)>& wrong) const {
  AtRank found;
  const graph::CoordBox& box = ctx_.boxes[cls];
  pieces_.cuts.for_each(axes, box.begin, [&](const Coords& at) {
    if (box.contains(at, axes)) {
      found.add(wrong(at), at);
    }
  });
  found.ranks *= box.ranks_beside(axes);
  return found;
}

std::string Values::at_rank_text(ClassId cls, const AtRank& wrong) const {
  if (wrong.text.empty()) return "";
  return fmt::format("{}: {}{}", rank_text(cls, wrong.at), wrong.text, more_text(wrong.ranks));
}

std::string Values::where(ClassId cls, const Value& value) {
  // The first rank that lacks something; if none does, the first of all.
  if (value.expr < 0) return "";
  const AxisMask axes = axes_of(value);
  const AtRank lacking =
      first_rank(cls, axes, [&](const Coords& at) { return missing_in(held_at(value, at)); });
  const bool none = lacking.text.empty();
  const Coords& at = none ? ctx_.boxes[cls].begin : lacking.at;
  return fmt::format("{} has {}{}{}", rank_text(cls, at), held_text(value, at), lacking.text,
                     more_text(none ? ctx_.boxes[cls].ranks_beside(0) : lacking.ranks));
}

std::string Values::where(ClassId cls, const Value& value, const std::string& between,
                          const Value& other, const std::string& behind) {
  // The first rank at which the two are not alike; if all are, the first of all. Of which terms,
  // where these differ.
  if (value.expr < 0 || other.expr < 0) return "";
  const AxisMask axes = axes_of(value) | axes_of(other);
  const auto held = [&](const Value& one, const Coords& at) {
    const bool told = is_pack(one) || value.expr == other.expr || one.expr == kZero;
    return held_text(one, at) + (told ? "" : " (" + describe(one.expr) + ")");
  };
  const auto text = [&](const Coords& at) {
    return fmt::format("has {}{}{}{}{}", held(value, at), between, held(other, at), behind,
                       common_in(held_at(value, at), held_at(other, at)));
  };
  AtRank differs = first_rank(cls, axes, [&](const Coords& at) {
    return held_text(value, at) == held_text(other, at) ? std::string() : text(at);
  });
  if (differs.text.empty()) {
    differs = first_rank(cls, axes, text);
  }
  return fmt::format("{} {}{}", rank_text(cls, differs.at), differs.text, more_text(differs.ranks));
}

std::string Values::where_along(ClassId cls, const Value& value, int32_t axis) {
  // The first rank, and the next one along the axis.
  if (value.expr < 0) return "";
  if (axis < 0 || pieces_.cuts.extents()[axis] < 2) return where(cls, value);
  const Coords& at = ctx_.boxes[cls].begin;
  Coords next = at;
  next[axis] = (at[axis] + 1) % pieces_.cuts.extents()[axis];
  const std::string mine = held_text(value, at);
  const std::string theirs = held_text(value, next);
  const std::string who = rank_text(cls, at);
  const graph::CoordBox& box = ctx_.boxes[cls];
  const bool both_here = box.contains(next, graph::axis_bit(axis));
  const std::string more = more_text(box.ranks_beside(0) - (both_here ? 1 : 0));
  if (mine == theirs) {
    return fmt::format("{} and {} both have {}{}", who, rank_text(cls, next), mine, more);
  }
  return fmt::format("{} has {}, and {} has {}{}{}", who, mine, rank_text(cls, next), theirs,
                     common_in(held_at(value, at), held_at(value, next)), more);
}

std::string Values::unheld(ClassId cls, const Value& value, int32_t dim) {
  if (dim < 0) return "";
  const std::vector<Held> held = held_at(value, ctx_.boxes[cls].begin);
  if (held.size() != 1 || static_cast<size_t>(dim) >= held[0].dims.size()) return "";
  const Held::Dim& here = held[0].dims[static_cast<size_t>(dim)];
  const std::vector<Run> missing = graph::gaps_in(graph::united(here.indices), {0, here.size});
  return missing.empty() ? "" : fmt::format("; missing {} of dim {}", runs_text(missing), dim);
}

/// The first rank whose part is not of the local type of its buffer.
std::string Values::where_of_size(ClassId cls, const Value& value, TypeId local) {
  const AxisMask axes = axes_of(value);
  const AtRank wrong = first_rank(cls, axes, [&](const Coords& at) {
    for (const Value& part : parts_of(value)) {
      const TypeId logical = part.expr < 0 ? TypeId{-1} : ref_.terms[part.expr].type;
      if (is_pack(part) || part.piece == kAnyPiece || logical < 0) continue;
      graph::CoordBox one = ctx_.boxes[cls];
      one.begin = at;
      one.count.fill(1);
      const TypeId type = pieces_.local_type(part.piece, logical, ctx_.types, one);
      if (type == local) continue;
      return fmt::format("has {}, which is {}; the buffer is {}", held_text(part, at),
                         type < 0 ? "no tensor" : graph::to_string(ctx_.types[type]),
                         graph::to_string(ctx_.types[local]));
    }
    return std::string();
  });
  if (wrong.text.empty()) return where(cls, value);
  return fmt::format("{} {}{}", rank_text(cls, wrong.at), wrong.text, more_text(wrong.ranks));
}

std::string Values::where_of_two(TaskRef ref, const Value& value, TaskRef other,
                                 const Value& theirs) {
  // Of two classes that should bring the same, the first rank of each.
  if (value.expr < 0 || theirs.expr < 0) return "";
  const Coords& at = ctx_.boxes[ref.cls].begin;
  const Coords& there = ctx_.boxes[other.cls].begin;
  return fmt::format("{} has {} ({}), and {} has {} ({})", rank_text(ref.cls, at),
                     held_text(value, at), describe(value.expr), rank_text(other.cls, there),
                     held_text(theirs, there), describe(theirs.expr));
}

Coords Values::coords_of(int32_t rank) const {
  Coords at{};
  const std::vector<int32_t> coords = ctx_.program.coords(rank);
  std::copy(coords.begin(), coords.end(), at.begin() + ctx_.first_axis[ctx_.program.role_of(rank)]);
  return at;
}

int32_t Values::rank_at(program::RoleId role, const Coords& at) const {
  const graph::Mesh& mesh = ctx_.program.roles[role].mesh;
  const auto first = at.begin() + ctx_.first_axis[role];
  return ctx_.program.first_rank(role) + mesh.rank({first, first + std::ssize(mesh.axes)});
}

void Values::tell_written(TaskRef ref, size_t output, const Value& value) {
  Value unmarked = value;
  const bool exact = take_marks(&unmarked) == 0;
  ctx_.options.on_write(
      {ref, output, ref_, exact, [&](int32_t rank) { return held_at(unmarked, coords_of(rank)); }});
}

}  // namespace hocket::check
