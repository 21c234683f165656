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
bool Values::innermost(const Layout& l, int32_t axis, int32_t dim) const {
  for (int32_t a = axis + 1; a < kMaxAxes; ++a) {
    if (l[a] == Placement::split(dim)) return false;
  }
  return true;
}

/// Row numbers of a routing are relative to the rank's own rows: moving them makes no sense.
bool Values::local_index(ExprId e) const {
  const Expr& x = ref_.terms[e];
  if (x.kind == Expr::Kind::sizes) return true;
  if (x.kind != Expr::Kind::output) return false;
  return x.b == ref_.keys[ref_.terms.app(x.a).key].rules->routing.row_of;
}

bool Values::move(TaskRef ref, const KindInfo& k, const GroupInfo& g, size_t operand, Value* v) {
  // On every axis of the group the value must lie as the movement needs it: partial to be added up,
  // split along the dim along which its parts are put side by side. What is then whole is cut, if
  // the op gives every rank a block. Axes split a dim one inside the other, so parts are put
  // together from the innermost axis outwards, and blocks cut in the opposite order.
  const comm::Move& move = k.comm->move;
  const graph::Attrs& attrs = ctx_.program.kind(ctx_.task(ref)).attrs;
  const Placement from = comm::before(*k.comm, attrs), to = comm::after(*k.comm, attrs);
  const BufferId b = ctx_.task(ref).in[operand];
  auto axis_name = [&](int32_t a) { return ctx_.program.mesh.axes[static_cast<size_t>(a)].name; };
  if (v->layout == kAnyLayout && !k.comm->needs_sizes) {
    return true;  // zero, wherever it goes
  }
  Layout l = v->layout == kAnyLayout ? Layout{} : ctx_.layouts[v->layout];
  const bool cuts = move.part == comm::Move::Part::block;
  for (auto a = g.axes.rbegin(); a != g.axes.rend(); ++a) {
    if (l[*a] == from && (!from.is_split() || innermost(l, *a, from.dim()))) {
      l[*a] = Placement::replicate();
      continue;
    }
    if (k.comm->needs_sizes) {
      refuse("exchange-layout", ref, b,
             fmt::format("the exchange goes from split({}) over {}", from.dim(), axis_name(*a)),
             "exchange rows that are split by token (1) or by expert (0), innermost axis first");
    } else if (from.is_split()) {
      refuse("gather-layout", ref, b,
             fmt::format("it is not split along dim {} over {} (innermost)", from.dim(),
                         axis_name(*a)),
             "gather along the dim and the axes that split the value, innermost first");
    } else if (cuts) {
      refuse("scatter-layout", ref, b, fmt::format("it is not partial over {}", axis_name(*a)),
             "reduce-scatter only what is partial over all axes of the group");
    } else if (l[*a].is_split()) {
      refuse("reduce-split", ref, b,
             fmt::format("it is split over {}: different parts would be added", axis_name(*a)),
             "gather instead, or take this axis out of the group");
    } else {
      refuse(
          "reduce-replicated", ref, b,
          fmt::format("it is not partial over {}: the sum would be {} times the value",
                      axis_name(*a), ctx_.program.mesh.axes[static_cast<size_t>(*a)].size),
          fmt::format("remove the {}, or take this axis out of its group", k.comm->name).c_str());
    }
    return false;
  }
  if (from.is_split() && local_index(v->expr)) {
    refuse("gather-layout", ref, b, "row numbers are relative to the rank's own rows",
           "plan the routing again on the gathered ids");
    return false;
  }
  for (int32_t a : g.axes) {
    if (to.is_split() && !innermost(l, a, to.dim())) {
      if (k.comm->needs_sizes) {
        refuse("exchange-layout", ref, b, "the new split would not be the innermost",
               "exchange over the innermost axis");
      } else {
        refuse("scatter-layout", ref, b,
               fmt::format("dim {} is already split inside {}", to.dim(), axis_name(a)),
               "scatter over the innermost axis");
      }
      return false;
    }
    if (to.is_split()) {
      l[a] = to;
    }
  }
  v->layout = ctx_.layouts.intern(l);
  return true;
}

/// Sizes of an exchange belong to the routing that placed the rows, to the axis, and to the same
/// tokens and experts: what they were counted over on the other axes.
bool Values::sizes_fit(TaskRef ref, int32_t axis, const Value& rows, const Value& sizes) {
  const BufferId b = ctx_.task(ref).in[1];
  const Expr& s = ref_.terms[sizes.expr];
  AppId route = -1;
  for (ExprId e : ref_.terms.terms_of(rows.expr)) {
    if (ref_.terms[e].kind == Expr::Kind::output) {
      route = ref_.terms.app(ref_.terms[e].a).route;
    }
  }
  if (s.kind != Expr::Kind::sizes || s.a != route || s.b != axis) {
    refuse("exchange-sizes", ref, b,
           "these are not the sizes of the routing of " + describe(rows.expr),
           "use the sizes that were exchanged for the same routing and axis");
    return false;
  }
  const Layout& counted = ctx_.layouts[sizes.layout];
  const Layout l = rows.layout == kAnyLayout ? Layout{} : ctx_.layouts[rows.layout];
  for (int32_t a = 0; a < kMaxAxes; ++a) {
    if (a == axis) continue;
    const bool by_token = l[a] == Placement::split(1), by_expert = l[a] == Placement::split(0);
    if (by_token == counted[a].is_partial() && by_expert == counted[a].is_split()) continue;
    refuse("exchange-sizes", ref, b,
           fmt::format("they count other rows than those of layout {}",
                       ctx_.layouts.text(rows.layout)),
           "exchange the counts of the same tokens and experts");
    return false;
  }
  return true;
}

