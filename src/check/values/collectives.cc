// SPDX-License-Identifier: Apache-2.0
#include "check/values/collectives.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <map>
#include <set>

namespace hocket::check {

bool Collectives::move(TaskRef ref, const KindInfo& info, AxisMask over, size_t operand,
                       Value* value) {
  const auto& attrs = m_.ctx.program.kind(m_.ctx.task(ref)).attrs;
  return move(ref, info, over, comm::movement(*info.comm, attrs), operand, value);
}

bool Collectives::move(TaskRef ref, const KindInfo& info, AxisMask over,
                       const comm::Movement& movement, size_t operand, Value* value) {
  // Moves every part of an unfinished sum by itself. The movement needs a piece and makes a piece:
  // the term plays no part.
  const BufferId buffer = m_.ctx.task(ref).in[operand];
  if (value->expr == kZero && !info.comm->needs_sizes) {
    return true;
  }
  if (m_.algebra.is_coded(*value) && movement.move.placed == comm::Move::Placed::sum) {
    m_.refusals.refuse("codes-summed", ref, buffer, "codes can't be added",
                       "decode them first, and add the decoded values");
    return false;
  }
  if (m_.algebra.is_pack(*value)) return move_pack(ref, info, over, movement, operand, value);
  // Rows that return to their tokens: each rank gets the rows of its own tokens, as sizes count
  // them.
  const bool back = info.comm->needs_sizes && movement.part_dim == 1;
  const CutId counted =
      back ? m_.algebra.tokens_counted(m_.io.read(ref, m_.ctx.task(ref).in[1])) : CutId(kNone);
  return move_parts(ref, info, over, movement, operand, counted, value);
}

bool Collectives::move_parts(TaskRef ref, const KindInfo& info, AxisMask over,
                             const comm::Movement& movement, size_t operand, CutId counted,
                             Value* value) {
  const graph::TensorType& local = m_.ctx.program.kind(m_.ctx.task(ref)).in[operand];
  const BufferId buffer = m_.ctx.task(ref).in[operand];
  std::vector<Value> parts = m_.algebra.parts_of(*value);
  for (Value& part : parts) {
    if (part.piece == kAnyPiece) {
      part.piece = m_.pieces.whole(local.dims.size());
    }
    const TypeId logical = m_.ref.terms[part.expr].type;
    const graph::TensorType& type = logical < 0 ? local : m_.ctx.types[logical];
    const CollectiveResult moved = m_.pieces.move(part.piece, over, movement, type, counted);
    if (moved.fault != CollectiveResult::Fault::none) {
      m_.refusals.refuse_move(ref, info, buffer, part, moved);
      return false;
    }
    if (moved.piece != part.piece && movement.move.placed == comm::Move::Placed::slot &&
        m_.algebra.local_index(part.expr)) {
      m_.refusals.refuse("gather-layout", ref, buffer,
                         "row numbers are relative to the rank's own rows",
                         "plan the routing again on the gathered ids");
      return false;
    }
    part.piece = moved.piece;
  }
  const std::optional<Value> sum = m_.algebra.sum_of(parts);
  if (!sum) {
    m_.refusals.refuse("sum-layout", ref, buffer, "its parts have different layouts after the move",
                       "reduce all addends over the same axes");
    return false;
  }
  *value = *sum;
  value->marks = m_.codec_marks.over_all(value->marks, over);
  return true;
}

bool Collectives::move_pack(TaskRef ref, const KindInfo& info, AxisMask over,
                            const comm::Movement& movement, size_t operand, Value* value) {
  // A sum needs the same elements on all ranks; each component is moved as in a buffer of its own.
  // A concatenation needs the same components on all ranks, and moves their elements.
  if (over == 0) return true;
  const PackId before = m_.algebra.pack_of(*value);
  const comm::Move& move = movement.move;
  const bool slot = move.placed == comm::Move::Placed::slot;
  const bool block = move.part == comm::Move::Part::block;
  std::vector<Value> components = m_.packs[before].components;
  const auto refused = [&](CollectiveResult::Fault fault, AxisMask axes) {
    CollectiveResult moved;
    moved.fault = fault;
    moved.axis = axes ? std::countr_zero(axes) : -1;
    m_.refusals.refuse_move(ref, info, m_.ctx.task(ref).in[operand], *value, moved);
    return false;
  };
  if (info.comm->needs_sizes || info.comm->makes_sizes) {
    return refused(CollectiveResult::Fault::differs, over);
  }
  if (slot) {
    if (const AxisMask lacking = over & ~m_.packs[before].axes) {
      return refused(CollectiveResult::Fault::not_split, lacking);
    }
    for (const Value& component : components) {
      if (const AxisMask axes = m_.algebra.axes_of(component) & over) {
        return refused(CollectiveResult::Fault::differs, axes);
      }
    }
    for (Value& component : components) {
      component.marks = m_.codec_marks.over_all(component.marks, over);
    }
    *value = m_.algebra.unflat(m_.packs.with(m_.packs.gather(before, over, block), components), 1);
    return true;
  }
  if (const AxisMask axes = m_.packs[before].axes & over) {
    return refused(CollectiveResult::Fault::split, axes);
  }
  comm::Movement whole = movement;
  whole.move.part = comm::Move::Part::whole;
  for (Value& component : components) {
    if (!move_parts(ref, info, over, whole, operand, kNone, &component)) return false;
  }
  const PackId moved = m_.packs.with(before, components);
  *value = m_.algebra.unflat(block ? m_.packs.block(moved, over) : moved, 1);
  return true;
}

/// Returns whether sizes of an exchange fit, and reports if they do not. They must belong to the
/// axis and to the routing that placed the rows. They must also be of the rank's tokens and experts
/// of rows split by token (`by_token`).
bool Collectives::sizes_fit(TaskRef ref, int32_t axis, const Value& rows, PieceId by_token,
                            const Value& sizes) {
  const BufferId buffer = m_.ctx.task(ref).in[1];
  const Expr& expr = m_.ref.terms[sizes.expr];
  const AppId route = m_.algebra.route_of(rows);
  if (expr.kind != Expr::Kind::sizes || expr.a != route || expr.b != axis) {
    m_.refusals.refuse("exchange-sizes", ref, buffer,
                       "these are not the sizes of the routing of " + m_.text.describe(rows.expr),
                       "use the sizes that were exchanged for the same routing and axis");
    return false;
  }
  const Piece& counted = m_.pieces[sizes.piece];
  const Piece& held = m_.pieces[by_token];
  const CutId tokens = m_.pieces.cuts.set_of(held.cut[1]);
  const bool all = tokens == graph::CutTable::kWhole;
  const bool same_tokens = all ? counted.addends.empty()
                               : counted.addends.size() == 1 && counted.addends[0].set == tokens;
  if (same_tokens && counted.cut[0] == held.cut[0]) return true;
  m_.refusals.refuse(
      "exchange-sizes", ref, buffer,
      fmt::format("they count other rows than those of layout {}", m_.text.piece_text(rows)),
      "exchange the counts of the same tokens and experts",
      m_.text.where(ref.cls, {rows.expr, by_token}, " by token; the sizes are of ", sizes, ""));
  return false;
}

void Collectives::step(ClassId cls, TaskId task, std::span<const MarkId> lost) {
  // An op on a list moves every operand by itself; any other moves its first input to its last
  // output. An op that makes sizes also writes, to its first output, the counts of every rank;
  // their piece is that of the counts before the move, which names the ranks with the counted rows.
  // An op that needs sizes moves rows, and takes only sizes of the same routing.
  const TaskRef ref{cls, task};
  const Task& member = m_.ctx.task(ref);
  const KindInfo& info = m_.ctx.kind(member);
  const GroupInfo& group_info = m_.ctx.groups[member.group];
  const AxisMask over = m_.ctx.group_axes(member);
  if (!m_.ctx.program.groups[member.group].members.empty()) {
    m_.refusals.refuse("classes-reduce-only", ref, -1, "its group leaves out ranks along an axis",
                       "let all coordinates of the axis take part");
    return m_.io.invalidate_outputs(ref);
  }
  if (info.comm->list) {
    for (size_t i = 0; i < member.in.size(); ++i) {
      Value value = m_.io.read(ref, member.in[i]);
      if (!lost.empty()) {
        value.marks = lost[i];
      }
      if (value.expr < 0 || !move(ref, info, over, i, &value)) {
        m_.io.invalidate(cls, member.out[i]);
      } else {
        m_.io.write(ref, i, value);
      }
    }
    return;
  }
  std::vector<Value> inputs;
  for (BufferId input : member.in) {
    inputs.push_back(m_.io.read(ref, input));
    if (inputs.back().expr < 0) return m_.io.invalidate_outputs(ref);
  }
  const bool exchange = info.comm->makes_sizes || info.comm->needs_sizes;
  if (exchange && group_info.axes.size() > 1) {
    m_.refusals.refuse("exchange-axis", ref, -1, "its group spans more than one axis",
                       "exchange over the one axis that splits the experts");
    return m_.io.invalidate_outputs(ref);
  }
  // A group of one rank moves nothing, but its sizes still belong to one routing.
  const int32_t axis = group_info.axes.empty() ? -1 : m_.ctx.axis_of(cls, group_info.axes[0]);
  const Value before = inputs[0];
  Value value = before;
  if (info.comm->makes_sizes) {
    const Expr& expr = m_.ref.terms[value.expr];
    const bool counts = expr.kind == Expr::Kind::output &&
                        expr.b == m_.ref.keys[m_.ref.terms.app(expr.a).key].rules->routing.counts;
    if (!counts || (over & ~m_.algebra.partial_axes(value))) {
      m_.refusals.refuse("exchange-counts", ref, member.in[0],
                         counts ? "the counts are not those of the rank's own tokens alone"
                                : "it is not the counts of a routing",
                         "exchange the counts of a routing before anything reduces them");
      return m_.io.invalidate_outputs(ref);
    }
    m_.io.write(ref, 0, {m_.ref.terms.sizes(expr.a, axis), before.piece});
  }
  if (!move(ref, info, over, 0, &value)) return m_.io.invalidate_outputs(ref);
  if (info.comm->needs_sizes) {
    const bool from_tokens =
        comm::movement(*info.comm, m_.ctx.program.kind(member).attrs).slot_dim == 1;
    const PieceId by_token = from_tokens && before.piece != kAnyPiece ? before.piece : value.piece;
    if (!sizes_fit(ref, axis, from_tokens ? before : value, by_token, inputs[1])) {
      return m_.io.invalidate_outputs(ref);
    }
  }
  m_.io.write(ref, member.out.size() - 1, value);
}

/// Returns whether all classes hold the same term in the same piece, operand by operand: then they
/// behave as one class of all their ranks. `sums`: ignores losses to codecs, since every rank gets
/// all.
bool Collectives::alike(std::span<const TaskRef> tasks, bool sums) {
  const Task& first = m_.ctx.task(tasks[0]);
  for (const TaskRef& ref : tasks) {
    for (size_t i = 0; i < first.in.size(); ++i) {
      const Value mine = m_.state.at(ref.cls, m_.ctx.task(ref).in[i]);
      Value theirs = m_.state.at(tasks[0].cls, first.in[i]);
      if (sums) {
        theirs.marks = mine.marks;
      }
      if (mine != theirs) return false;
    }
  }
  return true;
}

/// Returns, by operand, the union of the marks in all these classes.
std::vector<MarkId> Collectives::lost_by_all(std::span<const TaskRef> tasks) {
  std::vector<MarkId> lost(m_.ctx.task(tasks[0]).in.size(), 0);
  for (const TaskRef& ref : tasks) {
    const Task& task = m_.ctx.task(ref);
    for (size_t i = 0; i < lost.size(); ++i) {
      const MarkId marks =
          m_.codec_marks.over_all(m_.state.at(ref.cls, task.in[i]).marks, m_.ctx.group_axes(task));
      lost[i] = m_.codec_marks.unite(lost[i], marks, 0);
    }
  }
  return lost;
}

void Collectives::step_across_classes(std::span<const std::vector<TaskRef>> instances) {
  // Ranks of one class may meet different classes; the task must then make the same value in every
  // sort of instance. Each sort starts from the state before the task.
  if (instances.size() == 1) return step_across_classes(std::span<const TaskRef>(instances[0]));
  std::map<TaskRef, BufferState::Saved> before;
  std::map<TaskRef, std::vector<Value>> after;
  std::set<TaskRef> differ;
  for (const std::vector<TaskRef>& tasks : instances) {
    for (const TaskRef& ref : tasks) {
      const auto [known, fresh] = before.try_emplace(ref);
      if (fresh) {
        known->second = m_.state.save(ref);
      } else {
        m_.state.restore(ref.cls, known->second);
      }
    }
    step_across_classes(std::span<const TaskRef>(tasks));
    for (const TaskRef& ref : tasks) {
      std::vector<Value> made;
      for (BufferId buffer : m_.ctx.task(ref).out) {
        made.push_back(m_.state.at(ref.cls, buffer));
      }
      const auto [known, fresh] = after.emplace(ref, made);
      if (fresh || made == known->second) continue;
      // Any of the tasks that it meets may be the wrong one.
      std::vector<TaskRef> related;
      for (const std::vector<TaskRef>& others : instances) {
        if (std::find(others.begin(), others.end(), ref) != others.end()) {
          related.insert(related.end(), others.begin(), others.end());
        }
      }
      const auto differs = std::mismatch(made.begin(), made.end(), known->second.begin()).first;
      const auto output = static_cast<size_t>(differs - made.begin());
      m_.ctx.report("classes-differ", ProblemClass::value, ref, related,
                    fmt::format("{} makes different values where its ranks meet other classes",
                                m_.ctx.name(ref)),
                    "give the ranks that meet other classes a class of their own",
                    m_.text.where(ref.cls, known->second[output], " in one meeting, and ", *differs,
                                  " in another"));
      differ.insert(ref);
    }
  }
  for (const TaskRef& ref : differ) {
    m_.io.invalidate_outputs(ref);
  }
}

void Collectives::step_across_classes(std::span<const TaskRef> tasks) {
  // Classes that hold the same values act as one class. Classes with different terms need a sum:
  // each term is whole at one coordinate of the axes along which the classes differ. Per operand,
  // every class sums over the group's other axes, and all must agree in the layout after that. The
  // result is the union of the terms, and of that a block for each rank if the op scatters.
  const Task& first = m_.ctx.task(tasks[0]);
  const KindInfo& info = m_.ctx.kind(first);
  const comm::Movement movement = comm::movement(*info.comm, m_.ctx.program.kind(first).attrs);
  const bool sums = movement.move.placed == comm::Move::Placed::sum && info.comm->list;
  if (alike(tasks, sums)) {
    const std::vector<MarkId> lost = sums ? lost_by_all(tasks) : std::vector<MarkId>();
    for (const TaskRef& ref : tasks) {
      step(ref.cls, ref.task, lost);
    }
    return;
  }
  // Reports operands that can't be read, once.
  for (const TaskRef& ref : tasks) {
    for (BufferId input : m_.ctx.task(ref).in) {
      m_.io.read(ref, input);
    }
  }
  AxisMask within = 0;  // axes that every class covers
  bool apart = movement.move.placed == comm::Move::Placed::sum &&
               movement.monoid == graph::Monoid::sum && first.in.size() == first.out.size();
  const bool scatters = movement.move.part == comm::Move::Part::block;
  apart = apart && (!scatters || m_.ctx.program.groups[first.group].members.empty());
  for (int32_t axis : m_.ctx.groups[first.group].axes) {
    const int32_t size = m_.ctx.program.mesh_of(tasks[0].cls).axes[axis].size;
    bool whole = true;
    bool single = true;
    for (const TaskRef& ref : tasks) {
      const int32_t count = m_.ctx.program.span(ref.cls, axis).count;
      whole = whole && count == size;
      single = single && count == 1;
      for (BufferId input : m_.ctx.task(ref).in) {
        const Value value = m_.state.at(ref.cls, input);
        single = single &&
                 (value.expr < 0 || !m_.algebra.depends_on(value, m_.ctx.axis_of(ref.cls, axis)));
      }
    }
    if (whole) {
      within |= graph::axis_bit(m_.ctx.axis_of(tasks[0].cls, axis));
    }
    apart = apart && (whole || single);
  }
  if (!apart) {
    m_.refusals.refuse_meeting(tasks);
    for (const TaskRef& ref : tasks) {
      m_.io.invalidate_outputs(ref);
    }
    return;
  }
  comm::Movement whole = movement, block = movement;
  whole.move.part = comm::Move::Part::whole;
  block.move.placed = comm::Move::Placed::whole;
  for (size_t i = 0; i < first.in.size(); ++i) {
    Value sum{kZero, kAnyPiece};
    MarkId marks = 0;  // of the result on all ranks of all classes
    bool good = true;
    for (const TaskRef& ref : tasks) {
      Value value = m_.state.at(ref.cls, m_.ctx.task(ref).in[i]);
      good = good && value.expr >= 0 && move(ref, info, within, whole, i, &value);
      if (!good) break;
      marks = m_.codec_marks.unite(
          marks, m_.codec_marks.over_all(value.marks, m_.ctx.group_axes(first)), 0);
      value.marks = 0;
      const std::optional<Value> with = m_.algebra.add(sum, value);
      if (!with) {
        m_.refusals.refuse("sum-layout", ref, m_.ctx.task(ref).in[i],
                           fmt::format("earlier classes hold layout {}", m_.text.piece_text(sum)),
                           "bring the value to one layout in all classes first",
                           m_.text.where(ref.cls, value, "; earlier classes have ", sum, ""));
        good = false;
        break;
      }
      sum = *with;
    }
    sum.marks = marks;
    if (scatters) {
      good = good && move(tasks[0], info, m_.ctx.group_axes(first), block, i, &sum);
    }
    for (const TaskRef& ref : tasks) {
      const Task& task = m_.ctx.task(ref);
      if (good) {
        m_.io.write(ref, i, sum);
      } else {
        m_.io.invalidate(ref.cls, task.out[i]);
      }
    }
  }
}

}  // namespace hocket::check
