// SPDX-License-Identifier: Apache-2.0
// Localisation: which task made a value that the single-device step does not contain, what it
// should have computed, and which terms of a sum are missing or double. Runs only once something is
// refused. Coordinates of tasks (micro-batch, layer) are used here to choose the most telling of
// several explanations; the verdict itself does not depend on them.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <set>

#include "check/values/values.h"

namespace hocket::check {
namespace {

constexpr int kMaxTerms = 3;

std::string coordinates(const graph::Graph& graph, const graph::Node& node, int32_t micro_batch) {
  std::string text;
  const std::string place = graph::layer_name(node.layer, graph.num_layers);
  if (!place.empty() && !node.op.starts_with(place)) {
    text += " " + place;
  }
  if (micro_batch >= 0) {
    text += fmt::format(" mb{}", micro_batch);
  }
  return text;
}

}  // namespace

std::string Values::describe(ExprId expr) const {
  if (expr == kUnwritten) return "nothing";
  if (expr == kUnknown) return "something already refused";
  if (expr == kZero) return "zero";
  // By name where it has one; an application by the node that made it first, a sum by its first
  // two terms. Expr::a and b mean something else in every kind of term (terms.h).
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
                         describe(unfinished_[term.a][0].expr));
    case Expr::Kind::sum: {
      const std::vector<ExprId> terms = ref_.terms.terms_of(expr);
      std::string text = fmt::format("a sum of {} terms (", terms.size());
      for (size_t i = 0; i < terms.size() && i < 2; ++i) {
        text += (i ? ", " : "") + describe(terms[i]);
      }
      return text + (terms.size() > 2 ? ", ...)" : ")");
    }
    case Expr::Kind::pack: {
      const std::vector<Value>& parts = packs_[PackId(term.a)].components;
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
    return fmt::format("{} of {}{}", op, node.op, coordinates(graph, node, app.micro_batch));
  }
  const std::string& name = graph.tensor(node.out[term.b]).name;
  return fmt::format("{}{}{} ('{}')", node.op, coordinates(graph, node, app.micro_batch),
                     app.num_out > 1 ? fmt::format(" output {}", term.b) : "", name);
}

std::string Values::piece_text(const Value& value) const {
  if (is_pack(value)) return pack_text(pack_of(value));
  std::string text;
  for (const Value& part : parts_of(value)) {
    text += (text.empty() ? "" : " + ") + pieces_.text(part.piece, ctx_.mesh);
  }
  return text;
}

const std::string& Values::axis_name(AxisMask axes) const {
  static const std::string none = "any axis";
  for (size_t axis = 0; axis < ctx_.mesh.axes.size(); ++axis) {
    if (axes & graph::axis_bit(static_cast<int32_t>(axis))) return ctx_.mesh.axes[axis].name;
  }
  return none;
}

/// Tasks, of one class or of all, that computed the application behind a term (first few).
std::vector<TaskRef> Values::makers(ExprId expr, ClassId only_class) const {
  std::vector<TaskRef> list;
  if (expr < 0 || ref_.terms[expr].kind != Expr::Kind::output) return list;
  for (size_t i = 0; i < made_.size() && list.size() < 4; ++i) {
    if (made_[i] < 0 || !ref_.terms.makes(made_[i], expr)) continue;
    if (only_class >= 0 && ctx_.task_class[i] != only_class) continue;
    list.push_back(ctx_.ref(static_cast<int32_t>(i)));
  }
  return list;
}

/// Tasks, of one class or of all, that brought a term to where it lies now: its makers, or
/// communication (first few).
std::vector<TaskRef> Values::carriers(ExprId expr, ClassId only_class) {
  constexpr size_t kMost = 4;
  std::vector<TaskRef> list;
  for (size_t cls = 0; cls < values_.size(); ++cls) {
    if (only_class >= 0 && only_class != cls) continue;
    for (size_t buffer = 0; buffer < values_[cls].size() && list.size() < kMost; ++buffer) {
      if (at(cls, BufferId(buffer)).expr != expr) continue;
      const int32_t writer = hazards_.writer(cls, buffer);
      if (writer >= 0) {
        list.push_back(ctx_.ref(writer));
      }
    }
  }
  return list;
}

