// SPDX-License-Identifier: Apache-2.0
// What collectives do to values: they keep the term and move it from one layout to another along
// the axes of their group, as the op's movement says. Where classes that hold different terms meet
// (the stages of a pipeline), a sum unites the sums that they hold.
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

bool Values::move(TaskRef ref, const KindInfo& info, const std::vector<int32_t>& axes,
                  size_t operand, Value* value) {
  // On every axis of the group the value must lie as the movement needs it: partial to be added up,
  // split along the dim along which its parts are put side by side. What is then whole is cut, if
  // the op gives every rank a block. Axes split a dim one inside the other, so parts are put
  // together from the innermost axis outwards, and blocks cut in the opposite order.
  const comm::Move& move = info.comm->move;
  const graph::Attrs& attrs = ctx_.program.kind(ctx_.task(ref)).attrs;
  const Placement from = comm::before(*info.comm, attrs);
  const Placement to = comm::after(*info.comm, attrs);
  const BufferId buffer = ctx_.task(ref).in[operand];
  const auto axis_name = [&](int32_t id) { return ctx_.axis_name(ref.cls, id); };
  if (value->layout == kAnyLayout && !info.comm->needs_sizes) {
    return true;  // zero, wherever it goes
  }
  Layout layout = value->layout == kAnyLayout ? Layout{} : ctx_.layouts[value->layout];
  const bool cuts = move.part == comm::Move::Part::block;
  for (auto axis = axes.rbegin(); axis != axes.rend(); ++axis) {
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
                         axis_name(*axis), ctx_.program.mesh_of(ref.cls).axes[*axis].size),
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
  for (int32_t axis : axes) {
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
  const std::vector<int32_t>& axes = ctx_.groups[member.group].axes;
  const TaskRef ref{cls, task};
  if (!ctx_.program.groups[member.group].members.empty()) {
    refuse("classes-reduce-only", ref, -1, "its group leaves out ranks along an axis",
           "let all coordinates of the axis take part");
    return lose_outputs(cls, member);
  }
  if (info.comm->list) {
    for (size_t i = 0; i < member.in.size(); ++i) {
      Value value = at(cls, member.in[i]);
      if (value.expr < 0 || !move(ref, info, axes, i, &value)) {
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
  if (exchange && axes.size() > 1) {
    refuse("exchange-axis", ref, -1, "its group spans more than one axis",
           "exchange over the one axis that splits the experts");
    return lose_outputs(cls, member);
  }
  // A group of one rank changes nothing, but its sizes still belong to one routing.
  const int32_t axis = axes.empty() ? -1 : axes[0];
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
  if (!move(ref, info, axes, 0, &value)) return lose_outputs(cls, member);
  set(cls, member, member.out.size() - 1, value.expr, value.layout, nullptr, ref);
}

/// True if all hold the same in the same layout, operand by operand: then they are what one class
/// would be, with all their ranks.
bool Values::alike(std::span<const TaskRef> tasks) {
  const Task& first = ctx_.task(tasks[0]);
  for (const TaskRef& ref : tasks) {
    for (size_t i = 0; i < first.in.size(); ++i) {
      const Value& mine = at(ref.cls, ctx_.task(ref).in[i]);
      const Value& theirs = at(tasks[0].cls, first.in[i]);
      if (mine.expr != theirs.expr || mine.layout != theirs.layout) return false;
    }
  }
  return true;
}

void Values::meet(std::span<const std::vector<TaskRef>> instances) {
  // The ranks of a class may meet different classes: what its task makes must then be the same in
  // every sort of instance. Each starts from what was there before.
  if (instances.size() == 1) return meet(std::span<const TaskRef>(instances[0]));
  std::map<TaskRef, std::vector<Value>> before;
  std::map<TaskRef, std::vector<Value>> after;
  const auto operands = [&](TaskRef ref) {
    std::vector<Value> values;
    for (const auto* list : {&ctx_.task(ref).in, &ctx_.task(ref).out}) {
      for (BufferId buffer : *list) {
        values.push_back(at(ref.cls, buffer));
      }
    }
    return values;
  };
  const auto put = [&](TaskRef ref, const std::vector<Value>& values) {
    size_t i = 0;
    for (const auto* list : {&ctx_.task(ref).in, &ctx_.task(ref).out}) {
      for (BufferId buffer : *list) {
        at(ref.cls, buffer) = values[i++];
      }
    }
  };
  const auto same = [](const Value& left, const Value& right) {
    return left.expr == right.expr && left.layout == right.layout;
  };
  for (const std::vector<TaskRef>& tasks : instances) {
    for (const TaskRef& ref : tasks) {
      const auto [known, fresh] = before.try_emplace(ref);
      if (fresh) {
        known->second = operands(ref);
      }
      put(ref, known->second);
    }
    meet(std::span<const TaskRef>(tasks));
    for (const TaskRef& ref : tasks) {
      const std::vector<Value> made = operands(ref);
      const auto [known, fresh] = after.emplace(ref, made);
      if (fresh || std::equal(made.begin(), made.end(), known->second.begin(), same)) continue;
      ctx_.report("classes-differ", ProblemClass::value, ref, {tasks.begin(), tasks.end()},
                  fmt::format("{} makes different values where its ranks meet other classes",
                              ctx_.name(ref)),
                  "give the ranks that meet other classes a class of their own");
      for (Value& value : known->second) {
        value.expr = kUnknown;
      }
    }
  }
  for (const auto& [ref, values] : after) {
    put(ref, values);
  }
}

/// Classes that meet with different values, which nothing unites: names all that meet there, and
/// who wrote the first operand that differs. What follows from something already refused is not
/// named.
void Values::refuse_meeting(std::span<const TaskRef> tasks) {
  const Task& first = ctx_.task(tasks[0]);
  std::vector<TaskRef> related(tasks.begin(), tasks.end());
  std::string held;
  for (size_t i = 0; i < first.in.size(); ++i) {
    const ExprId mine = at(tasks[0].cls, first.in[i]).expr;
    for (const TaskRef& ref : tasks) {
      const ExprId theirs = at(ref.cls, ctx_.task(ref).in[i]).expr;
      if (mine < 0 || theirs < 0) return;
      if (theirs == mine || !held.empty()) continue;
      held = fmt::format(": {} in class {}, {} in class {}", describe(mine), tasks[0].cls,
                         describe(theirs), ref.cls);
      for (const TaskRef& member : {tasks[0], ref}) {
        const int32_t writer = hazards_.writer(member.cls, ctx_.task(member).in[i],
                                               ctx_.global(member.cls, member.task));
        if (writer >= 0) {
          related.push_back(ctx_.ref(writer));
        }
      }
    }
  }
  ctx_.report(
      "classes-reduce-only", ProblemClass::value, tasks[0], related,
      fmt::format("{} runs over classes that hold different values{}", ctx_.name(tasks[0]), held),
      fmt::format("use {} of whole values, or messages, between classes", comm::summing().name));
}

void Values::meet(std::span<const TaskRef> tasks) {
  // Classes that hold the same are one. Others hold different terms, each whole at one coordinate
  // of the axes along which they differ, which only a sum unites: per operand, every class's value
  // is brought to the layout after the sum over the group's other axes, and all must agree in it.
  // The term of the result is the union of theirs.
  const Task& first = ctx_.task(tasks[0]);
  const KindInfo& info = ctx_.kind(first);
  if (alike(tasks)) {
    for (const TaskRef& ref : tasks) {
      collective(ref.cls, ref.task, ctx_.task(ref), info);
    }
    return;
  }
  std::vector<int32_t> within;  // axes on which every class is whole
  bool apart = info.comm->list;
  for (int32_t axis : ctx_.groups[first.group].axes) {
    const int32_t size = ctx_.program.mesh_of(tasks[0].cls).axes[axis].size;
    bool whole = true;
    bool single = true;
    for (const TaskRef& ref : tasks) {
      const int32_t count = ctx_.program.span(ref.cls, axis).count;
      whole = whole && count == size;
      single = single && count == 1;
      for (BufferId input : ctx_.task(ref).in) {
        const Value& value = at(ref.cls, input);
        single = single && (value.expr < 0 || value.layout == kAnyLayout ||
                            ctx_.layouts[value.layout][axis].is_replicate());
      }
    }
    if (whole) {
      within.push_back(axis);
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
  for (size_t i = 0; i < first.in.size(); ++i) {
    Value sum{kZero, kAnyLayout};
    bool good = true;
    for (const TaskRef& ref : tasks) {
      Value value = at(ref.cls, ctx_.task(ref).in[i]);
      good = good && value.expr >= 0 && move(ref, info, within, i, &value);
      if (!good) break;
      if (sum.layout != kAnyLayout && value.layout != kAnyLayout && sum.layout != value.layout) {
        refuse("sum-layout", ref, ctx_.task(ref).in[i],
               fmt::format("the classes before hold layout {}", ctx_.layouts.text(sum.layout)),
               "bring the value to one layout in all classes first");
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
