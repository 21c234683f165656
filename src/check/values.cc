// SPDX-License-Identifier: Apache-2.0
#include "check/values.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/error.h"

namespace hocket::check {

Values::Values(Context& ctx, Reference& reference, const Hazards& hazards)
    : ctx_(ctx), ref_(reference), hazards_(hazards) {
  // Before the step nothing is written but what the host provides: persistent buffers hold the old
  // value of the graph tensor of their name, inputs that of their micro-batch, each in the layout
  // that it declares. That the name, the micro-batch and the local type fit the graph is shown here
  // too, for outputs as well; a buffer where they do not is lost from the start.
  signatures_.resize(ctx.kinds.size());
  experts_.assign(ctx.kinds.size(), 0);
  made_.assign(ctx.position.size(), -1);
  const LayoutId replicated = ctx.layouts.intern({});
  for (size_t c = 0; c < ctx.program.classes.size(); ++c) {
    const RankClass& cls = ctx.program.classes[c];
    const ClassId class_id = static_cast<int32_t>(c);
    std::vector<Value> values(cls.buffers.size(), Value{kUnwritten, replicated});
    for (size_t i = 0; i < cls.buffers.size(); ++i) {
      const program::Buffer& buffer = cls.buffers[i];
      if (buffer.kind == BufferKind::step) continue;
      Value& value = values[i];
      value.layout = ctx.layouts.intern(buffer.layout);
      const int32_t id = static_cast<int32_t>(i);
      const int32_t tensor = reference.find(buffer.name);
      const auto* info = tensor < 0 ? nullptr : &reference.graph().tensor(tensor);
      const char* wrong = nullptr;
      const bool persistent = info && (info->kind == graph::TensorKind::param ||
                                       info->kind == graph::TensorKind::state);
      const bool input = info && info->kind == graph::TensorKind::input;
      if (!info) {
        wrong = "is not a tensor of the single-device graph";
      } else if (buffer.kind == BufferKind::persistent && !persistent) {
        wrong = "is not a parameter or state of the single-device graph";
      } else if (buffer.kind == BufferKind::input && !input) {
        wrong = "is not an input of the single-device graph";
      } else if (input &&
                 (info->per_step ? buffer.micro_batch != program::kNone
                                 : buffer.micro_batch < 0 ||
                                       buffer.micro_batch >= reference.num_micro_batches())) {
        wrong = "names a micro-batch that does not exist";
      }
      const TypeId logical = tensor < 0 ? -1 : reference.type_of[tensor];
      if (!wrong) {
        bool same = false;
        try {
          same = ctx.types.intern(graph::local_type(ctx.types[logical], ctx.layouts[value.layout],
                                                    ctx.program.mesh_of(class_id))) ==
                 ctx.buffer_type[c][i];
        } catch (const Error&) {
        }
        if (!same) {
          wrong = "is not the local part of the logical tensor under its layout";
        }
      }
      if (wrong) {
        const std::vector<TaskRef> users = ctx.users(class_id, id);
        ctx.report(
            "named-tensor", ProblemClass::value, users.empty() ? TaskRef{class_id, -1} : users[0],
            users,
            fmt::format("{} in class {}, {} with layout {}, {}", ctx.buffer_name(class_id, id), c,
                        graph::to_string(buffer.type), ctx.layouts.text(value.layout), wrong),
            "name a tensor of the graph, with the type that its layout gives it");
        value.expr = kUnknown;
      } else if (persistent) {
        value.expr = reference.terms.tensor(tensor, logical);
      } else if (input) {
        value.expr = reference.terms.input(tensor, buffer.micro_batch, logical);
      }
    }
    values_.push_back(std::move(values));
  }
}

void Values::lose_outputs(ClassId cls, const Task& task) {
  for (BufferId output : task.out) {
    lose(cls, output);
  }
}

void Values::refuse(const char* rule, TaskRef ref, BufferId buffer, const std::string& why,
                    const char* fix) {
  std::vector<TaskRef> related;
  std::string text = ctx_.name(ref);
  if (buffer >= 0) {
    const int32_t writer = hazards_.writer(ref.cls, buffer, ctx_.global(ref.cls, ref.task));
    if (writer >= 0) {
      related.push_back(ctx_.ref(writer));
    }
    const Value& value = at(ref.cls, buffer);
    text += fmt::format(": {} holds {}, layout {}", ctx_.buffer_name(ref.cls, buffer),
                        describe(value.expr), ctx_.layouts.text(value.layout));
    if (writer >= 0) {
      text += ", written by " + ctx_.name(ctx_.ref(writer));
    }
  }
  ctx_.report(rule, ProblemClass::value, ref, related, text + "; " + why, fix);
}

/// True if `expr` laid out by `layout` has the local type `local`.
bool Values::fits(ClassId cls, ExprId expr, LayoutId layout, TypeId local) {
  const TypeId logical = ref_.terms[expr].type;
  if (logical < 0 || layout == kAnyLayout) return true;
  try {
    return ctx_.types.intern(graph::local_type(ctx_.types[logical], ctx_.layouts[layout],
                                               ctx_.program.mesh_of(cls))) == local;
  } catch (const Error&) {
    return false;
  }
}

/// Output `o` gets this value, or adds it. The logical type of the term, cut by the layout, must be
/// the local type of the buffer (`memo` spares working that out again for the same logical type).
void Values::set(ClassId cls, const Task& task, size_t output, ExprId expr, LayoutId layout,
                 Signature* memo, TaskRef ref) {
  const KindInfo& info = ctx_.kind(task);
  const TypeId logical = ref_.terms[expr].type;
  if (!memo || memo->logical[output] != logical) {
    if (!fits(cls, expr, layout, info.out[output])) {
      ctx_.report(
          "local-size", ProblemClass::value, ref, {},
          fmt::format("{} makes {} of type {}; under layout {} the local part of {} differs",
                      ctx_.name(ref), describe(expr),
                      graph::to_string(ctx_.types[info.out[output]]), ctx_.layouts.text(layout),
                      graph::to_string(ctx_.types[logical])),
          "give the task the local types that its layout implies");
      lose(cls, task.out[output]);
      return;
    }
    if (memo) {
      memo->logical[output] = logical;
    }
  }
  Value& value = at(cls, task.out[output]);
  if (task.accumulate.contains(output)) {
    if (value.expr < 0) {
      value.expr = kUnknown;
      return;
    }
    if (value.layout != layout && value.layout != kAnyLayout) {
      refuse("sum-layout", ref, task.out[output],
             fmt::format("it would add a value of layout {}", ctx_.layouts.text(layout)),
             "reduce both to one layout before adding");
      value.expr = kUnknown;
      return;
    }
    // One local type (operand-types) in one layout is one logical type.
    value = {ref_.terms.sum(value.expr, expr), layout};
    return;
  }
  value = {expr, layout};
  check_expected(cls, task, output, layout, ref);
}

/// A ragged buffer is planned for at least the rows that even routing brings: its layout says which
/// share of the experts, and so of the rows, is here. A task that is not told how many rows there
/// are writes all of it, and so does a zero, which alone has any layout.
void Values::check_expected(ClassId cls, const Task& task, size_t output, LayoutId layout,
                            TaskRef ref) {
  const BufferId id = task.out[output];
  const program::Buffer& buffer = ctx_.program.classes[cls].buffers[id];
  if (buffer.expected_bytes == program::kNone) return;
  if (buffer.expected_bytes >= buffer.type.bytes()) return;
  if (!buffer.type.routed()) return;  // expected-routed
  const KindInfo& info = ctx_.kind(task);
  const bool told =
      info.comm ? info.comm->needs_sizes : ops::reads_counts(ctx_.program.kind(task).in);
  if (!told || layout == kAnyLayout) {
    ctx_.report("expected-rows", ProblemClass::memory, ref, {},
                fmt::format("{} writes all {} bytes of {}, planned to hold {}: it is not told how "
                            "many rows there are",
                            ctx_.name(ref), buffer.type.bytes(), ctx_.buffer_name(cls, id),
                            buffer.expected_bytes),
                "drop the expected size: the buffer holds exactly what its type says");
    return;
  }
  int64_t parts = 1;  // that the experts are split into
  const auto& axes = ctx_.program.mesh_of(cls).axes;
  for (size_t axis = 0; axis < axes.size(); ++axis) {
    const Placement placement = ctx_.layouts[layout].on[axis];
    if (placement.is_split() && placement.dim() == 0) {
      parts *= axes[axis].size;
    }
  }
  const int64_t row_bytes = buffer.type.row_size() * graph::size_of(buffer.type.dtype);
  const double even = static_cast<double>(buffer.type.dims[1] * buffer.type.top_k * row_bytes) /
                      static_cast<double>(parts);
  const double factor = static_cast<double>(buffer.expected_bytes) / even;
  least_factor_ = least_factor_ == 0 ? factor : std::min(least_factor_, factor);
  if (factor >= 1) return;
  ctx_.report("expected-rows", ProblemClass::memory, ref, {},
              fmt::format("{} writes {}, planned to hold {} bytes; even routing brings {:.0f}{}",
                          ctx_.name(ref), ctx_.buffer_name(cls, id), buffer.expected_bytes, even,
                          parts == 1 ? ", always: all experts are here" : ""),
              parts == 1 ? "drop the expected size: the buffer holds exactly what its type says"
                         : "expect at least the rows of even routing, and some more");
}

/// Output layouts of the task's op for the input layouts in `ins_`. Axis by axis, as an op's layout
/// rule knows one axis at a time; the first axis that it does not take ends the search. Kinds have
/// few input layouts in a program, so a list per kind is searched.
Values::Signature& Values::signature(const Task& task, const KindInfo& info) {
  auto& list = signatures_[task.kind];
  for (Signature& signature : list) {
    if (signature.in == ins_) return signature;
  }
  Signature signature;
  signature.in = ins_;
  const program::Kind& kind = ctx_.program.kind(task);
  const size_t num_in = kind.in.size();
  const size_t num_out = kind.out.size();
  std::vector<Layout> out(num_out);
  std::vector<Placement> in_axis(num_in);
  std::vector<Placement> out_axis(num_out);
  for (size_t axis = 0; axis < ctx_.mesh.axes.size() && signature.bad_axis < 0; ++axis) {
    if (ctx_.mesh.axes[axis].size <= 1) continue;
    for (size_t i = 0; i < num_in; ++i) {
      in_axis[i] = ctx_.layouts[ins_[i]].on[axis];
    }
    bool legal = false;
    try {
      legal = ops::propagate(*info.rules, kind.in, kind.out, in_axis, out_axis);
      if (legal) {
        signature.cut = ops::cut_run(*info.rules, kind.attrs, kind.in, kind.out, in_axis);
      }
    } catch (const Error&) {
    }
    if (!legal || !signature.cut.empty()) {
      signature.bad_axis = static_cast<int32_t>(axis);
    }
    for (size_t i = 0; i < num_out; ++i) {
      out[i].on[axis] = out_axis[i];
    }
  }
  for (const Layout& layout : out) {
    signature.out.push_back(ctx_.layouts.intern(layout));
  }
  signature.logical.assign(num_out, -1);
  list.push_back(std::move(signature));
  return list.back();
}

void Values::compute(ClassId cls, TaskId task, const Task& reader, const KindInfo& info) {
  // The term comes from the terms of the inputs, the layout from their layouts. A zero takes the
  // layout of what it is added to; an op that wants one gets it replicated. Terms are looked up,
  // not made: an application that the single-device step does not contain is refused here, where it
  // is made, and what it would have written is lost, so that nothing is refused twice.
  exprs_.clear();
  ins_.clear();
  bool known = true;
  for (BufferId input : reader.in) {
    const Value& value = at(cls, input);
    known = known && value.expr >= 0;
    exprs_.push_back(value.expr);
    ins_.push_back(value.layout);
  }
  if (!known) return lose_outputs(cls, reader);
  const TaskRef ref{cls, task};
  if (info.op_class == OpClass::zero) return set(cls, reader, 0, kZero, kAnyLayout, nullptr, ref);
  if (info.op_class == OpClass::copy) return set(cls, reader, 0, exprs_[0], ins_[0], nullptr, ref);
  if (info.op_class == OpClass::add) {
    for (size_t i = 0; i < ins_.size(); ++i) {
      if (ins_[i] == kAnyLayout) {
        return set(cls, reader, 0, exprs_[1 - i], ins_[1 - i], nullptr, ref);
      }
    }
  }
  for (LayoutId& layout_id : ins_) {
    if (layout_id == kAnyLayout) {
      layout_id = ctx_.layouts.intern({});
    }
  }
  Signature& layouts = signature(reader, info);
  if (!layouts.cut.empty()) {
    ctx_.report("sequence-cut", ProblemClass::value, ref, {},
                fmt::format("{} couples the elements of a run, and the split over {} cuts it: {}",
                            ctx_.name(ref), ctx_.axis_name(cls, layouts.bad_axis), layouts.cut),
                "give every rank whole runs (fewer ranks along this axis, or more sequences each)");
    return lose_outputs(cls, reader);
  }
  if (layouts.bad_axis >= 0) {
    explain_layout(ref, layouts);
    return lose_outputs(cls, reader);
  }
  if (info.op_class == OpClass::add) {
    return set(cls, reader, 0, ref_.terms.sum(exprs_[0], exprs_[1]), layouts.out[0], &layouts, ref);
  }
  const AppId app = ref_.terms.find(info.key, exprs_);
  if (app < 0 || ref_.terms.app(app).num_out != static_cast<int32_t>(reader.out.size())) {
    explain_unknown(ref);
    return lose_outputs(cls, reader);
  }
  made_[ctx_.global(cls, task)] = app;
  for (const ExprId expr : exprs_) {
    const TypeId logical = ref_.terms[expr].type;
    if (logical >= 0 && ctx_.types[logical].routed()) {
      experts_[reader.kind] = ctx_.types[logical].dims[0];
    }
  }
  for (size_t output = 0; output < reader.out.size(); ++output) {
    set(cls, reader, output, ref_.terms.output(app, static_cast<int32_t>(output)),
        layouts.out[output], &layouts, ref);
  }
}

void Values::step(ClassId cls, TaskId task, int32_t global, std::span<const int32_t> senders) {
  // A message takes the value as it was when it was sent: it is kept for its receivers, whatever
  // the sender writes over it. Only what does not depend on the coordinate along the axis of the
  // message may travel: it would arrive at another coordinate.
  const Task& end = ctx_.program.classes[cls].tasks[task];
  const KindInfo& info = ctx_.kind(end);
  if (is_local(info)) return compute(cls, task, end, info);
  if (is_message(info) && !is_receive(info)) {
    Value value = at(cls, end.in[0]);
    if (value.expr < 0) {
      value.expr = kUnknown;
    }
    if (value.expr >= 0 && value.layout != kAnyLayout &&
        !ctx_.layouts[value.layout][end.peer_axis].is_replicate()) {
      refuse("message-layout", {cls, task}, end.in[0],
             fmt::format("ranks along {} hold different parts", ctx_.axis_name(cls, end.peer_axis)),
             "send only what is replicated along the axis of the message");
      value.expr = kUnknown;
    }
    sent_[global] = value;
    return;
  }
  if (is_receive(info)) {
    Value value;
    for (const int32_t sender : senders) {
      const Value& sent = sent_[sender];
      if (sender == senders.front()) {
        value = sent;
      } else if (sent.expr != value.expr || sent.layout != value.layout) {
        ctx_.report("classes-differ", ProblemClass::value, {cls, task},
                    {ctx_.ref(senders.front()), ctx_.ref(sender)},
                    fmt::format("{} receives {} from {}, but {} from {}", ctx_.name({cls, task}),
                                describe(value.expr), ctx_.name(ctx_.ref(senders.front())),
                                describe(sent.expr), ctx_.name(ctx_.ref(sender))),
                    "send one value, or give the receiving ranks classes of their own");
        return lose_outputs(cls, end);
      }
    }
    if (value.expr < 0) return lose_outputs(cls, end);
    return set(cls, end, 0, value.expr, value.layout, nullptr, {cls, task});
  }
  collective(cls, task, end, info);
}

void Values::finish() {
  // Twice over the same pairs, from both sides: every named buffer must hold what the single-device
  // step leaves in the tensor of its name (persistent: updated or as before; output: of its
  // micro-batch, or summed), and every tensor that the step updates or gives out must be kept by
  // some classes, all its parts, whole or micro-batch by micro-batch.
  const graph::Graph& graph = ref_.graph();
  // By tensor and micro-batch, -1 for those of the step: who keeps it, in which layout.
  std::map<std::pair<int32_t, int32_t>, std::vector<Holder>> kept;
  for (size_t c = 0; c < values_.size(); ++c) {
    const auto& buffers = ctx_.program.classes[c].buffers;
    const ClassId cls = c;
    for (size_t i = 0; i < buffers.size(); ++i) {
      const program::Buffer& buffer = buffers[i];
      if (buffer.kind != BufferKind::persistent && buffer.kind != BufferKind::output) continue;
      const int32_t tensor = ref_.find(buffer.name);
      if (tensor < 0) {
        continue;  // named-tensor
      }
      const bool each = buffer.kind == BufferKind::output && buffer.micro_batch >= 0;
      kept[{tensor, each ? buffer.micro_batch : -1}].push_back({cls, buffer.layout});
      const Value& value = values_[c][i];
      if (value.expr == kUnknown) continue;
      const int32_t id = static_cast<int32_t>(i);
      const ExprId want =
          ref_.value(tensor, buffer.kind == BufferKind::output ? buffer.micro_batch : -1);
      if (want < 0) {
        const std::vector<TaskRef> users = ctx_.users(cls, id);
        ctx_.report("named-tensor", ProblemClass::value,
                    users.empty() ? TaskRef{cls, -1} : users[0], users,
                    fmt::format("{} of class {}: the graph has no such value after the step",
                                ctx_.buffer_name(cls, id), c),
                    "let outputs name a loss or an output of the graph");
        continue;
      }
      if (value.expr != want) {
        explain_final(cls, id, want, value.expr);
        continue;
      }
      const LayoutId declared = ctx_.layouts.intern(buffer.layout);
      if (value.layout == declared || value.layout == kAnyLayout) continue;
      const int32_t writer = hazards_.writer(cls, id);
      const TaskRef at = writer >= 0 ? ctx_.ref(writer) : TaskRef{cls, -1};
      ctx_.report("final-layout", ProblemClass::value, at, {},
                  fmt::format("{} leaves {} in layout {}; the host expects {}", ctx_.name(at),
                              ctx_.buffer_name(cls, id), ctx_.layouts.text(value.layout),
                              ctx_.layouts.text(declared)),
                  "reduce or gather it before the step ends, or declare the layout it has");
    }
  }
  std::vector<int32_t> wanted;
  for (size_t tensor = 0; tensor < graph.tensors.size(); ++tensor) {
    if (ref_.updated(static_cast<int32_t>(tensor))) {
      wanted.push_back(static_cast<int32_t>(tensor));
    }
  }
  wanted.insert(wanted.end(), graph.losses.begin(), graph.losses.end());
  wanted.insert(wanted.end(), graph.outputs.begin(), graph.outputs.end());
  std::set<int32_t> asked;
  for (int32_t tensor : wanted) {
    bool each = ref_.per_micro_batch(tensor);
    bool some = !kept[{tensor, -1}].empty();
    for (int32_t mb = 0; mb < ref_.num_micro_batches() && each; ++mb) {
      some = some || !kept[{tensor, mb}].empty();
      each = ctx_.covers(kept[{tensor, mb}]);
    }
    if (each || !asked.insert(tensor).second || ctx_.covers(kept[{tensor, -1}])) continue;
    ctx_.report("result-missing", ProblemClass::value, {}, {},
                fmt::format("{} '{}', which the single-device step computes",
                            some ? "the classes keep only some parts of" : "no class keeps",
                            graph.tensor(tensor).name),
                "add a persistent or output buffer of this name and the tasks that fill it");
  }
}

}  // namespace hocket::check
