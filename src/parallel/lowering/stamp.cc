// SPDX-License-Identifier: Apache-2.0
#include "parallel/lowering/stamp.h"

#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "base/stop.h"
#include "program/receive_throttle.h"

namespace hocket::parallel {

using program::Buffer;
using program::BufferId;
using program::BufferKind;
using program::kNone;
using program::Lane;
using program::Phase;
using program::Program;
using program::RankClass;
using program::Task;
using program::TaskId;

namespace {

/// Stamps the template of one class.
class Stamper {
 public:
  Stamper(const RankTemplate& rank, RankClass& cls, const Templates& templates,
          int num_micro_batches)
      : rank_(rank),
        cls_(cls),
        frame_(templates.frame),
        num_tags_(templates.num_tags),
        num_tensors_(templates.num_tensors),
        route_of_(templates.route_of),
        once_(rank.values.size(), kNone),
        written_(rank.values.size(), false),
        remaining_(rank.values.size(), 0),
        reduced_(rank.grads.size(), false),
        reductions_of_(rank.values.size()) {
    per_micro_batch_.resize(static_cast<size_t>(num_micro_batches));
    for (size_t grad = 0; grad < rank.grads.size(); ++grad) {
      for (ValueId value : rank.grads[grad].contributions) {
        reductions_of_[value].push_back(grad);
      }
    }
    for (const StageTemplate& stage : rank.stages) {
      const auto runs = std::count(route_of_.begin(), route_of_.end(), stage.route);
      for (const auto* list : {&stage.forward, &stage.backward}) {
        for (const TaskTemplate& made : *list) {
          for (ValueId value : made.out) {
            remaining_[value] += static_cast<int>(runs);
          }
        }
      }
    }
  }

  void run(const std::vector<Action>& actions) {
    // Tasks of the beginning, then actions in the order of the schedule. B is the whole backward
    // pass of a micro-batch; where it is split, I makes the gradients of activations, and W later
    // those of weights. Reductions that no contribution has triggered (they wait for other stages)
    // follow, then the step itself.
    for (const TaskTemplate& made : rank_.begin) {
      add(made, kNone);
    }
    for (size_t i = 0; i < actions.size(); ++i) {
      stop_if_asked();
      action_ends_.push_back({});
      begin_action();
      if (actions[i].overlaps_next) {
        stamp_in_turns(run_of(actions[i]), run_of(actions[i + 1]));
        ++i;
        continue;
      }
      for (const TaskTemplate& made : run_of(actions[i]).tasks) {
        add(made, actions[i].micro_batch);
      }
    }
    add_up_all();
    for (size_t grad = 0; grad < rank_.grads.size(); ++grad) {
      if (!reduced_[grad]) {
        reduce(grad);
      }
    }
    add_deferred();
    for (const TaskTemplate& made : rank_.step) {
      add(made, kNone);
    }
  }

 private:
  /// Last tasks of an action, on which later actions depend. Communication of an action waits for
  /// compute of the action two before it, and compute for that action's sends: enough to prefetch
  /// and overlap, and memory is reused in bounded time.
  struct ActionEnd {
    TaskId last_compute = kNone;
    std::vector<TaskId> sends;
  };

  void begin_action() { first_compute_ = true; }

  /// The tasks of an action.
  struct Run {
    std::span<const TaskTemplate> tasks;
    int micro_batch = 0;
  };
  Run run_of(const Action& action) const {
    const StageTemplate& stage = stage_of(action);
    const std::span<const TaskTemplate> forward(stage.forward);
    const std::span<const TaskTemplate> backward(stage.backward);
    switch (action.kind) {
      case 'F':
        return {forward, action.micro_batch};
      case 'I':
        return {backward.first(stage.weights_begin), action.micro_batch};
      case 'W':
        return {backward.subspan(stage.weights_begin), action.micro_batch};
      default:
        return {backward, action.micro_batch};
    }
  }

