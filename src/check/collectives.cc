// SPDX-License-Identifier: Apache-2.0
// What collectives do to values: they keep the term and move it from one layout to another along
// the axes of their group, as the op's movement says. Over the stages of a pipeline, a sum unites
// the sums that the stages hold.
#include <fmt/format.h>

#include <algorithm>

#include "check/values.h"

namespace hocket::check {

/// Parts along `dim` are nested with the outermost axis first: only the innermost axis that splits
/// `dim` can be gathered, and a new split is the innermost.
bool Values::innermost(const Layout& layout, int32_t axis, int32_t dim) const {
  for (int32_t inner = axis + 1; inner < kMaxAxes; ++inner) {
    if (layout[inner] == Placement::split(dim)) return false;
  }
  return true;
}

/// Row numbers of a routing are relative to the rank's own rows: moving them makes no sense.
bool Values::local_index(ExprId expr) const {
  const Expr& term = ref_.terms[expr];
  if (term.kind == Expr::Kind::sizes) return true;
  if (term.kind != Expr::Kind::output) return false;
  return term.b == ref_.keys[ref_.terms.app(term.a).key].rules->routing.row_of;
}

bool Values::move(TaskRef ref, const KindInfo& info, const GroupInfo& group_info, size_t operand,
                  Value* value) {
  // On every axis of the group the value must lie as the movement needs it: partial to be added up,
  // split along the dim along which its parts are put side by side. What is then whole is cut, if
  // the op gives every rank a block. Axes split a dim one inside the other, so parts are put
  // together from the innermost axis outwards, and blocks cut in the opposite order.
  const comm::Move& move = info.comm->move;
  const graph::Attrs& attrs = ctx_.program.kind(ctx_.task(ref)).attrs;
  const Placement from = comm::before(*info.comm, attrs);
  const Placement to = comm::after(*info.comm, attrs);
  const BufferId buffer = ctx_.task(ref).in[operand];
  const auto axis_name = [&](int32_t id) { return ctx_.program.mesh.axes[id].name; };
  if (value->layout == kAnyLayout && !info.comm->needs_sizes) {
    return true;  // zero, wherever it goes
  }
  Layout layout = value->layout == kAnyLayout ? Layout{} : ctx_.layouts[value->layout];
  const bool cuts = move.part == comm::Move::Part::block;
  for (auto axis = group_info.axes.rbegin(); axis != group_info.axes.rend(); ++axis) {
    if (layout[*axis] == from && (!from.is_split() || innermost(layout, *axis, from.dim()))) {
      layout[*axis] = Placement::replicate();
      continue;
    }
    if (info.comm->needs_sizes) {
      refuse("exchange-layout", ref, buffer,
             fmt::format("the exchange goes from split({}) over {}", from.dim(), axis_name(*axis)),
             "exchange rows that are split by token (1) or by expert (0), innermost axis first");
    } else if (from.is_split()) {
      refuse("gather-layout", ref, buffer,
             fmt::format("it is not split along dim {} over {} (innermost)", from.dim(),
                         axis_name(*axis)),
             "gather along the dim and the axes that split the value, innermost first");
    } else if (cuts) {
      refuse("scatter-layout", ref, buffer,
             fmt::format("it is not partial over {}", axis_name(*axis)),
             "reduce-scatter only what is partial over all axes of the group");
    } else if (layout[*axis].is_split()) {
      refuse("reduce-split", ref, buffer,
             fmt::format("it is split over {}: different parts would be added", axis_name(*axis)),
             "gather instead, or take this axis out of the group");
    } else {
      refuse("reduce-replicated", ref, buffer,
             fmt::format("it is not partial over {}: the sum would be {} times the value",
                         axis_name(*axis), ctx_.program.mesh.axes[*axis].size),
             fmt::format("remove the {}, or take this axis out of its group", info.comm->name)
                 .c_str());
    }
    return false;
  }
  if (from.is_split() && local_index(value->expr)) {
    refuse("gather-layout", ref, buffer, "row numbers are relative to the rank's own rows",
           "plan the routing again on the gathered ids");
    return false;
  }
  for (int32_t axis : group_info.axes) {
    if (to.is_split() && !innermost(layout, axis, to.dim())) {
      if (info.comm->needs_sizes) {
        refuse("exchange-layout", ref, buffer, "the new split would not be the innermost",
               "exchange over the innermost axis");
      } else {
        refuse("scatter-layout", ref, buffer,
               fmt::format("dim {} is already split inside {}", to.dim(), axis_name(axis)),
               "scatter over the innermost axis");
      }
      return false;
    }
    if (to.is_split()) {
      layout[axis] = to;
    }
  }
  value->layout = ctx_.layouts.intern(layout);
  return true;
}

/// Sizes of an exchange belong to the routing that placed the rows, to the axis, and to the same
/// tokens and experts: what they were counted over on the other axes.
bool Values::sizes_fit(TaskRef ref, int32_t axis, const Value& rows, const Value& sizes) {
  const BufferId buffer = ctx_.task(ref).in[1];
  const Expr& expr = ref_.terms[sizes.expr];
  AppId route = -1;
  for (ExprId row : ref_.terms.terms_of(rows.expr)) {
    if (ref_.terms[row].kind == Expr::Kind::output) {
      route = ref_.terms.app(ref_.terms[row].a).route;
    }
  }
  if (expr.kind != Expr::Kind::sizes || expr.a != route || expr.b != axis) {
    refuse("exchange-sizes", ref, buffer,
           "these are not the sizes of the routing of " + describe(rows.expr),
           "use the sizes that were exchanged for the same routing and axis");
    return false;
  }
  const Layout& counted = ctx_.layouts[sizes.layout];
  const Layout layout = rows.layout == kAnyLayout ? Layout{} : ctx_.layouts[rows.layout];
  for (int32_t other = 0; other < kMaxAxes; ++other) {
    if (other == axis) continue;
    const bool by_token = layout[other] == Placement::split(1);
    const bool by_expert = layout[other] == Placement::split(0);
    if (by_token == counted[other].is_partial() && by_expert == counted[other].is_split()) continue;
    refuse("exchange-sizes", ref, buffer,
           fmt::format("they count other rows than those of layout {}",
                       ctx_.layouts.text(rows.layout)),
           "exchange the counts of the same tokens and experts");
    return false;
  }
  return true;
}

void Values::collective(ClassId cls, TaskId task, const Task& member, const KindInfo& info) {
  // A list: every operand by itself. Otherwise the first input is moved to the last output. An op
  // that makes sizes also leaves, in its first output, what every rank had; their layout is that of
  // the counts before they were moved, which says whose rows they count. An op that needs sizes
  // moves rows, which only those of the same routing describe.
  const GroupInfo& group_info = ctx_.groups[member.group];
  const TaskRef ref{cls, task};
  if (info.comm->list) {
    for (size_t i = 0; i < member.in.size(); ++i) {
      Value value = at(cls, member.in[i]);
      if (value.expr < 0 || !move(ref, info, group_info, i, &value)) {
        lose(cls, member.out[i]);
      } else {
        set(cls, member, i, value.expr, value.layout, nullptr, ref);
      }
    }
    return;
  }
  for (BufferId input : member.in) {
    if (at(cls, input).expr < 0) return lose_outputs(cls, member);
  }
  const bool exchange = info.comm->makes_sizes || info.comm->needs_sizes;
  if (exchange && group_info.axes.size() > 1) {
    refuse("exchange-axis", ref, -1, "its group spans more than one axis",
           "exchange over the one axis that splits the experts");
    return lose_outputs(cls, member);
  }
  // A group of one rank changes nothing, but its sizes still belong to one routing.
  const int32_t axis = group_info.axes.empty() ? -1 : group_info.axes[0];
  const Value before = at(cls, member.in[0]);
  Value value = before;
  if (info.comm->needs_sizes && !sizes_fit(ref, axis, value, at(cls, member.in[1]))) {
    return lose_outputs(cls, member);
  }
  if (info.comm->makes_sizes) {
    const Expr& expr = ref_.terms[value.expr];
    const bool counts = expr.kind == Expr::Kind::output &&
                        expr.b == ref_.keys[ref_.terms.app(expr.a).key].rules->routing.counts;
    const bool own = counts && (axis < 0 || ctx_.layouts[value.layout][axis].is_partial());
    if (!own) {
      refuse("exchange-counts", ref, member.in[0],
             counts ? "the counts are not those of the rank's own tokens alone"
                    : "it is not the counts of a routing",
             "exchange the counts of a routing before anything reduces them");
      return lose_outputs(cls, member);
    }
    set(cls, member, 0, ref_.terms.sizes(expr.a, axis), before.layout, nullptr, ref);
  }
  if (!move(ref, info, group_info, 0, &value)) return lose_outputs(cls, member);
  set(cls, member, member.out.size() - 1, value.expr, value.layout, nullptr, ref);
}

void Values::meet(std::span<const TaskRef> tasks) {
  // The stages hold different terms, which only a sum of whole values unites: per operand, every
  // stage's value is brought to the layout after the sum over the group's other axes, and all must
  // agree in it. The term of the result is the union of theirs.
  const Task& first = ctx_.task(tasks[0]);
  const KindInfo& info = ctx_.kind(first);
  const GroupInfo& group_info = ctx_.groups[first.group];
  if (!info.comm->list) {
    ctx_.report("stages-reduce-only", ProblemClass::value, tasks[0], {},
                fmt::format("{} runs over pipeline stages", ctx_.name(tasks[0])),
                fmt::format("use {}, or messages, between stages", comm::summing().name));
    for (const TaskRef& ref : tasks) {
      lose_outputs(ref.cls, ctx_.task(ref));
    }
    return;
  }
  for (size_t i = 0; i < first.in.size(); ++i) {
    Value sum{kZero, kAnyLayout};
    bool good = true;
    for (const TaskRef& ref : tasks) {
      Value value = at(ref.cls, ctx_.task(ref).in[i]);
      good = good && value.expr >= 0 && move(ref, info, group_info, i, &value);
      if (!good) break;
      if (sum.layout != kAnyLayout && value.layout != kAnyLayout && sum.layout != value.layout) {
        refuse("sum-layout", ref, ctx_.task(ref).in[i],
               fmt::format("the stages before hold layout {}", ctx_.layouts.text(sum.layout)),
               "bring the value to one layout in all stages first");
        good = false;
        break;
      }
      if (value.layout != kAnyLayout) {
        sum.layout = value.layout;
      }
      sum.expr = ref_.terms.sum(sum.expr, value.expr);
    }
    for (const TaskRef& ref : tasks) {
      const Task& task = ctx_.task(ref);
      if (good) {
        set(ref.cls, task, i, sum.expr, sum.layout, nullptr, ref);
      } else {
        lose(ref.cls, task.out[i]);
      }
    }
  }
}

}  // namespace hocket::check