/// "lacks x, y; has z twice", with the tasks that made the surplus, or those that read what the
/// missing terms are made of.
std::string Values::difference(ExprId want, ExprId got, std::vector<TaskRef>* who) const {
  std::map<ExprId, int> count;
  for (ExprId expr : ref_.terms.terms_of(want)) {
    ++count[expr];
  }
  for (ExprId expr : ref_.terms.terms_of(got)) {
    --count[expr];
  }
  std::string missing;
  std::string extra;
  int num_missing = 0;
  int num_extra = 0;
  for (auto [expr, lacking] : count) {
    if (lacking == 0) continue;
    std::string& list = lacking > 0 ? missing : extra;
    int& seen = lacking > 0 ? num_missing : num_extra;
    if (++seen <= kMaxTerms) {
      list += (seen > 1 ? ", " : "") + describe(expr);
      if (who) {
        const auto from = makers(expr);
        who->insert(who->end(), from.begin(), from.end());
      }
    }
  }
  std::string text;
  if (num_missing) {
    text += fmt::format("lacks {}", missing);
  }
  if (num_missing > kMaxTerms) {
    text += fmt::format(" and {} more", num_missing - kMaxTerms);
  }
  if (num_extra) {
    text += fmt::format("{}has {} too often", num_missing ? "; " : "", extra);
  }
  if (num_extra > kMaxTerms) {
    text += fmt::format(" (and {} more)", num_extra - kMaxTerms);
  }
  return text;
}

/// Where the terms of `want` are that `got`, in this class, lacks: "; x is computed by t, into
/// buffer b, and brought on by u" for the first that the class has computed, "; no task has
/// computed y" for the first that it has not. `who` gets the tasks that did compute them or brought
/// them where they lie, and those that hold what y is made of: the missing task belongs next to
/// them.
std::string Values::whereabouts(ClassId cls, ExprId want, ExprId got, std::vector<TaskRef>* who) {
  const size_t most = who->size() + 16;
  const auto add = [who](const std::vector<TaskRef>& tasks) {
    who->insert(who->end(), tasks.begin(), tasks.end());
  };
  std::vector<ExprId> missing;
  std::vector<ExprId> have;
  if (got >= 0) {
    have = ref_.terms.terms_of(got);
  }
  const std::vector<ExprId> all = ref_.terms.terms_of(want);
  std::set_difference(all.begin(), all.end(), have.begin(), have.end(),
                      std::back_inserter(missing));
  std::vector<bool> here(static_cast<size_t>(ref_.terms.num_apps()), false);
  for (size_t i = 0; i < made_.size(); ++i) {
    if (made_[i] < 0 || ctx_.task_class[i] != cls) continue;
    for (int32_t output = 0; output < ref_.terms.app(made_[i]).num_out; ++output) {
      const ExprId made = ref_.terms.output(made_[i], output);
      if (ref_.terms[made].kind == Expr::Kind::output) {
        here[ref_.terms[made].a] = true;
      }
    }
  }
  std::string made;
  std::string lacking;
  for (ExprId expr : missing) {
    const Expr& term = ref_.terms[expr];
    if (term.kind != Expr::Kind::output) continue;
    if (here[term.a]) {
      if (!made.empty()) continue;
      const std::vector<TaskRef> from = makers(expr, cls);
      const AppId by = made_[ctx_.global(from[0].cls, from[0].task)];
      const BufferId to = ctx_.task(from[0]).out[ref_.terms.place_of(by, expr)];
      made = fmt::format("; {} is computed by {}, into {}", describe(expr), ctx_.name(from[0]),
                         ctx_.buffer_name(cls, to));
      add(from);
      // What is missing may be behind others that brought it on.
      for (const TaskRef& carrier : carriers(expr, cls)) {
        if (std::find(from.begin(), from.end(), carrier) != from.end()) continue;
        made += ", and brought on by " + ctx_.name(carrier);
        who->push_back(carrier);
      }
    } else if (lacking.empty()) {
      const std::vector<TaskRef> others = makers(expr);
      lacking = fmt::format("; no task {}has computed {}",
                            others.empty() ? "" : fmt::format("of class {} ", cls), describe(expr));
      const ClassId only_class = others.empty() ? ClassId(kNone) : cls;
      for (ExprId in : ref_.terms.inputs(term.a)) {
        add(carriers(in, only_class));
        for (ExprId part : ref_.terms.terms_of(in)) {
          add(makers(part, only_class));
          add(carriers(part, only_class));
          if (who->size() > most) break;
        }
      }
      add(others);
    }
  }
  return made + lacking;
}

