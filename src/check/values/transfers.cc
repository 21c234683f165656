// SPDX-License-Identifier: Apache-2.0
// What a transfer between roles does to values: the ranks of one role hold parts of a term, each
// where its task says; those of the other get the parts that their tasks say, which must be there.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "check/values/values.h"
#include "program/transfer.h"

namespace hocket::check {

/// True if the value is one finished tensor and lies on every rank of the class where the task
/// says.
bool Values::gives_as_said(TaskRef ref, const Value& value) {
  const Task& task = ctx_.task(ref);
  if (is_pack(value)) {
    refuse("transfer-layout", ref, task.in[0],
           "it is no tensor, but elements of one or of several: " + pack_text(pack_of(value)),
           "transfer each tensor by itself, through a view that has its dims");
    return false;
  }
  if (local_index(value.expr)) {
    refuse("message-rows", ref, task.in[0], "row numbers are relative to the rank's own rows",
           "plan the routing again on the transferred ids");
    return false;
  }
  if (ref_.terms[value.expr].kind == Expr::Kind::unfinished ||
      !pieces_[value.piece].addends.empty()) {
    refuse("transfer-layout", ref, task.in[0], "it is a sum that is not finished",
           "reduce it before it is transferred");
    return false;
  }
  const graph::TensorType& type = ctx_.types[ref_.terms[value.expr].type];
  const Pieces::Begins begins = begins_of(ref.cls, task);
  for (size_t dim = 0; dim < type.dims.size(); ++dim) {
    const AtRank wrong =
        pieces_.misplaced(pieces_[value.piece].cut[dim], static_cast<char>('a' + dim),
                          type.dims[dim], begins, ctx_.boxes[ref.cls]);
    if (wrong.text.empty()) continue;
    refuse("transfer-layout", ref, task.in[0], wrong.text,
           "say in begins= where the rank's part begins: a for dim 0, b for dim 1, ..",
           at_rank_text(ref.cls, wrong));
    return false;
  }
  return true;
}

AxisMask Values::axes_of_role(program::RoleId role) const {
  AxisMask axes = 0;
  for (size_t axis = 0; axis < ctx_.program.roles[role].mesh.axes.size(); ++axis) {
    axes |= graph::axis_bit(ctx_.first_axis[role] + static_cast<int32_t>(axis));
  }
  return axes;
}

/// What the tasks of the classes of one role say that their ranks take; kNone if that is no part of
/// the tensor.
PieceId Values::taken_piece(std::span<const TaskRef> takers, const graph::TensorType& logical) {
  const program::RoleId role = ctx_.program.classes[takers[0].cls].role;
  const graph::Mesh& mesh = ctx_.program.roles[role].mesh;
  const AxisMask axes = axes_of_role(role);
  // Ranks of a role count the last axis fastest, as the rows of a cut do.
  std::vector<comm::Region> regions(static_cast<size_t>(mesh.size()));
  for (const TaskRef& ref : takers) {
    for (int32_t rank : ctx_.program.ranks_of(ref.cls)) {
      regions[static_cast<size_t>(rank - ctx_.program.first_rank(role))] =
          program::region_of(ctx_.program, ctx_.task(ref), rank);
    }
  }
  Piece piece{static_cast<uint8_t>(logical.dims.size()), {}, {}};
  for (size_t dim = 0; dim < logical.dims.size(); ++dim) {
    std::vector<std::vector<graph::Run>> rows;
    for (const comm::Region& region : regions) {
      const graph::Run& run = region[dim];
      if (run.begin < 0 || run.length > logical.dims[dim] - run.begin) return kNone;
      rows.push_back({run});
    }
    piece.cut[dim] = pieces_.cuts.make(logical.dims[dim], axes, rows);
  }
  return pieces_.intern(std::move(piece));
}

/// What a rank takes, and what of that no rank gives, dim by dim.
std::string Values::untaken(TaskRef taker, int32_t rank, std::span<const TaskRef> givers) {
  const comm::Region wanted = program::region_of(ctx_.program, ctx_.task(taker), rank);
  std::vector<std::vector<graph::Run>> given(wanted.size());
  for (const TaskRef& ref : givers) {
    for (int32_t from : ctx_.program.ranks_of(ref.cls)) {
      const comm::Region region = program::region_of(ctx_.program, ctx_.task(ref), from);
      for (size_t dim = 0; dim < std::min(wanted.size(), region.size()); ++dim) {
        given[dim].push_back(region[dim]);
      }
    }
  }
  std::string text;
  for (size_t dim = 0; dim < wanted.size(); ++dim) {
    const int64_t end = wanted[dim].begin + wanted[dim].length;
    text += fmt::format("{}dim {} [{}:{})", dim ? ", " : " takes ", dim, wanted[dim].begin, end);
    const auto missing = graph::gaps_in(graph::united(given[dim]), wanted[dim]);
    if (!missing.empty()) {
      text += fmt::format(", of which {} is missing", runs_text(missing));
    }
  }
  return rank_text(taker.cls, coords_of(rank)) + text;
}

void Values::transfer(std::span<const TaskRef> tasks) {
  // All classes of the role that gives must hold one term, each in the part that its task says; all
  // that the other role's tasks take must then lie in some part that is given.
  std::vector<TaskRef> givers;
  std::vector<TaskRef> takers;
  for (const TaskRef& ref : tasks) {
    (ctx_.task(ref).in.empty() ? takers : givers).push_back(ref);
  }
  const auto lose_all = [&] {
    for (const TaskRef& ref : takers) {
      lose_outputs(ref.cls, ctx_.task(ref));
    }
  };
  ExprId expr = kUnwritten;
  MarkId marks = 0;
  bool same = true;  // whichever rank a part is taken from
  for (const TaskRef& ref : givers) {
    const Value value = read(ref, ctx_.task(ref).in[0]);
    if (value.expr < 0) return lose_all();
    same = same && (ref == givers[0] || value.marks == marks);
    const AxisMask differ = marks_[value.marks].apart | axes_of_marks(settled(value.marks));
    same = same && (differ & ~axes_of(value)) == 0;
    marks = ref == givers[0] ? value.marks : unite_marks(marks, value.marks, 0);
    if (ref == givers[0]) {
      expr = value.expr;
    } else if (value.expr != expr) {
      ctx_.report(
          "classes-differ", ProblemClass::value, ref, {givers[0]},
          fmt::format("{} gives {}, but {} gives {}", ctx_.name(givers[0]), describe(expr),
                      ctx_.name(ref), describe(value.expr)),
          "give parts of one value",
          where_of_two(givers[0], at(givers[0].cls, ctx_.task(givers[0]).in[0]), ref, value));
      return lose_all();
    }
    if (expr != kZero && !gives_as_said(ref, value)) return lose_all();
  }
  if (expr == kZero) {
    for (const TaskRef& ref : takers) {
      set(ref.cls, ctx_.task(ref), 0, {kZero, kAnyPiece}, nullptr, ref);
    }
    return;
  }
  const graph::TensorType& logical = ctx_.types[ref_.terms[expr].type];
  const bool shaped = std::all_of(takers.begin(), takers.end(), [&](const TaskRef& ref) {
    return ctx_.program.kind(ctx_.task(ref)).out[0].dims.size() == logical.dims.size();
  });
  const PieceId piece = shaped ? taken_piece(takers, logical) : PieceId(kNone);
  if (piece == kNone) {
    ctx_.report("transfer-covers", ProblemClass::value, takers[0], {givers.begin(), givers.end()},
                fmt::format("{} takes what is no part of {}, a {}", ctx_.name(takers[0]),
                            describe(expr), graph::to_string(logical)),
                "correct begins= or the type of what is taken",
                untaken(takers[0], ctx_.program.ranks_of(takers[0].cls)[0], givers));
    return lose_all();
  }
  std::vector<std::pair<ClassId, TaskId>> places;
  for (const TaskRef& ref : tasks) {
    places.emplace_back(ref.cls, ref.task);
  }
  const program::Transfer plan(ctx_.program, std::move(places));
  std::set<std::vector<std::pair<int64_t, int64_t>>> seen;
  for (const TaskRef& ref : takers) {
    for (int32_t rank : ctx_.program.ranks_of(ref.cls)) {
      std::vector<std::pair<int64_t, int64_t>> key;
      for (const graph::Run& run : program::region_of(ctx_.program, ctx_.task(ref), rank)) {
        key.emplace_back(run.begin, run.length);
      }
      if (!seen.insert(key).second || plan.copies(rank)) continue;
      ctx_.report("transfer-covers", ProblemClass::value, ref, {givers.begin(), givers.end()},
                  fmt::format("{} takes a part of {} that no rank gives, on rank {}",
                              ctx_.name(ref), describe(expr), rank),
                  "let the ranks that give have all of it, or take less",
                  untaken(ref, rank, givers));
      return lose_all();
    }
  }
  // Ranks that take the same may take it from different ranks.
  const program::RoleId giver = ctx_.program.classes[givers[0].cls].role;
  Marks taken{marks_[over_all(marks, axes_of_role(giver))].list, 0};
  if (!same) {
    taken.apart = axes_of_role(ctx_.program.classes[takers[0].cls].role);
  }
  for (const TaskRef& ref : takers) {
    set(ref.cls, ctx_.task(ref), 0, {expr, piece, intern_marks(taken)}, nullptr, ref);
  }
}

}  // namespace hocket::check