  /// Returns whether a task moves activations, not counts, losses, or prefetched parameters. The
  /// result is the same on all ranks of a group, whatever their shares of the experts.
  bool moves_activations(const TaskTemplate& made) const {
    const program::Kind& kind = frame_.kind(made.task);
    const auto large = [](const graph::TensorType& type) {
      return graph::is_floating(type.dtype) && type.dims.size() > 1;
    };
    return made.task.lane != Lane::compute && !made.ahead &&
           (std::any_of(kind.in.begin(), kind.in.end(), large) ||
            std::any_of(kind.out.begin(), kind.out.end(), large));
  }

  /// Returns the ends of an action's turns, when it runs overlapped: after each group of tasks that
  /// move activations.
  std::vector<size_t> ends_of_turns(const Run& run) const {
    std::vector<size_t> ends;
    bool moves = false;
    for (size_t i = 0; i < run.tasks.size(); ++i) {
      if (moves && run.tasks[i].task.lane == Lane::compute) {
        ends.push_back(i);
        moves = false;
      }
      moves = moves || moves_activations(run.tasks[i]);
    }
    ends.push_back(run.tasks.size());
    return ends;
  }

  void stamp_in_turns(const Run& one, const Run& other) {
    // Each of the two actions computes until it has something to move; then the other takes its
    // turn, so that communication of one overlaps with compute of the other. Turns are spread
    // evenly: the action with the smaller completed fraction of its turns is next.
    struct Side {
      const Run* run;
      std::vector<size_t> ends;
      size_t turn = 0, next = 0;
    };
    std::array<Side, 2> sides{Side{&one, ends_of_turns(one)}, Side{&other, ends_of_turns(other)}};
    const auto ended = [](const Side& side) { return side.turn == side.ends.size(); };
    while (!ended(sides[0]) || !ended(sides[1])) {
      const bool first_ahead =
          sides[0].turn * sides[1].ends.size() > sides[1].turn * sides[0].ends.size();
      side_ = ended(sides[0]) || (first_ahead && !ended(sides[1])) ? 1 : 0;
      Side& side = sides[side_];
      for (const size_t end = side.ends[side.turn++]; side.next < end; ++side.next) {
        add(side.run->tasks[side.next], side.run->micro_batch);
      }
    }
    side_ = 0;
  }

  const StageTemplate& stage_of(const Action& action) const {
    for (const StageTemplate& stage : rank_.stages) {
      if (stage.stage == action.stage && stage.route == route_of_[action.micro_batch]) return stage;
    }
    HOCKET_CHECK(false, "stage {} is not of this rank", action.stage);
  }

  BufferId buffer(ValueId value_id, int micro_batch) {
    // Add the buffer of a value at its first use. Values of a micro-batch (activations, inputs)
    // have one buffer each; accumulators, parameters and values of the step have one in all.
    const Value& value = rank_.values[value_id];
    using Life = Value::Life;
    bool per_mb = value.life == Life::micro_batch || value.life == Life::input;
    if (per_mb && per_micro_batch_[micro_batch].empty()) {
      per_micro_batch_[micro_batch].assign(rank_.values.size(), kNone);
    }
    BufferId& id = per_mb ? per_micro_batch_[micro_batch][value_id] : once_[value_id];
    if (id != kNone) return id;
    Buffer buffer;
    buffer.type = value.type;
    buffer.layout = value.layout;
    buffer.logical = value.tensor < num_tensors_ ? value.tensor : kNone;
    buffer.expected_bytes = value.expected_bytes;
    buffer.micro_batch = per_mb ? micro_batch : kNone;
    switch (value.life) {
      case Life::persistent:
        buffer.kind = BufferKind::persistent;
        break;
      case Life::input:
      case Life::step_input:
        buffer.kind = BufferKind::input;
        break;
      default:
        buffer.kind = value.output ? BufferKind::output : BufferKind::step;
    }
    if (buffer.kind != BufferKind::step) {
      buffer.name = value.name;
    }
    if (value.base != kNone) {
      buffer = Buffer();
      buffer.kind = BufferKind::view;
      buffer.type = value.type;
      buffer.logical = value.tensor < num_tensors_ ? value.tensor : kNone;
      buffer.base = this->buffer(value.base, micro_batch);
      buffer.dim = value.dim;
      buffer.begin = value.begin;
      buffer.by = value.by;
    }
    cls_.buffers.push_back(std::move(buffer));
    id = cls_.buffers.size() - 1;
    return id;
  }