/// The application of the single-device step that this task most likely should be: of the same op,
/// with the most inputs in common, then the same attributes and coordinates.
AppId Values::closest(const Task& task, const KindInfo& info) const {
  std::vector<ExprId> got;
  for (size_t i = 0; i < task.in.size(); ++i) {
    got.push_back(exprs_[i]);
  }
  AppId best = -1;
  int best_score = -1;
  int budget = 200000;  // terms of sums looked at
  std::vector<std::vector<ExprId>> parts;
  for (ExprId expr : got) {
    parts.push_back(ref_.terms.count(expr) > 1 ? ref_.terms.terms_of(expr)
                                               : std::vector<ExprId>{expr});
  }
  const std::string& op = ref_.keys[info.key].op;
  for (AppId candidate = 0; candidate < ref_.terms.num_apps(); ++candidate) {
    const Application& app = ref_.terms.app(candidate);
    if (app.num_in != static_cast<int32_t>(got.size())) continue;
    const bool same_key = app.key == info.key;
    if (!same_key && ref_.keys[app.key].op != op) continue;
    int score = same_key ? 2 : 0;
    const auto in = ref_.terms.inputs(candidate);
    for (size_t i = 0; i < got.size(); ++i) {
      if (in[i] == got[i]) {
        score += 4;
      } else if ((parts[i].size() > 1 || ref_.terms.count(in[i]) > 1) && budget > 0) {
        // Sums that share terms are akin.
        const std::vector<ExprId> want = ref_.terms.terms_of(in[i]);
        budget -= static_cast<int>(want.size());
        for (size_t part = 0; part < parts[i].size() && part < 8; ++part) {
          if (std::binary_search(want.begin(), want.end(), parts[i][part])) {
            score += 3;
            break;
          }
        }
      }
    }
    const graph::Node& node = ref_.graph().nodes[app.node];
    if (app.micro_batch == task.micro_batch) {
      score += 2;
    }
    if (node.layer == task.layer) {
      score += 2;
    }
    if (score > best_score) {
      best_score = score;
      best = candidate;
    }
  }
  return best;
}

/// Walks back from a refused task over what wrote its inputs: the earliest task that computes a
/// different micro-batch or layer than its own coordinates say.
TaskRef Values::misplaced_ancestor(TaskRef ref) const {
  std::vector<TaskRef> queue{ref};
  std::set<TaskRef> seen{ref};
  TaskRef found;
  for (size_t head = 0; head < queue.size() && queue.size() < 256; ++head) {
    const TaskRef at = queue[head];
    const Task& task = ctx_.task(at);
    const AppId made = made_[ctx_.global(at.cls, at.task)];
    if (made >= 0 && !(at == ref)) {
      const Application& app = ref_.terms.app(made);
      const graph::Node& node = ref_.graph().nodes[app.node];
      const bool mb =
          task.micro_batch >= 0 && app.micro_batch >= 0 && app.micro_batch != task.micro_batch;
      const bool layer = task.layer >= 0 && node.layer >= 0 && node.layer != task.layer;
      // Equal applications in other places (same inputs) carry the coordinates of the first only.
      if (mb || layer) {
        found = at;
      } else {
        continue;
      }
    }
    for (BufferId input : task.in) {
      const int32_t writer = hazards_.writer(at.cls, input, ctx_.global(at.cls, at.task));
      if (writer < 0) continue;
      const TaskRef from = ctx_.ref(writer);
      if (seen.insert(from).second) {
        queue.push_back(from);
      }
    }
  }
  return found;
}

