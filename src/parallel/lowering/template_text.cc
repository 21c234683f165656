// SPDX-License-Identifier: Apache-2.0
// Implements: print (template.h), the text of templates.
#include "parallel/lowering/template.h"

#include <fmt/format.h>

#include <iterator>

#include "base/text.h"

namespace hocket::parallel {

namespace {

const char* name_of(Value::Life life) {
  switch (life) {
    case Value::Life::micro_batch:
      return "micro_batch";
    case Value::Life::step:
      return "step";
    case Value::Life::persistent:
      return "persistent";
    case Value::Life::input:
      return "input";
    case Value::Life::step_input:
      return "step_input";
  }
  HOCKET_CHECK(false, "a life without a name");
}

std::string list_of(const std::vector<ValueId>& values) {
  return fmt::format("{}", fmt::join(values, ","));
}

/// Prints the classes one after the other.
class TemplatePrinter {
 public:
  explicit TemplatePrinter(const Templates& templates) : templates_(templates) {}

  void frame() {
    line("hocket-templates");
    line("micro_batches {}", templates_.frame.num_micro_batches);
    for (const program::Role& role : templates_.frame.roles) {
      line("role {} mesh=\"{}\"", role.name, to_string(role.mesh));
    }
  }

  void rank(program::ClassId id) {
    // Prints the class with its row of the schedule, its values, then its lists of tasks in the
    // order of the struct. Tasks are numbered through the class, for reference by readers.
    const program::RankClass& cls = templates_.frame.classes[id];
    mesh_ = &templates_.frame.mesh_of(id);
    task_ = 0;
    const std::string order = to_csv({.ranks = {templates_.actions[id]}});
    line("class {} box=\"{}\" order={}", cls.name, to_string(cls.box, *mesh_),
         order.substr(0, order.size() - 1));
    const RankTemplate& made = templates_.ranks[id];
    for (size_t i = 0; i < made.values.size(); ++i) {
      value(i, made.values[i]);
    }
    if (!made.begin.empty()) {
      line("begin");
      tasks(made.begin, 0, made.begin.size());
    }
    for (const StageTemplate& stage : made.stages) {
      const std::string route = stage.route > 0 ? fmt::format(" route {}", stage.route) : "";
      line("stage {}{} forward", stage.stage, route);
      tasks(stage.forward, 0, stage.forward.size());
      line("stage {}{} backward", stage.stage, route);
      tasks(stage.backward, 0, stage.weights_begin);
      if (stage.weights_begin < stage.backward.size()) {
        line("stage {}{} weights", stage.stage, route);
        tasks(stage.backward, stage.weights_begin, stage.backward.size());
      }
    }
    for (const GradReduction& reduction : made.grads) {
      line("gradient of={} {}", list_of(reduction.contributions),
           reduction.at_end ? "at_end" : "when_complete");
      tasks(reduction.tasks, 0, reduction.tasks.size());
    }
    line("step");
    tasks(made.step, 0, made.step.size());
  }

  std::string text() const { return fmt::to_string(out_); }

 private:
  void value(size_t id, const Value& value) {
    std::string text = fmt::format("value {} {} {} tensor={}", id, name_of(value.life),
                                   to_string(value.type), value.tensor);
    if (value.layout != graph::Layout{}) {
      text += fmt::format(" layout=\"{}\"", to_string(value.layout, *mesh_));
    }
    if (value.expected_bytes != program::kNone) {
      text += fmt::format(" expected={}", value.expected_bytes);
    }
    if (value.base != program::kNone) {
      text += fmt::format(" base={} dim={} begin={}", value.base, value.dim, value.begin);
      text += value.by == program::kNone ? "" : fmt::format(" by={}", value.by);
    }
    text += value.accumulator ? " accumulator" : "";
    text += value.output ? " output" : "";
    line("{} name=\"{}\"", text, escape(value.name, "\""));
  }

  void tasks(const std::vector<TaskTemplate>& list, size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      task(list[i]);
    }
  }

  void task(const TaskTemplate& made) {
    // Same as in the text of a program, but with values instead of buffers, kinds and groups in
    // full, and types only at the values.
    const program::Task& task = made.task;
    const program::Kind& kind = templates_.frame.kind(task);
    std::string text =
        fmt::format("task {} {} {} layer={}", task_++, kind.op, to_string(task.lane), task.layer);
    if (kind.attrs != graph::Attrs{}) {
      text += fmt::format(" attrs=\"{}\"", to_string(kind.attrs, '\''));
    }
    if (!made.in.empty()) {
      text += " in=" + list_of(made.in);
    }
    if (!made.out.empty()) {
      text += " out=" + list_of(made.out);
    }
    for (const auto& [output, taken] : made.shares) {
      text += fmt::format(" out{}_in={}", output, taken);
    }
    for (const program::PieceOffset& begin : task.piece_offsets) {
      text += fmt::format(" begins={}{}", begin.letter, begin.begin);
      text += begin.by == program::kNone ? "" : fmt::format("@{}", begin.by);
    }
    if (!task.accumulate.empty()) {
      text += fmt::format(" acc={}", task.accumulate.bits());
    }
    text += task.recompute ? " recompute" : "";
    text += made.ahead ? " ahead" : "";
    text += made.part == graph::kNone ? "" : fmt::format(" part={}", made.part);
    if (task.group != program::kNone) {
      text += " over=\"" + group(templates_.frame.groups[task.group]) + "\"";
    }
    if (task.peer_axis != program::kNone) {
      text += fmt::format(" peer={}{:+}", mesh_->axes[task.peer_axis].name, task.peer);
      text += task.peer_by == program::kNone ? "" : fmt::format("@{}", task.peer_by);
    }
    line("{}", text);
  }

  /// Returns the axes and members of a group: "edp ep", "pp:0,2".
  std::string group(const program::Group& group) const {
    std::string text;
    for (int32_t axis : group.axes) {
      text += (text.empty() ? "" : " ") + mesh_->axes[axis].name;
      if (axis == group.along && !group.members.empty()) {
        text += fmt::format(":{}", fmt::join(group.members, ","));
      }
    }
    return text;
  }

  template <class... Args>
  void line(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(out_), format, std::forward<Args>(args)...);
    out_.push_back('\n');
  }

  const Templates& templates_;
  const graph::Mesh* mesh_ = nullptr;  // of the current class
  int task_ = 0;
  fmt::memory_buffer out_;
};

}  // namespace

std::string print(const Templates& templates, program::ClassId only) {
  TemplatePrinter printer(templates);
  printer.frame();
  for (size_t cls = 0; cls < templates.ranks.size(); ++cls) {
    if (only == program::kNone || only == cls) {
      printer.rank(cls);
    }
  }
  return printer.text();
}

}  // namespace hocket::parallel
