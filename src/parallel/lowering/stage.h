// SPDX-License-Identifier: Apache-2.0
// Lowers the part of a graph that one pipeline rank runs to a template: per stage of the rank,
// tasks over values for one micro-batch (forward and backward), and tasks for the end of the step.
// Stamping makes buffers of values.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "graph/graph.h"
#include "parallel/layouts/layouts.h"
#include "program/program.h"

namespace hocket::parallel {

using ValueId = int32_t;
class Places;

/// A tensor in a layout, as one rank holds it.
struct Value {
  graph::TensorId tensor = graph::kNone;
  graph::Layout layout;
  graph::TensorType type;  ///< local
  enum class Life : uint8_t {
    micro_batch,  ///< a buffer per micro-batch
    step,         ///< one buffer per step (accumulators, optimizer values)
    persistent,
    input,       ///< fed per micro-batch
    step_input,  ///< fed per step
  } life = Life::micro_batch;
  bool output = false;                      ///< the host reads it
  bool accumulator = false;                 ///< life step, written by every micro-batch, summed
  int64_t expected_bytes = program::kNone;  ///< of a ragged value, see program::Buffer
  std::string name;                         ///< of named buffers
  /// A view: the part of another value of the same life that begins at index `begin` of dim `dim`,
  /// or as much further as the table `by` says; without a dim, elements in memory order.
  ValueId base = graph::kNone;
  int32_t dim = graph::kNone;
  int64_t begin = 0;
  program::TableId by = program::kNone;
};

/// A task over values; becomes program::Task when stamped.
struct TaskTemplate {
  program::Task task;  ///< without buffers
  std::vector<ValueId> in, out;
  std::vector<std::pair<int, ValueId>> shares;  ///< (output, value whose buffer it takes over)
  /// It brings something for tasks further on (a parameter, keys), and begins when the compute
  /// tasks before it in the list are done: where it stands decides how far it runs ahead, and from
  /// when on memory is taken.
  bool ahead = false;
  /// Of the task that brings a contribution to its accumulator, to which its op can't add: from the
  /// second micro-batch on it writes `part` instead, and a task of this kind adds that.
  ValueId part = graph::kNone;
  program::KindId adds = program::kNone;
};

/// Reduction of one parameter's gradient, run as soon as its last contribution is complete; across
/// stages only after all micro-batches, since the stages reach that point at different times and
/// messages of the pipeline must not queue behind it.
struct GradReduction {
  bool at_end = false;
  std::vector<ValueId> contributions;
  std::vector<TaskTemplate> tasks;
};

struct StageTemplate {
  int32_t stage = 0;
  int32_t route = 0;  ///< whose micro-batches it runs
  std::vector<TaskTemplate> forward, backward;
  size_t weights_begin =
      0;  ///< backward[weights_begin..] are dW tasks, if the schedule splits them
};

/// The stages of a rank share its values: what one of them makes for another of the same route is
/// handed over.
struct RankTemplate {
  std::vector<Value> values;
  /// Once, before all micro-batches: parameters that are gathered for the step, in the order in
  /// which the stages use them.
  std::vector<TaskTemplate> begin;
  std::vector<StageTemplate> stages;  ///< ascending, route by route
  std::vector<GradReduction> grads;
  std::vector<TaskTemplate> step;
};

/// Which stage has which layers, and which rank of the pipeline has which stages.
struct Pipeline {
  int32_t num_ranks = 1;
  std::vector<int32_t> stage_of_layer;
  std::vector<std::vector<int>> routes;  ///< the rank of every stage, by Routes::of a micro-batch
  int32_t num_stages() const { return static_cast<int32_t>(routes[0].size()); }
  int32_t num_routes() const { return static_cast<int32_t>(routes.size()); }
  int32_t rank_of(int32_t stage, int32_t route) const { return routes[route][stage]; }
  /// See graph::Node::layer.
  int32_t stage_of(int32_t layer) const {
    if (layer < 0) return 0;
    return layer < std::ssize(stage_of_layer) ? stage_of_layer[layer] : num_stages() - 1;
  }
  /// On the first route.
  int32_t rank_of_layer(int32_t layer) const { return rank_of(stage_of(layer), 0); }
};

/// `split_backward`: the schedule has I and W actions. The program has its roles and its classes,
/// of which `cls` is the one that is made.
RankTemplate lower_rank(const graph::Graph& graph, const Layouts& layouts, const Pipeline& pipeline,
                        const Places& places, int32_t rank, bool split_backward,
                        program::ClassId cls, program::Program& program);

}  // namespace hocket::parallel
