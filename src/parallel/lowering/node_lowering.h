// SPDX-License-Identifier: Apache-2.0
// Lowers single nodes: one compute task each, after the communication that brings its inputs into
// the layouts that it reads, and before the messages that other ranks need from it.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "graph/graph.h"
#include "parallel/lowering/rank_state.h"

namespace hocket::parallel {

class NodeLowering {
 public:
  explicit NodeLowering(RankState& rank);

  /// Starts the stages of a route: a path of micro-batches through the ranks (Routes), such as
  /// one direction of DualPipe. Hides the values of the previous route's micro-batches.
  void begin_route(int32_t route);
  /// Appends the tasks of a node. `wanted`: layouts of its inputs. `origin`: its index in the graph
  /// that is lowered. At a site outside the micro-batch template
  /// (TaskSite::life), outputs are neither accumulated nor sent. What all micro-batches make of
  /// parameters alone, such as weights in 8 bits, is made once, before the first of them.
  void emit(const graph::Node& node, const NodeLayouts& wanted, int32_t origin,
            const TaskSite& site);
  /// Returns the value of a tensor in a layout. Appends the tasks that bring it there, if any.
  ValueId get(graph::TensorId tensor, const graph::Layout& layout, const TaskSite& site);
  /// Sums several partial inputs over the same axes in one coalesced all-reduce. get() would sum
  /// each of them alone; after this it finds the sums.
  void reduce_inputs_together(const std::vector<graph::TensorId>& inputs,
                              const std::vector<graph::Layout>& wanted, const TaskSite& site);

  /// Drops gathered parameters: the next reader gathers them again.
  void free_gathered();
  /// Drops tensors that the backward pass gathers again, see Layouts::gathers_again.
  void free_gathered_again();

  /// Returns whether all outputs of a task are contributions to gradients.
  bool makes_weight_gradients(const TaskTemplate& made) const;
  /// Returns whether the optimizer reads the sum of the tensor over all micro-batches, which is
  /// kept beside its value in each of them.
  bool has_total(graph::TensorId tensor) const { return total_[tensor]; }
  bool is_output(graph::TensorId tensor) const { return is_output_[tensor]; }

 private:
  ValueId base(graph::TensorId tensor, const TaskSite& site);
  bool is_of_step(const graph::Node& node, const NodeLayouts& wanted) const;
  void emit_task(const graph::Node& node, const NodeLayouts& wanted, int32_t origin,
                 const TaskSite& site);
  ValueId get_for_step(graph::TensorId param, const graph::Layout& layout, const TaskSite& site);
  void note_gathered_again(graph::TensorId tensor, const TaskList& list, size_t begin);
  void emit_send(graph::TensorId tensor, const TaskSite& site);
  bool scatters(graph::TensorId tensor) const;
  void scatter(graph::TensorId contribution, const TaskSite& site);
  void add_to_total(graph::TensorId tensor, const TaskSite& site);
  void add_to_sum(ValueId part, ValueId sum, TaskTemplate* task);
  int32_t offset_between(int32_t from, int32_t to) const;
  int32_t rank_of(int32_t stage) const { return rank_.pipeline.rank_of(stage, route_); }

  RankState& rank_;
  const graph::Graph& graph_;
  const Layouts& layouts_;
  ValueTable& values_;
  int32_t route_ = 0;
  /// By tensor: the other ranks that read it, each with its first stage that does. The producer
  /// sends the tensor once to each of them.
  std::vector<std::map<int32_t, int32_t>> remote_consumers_;
  std::vector<bool> accumulated_;          // by tensor: its op adds to earlier micro-batches
  std::vector<bool> is_output_;            // by tensor: the host reads it
  std::vector<bool> total_;                // by tensor: see has_total
  std::vector<graph::TensorId> gathered_;  // parameters with values in other layouts than stored
  std::vector<std::pair<graph::TensorId, ValueId>> gathered_again_;
  std::set<ValueId> scattered_;  // contributions to gradients on their way to accumulators
};

/// Returns the label of the node's tasks.
program::Phase phase_of(const graph::Node& node);

}  // namespace hocket::parallel