void Values::explain_unknown(TaskRef ref) {
  // Against the nearest application of the graph: other attributes, and per input that differs
  // what it holds, what it should hold and who wrote it. If an earlier task on the way here
  // computes something for another micro-batch or layer, the fault is most likely there: then the
  // problem is reported of that task, and this one is where it showed. `exprs_` holds the inputs'
  // terms.
  const Task& refused = ctx_.task(ref);
  const KindInfo& info = ctx_.kind(refused);
  std::vector<TaskRef> related;
  std::string text = ctx_.name(ref) + " computes what the single-device step does not contain";
  std::string fix = "let the task read what the graph's op reads";
  std::string at_rank;  // of the first input that differs
  const AppId want = closest(refused, info);
  if (want < 0) {
    text += fmt::format(": the graph has no {} with {} inputs", ref_.keys[info.key].op,
                        refused.in.size());
    ctx_.report("not-in-graph", ProblemClass::value, ref, {}, text, "remove the task");
    return;
  }
  const std::vector<ExprId> got = exprs_;
  const Application app = ref_.terms.app(want);
  const graph::Node& node = ref_.graph().nodes[app.node];
  text += fmt::format("; the nearest in the graph is {}{} (node {})", node.op,
                      coordinates(ref_.graph(), node, app.micro_batch), app.node);
  if (app.key != info.key) {
    text +=
        fmt::format(": attributes are {}; expected {}", graph::to_string(ref_.keys[info.key].attrs),
                    graph::to_string(ref_.keys[app.key].attrs));
    fix = "give the task the attributes of the graph's op";
  }
  const auto in = ref_.terms.inputs(want);
  for (size_t i = 0; i < refused.in.size(); ++i) {
    if (in[i] == got[i]) continue;
    const int32_t writer = hazards_.writer(ref.cls, refused.in[i], ctx_.global(ref.cls, ref.task));
    if (writer >= 0) {
      related.push_back(ctx_.ref(writer));
    }
    if (at_rank.empty()) {
      at_rank = where(ref.cls, at(ref.cls, refused.in[i]));
    }
    text += fmt::format("; input {}, {}, ", i, ctx_.buffer_name(ref.cls, refused.in[i]));
    const bool sums = ref_.terms.count(in[i]) != 1 || ref_.terms.count(got[i]) != 1;
    const bool akin = ref_.terms[in[i]].type == ref_.terms[got[i]].type || got[i] == kZero;
    if (sums && akin) {
      text += "is an incomplete or wrong sum: " + difference(in[i], got[i], &related);
    } else {
      // Communication may have brought it: then the task that computed it reads or is the fault.
      const std::vector<TaskRef> from = makers(got[i]);
      related.insert(related.end(), from.begin(), from.end());
      text += fmt::format("holds {}; expected {}", describe(got[i]), describe(in[i]));
    }
    text += whereabouts(ref.cls, in[i], got[i], &related);
    if (writer >= 0) {
      text += " (written by " + ctx_.name(ctx_.ref(writer)) + ")";
    }
  }
  if (const TaskRef cause = misplaced_ancestor(ref); cause.cls >= 0) {
    const AppId made = made_[ctx_.global(cause.cls, cause.task)];
    text += fmt::format("; it goes back to {}, which computes {}", ctx_.name(cause),
                        describe(ref_.terms.output(made, 0)));
    related.insert(related.begin(), ref);
    ctx_.report("not-in-graph", ProblemClass::value, cause, related, text, fix, at_rank);
    return;
  }
  if (at_rank.empty() && !got.empty()) {
    at_rank = where(ref.cls, at(ref.cls, refused.in[0]));
  }
  ctx_.report("not-in-graph", ProblemClass::value, ref, related, text, fix, at_rank);
}