  void add(const TaskTemplate& made, int micro_batch) {
    // Values become buffers, of this micro-batch or of the step. An in-place output takes over the
    // buffer that it updates, and an accumulator adds from its second write on.
    // Compute of an action waits for the sends of the action two before it, and receives wait for
    // that action's compute. So at most two actions' messages are in flight.
    // A reduction follows right after the last contribution to its gradient, so that it overlaps
    // with the rest of the backward pass.
    if (made.part != kNone) {
      add(bring(made, micro_batch), micro_batch);
      return;
    }
    Task task = made.task;
    task.micro_batch = micro_batch;
    const bool computes = task.lane == Lane::compute && task.phase != Phase::grad;
    if (computes && layer_[side_] != std::tuple(micro_batch, task.stage, task.layer)) {
      layer_[side_] = {micro_batch, task.stage, task.layer};
      begin_layer(&task);
    }
    for (ValueId input : made.in) {
      task.in.push_back(buffer(input, micro_batch));
    }
    for (size_t output = 0; output < made.out.size(); ++output) {
      ValueId value = made.out[output];
      auto shared = std::find_if(made.shares.begin(), made.shares.end(), [&](const auto& pair) {
        return pair.first == static_cast<int>(output);
      });
      if (shared != made.shares.end()) {
        BufferId taken = buffer(shared->second, micro_batch);
        take_over(value, micro_batch, taken);
        task.out.push_back(taken);
        continue;
      }
      task.out.push_back(buffer(value, micro_batch));
      if (rank_.values[value].accumulator) {
        if (written_[value]) {
          task.accumulate.add(output);
        }
        written_[value] = true;
        --remaining_[value];
      }
    }
    if (task.tag != kNone) {
      task.tag += micro_batch * num_tags_;
    }
    if (made.ahead) {
      receive_throttle_.delay(&task);
    }
    const TaskId id = cls_.tasks.size();
    receive_throttle_.observe(id, task);
    const size_t action = action_ends_.size();
    if (micro_batch != kNone && action >= 1) {
      ActionEnd& now = action_ends_[action - 1];
      if (task.lane == Lane::compute) {
        if (first_compute_ && action >= 3) {
          const std::vector<TaskId>& sends = action_ends_[action - 3].sends;
          task.deps.insert(task.deps.end(), sends.begin(), sends.end());
        }
        first_compute_ = false;
        now.last_compute = id;
      } else {
        bool receives = task.lane == Lane::intra_rx || task.lane == Lane::inter_rx;
        if (receives && action >= 3 && action_ends_[action - 3].last_compute != kNone) {
          task.deps.push_back(action_ends_[action - 3].last_compute);
        }
        if (!made.in.empty() && made.out.empty()) {
          now.sends.push_back(id);
        }
      }
    }
    cls_.tasks.push_back(std::move(task));
    for (ValueId output : made.out) {
      for (size_t grad : reductions_of_[output]) {
        const auto& needed = rank_.grads[grad].contributions;
        if (!reduced_[grad] && !rank_.grads[grad].at_end &&
            std::all_of(needed.begin(), needed.end(),
                        [&](ValueId value) { return remaining_[value] == 0; })) {
          reduce(grad);
        }
      }
    }
  }

  /// A contribution on its way to an accumulator. Its communication overlaps with the compute of
  /// the next layer. The layer after that adds it up first, so that few layers' contributions are
  /// in memory at a time.
  struct Brought {
    TaskId by = kNone;
    std::optional<TaskTemplate> adds;
    int micro_batch = 0;
  };

  /// Adds up the contributions of the layer two before, or lets the task wait for them. Called when
  /// a compute task is of another layer than the one before.
  void begin_layer(Task* task) {
    const std::vector<Brought> due = std::exchange(brought_before_, std::exchange(brought_, {}));
    for (const Brought& brought : due) {
      if (brought.adds) {
        add_up(brought);
      } else {
        task->deps.push_back(brought.by);
      }
    }
  }

