// SPDX-License-Identifier: Apache-2.0
// What collectives do to values: they keep the term and move its piece, as the op's movement says,
// among the ranks that differ along the axes of the group. Between classes, a sum unites the sums
// that they hold.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "check/values/values.h"

namespace hocket::check {

/// Row numbers of a routing are relative to the rank's own rows: moving them makes no sense.
bool Values::local_index(ExprId expr) const {
  const Expr& term = ref_.terms[expr];
  if (term.kind == Expr::Kind::sizes) return true;
  if (term.kind != Expr::Kind::output) return false;
  return term.b == ref_.keys[ref_.terms.app(term.a).key].rules->routing.row_of;
}

/// The axes of the group of a task.
AxisMask Values::axes_of(const Task& task) const {
  AxisMask axes = 0;
  for (int32_t axis : ctx_.groups[task.group].axes) {
    axes |= graph::axis_bit(ctx_.first_axis[ctx_.program.groups[task.group].role] + axis);
  }
  return axes;
}

bool Values::move(TaskRef ref, const KindInfo& info, AxisMask over, size_t operand, Value* value) {
  const auto& attrs = ctx_.program.kind(ctx_.task(ref)).attrs;
  return move(ref, info, over, comm::movement(*info.comm, attrs), operand, value);
}

bool Values::move(TaskRef ref, const KindInfo& info, AxisMask over, const comm::Movement& movement,
                  size_t operand, Value* value) {
  // Every part of an unfinished sum is moved by itself. What the movement needs of a piece, and
  // what it makes of it, is the same whatever the term.
  const BufferId buffer = ctx_.task(ref).in[operand];
  if (value->expr == kZero && !info.comm->needs_sizes) {
    return true;  // zero, wherever it goes
  }
  if (is_coded(*value) && movement.move.placed == comm::Move::Placed::sum) {
    refuse("codes-summed", ref, buffer, "codes are not added up",
           "decode them first, and add up what they stand for");
    return false;
  }
  if (is_pack(*value)) return move_pack(ref, info, over, movement, operand, value);
  // Rows that come back to their tokens: each rank has those of its own, as the sizes count them.
  const bool back = info.comm->needs_sizes && movement.part_dim == 1;
  const CutId counted = back ? tokens_counted(read(ref, ctx_.task(ref).in[1])) : CutId(kNone);
  return move_parts(ref, info, over, movement, operand, counted, value);
}

CutId Values::tokens_counted(const Value& sizes) const {
  if (sizes.expr < 0 || sizes.piece == kAnyPiece) return kNone;
  const auto& addends = pieces_[sizes.piece].addends;
  if (addends.empty()) return graph::CutTable::kWhole;
  return addends.size() == 1 ? addends[0].set : CutId(kNone);
}

bool Values::move_parts(TaskRef ref, const KindInfo& info, AxisMask over,
                        const comm::Movement& movement, size_t operand, CutId counted,
                        Value* value) {
  const graph::TensorType& local = ctx_.program.kind(ctx_.task(ref)).in[operand];
  const BufferId buffer = ctx_.task(ref).in[operand];
  std::vector<Value> parts = parts_of(*value);
  for (Value& part : parts) {
    if (part.piece == kAnyPiece) {
      part.piece = pieces_.whole(local.dims.size());
    }
    const TypeId logical = ref_.terms[part.expr].type;
    const graph::TensorType& type = logical < 0 ? local : ctx_.types[logical];
    const Moved moved = pieces_.move(part.piece, over, movement, type, counted);
    if (moved.fault != Moved::Fault::none) {
      refuse_move(ref, info, buffer, part, moved);
      return false;
    }
    if (moved.piece != part.piece && movement.move.placed == comm::Move::Placed::slot &&
        local_index(part.expr)) {
      refuse("gather-layout", ref, buffer, "row numbers are relative to the rank's own rows",
             "plan the routing again on the gathered ids");
      return false;
    }
    part.piece = moved.piece;
  }
  const std::optional<Value> sum = sum_of(parts);
  if (!sum) {
    refuse("sum-layout", ref, buffer, "its parts lie differently after it",
           "reduce what is added up over the same axes");
    return false;
  }
  *value = *sum;
  value->marks = over_all(value->marks, over);
  return true;
}

void Values::refuse_move(TaskRef ref, const KindInfo& info, BufferId buffer, const Value& value,
                         const Moved& moved) {
  // The rule and the fix depend on what the op does with parts: exchange rows, put parts side by
  // side, scatter their sum or keep it.
  const comm::Movement movement =
      comm::movement(*info.comm, ctx_.program.kind(ctx_.task(ref)).attrs);
  const std::string axis = moved.axis < 0 ? "its group" : ctx_.mesh.axes[moved.axis].name;
  const bool slot = movement.move.placed == comm::Move::Placed::slot;
  const std::string at_rank = where_along(ref.cls, value, moved.axis);
  if (info.comm->needs_sizes) {
    refuse("exchange-layout", ref, buffer,
           fmt::format("the exchange goes from split({}) over {}", movement.slot_dim, axis),
           "exchange rows that are split by token (1) or by expert (0)", at_rank);
  } else if (slot) {
    refuse("gather-layout", ref, buffer,
           moved.fault == Moved::Fault::differs
               ? fmt::format("ranks along {} hold parts that differ in more than dim {}", axis,
                             movement.slot_dim)
               : fmt::format("it is not split along dim {} over {}", movement.slot_dim, axis),
           "gather along the dim and the axes that split the value", at_rank);
  } else if (movement.move.part == comm::Move::Part::block &&
             moved.fault != Moved::Fault::overlap) {
    refuse("scatter-layout", ref, buffer, fmt::format("it is not partial over {}", axis),
           "reduce-scatter only what is partial over all axes of the group", at_rank);
  } else if (moved.fault == Moved::Fault::split) {
    refuse("reduce-split", ref, buffer,
           fmt::format("it is split over {}: different parts would be added", axis),
           "gather instead, or take this axis out of the group", at_rank);
  } else if (moved.fault == Moved::Fault::monoid) {
    refuse("reduce-monoid", ref, buffer,
           "what it holds is put together otherwise: sums, maxima and softmaxes are different",
           "reduce a maximum with monoid=\"max\", a sum without; merge softmaxes by an op",
           at_rank);
  } else if (moved.fault == Moved::Fault::overlap) {
    refuse("reduce-overlap", ref, buffer,
           "the parts that its ranks hold overlap: some addends would be counted more than once",
           "add up only disjoint parts of a sum", at_rank);
  } else {
    refuse(
        "reduce-replicated", ref, buffer,
        fmt::format("it is not partial over {}: the sum would be {} times the value", axis,
                    ctx_.mesh.axes[moved.axis].size),
        fmt::format("remove the {}, or take this axis out of its group", info.comm->name).c_str(),
        at_rank);
  }
}

AppId Values::route_of(const Value& rows) {
  AppId route = -1;
  for (const Value& part : parts_of(rows)) {
    for (ExprId row : ref_.terms.terms_of(part.expr)) {
      if (ref_.terms[row].kind == Expr::Kind::output) {
        route = ref_.terms.app(ref_.terms[row].a).route;
      }
    }
  }
  return route;
}

/// Sizes of an exchange belong to the routing that placed the rows, to the axis, and to the tokens
/// and experts that they count: those that a rank has while rows are split by token (`by_token`).
bool Values::sizes_fit(TaskRef ref, int32_t axis, const Value& rows, PieceId by_token,
                       const Value& sizes) {
  const BufferId buffer = ctx_.task(ref).in[1];
  const Expr& expr = ref_.terms[sizes.expr];
  const AppId route = route_of(rows);
  if (expr.kind != Expr::Kind::sizes || expr.a != route || expr.b != axis) {
    refuse("exchange-sizes", ref, buffer,
           "these are not the sizes of the routing of " + describe(rows.expr),
           "use the sizes that were exchanged for the same routing and axis");
    return false;
  }
  const Piece& counted = pieces_[sizes.piece];
  const Piece& held = pieces_[by_token];
  const CutId tokens = pieces_.cuts.set_of(held.cut[1]);
  const bool all = tokens == graph::CutTable::kWhole;
  const bool same_tokens = all ? counted.addends.empty()
                               : counted.addends.size() == 1 && counted.addends[0].set == tokens;
  if (same_tokens && counted.cut[0] == held.cut[0]) return true;
  refuse("exchange-sizes", ref, buffer,
         fmt::format("they count other rows than those of layout {}", piece_text(rows)),
         "exchange the counts of the same tokens and experts",
         where(ref.cls, {rows.expr, by_token}, " by token; the sizes are of ", sizes, ""));
  return false;
}

void Values::collective(ClassId cls, TaskId task, const Task& member, const KindInfo& info,
                        std::span<const MarkId> lost) {
  // A list: every operand by itself. Otherwise the first input is moved to the last output. An op
  // that makes sizes also leaves, in its first output, what every rank had; their piece is that of
  // the counts before they were moved, which says whose rows they count. An op that needs sizes
  // moves rows, which only those of the same routing describe.
  const GroupInfo& group_info = ctx_.groups[member.group];
  const AxisMask over = axes_of(member);
  const TaskRef ref{cls, task};
  if (!ctx_.program.groups[member.group].members.empty()) {
    refuse("classes-reduce-only", ref, -1, "its group leaves out ranks along an axis",
           "let all coordinates of the axis take part");
    return lose_outputs(cls, member);
  }
  if (info.comm->list) {
    for (size_t i = 0; i < member.in.size(); ++i) {
      Value value = read(ref, member.in[i]);
      if (!lost.empty()) {
        value.marks = lost[i];
      }
      if (value.expr < 0 || !move(ref, info, over, i, &value)) {
        lose(cls, member.out[i]);
      } else {
        set(cls, member, i, value, nullptr, ref);
      }
    }
    return;
  }
  std::vector<Value> inputs;
  for (BufferId input : member.in) {
    inputs.push_back(read(ref, input));
    if (inputs.back().expr < 0) return lose_outputs(cls, member);
  }
  const bool exchange = info.comm->makes_sizes || info.comm->needs_sizes;
  if (exchange && group_info.axes.size() > 1) {
    refuse("exchange-axis", ref, -1, "its group spans more than one axis",
           "exchange over the one axis that splits the experts");
    return lose_outputs(cls, member);
  }
  // A group of one rank changes nothing, but its sizes still belong to one routing.
  const int32_t axis = group_info.axes.empty() ? -1 : ctx_.axis_of(cls, group_info.axes[0]);
  const Value before = inputs[0];
  Value value = before;
  if (info.comm->makes_sizes) {
    const Expr& expr = ref_.terms[value.expr];
    const bool counts = expr.kind == Expr::Kind::output &&
                        expr.b == ref_.keys[ref_.terms.app(expr.a).key].rules->routing.counts;
    if (!counts || (over & ~partial_axes(value))) {
      refuse("exchange-counts", ref, member.in[0],
             counts ? "the counts are not those of the rank's own tokens alone"
                    : "it is not the counts of a routing",
             "exchange the counts of a routing before anything reduces them");
      return lose_outputs(cls, member);
    }
    set(cls, member, 0, {ref_.terms.sizes(expr.a, axis), before.piece}, nullptr, ref);
  }
  if (!move(ref, info, over, 0, &value)) return lose_outputs(cls, member);
  if (info.comm->needs_sizes) {
    const bool from_tokens =
        comm::movement(*info.comm, ctx_.program.kind(member).attrs).slot_dim == 1;
    const PieceId by_token = from_tokens && before.piece != kAnyPiece ? before.piece : value.piece;
    if (!sizes_fit(ref, axis, from_tokens ? before : value, by_token, inputs[1])) {
      return lose_outputs(cls, member);
    }
  }
  set(cls, member, member.out.size() - 1, value, nullptr, ref);
}

/// True if what a rank holds of the value depends on its coordinate on the axis.
bool Values::depends_on(const Value& value, int32_t axis) const {
  return axes_of(value) & graph::axis_bit(axis);
}

/// True if all hold the same term in the same piece, operand by operand: then they are what one
/// class would be, with all their ranks. `sums`: whatever codecs lost of it; everybody gets all of
/// that.
bool Values::alike(std::span<const TaskRef> tasks, bool sums) {
  const Task& first = ctx_.task(tasks[0]);
  for (const TaskRef& ref : tasks) {
    for (size_t i = 0; i < first.in.size(); ++i) {
      const Value mine = at(ref.cls, ctx_.task(ref).in[i]);
      Value theirs = at(tasks[0].cls, first.in[i]);
      if (sums) {
        theirs.marks = mine.marks;
      }
      if (mine != theirs) return false;
    }
  }
  return true;
}

/// By operand, what codecs lost of it in any of these classes.
std::vector<MarkId> Values::lost_by_all(std::span<const TaskRef> tasks) {
  std::vector<MarkId> lost(ctx_.task(tasks[0]).in.size(), 0);
  for (const TaskRef& ref : tasks) {
    const Task& task = ctx_.task(ref);
    for (size_t i = 0; i < lost.size(); ++i) {
      const MarkId marks = over_all(at(ref.cls, task.in[i]).marks, axes_of(task));
      lost[i] = unite_marks(lost[i], marks, 0);
    }
  }
  return lost;
}

Values::Saved Values::saved_of(TaskRef ref) {
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

void Values::put_back(ClassId cls, const Saved& saved) {
  for (const auto& [buffer, value] : saved.values) {
    values_[cls][buffer] = value;
  }
  for (const auto& [buffer, base] : saved.bases) {
    bases_[cls].of.at(buffer) = base;
  }
}

void Values::meet(std::span<const std::vector<TaskRef>> instances) {
  // The ranks of a class may meet different classes: what its task makes must then be the same in
  // every sort of instance. Each starts from what was there before.
  if (is_transfer(ctx_.kind(ctx_.task(instances[0][0])))) return transfer(instances[0]);
  if (instances.size() == 1) return meet(std::span<const TaskRef>(instances[0]));
  std::map<TaskRef, Saved> before;
  std::map<TaskRef, std::vector<Value>> after;
  std::set<TaskRef> differ;
  for (const std::vector<TaskRef>& tasks : instances) {
    for (const TaskRef& ref : tasks) {
      const auto [known, fresh] = before.try_emplace(ref);
      if (fresh) {
        known->second = saved_of(ref);
      } else {
        put_back(ref.cls, known->second);
      }
    }
    meet(std::span<const TaskRef>(tasks));
    for (const TaskRef& ref : tasks) {
      std::vector<Value> made;
      for (BufferId buffer : ctx_.task(ref).out) {
        made.push_back(at(ref.cls, buffer));
      }
      const auto [known, fresh] = after.emplace(ref, made);
      if (fresh || made == known->second) continue;
      // All that it meets: any of them may be the one that is wrong.
      std::vector<TaskRef> related;
      for (const std::vector<TaskRef>& others : instances) {
        if (std::find(others.begin(), others.end(), ref) != others.end()) {
          related.insert(related.end(), others.begin(), others.end());
        }
      }
      const auto differs = std::mismatch(made.begin(), made.end(), known->second.begin()).first;
      const auto output = static_cast<size_t>(differs - made.begin());
      ctx_.report(
          "classes-differ", ProblemClass::value, ref, related,
          fmt::format("{} makes different values where its ranks meet other classes",
                      ctx_.name(ref)),
          "give the ranks that meet other classes a class of their own",
          where(ref.cls, known->second[output], " in one meeting, and ", *differs, " in another"));
      differ.insert(ref);
    }
  }
  for (const TaskRef& ref : differ) {
    lose_outputs(ref.cls, ctx_.task(ref));
  }
}

/// Classes that meet with different values, or with parts of one that lie differently, which
/// nothing unites: names all that meet there, and who wrote the first operand that differs. What
/// follows from something already refused is not named.
void Values::refuse_meeting(std::span<const TaskRef> tasks) {
  const Task& first = ctx_.task(tasks[0]);
  std::vector<TaskRef> related(tasks.begin(), tasks.end());
  std::string held;
  std::string at_rank;
  for (size_t i = 0; i < first.in.size(); ++i) {
    const Value mine = at(tasks[0].cls, first.in[i]);
    for (const TaskRef& ref : tasks) {
      const Value theirs = at(ref.cls, ctx_.task(ref).in[i]);
      if (mine.expr < 0 || theirs.expr < 0) return;
      if (theirs == mine || !held.empty()) continue;
      for (const TaskRef& member : {tasks[0], ref}) {
        const int32_t writer = hazards_.writer(member.cls, ctx_.task(member).in[i],
                                               ctx_.global(member.cls, member.task));
        if (writer >= 0) {
          related.push_back(ctx_.ref(writer));
        }
      }
      const auto told = [&](const Value& value) {
        const std::string layout = mine.expr == theirs.expr ? ", layout " + piece_text(value) : "";
        return describe(value.expr) + layout;
      };
      held = fmt::format(": {} in class {}, {} in class {}", told(mine), tasks[0].cls, told(theirs),
                         ref.cls);
      at_rank = where_of_two(tasks[0], mine, ref, theirs);
    }
  }
  ctx_.report(
      "classes-reduce-only", ProblemClass::value, tasks[0], related,
      fmt::format("{} runs over classes that hold different values{}", ctx_.name(tasks[0]), held),
      fmt::format("use {} or another sum of whole values, or messages, between classes",
                  comm::summing().name),
      at_rank);
}

void Values::meet(std::span<const TaskRef> tasks) {
  // Classes that hold the same are one. Others hold different terms, each whole at one coordinate
  // of the axes along which they differ, which only a sum unites: per operand, every class's value
  // is brought to the layout after the sum over the group's other axes, and all must agree in it.
  // The term of the result is the union of theirs; where the op leaves each rank a block of it, the
  // block is of that.
  const Task& first = ctx_.task(tasks[0]);
  const KindInfo& info = ctx_.kind(first);
  const comm::Movement movement = comm::movement(*info.comm, ctx_.program.kind(first).attrs);
  const bool sums = movement.move.placed == comm::Move::Placed::sum && info.comm->list;
  if (alike(tasks, sums)) {
    const std::vector<MarkId> lost = sums ? lost_by_all(tasks) : std::vector<MarkId>();
    for (const TaskRef& ref : tasks) {
      collective(ref.cls, ref.task, ctx_.task(ref), info, lost);
    }
    return;
  }
  // Said once of what can't be read, whatever follows from it.
  for (const TaskRef& ref : tasks) {
    for (BufferId input : ctx_.task(ref).in) {
      read(ref, input);
    }
  }
  AxisMask within = 0;  // axes on which every class is whole
  bool apart = movement.move.placed == comm::Move::Placed::sum &&
               movement.monoid == graph::Monoid::sum && first.in.size() == first.out.size();
  const bool scatters = movement.move.part == comm::Move::Part::block;
  apart = apart && (!scatters || ctx_.program.groups[first.group].members.empty());
  for (int32_t axis : ctx_.groups[first.group].axes) {
    const int32_t size = ctx_.program.mesh_of(tasks[0].cls).axes[axis].size;
    bool whole = true;
    bool single = true;
    for (const TaskRef& ref : tasks) {
      const int32_t count = ctx_.program.span(ref.cls, axis).count;
      whole = whole && count == size;
      single = single && count == 1;
      for (BufferId input : ctx_.task(ref).in) {
        const Value value = at(ref.cls, input);
        single = single && (value.expr < 0 || !depends_on(value, ctx_.axis_of(ref.cls, axis)));
      }
    }
    if (whole) {
      within |= graph::axis_bit(ctx_.axis_of(tasks[0].cls, axis));
    }
    apart = apart && (whole || single);
  }
  if (!apart) {
    refuse_meeting(tasks);
    for (const TaskRef& ref : tasks) {
      lose_outputs(ref.cls, ctx_.task(ref));
    }
    return;
  }
  comm::Movement whole = movement, block = movement;
  whole.move.part = comm::Move::Part::whole;
  block.move.placed = comm::Move::Placed::whole;
  for (size_t i = 0; i < first.in.size(); ++i) {
    Value sum{kZero, kAnyPiece};
    MarkId marks = 0;  // of what all ranks of all classes get
    bool good = true;
    for (const TaskRef& ref : tasks) {
      Value value = at(ref.cls, ctx_.task(ref).in[i]);
      good = good && value.expr >= 0 && move(ref, info, within, whole, i, &value);
      if (!good) break;
      marks = unite_marks(marks, over_all(value.marks, axes_of(first)), 0);
      value.marks = 0;
      const std::optional<Value> with = add(sum, value);
      if (!with) {
        refuse("sum-layout", ref, ctx_.task(ref).in[i],
               fmt::format("the classes before hold layout {}", piece_text(sum)),
               "bring the value to one layout in all classes first",
               where(ref.cls, value, "; the classes before have ", sum, ""));
        good = false;
        break;
      }
      sum = *with;
    }
    sum.marks = marks;
    if (scatters) {
      good = good && move(tasks[0], info, axes_of(first), block, i, &sum);
    }
    for (const TaskRef& ref : tasks) {
      const Task& task = ctx_.task(ref);
      if (good) {
        set(ref.cls, task, i, sum, nullptr, ref);
      } else {
        lose(ref.cls, task.out[i]);
      }
    }
  }
}

}  // namespace hocket::check
