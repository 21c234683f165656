// SPDX-License-Identifier: Apache-2.0
#include "passes/template_edit.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace hocket::passes {

using parallel::TaskTemplate;
using parallel::Value;
using program::Kind;

TemplateEdit::ValueId TemplateEdit::add(Value value) {
  rank_.values.push_back(std::move(value));
  return static_cast<ValueId>(rank_.values.size() - 1);
}

TemplateEdit::ValueId TemplateEdit::like(ValueId other, graph::TensorType type) {
  Value value;
  value.tensor = rank_.values[other].tensor;
  value.name = rank_.values[other].name;
  value.type = std::move(type);
  return add(std::move(value));
}

TemplateEdit::ValueId TemplateEdit::view(ValueId whole, int dim, int64_t length, int64_t begin,
                                         program::TableId by) {
  Value value = rank_.values[whole];
  HOCKET_CHECK(value.base == program::kNone, "{} is a view", value.name);
  value.type.dims[dim] = length;
  value.layout = {};
  value.output = false;
  value.base = whole;
  value.dim = dim;
  value.begin = begin;
  value.by = by;
  return add(std::move(value));
}

std::vector<graph::TensorType> TemplateEdit::types_of(const std::vector<ValueId>& values) const {
  std::vector<graph::TensorType> types;
  for (ValueId value : values) {
    types.push_back(rank_.values[value].type);
  }
  return types;
}

program::KindId TemplateEdit::intern_local(Kind kind, int64_t experts) {
  const ops::Cost cost =
      ops::cost_of(ops::find(kind.op), {kind.attrs, kind.in, kind.out, experts, frame_.symbols});
  kind.flops = cost.flops;
  kind.bytes = cost.bytes;
  kind.workspace = cost.workspace;
  return frame_.intern(std::move(kind));
}

program::KindId TemplateEdit::intern_communication(const comm::Op& op, graph::Attrs attrs,
                                                   const std::vector<ValueId>& in,
                                                   const std::vector<ValueId>& out) {
  return frame_.intern(program::communication_kind(op.id, std::move(attrs), types_of(in),
                                                   types_of(out), frame_.symbols));
}

TaskTemplate TemplateEdit::local(const program::Task& user, const ops::Op& op, graph::Attrs attrs,
                                 std::vector<ValueId> in, std::vector<ValueId> out) {
  TaskTemplate made;
  set_place(user, &made.task);
  made.task.recompute = user.recompute;
  made.task.kind = intern_local(
      {.op = op.name, .attrs = std::move(attrs), .in = types_of(in), .out = types_of(out)});
  made.in = std::move(in);
  made.out = std::move(out);
  return made;
}

void rewrite_backward(
    parallel::StageTemplate* stage,
    const std::function<TemplateEdit::TaskList(TemplateEdit::TaskList)>& rewritten) {
  TemplateEdit::TaskList& list = stage->backward;
  const auto weights = list.begin() + static_cast<int64_t>(stage->weights_begin);
  TemplateEdit::TaskList late(std::make_move_iterator(weights),
                              std::make_move_iterator(list.end()));
  list.erase(weights, list.end());
  list = rewritten(std::move(list));
  stage->weights_begin = list.size();
  late = rewritten(std::move(late));
  std::move(late.begin(), late.end(), std::back_inserter(list));
}

void set_place(const program::Task& user, program::Task* task) {
  task->phase = user.phase;
  task->stage = user.stage;
  task->layer = user.layer;
}

}  // namespace hocket::passes
