// SPDX-License-Identifier: Apache-2.0
#include "check/values/transfers.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "program/transfer.h"

namespace hocket::check {

/// Returns whether the value is one finished tensor, and lies on every rank of the class where the
/// task says. Else reports.
bool RoleTransfers::matches_begins(TaskRef ref, const Value& value) {
  const Task& task = m_.ctx.task(ref);
  if (m_.algebra.is_pack(value)) {
    m_.refusals.refuse(
        "transfer-layout", ref, task.in[0],
        "it is no tensor, but a pack of elements: " + m_.text.pack_text(m_.algebra.pack_of(value)),
        "transfer each tensor by itself, through a view that has its dims");
    return false;
  }
  if (m_.algebra.local_index(value.expr)) {
    m_.refusals.refuse("message-rows", ref, task.in[0],
                       "row numbers are relative to the rank's own rows",
                       "plan the routing again on the transferred ids");
    return false;
  }
  if (m_.ref.terms[value.expr].kind == Expr::Kind::unfinished ||
      !m_.pieces[value.piece].addends.empty()) {
    m_.refusals.refuse("transfer-layout", ref, task.in[0], "it is a sum that is not finished",
                       "reduce it before it is transferred");
    return false;
  }
  const graph::TensorType& type = m_.ctx.types[m_.ref.terms[value.expr].type];
  const Pieces::PieceOffsets offsets = m_.io.piece_offsets_of(ref.cls, task);
  for (size_t dim = 0; dim < type.dims.size(); ++dim) {
    const RankFault wrong =
        m_.pieces.misplaced(m_.pieces[value.piece].cut[dim], static_cast<char>('a' + dim),
                            type.dims[dim], offsets, m_.ctx.boxes[ref.cls]);
    if (wrong.text.empty()) continue;
    m_.refusals.refuse("transfer-layout", ref, task.in[0], wrong.text,
                       "give in begins= the begin of the rank's part: a for dim 0, b for dim 1, ..",
                       m_.text.at_rank_text(ref.cls, wrong));
    return false;
  }
  return true;
}

/// Returns the piece that the ranks of a role take, as their tasks say; kNone if that is no part of
/// the tensor.
PieceId RoleTransfers::taken_piece(std::span<const TaskRef> takers,
                                   const graph::TensorType& logical) {
  const program::RoleId role = m_.ctx.program.classes[takers[0].cls].role;
  const graph::Mesh& mesh = m_.ctx.program.roles[role].mesh;
  const AxisMask axes = m_.ctx.role_axes(role);
  // Ranks of a role are in the order of the rows of a cut: the last axis is fastest.
  std::vector<comm::Region> regions(static_cast<size_t>(mesh.size()));
  for (const TaskRef& ref : takers) {
    for (int32_t rank : m_.ctx.program.ranks_of(ref.cls)) {
      regions[static_cast<size_t>(rank - m_.ctx.program.first_rank(role))] =
          program::region_of(m_.ctx.program, m_.ctx.task(ref), rank);
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
    piece.cut[dim] = m_.pieces.cuts.make(logical.dims[dim], axes, rows);
  }
  return m_.pieces.intern(std::move(piece));
}

/// Text: the region that a rank takes, and the part of it that no rank gives, dim by dim.
std::string RoleTransfers::missing_text(TaskRef taker, int32_t rank,
                                        std::span<const TaskRef> givers) {
  const comm::Region wanted = program::region_of(m_.ctx.program, m_.ctx.task(taker), rank);
  std::vector<std::vector<graph::Run>> given(wanted.size());
  for (const TaskRef& ref : givers) {
    for (int32_t from : m_.ctx.program.ranks_of(ref.cls)) {
      const comm::Region region = program::region_of(m_.ctx.program, m_.ctx.task(ref), from);
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
      text += fmt::format("; missing {}", runs_text(missing));
    }
  }
  return m_.text.rank_text(taker.cls, m_.ctx.coords_of(rank)) + text;
}

void RoleTransfers::transfer(std::span<const TaskRef> tasks) {
  // All classes of the giving role must hold one term, each in the part that its task says. All
  // that the tasks of the other role take must lie in some given part.
  std::vector<TaskRef> givers;
  std::vector<TaskRef> takers;
  for (const TaskRef& ref : tasks) {
    (m_.ctx.task(ref).in.empty() ? takers : givers).push_back(ref);
  }
  const auto lose_all = [&] {
    for (const TaskRef& ref : takers) {
      m_.io.invalidate_outputs(ref);
    }
  };
  ExprId expr = kUnwritten;
  MarkId marks = 0;
  bool same = true;  // codecs lost the same on every rank that a part may be taken from
  for (const TaskRef& ref : givers) {
    const Value value = m_.io.read(ref, m_.ctx.task(ref).in[0]);
    if (value.expr < 0) return lose_all();
    same = same && (ref == givers[0] || value.marks == marks);
    const AxisMask differ = m_.codec_marks[value.marks].apart |
                            m_.codec_marks.axes(m_.codec_marks.settled(value.marks));
    same = same && (differ & ~m_.algebra.axes_of(value)) == 0;
    marks = ref == givers[0] ? value.marks : m_.codec_marks.unite(marks, value.marks, 0);
    if (ref == givers[0]) {
      expr = value.expr;
    } else if (value.expr != expr) {
      m_.ctx.report(
          "classes-differ", ProblemClass::value, ref, {givers[0]},
          fmt::format("{} gives {}, but {} gives {}", m_.ctx.name(givers[0]),
                      m_.text.describe(expr), m_.ctx.name(ref), m_.text.describe(value.expr)),
          "give parts of one value",
          m_.text.where_of_two(givers[0], m_.state.at(givers[0].cls, m_.ctx.task(givers[0]).in[0]),
                               ref, value));
      return lose_all();
    }
    if (expr != kZero && !matches_begins(ref, value)) return lose_all();
  }
  if (expr == kZero) {
    for (const TaskRef& ref : takers) {
      m_.io.write(ref, 0, {kZero, kAnyPiece});
    }
    return;
  }
  const graph::TensorType& logical = m_.ctx.types[m_.ref.terms[expr].type];
  const bool shaped = std::all_of(takers.begin(), takers.end(), [&](const TaskRef& ref) {
    return m_.ctx.program.kind(m_.ctx.task(ref)).out[0].dims.size() == logical.dims.size();
  });
  const PieceId piece = shaped ? taken_piece(takers, logical) : PieceId(kNone);
  if (piece == kNone) {
    m_.ctx.report(
        "transfer-covers", ProblemClass::value, takers[0], {givers.begin(), givers.end()},
        fmt::format("{} takes a region that is no part of {}, a {}", m_.ctx.name(takers[0]),
                    m_.text.describe(expr), graph::to_string(logical)),
        "correct begins= or the type of the taken part",
        missing_text(takers[0], m_.ctx.program.ranks_of(takers[0].cls)[0], givers));
    return lose_all();
  }
  std::vector<std::pair<ClassId, TaskId>> places;
  for (const TaskRef& ref : tasks) {
    places.emplace_back(ref.cls, ref.task);
  }
  const program::Transfer plan(m_.ctx.program, std::move(places));
  std::set<std::vector<std::pair<int64_t, int64_t>>> seen;
  for (const TaskRef& ref : takers) {
    for (int32_t rank : m_.ctx.program.ranks_of(ref.cls)) {
      std::vector<std::pair<int64_t, int64_t>> key;
      for (const graph::Run& run : program::region_of(m_.ctx.program, m_.ctx.task(ref), rank)) {
        key.emplace_back(run.begin, run.length);
      }
      if (!seen.insert(key).second || plan.copies(rank)) continue;
      m_.ctx.report("transfer-covers", ProblemClass::value, ref, {givers.begin(), givers.end()},
                    fmt::format("{} takes a part of {} that no rank gives, on rank {}",
                                m_.ctx.name(ref), m_.text.describe(expr), rank),
                    "let the giving ranks have all of it, or take less",
                    missing_text(ref, rank, givers));
      return lose_all();
    }
  }
  // Ranks that take the same part may take it from different ranks.
  const program::RoleId giver = m_.ctx.program.classes[givers[0].cls].role;
  MarkSet taken{m_.codec_marks[m_.codec_marks.over_all(marks, m_.ctx.role_axes(giver))].list, 0};
  if (!same) {
    taken.apart = m_.ctx.role_axes(m_.ctx.program.classes[takers[0].cls].role);
  }
  for (const TaskRef& ref : takers) {
    m_.io.write(ref, 0, {expr, piece, m_.codec_marks.intern(taken)});
  }
}

}  // namespace hocket::check
