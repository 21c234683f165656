// SPDX-License-Identifier: Apache-2.0
// The template of one class of ranks: the tasks of its pipeline stages for one micro-batch, and
// the tasks at the beginning and the end of a step. Tasks read and write values; stamping
// (stamp.h) gives every value its buffers.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "graph/graph.h"
#include "graph/layout.h"
#include "program/program.h"

namespace hocket::parallel {

using ValueId = int32_t;

/// A tensor in a layout, as one rank holds it.
struct Value {
  graph::TensorId tensor = graph::kNone;
  graph::Layout layout;
  graph::TensorType type;  ///< of the rank's piece
  enum class Life : uint8_t {
    micro_batch,  ///< a buffer per micro-batch
    step,         ///< one buffer per step (accumulators, optimizer values)
    persistent,
    input,       ///< fed per micro-batch
    step_input,  ///< fed per step
  } life = Life::micro_batch;
  bool output = false;                      ///< read by the host
  bool accumulator = false;                 ///< life `step`; every micro-batch adds to it
  int64_t expected_bytes = program::kNone;  ///< of a ragged value, see program::Buffer
  std::string name;                         ///< of named buffers
  /// Base of a view, or kNone. The view is a part of a value of the same life. It begins at index
  /// `begin` of dim `dim`, plus the entry of table `by`; without a dim, at element `begin` in
  /// memory order.
  ValueId base = graph::kNone;
  int32_t dim = graph::kNone;
  int64_t begin = 0;
  program::TableId by = program::kNone;
};

/// A task over values; becomes program::Task when stamped.
struct TaskTemplate {
  program::Task task;  ///< without buffers
  std::vector<ValueId> in, out;
  std::vector<std::pair<int, ValueId>> shares;  ///< (output, value that gives it its buffer)
  /// Prefetch for later tasks (a parameter, keys). It begins when the compute tasks before it in
  /// the list are done. So its position sets how far it runs ahead and when its memory is taken.
  bool ahead = false;
  /// For a task with an accumulator as output and an op that cannot add to it: from the second
  /// micro-batch on the task writes `part` instead, and a task of kind `adds` adds `part` to the
  /// accumulator.
  ValueId part = graph::kNone;
  program::KindId adds = program::kNone;
};

using TaskList = std::vector<TaskTemplate>;

/// Reduction of one parameter's gradient, which runs as soon as its last contribution is complete.
/// A reduction across stages runs after all micro-batches: stages complete their contributions at
/// different times, and pipeline messages must not queue behind it.
struct GradReduction {
  bool at_end = false;  ///< after all micro-batches
  std::vector<ValueId> contributions;
  TaskList tasks;
};

struct StageTemplate {
  int32_t stage = 0;
  int32_t route = 0;  ///< of the micro-batches that run it
  TaskList forward, backward;
  /// First dW task of `backward`, if the schedule splits the backward pass.
  size_t weights_begin = 0;
};

/// All stages of a rank share one list of values: a tensor that one stage passes to another of the
/// same rank and route needs no message.
struct RankTemplate {
  std::vector<Value> values;
  /// Tasks before all micro-batches: gathers of parameters for the whole step and what is made of
  /// parameters alone, in the order in which the stages read them.
  TaskList begin;
  std::vector<StageTemplate> stages;  ///< ascending, route by route
  std::vector<GradReduction> grads;
  TaskList step;  ///< after all micro-batches
};

}  // namespace hocket::parallel