void Values::collective(int32_t cls, TaskId task, const Task& t, const KindInfo& k) {
  // A list: every operand by itself. Otherwise the first input is moved to the last output. An op
  // that makes sizes also leaves, in its first output, what every rank had; their layout is that of
  // the counts before they were moved, which says whose rows they count. An op that needs sizes
  // moves rows, which only those of the same routing describe.
  const GroupInfo& g = ctx_.groups[static_cast<size_t>(t.group)];
  const TaskRef ref{cls, task};
  if (k.comm->list) {
    for (size_t i = 0; i < t.in.size(); ++i) {
      Value v = at(cls, t.in[i]);
      if (v.expr < 0 || !move(ref, k, g, i, &v)) {
        lose(cls, t.out[i]);
      } else {
        set(cls, t, i, v.expr, v.layout, nullptr, ref);
      }
    }
    return;
  }
  for (BufferId b : t.in) {
    if (at(cls, b).expr < 0) return lose_outputs(cls, t);
  }
  const bool exchange = k.comm->makes_sizes || k.comm->needs_sizes;
  if (exchange && g.axes.size() > 1) {
    refuse("exchange-axis", ref, -1, "its group spans more than one axis",
           "exchange over the one axis that splits the experts");
    return lose_outputs(cls, t);
  }
  // A group of one rank changes nothing, but its sizes still belong to one routing.
  const int32_t axis = g.axes.empty() ? -1 : g.axes[0];
  const Value before = at(cls, t.in[0]);
  Value v = before;
  if (k.comm->needs_sizes && !sizes_fit(ref, axis, v, at(cls, t.in[1]))) {
    return lose_outputs(cls, t);
  }
  if (k.comm->makes_sizes) {
    const Expr& x = ref_.terms[v.expr];
    const bool counts = x.kind == Expr::Kind::output &&
                        x.b == ref_.keys[ref_.terms.app(x.a).key].rules->routing.counts;
    const bool own = counts && (axis < 0 || ctx_.layouts[v.layout][axis].is_partial());
    if (!own) {
      refuse("exchange-counts", ref, t.in[0],
             counts ? "the counts are not those of the rank's own tokens alone"
                    : "it is not the counts of a routing",
             "exchange the counts of a routing before anything reduces them");
      return lose_outputs(cls, t);
    }
    set(cls, t, 0, ref_.terms.sizes(x.a, axis), before.layout, nullptr, ref);
  }
  if (!move(ref, k, g, 0, &v)) return lose_outputs(cls, t);
  set(cls, t, t.out.size() - 1, v.expr, v.layout, nullptr, ref);
}

void Values::meet(std::span<const TaskRef> tasks) {
  // The stages hold different terms, which only a sum of whole values unites: per operand, every
  // stage's value is brought to the layout after the sum over the group's other axes, and all must
  // agree in it. The term of the result is the union of theirs.
  const Task& first = ctx_.task(tasks[0]);
  const KindInfo& k = ctx_.kind(first);
  const GroupInfo& g = ctx_.groups[static_cast<size_t>(first.group)];
  if (!k.comm->list) {
    ctx_.report("stages-reduce-only", ProblemClass::value, tasks[0], {},
                fmt::format("{} runs over pipeline stages", ctx_.name(tasks[0])),
                fmt::format("use {}, or messages, between stages", comm::summing().name));
    for (const TaskRef& r : tasks) {
      lose_outputs(r.cls, ctx_.task(r));
    }
    return;
  }
  for (size_t i = 0; i < first.in.size(); ++i) {
    Value sum{kZero, kAnyLayout};
    bool good = true;
    for (const TaskRef& r : tasks) {
      Value v = at(r.cls, ctx_.task(r).in[i]);
      good = good && v.expr >= 0 && move(r, k, g, i, &v);
      if (!good) break;
      if (sum.layout != kAnyLayout && v.layout != kAnyLayout && sum.layout != v.layout) {
        refuse("sum-layout", r, ctx_.task(r).in[i],
               fmt::format("the stages before hold layout {}", ctx_.layouts.text(sum.layout)),
               "bring the value to one layout in all stages first");
        good = false;
        break;
      }
      if (v.layout != kAnyLayout) {
        sum.layout = v.layout;
      }
      sum.expr = ref_.terms.sum(sum.expr, v.expr);
    }
    for (const TaskRef& r : tasks) {
      const Task& t = ctx_.task(r);
      if (good) {
        set(r.cls, t, i, sum.expr, sum.layout, nullptr, r);
      } else {
        lose(r.cls, t.out[i]);
      }
    }
  }
}

}  // namespace hocket::check