void Values::explain_pieces(TaskRef ref, const Taken& taken) {
  // All inputs are told with their pieces, since any of them may be the one to change; writers of
  // partial values come first among the related tasks: a forgotten reduction is the usual cause.
  const Task& task = ctx_.task(ref);
  const std::string& axis = axis_name(taken.axes);
  std::vector<TaskRef> related;
  std::string text =
      fmt::format("{} has inputs whose layouts its op can't take over {}{}:", ctx_.name(ref),
                  taken.axes ? "axis " : "", axis);
  bool partial = false;
  bool split = false;
  for (size_t i = 0; i < task.in.size(); ++i) {
    const Value value{exprs_[i], ins_[i]};
    const bool is_partial = (partial_axes(value) & taken.axes) != 0;
    partial |= is_partial;
    split |= value.piece != kAnyPiece && (pieces_.cut_axes(value.piece) & taken.axes);
    text += fmt::format("{} {} is {}", i ? "," : "", ctx_.buffer_name(ref.cls, task.in[i]),
                        piece_text(value));
    const int32_t writer = hazards_.writer(ref.cls, task.in[i], ctx_.global(ref.cls, ref.task));
    if (writer < 0) continue;
    text += " (written by " + ctx_.name(ctx_.ref(writer)) + ")";
    if (is_partial) {
      related.insert(related.begin(), ctx_.ref(writer));
      // A sum over stages brings it as it was left in another one.
      const std::vector<TaskRef> others = carriers(exprs_[i]);
      related.insert(related.end(), others.begin(), others.end());
    } else {
      related.push_back(ctx_.ref(writer));
    }
  }
  std::string fix = "bring the inputs to layouts that the op's rule lists";
  const bool merges = std::any_of(ins_.begin(), ins_.end(), [&](PieceId piece) {
    return piece != kAnyPiece && pieces_.monoid(piece) != graph::Monoid::sum;
  });
  if (merges) {
    fix = "merge all parts of the result first: the keys or columns of other ranks are missing";
  } else if (partial) {
    fix = fmt::format("sum the partial input over {} first", axis);
  } else if (split) {
    fix = fmt::format("gather over {} first, or split the other inputs alike", axis);
  }
  const auto held_in = [&](int32_t input) {
    const auto i = static_cast<size_t>(input);
    return Value{exprs_[i], ins_[i]};
  };
  std::string at_rank;
  if (taken.input != kNone && taken.other != kNone) {
    at_rank = where(ref.cls, held_in(taken.input),
                    " in " + ctx_.buffer_name(ref.cls, task.in[taken.input]) + ", and ",
                    held_in(taken.other), " in " + ctx_.buffer_name(ref.cls, task.in[taken.other]));
  } else if (taken.input != kNone) {
    at_rank =
        where(ref.cls, held_in(taken.input)) + unheld(ref.cls, held_in(taken.input), taken.dim);
  }
  ctx_.report("layout-legal", ProblemClass::value, ref, related, text, fix, at_rank);
}

void Values::explain_unfinished(TaskRef ref, size_t input) {
  refuse("unfinished-sum", ref, ctx_.task(ref).in[input],
         "the parts of this sum are not all there, and no op can take them apart",
         "reduce it over the axes along which it is partial first");
}

void Values::explain_final(ClassId cls, BufferId buffer, ExprId want, ExprId got) {
  std::vector<TaskRef> related;
  const int32_t writer = hazards_.writer(cls, buffer);
  TaskRef task{cls, -1};
  if (writer >= 0) {
    task = ctx_.ref(writer);
  }
  std::string text = fmt::format("{} of class {} ({}) ends the step with ",
                                 ctx_.buffer_name(cls, buffer), cls, ctx_.ranks_text(cls));
  if (writer < 0) {
    text += "no task having written it; expected " + describe(want);
  } else if (got >= 0 && ref_.terms[got].type == ref_.terms[want].type) {
    text += "a wrong value: it " + difference(want, got, &related);
  } else {
    text += fmt::format("{}; expected {}", describe(got), describe(want));
  }
  text += whereabouts(cls, want, got, &related);
  if (writer >= 0) {
    text += "; last written by " + ctx_.name(task);
  }
  ctx_.report("final-value", ProblemClass::value, task, related, text,
              "add or correct the task that the graph has and the program lacks",
              where(cls, at(cls, buffer)));
}

}  // namespace hocket::check
