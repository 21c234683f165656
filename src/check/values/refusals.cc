// SPDX-License-Identifier: Apache-2.0
#include "check/values/refusals.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <set>

namespace hocket::check {

namespace {

constexpr int kMaxTerms = 3;  // of a sum that a text names

}  // namespace

void Refusals::refuse(const char* rule, TaskRef ref, BufferId buffer, const std::string& why,
                      const char* fix, std::string at_rank) const {
  std::vector<TaskRef> related;
  std::string text = ctx_.name(ref);
  if (buffer >= 0) {
    const int32_t writer = hazards_.writer(ref.cls, buffer, ctx_.global(ref.cls, ref.task));
    if (writer >= 0) {
      related.push_back(ctx_.ref(writer));
    }
    const Value value = state_.at(ref.cls, buffer);
    text += fmt::format(": {} holds {}, layout {}", ctx_.buffer_name(ref.cls, buffer),
                        text_.describe(value.expr), text_.piece_text(value));
    if (writer >= 0) {
      text += ", written by " + ctx_.name(ctx_.ref(writer));
    }
    if (at_rank.empty()) {
      at_rank = text_.where(ref.cls, value);
    }
  }
  ctx_.report(rule, ProblemClass::value, ref, related, text + "; " + why, fix, std::move(at_rank));
}

void Refusals::refuse_begin(TaskRef ref, const RankFault& wrong) const {
  ctx_.report("begin-fits", ProblemClass::value, ref, {},
              fmt::format("{} takes a letter by position: {}", ctx_.name(ref), wrong.text),
              "give in begins= the begin of the rank's piece of the letter",
              text_.at_rank_text(ref.cls, wrong));
}

void Refusals::report_untiled(TaskRef ref, BufferId buffer, int32_t reader, const std::string& text,
                              std::string at_rank) const {
  std::vector<TaskRef> related;
  for (BufferId other : ctx_.views[ref.cls].meets(buffer)) {
    const int32_t writer = hazards_.writer(ref.cls, other, reader);
    if (writer >= 0 && related.size() < 8) {
      related.push_back(ctx_.ref(writer));
    }
  }
  std::sort(related.begin(), related.end());
  ctx_.report("view-tiled", ProblemClass::value, ref, related, text,
              "write all that is read, in parts of one value with equal cuts of the other dims",
              std::move(at_rank));
}

void Refusals::refuse_move(TaskRef ref, const KindInfo& info, BufferId buffer, const Value& value,
                           const CollectiveResult& moved) const {
  // The rule and the fix depend on the movement: an exchange of rows, a gather, a scattered sum, or
  // a reduction.
  const comm::Movement movement =
      comm::movement(*info.comm, ctx_.program.kind(ctx_.task(ref)).attrs);
  const std::string axis = moved.axis < 0 ? "its group" : ctx_.mesh.axes[moved.axis].name;
  const bool slot = movement.move.placed == comm::Move::Placed::slot;
  const std::string at_rank = text_.where_along(ref.cls, value, moved.axis);
  if (info.comm->needs_sizes) {
    refuse("exchange-layout", ref, buffer,
           fmt::format("the exchange goes from split({}) over {}", movement.slot_dim, axis),
           "exchange rows that are split by token (1) or by expert (0)", at_rank);
  } else if (slot) {
    refuse("gather-layout", ref, buffer,
           moved.fault == CollectiveResult::Fault::differs
               ? fmt::format("ranks along {} hold parts that differ in more than dim {}", axis,
                             movement.slot_dim)
               : fmt::format("it is not split along dim {} over {}", movement.slot_dim, axis),
           "gather along the dim and the axes that split the value", at_rank);
  } else if (movement.move.part == comm::Move::Part::block &&
             moved.fault != CollectiveResult::Fault::overlap) {
    refuse("scatter-layout", ref, buffer, fmt::format("it is not partial over {}", axis),
           "reduce-scatter only values that are partial over all axes of the group", at_rank);
  } else if (moved.fault == CollectiveResult::Fault::split) {
    refuse("reduce-split", ref, buffer,
           fmt::format("it is split over {}: different parts would be added", axis),
           "gather instead, or take this axis out of the group", at_rank);
  } else if (moved.fault == CollectiveResult::Fault::monoid) {
    refuse("reduce-monoid", ref, buffer,
           "its own reduction is another one: sum, maximum and softmax differ",
           "reduce a maximum with monoid=\"max\", a sum without; merge softmaxes by an op",
           at_rank);
  } else if (moved.fault == CollectiveResult::Fault::overlap) {
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

void Refusals::refuse_meeting(std::span<const TaskRef> tasks) const {
  // Names all classes that meet, and the writers of the first operand that differs. Reports nothing
  // if an operand follows from something already refused.
  const Task& first = ctx_.task(tasks[0]);
  std::vector<TaskRef> related(tasks.begin(), tasks.end());
  std::string held;
  std::string at_rank;
  for (size_t i = 0; i < first.in.size(); ++i) {
    const Value mine = state_.at(tasks[0].cls, first.in[i]);
    for (const TaskRef& ref : tasks) {
      const Value theirs = state_.at(ref.cls, ctx_.task(ref).in[i]);
      if (mine.expr < 0 || theirs.expr < 0) return;
      if (theirs == mine || !held.empty()) continue;
      for (const TaskRef& member : {tasks[0], ref}) {
        const int32_t writer = hazards_.writer(member.cls, ctx_.task(member).in[i],
                                               ctx_.global(member.cls, member.task));
        if (writer >= 0) {
          related.push_back(ctx_.ref(writer));
        }
      }
      const auto text_of = [&](const Value& value) {
        const std::string layout =
            mine.expr == theirs.expr ? ", layout " + text_.piece_text(value) : "";
        return text_.describe(value.expr) + layout;
      };
      held = fmt::format(": {} in class {}, {} in class {}", text_of(mine), tasks[0].cls,
                         text_of(theirs), ref.cls);
      at_rank = text_.where_of_two(tasks[0], mine, ref, theirs);
    }
  }
  ctx_.report(
      "classes-reduce-only", ProblemClass::value, tasks[0], related,
      fmt::format("{} runs over classes that hold different values{}", ctx_.name(tasks[0]), held),
      fmt::format("use {} or another sum of whole values, or messages, between classes",
                  comm::summing().name),
      at_rank);
}

/// Returns the first few tasks, of one class or of all, that computed the application of a term.
std::vector<TaskRef> Refusals::makers(ExprId expr, ClassId only_class) const {
  std::vector<TaskRef> list;
  if (expr < 0 || ref_.terms[expr].kind != Expr::Kind::output) return list;
  for (size_t i = 0; i < static_cast<size_t>(state_.num_tasks()) && list.size() < 4; ++i) {
    if (state_.application(i) < 0 || !ref_.terms.makes(state_.application(i), expr)) continue;
    if (only_class >= 0 && ctx_.task_class[i] != only_class) continue;
    list.push_back(ctx_.ref(static_cast<int32_t>(i)));
  }
  return list;
}

/// Returns the first few tasks, of one class or of all, that wrote a term to where it lies now: its
/// makers, or communication.
std::vector<TaskRef> Refusals::carriers(ExprId expr, ClassId only_class) const {
  constexpr size_t kMaxListed = 4;
  std::vector<TaskRef> list;
  const auto& classes = ctx_.program.classes;
  for (size_t cls = 0; cls < classes.size(); ++cls) {
    if (only_class >= 0 && only_class != cls) continue;
    for (size_t buffer = 0; buffer < classes[cls].buffers.size() && list.size() < kMaxListed;
         ++buffer) {
      if (state_.at(cls, BufferId(buffer)).expr != expr) continue;
      const int32_t writer = hazards_.writer(cls, buffer);
      if (writer >= 0) {
        list.push_back(ctx_.ref(writer));
      }
    }
  }
  return list;
}

/// Text: "lacks x, y; has z too often". Adds the makers of the terms to `tasks`.
std::string Refusals::difference(ExprId want, ExprId got, std::vector<TaskRef>* tasks) const {
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
      list += (seen > 1 ? ", " : "") + text_.describe(expr);
      if (tasks) {
        const auto from = makers(expr);
        tasks->insert(tasks->end(), from.begin(), from.end());
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

/// Text: where the terms are that `want` has and `got`, in this class, lacks. "; x is computed by
/// t, into buffer b, and carried further by u" for the first that the class has computed; "; no
/// task has computed y" for the first that it has not. Adds to `tasks` those that computed or
/// carried these terms, and the holders of the inputs of y: the missing task belongs next to them.
std::string Refusals::whereabouts(ClassId cls, ExprId want, ExprId got,
                                  std::vector<TaskRef>* tasks) const {
  const size_t most = tasks->size() + 16;
  const auto add = [tasks](const std::vector<TaskRef>& more) {
    tasks->insert(tasks->end(), more.begin(), more.end());
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
  for (size_t i = 0; i < static_cast<size_t>(state_.num_tasks()); ++i) {
    if (state_.application(i) < 0 || ctx_.task_class[i] != cls) continue;
    for (int32_t output = 0; output < ref_.terms.app(state_.application(i)).num_out; ++output) {
      const ExprId made = ref_.terms.output(state_.application(i), output);
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
      const AppId by = state_.application(ctx_.global(from[0].cls, from[0].task));
      const BufferId to = ctx_.task(from[0]).out[ref_.terms.place_of(by, expr)];
      made = fmt::format("; {} is computed by {}, into {}", text_.describe(expr),
                         ctx_.name(from[0]), ctx_.buffer_name(cls, to));
      add(from);
      // The term may have got lost after a task that carried it further.
      for (const TaskRef& carrier : carriers(expr, cls)) {
        if (std::find(from.begin(), from.end(), carrier) != from.end()) continue;
        made += ", and carried further by " + ctx_.name(carrier);
        tasks->push_back(carrier);
      }
    } else if (lacking.empty()) {
      const std::vector<TaskRef> others = makers(expr);
      lacking =
          fmt::format("; no task {}has computed {}",
                      others.empty() ? "" : fmt::format("of class {} ", cls), text_.describe(expr));
      const ClassId only_class = others.empty() ? ClassId(kNone) : cls;
      for (ExprId in : ref_.terms.inputs(term.a)) {
        add(carriers(in, only_class));
        for (ExprId part : ref_.terms.terms_of(in)) {
          add(makers(part, only_class));
          add(carriers(part, only_class));
          if (tasks->size() > most) break;
        }
      }
      add(others);
    }
  }
  return made + lacking;
}

/// Returns the application of the single-device step that is most likely meant: of the same op,
/// with the most inputs in common, then with the same attributes and coordinates.
AppId Refusals::closest(const Task& task, const KindInfo& info, const Operands& operands) const {
  std::vector<ExprId> got;
  for (size_t i = 0; i < task.in.size(); ++i) {
    got.push_back(operands.exprs[i]);
  }
  AppId best = -1;
  int best_score = -1;
  int budget = 200000;  // terms of sums to compare at most, so that a refusal takes no seconds
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
        // A sum that shares a term counts almost like an equal input.
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

/// Walks back from a refused task over the writers of its inputs. Returns the earliest task that
/// computes another micro-batch or layer than its own coordinates say.
TaskRef Refusals::misplaced_ancestor(TaskRef ref) const {
  std::vector<TaskRef> queue{ref};
  std::set<TaskRef> seen{ref};
  TaskRef found;
  for (size_t head = 0; head < queue.size() && queue.size() < 256; ++head) {
    const TaskRef at = queue[head];
    const Task& task = ctx_.task(at);
    const AppId made = state_.application(ctx_.global(at.cls, at.task));
    if (made >= 0 && !(at == ref)) {
      const Application& app = ref_.terms.app(made);
      const graph::Node& node = ref_.graph().nodes[app.node];
      const bool mb =
          task.micro_batch >= 0 && app.micro_batch >= 0 && app.micro_batch != task.micro_batch;
      const bool layer = task.layer >= 0 && node.layer >= 0 && node.layer != task.layer;
      // Equal applications (same inputs) share one entry, with the coordinates of the first.
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

void Refusals::explain_unknown(TaskRef ref, const Operands& operands) const {
  // Compares with the nearest application of the graph: attributes, and per input that differs its
  // content, the expected content and the writer. If an earlier task on the way here computes
  // something for another micro-batch or layer, the fault is most likely there: the problem is then
  // reported of that task, with this one as related.
  const Task& refused = ctx_.task(ref);
  const KindInfo& info = ctx_.kind(refused);
  std::vector<TaskRef> related;
  std::string text =
      ctx_.name(ref) + " computes a value that the single-device step does not contain";
  std::string fix = "give the task the inputs of the graph's op";
  std::string at_rank;  // of the first input that differs
  const AppId want = closest(refused, info, operands);
  if (want < 0) {
    text += fmt::format(": the graph has no {} with {} inputs", ref_.keys[info.key].op,
                        refused.in.size());
    ctx_.report("not-in-graph", ProblemClass::value, ref, {}, text, "remove the task");
    return;
  }
  const std::vector<ExprId> got = operands.exprs;
  const Application app = ref_.terms.app(want);
  const graph::Node& node = ref_.graph().nodes[app.node];
  text += fmt::format("; the nearest in the graph is {}{} (node {})", node.op,
                      text_.coordinates(node, app.micro_batch), app.node);
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
      at_rank = text_.where(ref.cls, state_.at(ref.cls, refused.in[i]));
    }
    text += fmt::format("; input {}, {}, ", i, ctx_.buffer_name(ref.cls, refused.in[i]));
    const bool sums = ref_.terms.count(in[i]) != 1 || ref_.terms.count(got[i]) != 1;
    const bool akin = ref_.terms[in[i]].type == ref_.terms[got[i]].type || got[i] == kZero;
    if (sums && akin) {
      text += "is an incomplete or wrong sum: " + difference(in[i], got[i], &related);
    } else {
      // Behind communication, the task that computed the term is the likely fault.
      const std::vector<TaskRef> from = makers(got[i]);
      related.insert(related.end(), from.begin(), from.end());
      text += fmt::format("holds {}; expected {}", text_.describe(got[i]), text_.describe(in[i]));
    }
    text += whereabouts(ref.cls, in[i], got[i], &related);
    if (writer >= 0) {
      text += " (written by " + ctx_.name(ctx_.ref(writer)) + ")";
    }
  }
  if (const TaskRef cause = misplaced_ancestor(ref); cause.cls >= 0) {
    const AppId made = state_.application(ctx_.global(cause.cls, cause.task));
    text += fmt::format("; it goes back to {}, which computes {}", ctx_.name(cause),
                        text_.describe(ref_.terms.output(made, 0)));
    related.insert(related.begin(), ref);
    ctx_.report("not-in-graph", ProblemClass::value, cause, related, text, fix, at_rank);
    return;
  }
  if (at_rank.empty() && !got.empty()) {
    at_rank = text_.where(ref.cls, state_.at(ref.cls, refused.in[0]));
  }
  ctx_.report("not-in-graph", ProblemClass::value, ref, related, text, fix, at_rank);
}

void Refusals::explain_pieces(TaskRef ref, const Operands& operands,
                              const LocalOpResult& taken) const {
  // Prints the pieces of all inputs, since any of them may be the one to change. Writers of partial
  // values come first among the related tasks: a forgotten reduction is the usual cause.
  const Task& task = ctx_.task(ref);
  const std::string& axis = text_.axis_name(taken.axes);
  std::vector<TaskRef> related;
  std::string text =
      fmt::format("{} has inputs in layouts that its op does not allow on {}{}:", ctx_.name(ref),
                  taken.axes ? "axis " : "", axis);
  bool partial = false;
  bool split = false;
  for (size_t i = 0; i < task.in.size(); ++i) {
    const Value value = operands.value(i);
    const bool is_partial = (algebra_.partial_axes(value) & taken.axes) != 0;
    partial |= is_partial;
    split |= value.piece != kAnyPiece && (algebra_.pieces.cut_axes(value.piece) & taken.axes);
    text += fmt::format("{} {} is {}", i ? "," : "", ctx_.buffer_name(ref.cls, task.in[i]),
                        text_.piece_text(value));
    const int32_t writer = hazards_.writer(ref.cls, task.in[i], ctx_.global(ref.cls, ref.task));
    if (writer < 0) continue;
    text += " (written by " + ctx_.name(ctx_.ref(writer)) + ")";
    if (is_partial) {
      related.insert(related.begin(), ctx_.ref(writer));
      // A sum over stages carries the value as another stage left it.
      const std::vector<TaskRef> others = carriers(operands.exprs[i]);
      related.insert(related.end(), others.begin(), others.end());
    } else {
      related.push_back(ctx_.ref(writer));
    }
  }
  std::string fix = "bring the inputs to layouts that the op's rule lists";
  const bool merges =
      std::any_of(operands.pieces.begin(), operands.pieces.end(), [&](PieceId piece) {
        return piece != kAnyPiece && algebra_.pieces.monoid(piece) != graph::Monoid::sum;
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
    return operands.value(i);
  };
  std::string at_rank;
  if (taken.input != kNone && taken.other != kNone) {
    at_rank =
        text_.where(ref.cls, held_in(taken.input),
                    " in " + ctx_.buffer_name(ref.cls, task.in[taken.input]) + ", and ",
                    held_in(taken.other), " in " + ctx_.buffer_name(ref.cls, task.in[taken.other]));
  } else if (taken.input != kNone) {
    at_rank = text_.where(ref.cls, held_in(taken.input)) +
              text_.missing_dim_text(ref.cls, held_in(taken.input), taken.dim);
  }
  ctx_.report("layout-legal", ProblemClass::value, ref, related, text, fix, at_rank);
}

void Refusals::explain_unfinished(TaskRef ref, size_t input) const {
  refuse("unfinished-sum", ref, ctx_.task(ref).in[input],
         "this sum is unfinished, and ops can't take its parts",
         "reduce it over the axes along which it is partial first");
}

void Refusals::explain_final(ClassId cls, BufferId buffer, ExprId want, ExprId got) const {
  std::vector<TaskRef> related;
  const int32_t writer = hazards_.writer(cls, buffer);
  TaskRef task{cls, -1};
  if (writer >= 0) {
    task = ctx_.ref(writer);
  }
  std::string text = fmt::format("{} of class {} ({}) ends the step with ",
                                 ctx_.buffer_name(cls, buffer), cls, ctx_.ranks_text(cls));
  if (writer < 0) {
    text += "no task having written it; expected " + text_.describe(want);
  } else if (got >= 0 && ref_.terms[got].type == ref_.terms[want].type) {
    text += "a wrong value: it " + difference(want, got, &related);
  } else {
    text += fmt::format("{}; expected {}", text_.describe(got), text_.describe(want));
  }
  text += whereabouts(cls, want, got, &related);
  if (writer >= 0) {
    text += "; last written by " + ctx_.name(task);
  }
  ctx_.report("final-value", ProblemClass::value, task, related, text,
              "add or correct the task that the graph has and the program lacks",
              text_.where(cls, state_.at(cls, buffer)));
}

}  // namespace hocket::check
