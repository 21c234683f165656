// SPDX-License-Identifier: Apache-2.0
// Makes the tasks of one class of ranks: kinds with their costs, lanes, groups and peers.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "ops/op.h"
#include "parallel/lowering/rank_template.h"
#include "parallel/lowering/value_table.h"
#include "program/program.h"

namespace hocket::parallel {

/// The list that tasks are appended to, and their labels.
struct TaskSite {
  TaskList* list = nullptr;
  program::Phase phase = program::Phase::forward;
  int32_t layer = 0;
  int32_t stage = 0;
  Value::Life life = Value::Life::micro_batch;  ///< of the values that a resharding makes here
};

class TaskBuilder {
 public:
  /// Kinds and groups are added to the program. `pp_axis`: the pipeline's, along which messages go.
  TaskBuilder(program::Program& program, program::ClassId cls, int32_t pp_axis, ValueTable& values)
      : program_(program), cls_(cls), pp_axis_(pp_axis), values_(values) {}

  /// Returns a task of a kind, without operands. It is not appended to the site's list.
  TaskTemplate make(program::Kind kind, program::Lane lane, const TaskSite& site);
  /// Appends a task for an op that no node of the graph asks for, found by its meaning.
  TaskTemplate& add_local(ops::Meaning meaning, graph::Attrs attrs, std::vector<ValueId> in,
                          ValueId out, const TaskSite& site);
  /// Appends a collective.
  TaskTemplate& add_communication(const comm::Op& op, graph::Attrs attrs,
                                  const program::Group& group, std::vector<ValueId> in,
                                  std::vector<ValueId> out, const TaskSite& site);
  /// Appends one end of a message, to or from the rank `offset` further along the pipeline. The
  /// tensor of the value is its tag.
  TaskTemplate& add_message(comm::Role role, int32_t offset, ValueId value, const TaskSite& site);

  /// Sets work and workspace of a kind. `experts`: number of experts of the whole tensors, or 0.
  void set_cost(program::Kind* kind, const ops::Op& op, int64_t experts) const;
  /// Plans the memory of ragged outputs for their bound if the kind does not read row counts: its
  /// op may then write the whole buffer.
  void plan_for_bound_unless_counted(const program::Kind& kind, const std::vector<ValueId>& out);
  /// Returns the kind that adds two tensors of a type.
  program::KindId sum_kind(const graph::TensorType& type);
  /// Adds a table to the program, or finds an equal one.
  program::TableId intern(program::Table table) { return program_.intern(std::move(table)); }

 private:
  program::Lane comm_lane(program::GroupId group);
  program::Lane peer_lane(int32_t offset, comm::Role role);
  program::Kind communication_kind(const comm::Op& op, graph::Attrs attrs,
                                   const std::vector<ValueId>& in,
                                   const std::vector<ValueId>& out) const;

  program::Program& program_;
  const program::ClassId cls_;
  const int32_t pp_axis_;
  ValueTable& values_;
  std::map<program::GroupId, program::Lane> lane_of_group_;
  std::map<int32_t, bool> leaves_node_;  // by offset along the pipeline
};

}  // namespace hocket::parallel
