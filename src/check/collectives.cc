// SPDX-License-Identifier: Apache-2.0
// What collectives do to values: they change layouts along the axes of their group and keep the
// term. Over the stages of a pipeline, an all-reduce unites the sums that the stages hold.
#include <fmt/format.h>

#include "check/values.h"

namespace hocket::check {
namespace {

int32_t attr(const program::Kind& kind, std::string_view key) {
  try {
    return static_cast<int32_t>(kind.attrs.i(key));
  } catch (const std::exception&) {
    return -1;
  }
}

}  // namespace

/// Parts along `dim` are nested with the outermost axis first: only the innermost axis that splits
/// `dim` can be gathered, and a new split is the innermost.
bool Values::innermost(const Layout& l, int32_t axis, int32_t dim) const {
  for (int32_t a = axis + 1; a < kMaxAxes; ++a)
    if (l[a] == Placement::split(dim)) return false;
  return true;
}

/// Row numbers of a routing are relative to the rank's own rows: moving them makes no sense.
bool Values::local_index(ExprId e) const {
  const Expr& x = ref_.terms[e];
  if (x.kind == Expr::Kind::sizes) return true;
  if (x.kind != Expr::Kind::output) return false;
  return x.b == ref_.keys[ref_.terms.app(x.a).key].rules->routing.row_of;
}

bool Values::reduce(TaskRef ref, const GroupInfo& g, size_t operand, Value* v) {
  if (v->layout == kAnyLayout) return true;
  Layout l = ctx_.layouts[v->layout];
  const BufferId b = ctx_.task(ref).in[operand];
  for (int32_t a : g.axes) {
    const std::string& axis = ctx_.program.mesh.axes[static_cast<size_t>(a)].name;
    const int32_t n = ctx_.program.mesh.axes[static_cast<size_t>(a)].size;
    if (l[a].is_replicate()) {
      refuse("reduce-replicated", ref, b,
             fmt::format("it is not partial over {}: the sum would be {} times the value", axis, n),
             "remove the all_reduce, or take this axis out of its group");
      return false;
    }
    if (l[a].is_split()) {
      refuse("reduce-split", ref, b,
             fmt::format("it is split over {}: different parts would be added", axis),
             "gather instead, or take this axis out of the group");
      return false;
    }
    l[a] = Placement::replicate();
  }
  v->layout = ctx_.layouts.intern(l);
  return true;
}

bool Values::gather(TaskRef ref, const GroupInfo& g, int32_t dim, Value* v) {
  Layout l = ctx_.layouts[v->layout];
  const BufferId b = ctx_.task(ref).in[0];
  for (auto it = g.axes.rbegin(); it != g.axes.rend(); ++it) {
    const std::string& axis = ctx_.program.mesh.axes[static_cast<size_t>(*it)].name;
    if (!(l[*it] == Placement::split(dim)) || !innermost(l, *it, dim)) {
      refuse("gather-layout", ref, b,
             fmt::format("it is not split along dim {} over {} (innermost)", dim, axis),
             "gather along the dim and the axes that split the value, innermost first");
      return false;
    }
    l[*it] = Placement::replicate();
  }
  if (local_index(v->expr)) {
    refuse("gather-layout", ref, b, "row numbers are relative to the rank's own rows",
           "plan the routing again on the gathered ids");
    return false;
  }
  v->layout = ctx_.layouts.intern(l);
  return true;
}

bool Values::scatter(TaskRef ref, const GroupInfo& g, int32_t dim, Value* v) {
  Layout l = ctx_.layouts[v->layout];
  const BufferId b = ctx_.task(ref).in[0];
  for (int32_t a : g.axes) {
    const std::string& axis = ctx_.program.mesh.axes[static_cast<size_t>(a)].name;
    if (!l[a].is_partial() || !innermost(l, a, dim)) {
      refuse("scatter-layout", ref, b,
             l[a].is_partial() ? fmt::format("dim {} is already split inside {}", dim, axis)
                               : fmt::format("it is not partial over {}", axis),
             "reduce-scatter only what is partial over all axes of the group");
      return false;
    }
    l[a] = Placement::split(dim);
  }
  v->layout = ctx_.layouts.intern(l);
  return true;
}

void Values::collective(int32_t cls, TaskId task, const Task& t, const KindInfo& k) {
  const GroupInfo& g = ctx_.groups[static_cast<size_t>(t.group)];
  const program::Kind& kind = ctx_.program.kind(t);
  const TaskRef ref{cls, task};
  for (size_t i = 0; i < t.in.size(); ++i)
    if (at(cls, t.in[i]).expr < 0 && k.op_class != OpClass::all_reduce) return lose_outputs(cls, t);
  if (k.op_class == OpClass::all_reduce) {
    for (size_t i = 0; i < t.in.size(); ++i) {
      Value v = at(cls, t.in[i]);
      if (v.expr < 0 || !reduce(ref, g, i, &v))
        lose(cls, t.out[i]);
      else
        set(cls, t, i, v.expr, v.layout, nullptr, ref);
    }
    return;
  }
  Value v = at(cls, t.in[0]);
  if (v.layout == kAnyLayout) v.layout = ctx_.layouts.intern({});
  if (k.op_class == OpClass::all_gather || k.op_class == OpClass::reduce_scatter) {
    const int32_t dim = attr(kind, "dim");
    const bool good =
        k.op_class == OpClass::all_gather ? gather(ref, g, dim, &v) : scatter(ref, g, dim, &v);
    return good ? set(cls, t, 0, v.expr, v.layout, nullptr, ref) : lose_outputs(cls, t);
  }
  if (g.axes.size() > 1) {
    refuse("exchange-axis", ref, -1, "its group spans more than one axis",
           "exchange over the one axis that splits the experts");
    return lose_outputs(cls, t);
  }
  // A group of one rank changes nothing, but its sizes still belong to one routing.
  const int32_t axis = g.axes.empty() ? -1 : g.axes[0];
  Layout l = ctx_.layouts[v.layout];
  const Expr& x = ref_.terms[v.expr];
  if (k.op_class == OpClass::size_exchange) {
    const bool counts = x.kind == Expr::Kind::output &&
                        x.b == ref_.keys[ref_.terms.app(x.a).key].rules->routing.counts;
    if (!counts || (axis >= 0 && !l[axis].is_partial())) {
      refuse("exchange-counts", ref, t.in[0],
             counts ? "the counts are not those of the rank's own tokens alone"
                    : "it is not the counts of a routing",
             "exchange the counts of a routing before anything reduces them");
      return lose_outputs(cls, t);
    }
    const int64_t n = axis < 0 ? 1 : ctx_.program.mesh.axes[static_cast<size_t>(axis)].size;
    if (kind.out[0].dtype != graph::DType::i64 ||
        kind.out[0].dims != graph::Dims{n, kind.in[0].dims[0]}) {
      refuse("exchange-counts", ref, t.in[0],
             fmt::format("sizes are {}; expected i64[{},{}]", graph::to_string(kind.out[0]), n,
                         kind.in[0].dims[0]),
             "give the sizes a row per rank of the group");
      return lose_outputs(cls, t);
    }
    // The layout of the counts before the exchange stays with the sizes: it says whose rows they
    // count.
    set(cls, t, 0, ref_.terms.sizes(x.a, axis), v.layout, nullptr, ref);
    if (axis >= 0) l[axis] = Placement::split(0);
    return set(cls, t, 1, v.expr, ctx_.layouts.intern(l), nullptr, ref);
  }
  const Value sizes = at(cls, t.in[1]);
  const Expr& s = ref_.terms[sizes.expr];
  const int32_t from = attr(kind, "from"), to = attr(kind, "to");
  AppId route = -1;
  for (ExprId e : ref_.terms.terms_of(v.expr))
    if (ref_.terms[e].kind == Expr::Kind::output) route = ref_.terms.app(ref_.terms[e].a).route;
  if (s.kind != Expr::Kind::sizes || s.a != route || s.b != axis) {
    refuse("exchange-sizes", ref, t.in[1],
           "these are not the sizes of the routing of " + describe(v.expr),
           "use the sizes of the size_exchange for the same routing and axis");
    return lose_outputs(cls, t);
  }
  const bool forth = from == 1 && to == 0, back = from == 0 && to == 1;
  if ((!forth && !back) ||
      (axis >= 0 && (!(l[axis] == Placement::split(from)) || !innermost(l, axis, from)))) {
    refuse("exchange-layout", ref, t.in[0],
           fmt::format("the exchange goes from split({}) to split({})", from, to),
           "exchange tokens to experts from 1 to 0, back from 0 to 1");
    return lose_outputs(cls, t);
  }
  const Layout& counted = ctx_.layouts[sizes.layout];
  for (int32_t a = 0; a < kMaxAxes; ++a) {
    if (a == axis) continue;
    const bool by_token = l[a] == Placement::split(1), by_expert = l[a] == Placement::split(0);
    if (by_token == counted[a].is_partial() && by_expert == counted[a].is_split()) continue;
    refuse(
        "exchange-sizes", ref, t.in[1],
        fmt::format("they count other rows than those of layout {}", ctx_.layouts.text(v.layout)),
        "exchange the counts of the same tokens and experts");
    return lose_outputs(cls, t);
  }
  if (axis >= 0) {
    if (!innermost(l, axis, to)) {
      refuse("exchange-layout", ref, t.in[0], "the new split would not be the innermost",
             "exchange over the innermost axis");
      return lose_outputs(cls, t);
    }
    l[axis] = Placement::split(to);
  }
  set(cls, t, 0, v.expr, ctx_.layouts.intern(l), nullptr, ref);
}

void Values::meet(std::span<const TaskRef> tasks) {
  const Task& first = ctx_.task(tasks[0]);
  const KindInfo& k = ctx_.kind(first);
  const GroupInfo& g = ctx_.groups[static_cast<size_t>(first.group)];
  if (k.op_class != OpClass::all_reduce) {
    ctx_.report("stages-reduce-only", ProblemClass::value, tasks[0], {},
                fmt::format("{} runs over pipeline stages", ctx_.name(tasks[0])),
                "use all_reduce, or send and recv, between stages");
    for (const TaskRef& r : tasks) lose_outputs(r.cls, ctx_.task(r));
    return;
  }
  for (size_t i = 0; i < first.in.size(); ++i) {
    Value sum{kZero, kAnyLayout};
    bool good = true;
    for (const TaskRef& r : tasks) {
      Value v = at(r.cls, ctx_.task(r).in[i]);
      good = good && v.expr >= 0 && reduce(r, g, i, &v);
      if (!good) break;
      if (sum.layout != kAnyLayout && v.layout != kAnyLayout && sum.layout != v.layout) {
        refuse("sum-layout", r, ctx_.task(r).in[i],
               fmt::format("the stages before hold layout {}", ctx_.layouts.text(sum.layout)),
               "bring the value to one layout in all stages first");
        good = false;
        break;
      }
      if (sum.expr != kZero && v.expr != kZero &&
          ref_.terms[sum.expr].type != ref_.terms[v.expr].type) {
        refuse("sum-type", r, ctx_.task(r).in[i], "it would be added to " + describe(sum.expr),
               "reduce the same tensors in the same order in all stages");
        good = false;
        break;
      }
      if (v.layout != kAnyLayout) sum.layout = v.layout;
      sum.expr = ref_.terms.sum(sum.expr, v.expr);
    }
    for (const TaskRef& r : tasks) {
      const Task& t = ctx_.task(r);
      if (good)
        set(r.cls, t, i, sum.expr, sum.layout, nullptr, r);
      else
        lose(r.cls, t.out[i]);
    }
  }
}

}  // namespace hocket::check
