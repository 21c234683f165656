// SPDX-License-Identifier: Apache-2.0
#include "check/values/value_text.h"

#include <fmt/format.h>

#include <algorithm>

namespace hocket::check {

using graph::Coords;
using graph::Run;

std::string runs_text(const std::vector<Run>& runs) {
  constexpr size_t kMaxListed = 6;
  std::string text;
  for (size_t i = 0; i < runs.size() && i < kMaxListed; ++i) {
    text += fmt::format("{}[{}:{})", i ? "+" : "", runs[i].begin, runs[i].begin + runs[i].length);
  }
  if (runs.empty()) return "none";
  return runs.size() > kMaxListed ? text + "+.." : text;
}

bool Held::complete() const {
  return std::all_of(addends.begin(), addends.end(),
                     [](const HeldAddends& part) { return part.missing.empty(); });
}

void RankFault::add(std::string what, const Coords& coords) {
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

std::string ValueText::coordinates(const graph::Node& node, int32_t micro_batch) const {
  std::string text;
  const std::string place = graph::layer_name(node.layer, ref_.graph().num_layers);
  if (!place.empty() && !node.op.starts_with(place)) {
    text += " " + place;
  }
  if (micro_batch >= 0) {
    text += fmt::format(" mb{}", micro_batch);
  }
  return text;
}

std::string ValueText::describe(ExprId expr) const {
  if (expr == kUnwritten) return "nothing";
  if (expr == kUnknown) return "something already refused";
  if (expr == kZero) return "zero";
  // Uses names where there are any: the node that made an application first, two terms of a sum.
  // The meaning of Expr::a and b depends on the kind of term (terms.h).
  const Expr& term = ref_.terms[expr];
  const graph::Graph& graph = ref_.graph();
  switch (term.kind) {
    case Expr::Kind::tensor:
      return fmt::format("'{}' as it was before the step", graph.tensor(term.a).name);
    case Expr::Kind::input:
      return term.b < 0 ? fmt::format("input '{}'", graph.tensor(term.a).name)
                        : fmt::format("input '{}' of mb{}", graph.tensor(term.a).name, term.b);
    case Expr::Kind::sizes:
      return "row counts of an exchange";
    case Expr::Kind::coded: {
      const ops::Op* const rules = ref_.keys[ref_.terms.codes_of(expr).key].rules;
      return fmt::format("{} codes of {}", rules->codec.name, describe(term.a));
    }
    case Expr::Kind::unfinished:
      return fmt::format("an unfinished sum (of {} and other parts)",
                         describe(algebra_.parts_of({expr, kAnyPiece})[0].expr));
    case Expr::Kind::sum: {
      const std::vector<ExprId> terms = ref_.terms.terms_of(expr);
      std::string text = fmt::format("a sum of {} terms (", terms.size());
      for (size_t i = 0; i < terms.size() && i < 2; ++i) {
        text += (i ? ", " : "") + describe(terms[i]);
      }
      return text + (terms.size() > 2 ? ", ...)" : ")");
    }
    case Expr::Kind::pack: {
      const std::vector<Value>& parts = algebra_.packs[PackId(term.a)].components;
      std::string text = "a pack of ";
      for (size_t i = 0; i < parts.size() && i < 3; ++i) {
        text += (i ? ", " : "") + describe(parts[i].expr);
      }
      return text + (parts.size() > 3 ? ", ..." : "");
    }
    case Expr::Kind::output:
      break;
  }
  const Application& app = ref_.terms.app(term.a);
  const graph::Node& node = graph.nodes[app.node];
  const std::string& op = ref_.keys[app.key].op;
  if (op != node.op) {
    return fmt::format("{} of {}{}", op, node.op, coordinates(node, app.micro_batch));
  }
  const std::string& name = graph.tensor(node.out[term.b]).name;
  return fmt::format("{}{}{} ('{}')", node.op, coordinates(node, app.micro_batch),
                     app.num_out > 1 ? fmt::format(" output {}", term.b) : "", name);
}

std::string ValueText::piece_text(const Value& value) const {
  if (algebra_.is_pack(value)) return pack_text(algebra_.pack_of(value));
  std::string text;
  for (const Value& part : algebra_.parts_of(value)) {
    text += (text.empty() ? "" : " + ") + algebra_.pieces.text(part.piece, ctx_.mesh);
  }
  return text;
}

const std::string& ValueText::axis_name(AxisMask axes) const {
  static const std::string none = "any axis";
  for (size_t axis = 0; axis < ctx_.mesh.axes.size(); ++axis) {
    if (axes & graph::axis_bit(static_cast<int32_t>(axis))) return ctx_.mesh.axes[axis].name;
  }
  return none;
}

std::string ValueText::pack_text(PackId id) const {
  const Pack& pack = algebra_.packs[id];
  const std::vector<PackRow>& rows = algebra_.packs.rows(id);
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

std::string ValueText::marks_text(MarkId marks, bool sets) const {
  std::string text;
  for (const CodecMark& mark : algebra_.codec_marks[marks].list) {
    text +=
        fmt::format("{}~{} of {}", text.empty() ? "up to " : ", ", mark.codec, describe(mark.term));
    const std::string& shares = algebra_.codec_marks.sets().shares(mark.addends);
    if (shares.empty()) continue;
    text += sets ? fmt::format(", its addends {} each at once",
                               algebra_.codec_marks.sets().text(mark.addends))
                 : fmt::format(", of {} of its addends at once", shares);
  }
  return text.empty() ? "exactly" : text;
}

std::string ValueText::more_text(int64_t ranks) {
  if (ranks <= 1) return "";
  return fmt::format("; so on {} more rank{}", ranks - 1, ranks == 2 ? "" : "s");
}

std::string ValueText::rank_text(ClassId cls, const Coords& at) const {
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

std::vector<Held> ValueText::held_at(const Value& value, const Coords& at) const {
  // Lists the parts of a sum, or the runs of a pack. Of a component that is itself an unfinished
  // sum, the first part stands for all.
  if (value.expr < 0) return {};
  if (value.expr == kZero) return {Held{}};
  const auto of_piece = [&](const Value& part) {
    const TypeId logical = ref_.terms[part.expr].type;
    Held held;
    if (part.piece != kAnyPiece) {
      held = algebra_.pieces.held(part.piece,
                                  logical < 0 ? graph::TensorType{} : ctx_.types[logical], at);
    }
    held.term = part.expr;
    return held;
  };
  std::vector<Held> list;
  if (!algebra_.is_pack(value)) {
    for (const Value& part : algebra_.parts_of(value)) {
      list.push_back(of_piece(part));
    }
    return list;
  }
  const Pack pack = algebra_.packs[algebra_.pack_of(value)];
  for (const PackRun& run : algebra_.packs.at(algebra_.pack_of(value), at)) {
    const bool zeros = run.component == program::kNone;
    const std::vector<Value> parts =
        zeros ? std::vector<Value>{} : algebra_.parts_of(pack.components[run.component]);
    Held held = zeros ? Held{} : of_piece(parts[0]);
    if (parts.size() > 1) {
      held.term = pack.components[run.component].expr;
    }
    held.elements = {run.begin, run.length};
    list.push_back(std::move(held));
  }
  return list;
}

std::string ValueText::held_text(const Value& value, const Coords& at) const {
  constexpr size_t kMaxListed = 6;
  if (value.expr <= kZero) return describe(value.expr);
  if (!algebra_.is_pack(value) && value.piece == kAnyPiece &&
      ref_.terms[value.expr].kind != Expr::Kind::unfinished) {
    return "all of it";
  }
  const std::vector<Held> held = held_at(value, at);
  std::string text;
  for (size_t i = 0; i < held.size() && i < kMaxListed; ++i) {
    text += i ? (algebra_.is_pack(value) ? ", " : " + ") : "";
    if (!algebra_.is_pack(value)) {
      text += text_of(held[i]);
    } else if (held[i].term == kZero) {
      text += fmt::format("{} zeros", held[i].elements.length);
    } else {
      text += fmt::format("{} of {}{}", runs_text({held[i].elements}), describe(held[i].term),
                          held[i].addends.empty() ? "" : " (" + text_of(held[i]) + ")");
    }
  }
  return held.size() > kMaxListed ? text + ", .." : text;
}

RankFault ValueText::first_rank(ClassId cls, AxisMask axes,
                                const std::function<std::string(const Coords&)>& wrong) const {
  RankFault found;
  const graph::CoordBox& box = ctx_.boxes[cls];
  algebra_.pieces.cuts.for_each(axes, box.begin, [&](const Coords& at) {
    if (box.contains(at, axes)) {
      found.add(wrong(at), at);
    }
  });
  found.ranks *= box.ranks_beside(axes);
  return found;
}

std::string ValueText::at_rank_text(ClassId cls, const RankFault& wrong) const {
  if (wrong.text.empty()) return "";
  return fmt::format("{}: {}{}", rank_text(cls, wrong.at), wrong.text, more_text(wrong.ranks));
}

std::string ValueText::where(ClassId cls, const Value& value) const {
  if (value.expr < 0) return "";
  const AxisMask axes = algebra_.axes_of(value);
  const RankFault lacking =
      first_rank(cls, axes, [&](const Coords& at) { return missing_in(held_at(value, at)); });
  const bool none = lacking.text.empty();
  const Coords& at = none ? ctx_.boxes[cls].begin : lacking.at;
  return fmt::format("{} has {}{}{}", rank_text(cls, at), held_text(value, at), lacking.text,
                     more_text(none ? ctx_.boxes[cls].ranks_beside(0) : lacking.ranks));
}

std::string ValueText::where(ClassId cls, const Value& value, const std::string& between,
                             const Value& other, const std::string& behind) const {
  // If no rank has different texts, takes the first rank. Names the terms where these differ.
  if (value.expr < 0 || other.expr < 0) return "";
  const AxisMask axes = algebra_.axes_of(value) | algebra_.axes_of(other);
  const auto held = [&](const Value& one, const Coords& at) {
    const bool same_term = algebra_.is_pack(one) || value.expr == other.expr || one.expr == kZero;
    return held_text(one, at) + (same_term ? "" : " (" + describe(one.expr) + ")");
  };
  const auto text = [&](const Coords& at) {
    return fmt::format("has {}{}{}{}{}", held(value, at), between, held(other, at), behind,
                       common_in(held_at(value, at), held_at(other, at)));
  };
  RankFault differs = first_rank(cls, axes, [&](const Coords& at) {
    return held_text(value, at) == held_text(other, at) ? std::string() : text(at);
  });
  if (differs.text.empty()) {
    differs = first_rank(cls, axes, text);
  }
  return fmt::format("{} {}{}", rank_text(cls, differs.at), differs.text, more_text(differs.ranks));
}

std::string ValueText::where_along(ClassId cls, const Value& value, int32_t axis) const {
  if (value.expr < 0) return "";
  if (axis < 0 || algebra_.pieces.cuts.extents()[axis] < 2) return where(cls, value);
  const Coords& at = ctx_.boxes[cls].begin;
  Coords next = at;
  next[axis] = (at[axis] + 1) % algebra_.pieces.cuts.extents()[axis];
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

std::string ValueText::missing_dim_text(ClassId cls, const Value& value, int32_t dim) const {
  if (dim < 0) return "";
  const std::vector<Held> held = held_at(value, ctx_.boxes[cls].begin);
  if (held.size() != 1 || static_cast<size_t>(dim) >= held[0].dims.size()) return "";
  const Held::Dim& here = held[0].dims[static_cast<size_t>(dim)];
  const std::vector<Run> missing = graph::gaps_in(graph::united(here.indices), {0, here.size});
  return missing.empty() ? "" : fmt::format("; missing {} of dim {}", runs_text(missing), dim);
}

std::string ValueText::where_of_size(ClassId cls, const Value& value, TypeId local) const {
  const AxisMask axes = algebra_.axes_of(value);
  const RankFault wrong = first_rank(cls, axes, [&](const Coords& at) {
    for (const Value& part : algebra_.parts_of(value)) {
      const TypeId logical = part.expr < 0 ? TypeId{-1} : ref_.terms[part.expr].type;
      if (algebra_.is_pack(part) || part.piece == kAnyPiece || logical < 0) continue;
      graph::CoordBox one = ctx_.boxes[cls];
      one.begin = at;
      one.count.fill(1);
      const TypeId type = algebra_.pieces.local_type(part.piece, logical, ctx_.types, one);
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

std::string ValueText::where_of_two(TaskRef ref, const Value& value, TaskRef other,
                                    const Value& theirs) const {
  if (value.expr < 0 || theirs.expr < 0) return "";
  const Coords& at = ctx_.boxes[ref.cls].begin;
  const Coords& there = ctx_.boxes[other.cls].begin;
  return fmt::format("{} has {} ({}), and {} has {} ({})", rank_text(ref.cls, at),
                     held_text(value, at), describe(value.expr), rank_text(other.cls, there),
                     held_text(theirs, there), describe(theirs.expr));
}

}  // namespace hocket::check
