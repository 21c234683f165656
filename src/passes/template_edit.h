// SPDX-License-Identifier: Apache-2.0
// New values and tasks in the template of a class, for passes on templates.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "ops/op.h"
#include "parallel/lowering/template.h"

namespace hocket::passes {

class TemplateEdit {
 public:
  using ValueId = parallel::ValueId;
  using TaskList = std::vector<parallel::TaskTemplate>;

  /// Requires: both outlive it.
  TemplateEdit(program::Program& frame, parallel::RankTemplate& rank)
      : frame_(frame), rank_(rank) {}

  ValueId add(parallel::Value value);
  /// A value of a micro-batch with this type, otherwise like another one.
  ValueId like(ValueId other, graph::TensorType type);
  ValueId like(ValueId other) { return like(other, rank_.values[other].type); }
  /// Returns a view of indices of a dim from `begin`, plus the number of table `by`.
  ValueId view(ValueId whole, int dim, int64_t length, int64_t begin,
               program::TableId by = program::kNone);
  std::vector<graph::TensorType> types_of(const std::vector<ValueId>& values) const;

  /// Interns a kind with its costs; `experts`: number of experts of all routed rows.
  program::KindId intern_local(program::Kind kind, int64_t experts = 0);
  program::KindId intern_communication(const comm::Op& op, graph::Attrs attrs,
                                       const std::vector<ValueId>& in,
                                       const std::vector<ValueId>& out);
  /// A task that stands where `user` does, of the layer, stage and phase of that.
  parallel::TaskTemplate local(const program::Task& user, const ops::Op& op, graph::Attrs attrs,
                               std::vector<ValueId> in, std::vector<ValueId> out);

 private:
  program::Program& frame_;
  parallel::RankTemplate& rank_;
};

/// Rewrites the backward tasks of a stage: those that its schedule may not put off, then those that
/// it may (dW); tasks of one list never get into the other.
void rewrite_backward(
    parallel::StageTemplate* stage,
    const std::function<TemplateEdit::TaskList(TemplateEdit::TaskList)>& rewritten);

/// Places a new task where its user is.
void set_place(const program::Task& user, program::Task* task);

}  // namespace hocket::passes