  void add_up(const Brought& brought) {
    --remaining_[brought.adds->out[0]];
    add(*brought.adds, brought.micro_batch);
  }

  void add_up_all() {
    for (std::vector<Brought>* list : {&brought_before_, &brought_}) {
      for (const Brought& brought : std::exchange(*list, {})) {
        if (brought.adds) {
          add_up(brought);
        }
      }
    }
  }

  /// Returns the task as stamped for this micro-batch, see TaskTemplate::part.
  TaskTemplate bring(const TaskTemplate& made, int micro_batch) {
    TaskTemplate brings = made;
    Brought& brought = brought_.emplace_back();
    brought.micro_batch = micro_batch;
    const ValueId sum = made.out[0];
    if (written_[sum]) {
      brings.out = {made.part};
      TaskTemplate& adds = brought.adds.emplace();
      adds.task.kind = made.adds;
      adds.task.phase = made.task.phase;
      adds.task.layer = made.task.layer;
      adds.task.stage = made.task.stage;
      adds.in = {sum, made.part};
      adds.out = {sum};
      adds.shares = {{0, sum}};
    }
    brought.by = cls_.tasks.size();
    brings.part = kNone;
    return brings;
  }

  /// Stamps a reduction. Its tasks from the first compute on communicated data (the rank's block of
  /// a sum) are deferred until all actions are stamped: the backward pass does not wait for
  /// reductions.
  void reduce(size_t grad) {
    reduced_[grad] = true;
    const std::vector<TaskTemplate>& tasks = rank_.grads[grad].tasks;
    bool brought = false;
    for (size_t i = 0; i < tasks.size(); ++i) {
      const bool computes = tasks[i].task.lane == Lane::compute;
      if (brought && computes) {
        deferred_.push_back(std::span(tasks).subspan(i));
        return;
      }
      brought = brought || !computes;
      add(tasks[i], kNone);
    }
  }

  void add_deferred() {
    for (const std::span<const TaskTemplate> tasks : deferred_) {
      for (const TaskTemplate& made : tasks) {
        add(made, kNone);
      }
    }
  }

  /// Gives the output value the buffer that it updates in place.
  void take_over(ValueId value_id, int micro_batch, BufferId taken) {
    const Value& value = rank_.values[value_id];
    if (value.life == Value::Life::micro_batch) {
      per_micro_batch_[micro_batch][value_id] = taken;
    } else {
      once_[value_id] = taken;
    }
    if (value.output && cls_.buffers[taken].kind == BufferKind::step) {
      Buffer& buffer = cls_.buffers[taken];
      buffer.kind = BufferKind::output;
      buffer.name = value.name;
      buffer.layout = value.layout;
    }
  }

  const RankTemplate& rank_;
  RankClass& cls_;
  const Program& frame_;
  const int num_tags_;
  const int num_tensors_;
  const std::vector<int>& route_of_;
  std::vector<std::vector<BufferId>> per_micro_batch_;  // [micro-batch][value]
  std::vector<BufferId> once_;
  std::vector<bool> written_;
  std::vector<int> remaining_;  // by value: pending writes to accumulators
  std::vector<bool> reduced_;
  std::vector<std::vector<size_t>> reductions_of_;
  std::vector<std::span<const TaskTemplate>> deferred_;  // deferred ends of reductions
  std::vector<ActionEnd> action_ends_;
  bool first_compute_ = true;
  program::ReceiveThrottle receive_throttle_;
  size_t side_ = 0;  // current one of two overlapped actions
  // By side: micro-batch, stage and layer of the last compute task.
  std::array<std::tuple<int, int, int>, 2> layer_;
  std::vector<Brought> brought_, brought_before_;  // by that layer, and by the previous one
};

}  // namespace

Program stamp(const Templates& templates) {
  Program program = templates.frame;
  for (program::ClassId id = 0; id < program.classes.size(); ++id) {
    Stamper(templates.ranks[id.value()], program.classes[id], templates, program.num_micro_batches)
        .run(templates.actions[id.value()]);
  }
  program::unite_equal_classes(program);
  return program;
}

}  // namespace hocket::parallel
