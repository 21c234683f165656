// SPDX-License-Identifier: Apache-2.0
#include "parallel/lowering/stage.h"

#include <algorithm>
#include <iterator>
#include <vector>

#include "parallel/lowering/protect_shared.h"

namespace hocket::parallel {

using graph::kNone;
using graph::Layout;
using graph::TensorId;

namespace {

class StageLowering {
 public:
  StageLowering(RankState& rank, NodeLowering& nodes) : rank_(rank), nodes_(nodes) {}

  void run(bool split_backward) {
    // In-place updates are protected over all lists together, since a backward task may still read
    // a buffer that a forward task would overwrite. The dW tasks, which go to the end of the
    // backward lists, count as the last readers of all.
    std::vector<TaskList> weights(rank_.out.stages.size());
    for (int32_t route = 0; route < rank_.pipeline.num_routes(); ++route) {
      emit_route(route, split_backward, &weights);
    }
    std::vector<TaskList*> in_time;
    for (StageTemplate& stage : rank_.out.stages) {
      in_time.push_back(&stage.forward);
    }
    for (size_t i = rank_.out.stages.size(); i-- > 0;) {
      in_time.push_back(&rank_.out.stages[i].backward);
    }
    for (TaskList& list : weights) {
      in_time.push_back(&list);
    }
    protect_shared(in_time, &rank_.values, &rank_.tasks);
    for (size_t i = 0; i < rank_.out.stages.size(); ++i) {
      StageTemplate& stage = rank_.out.stages[i];
      stage.weights_begin = stage.backward.size();
      std::move(weights[i].begin(), weights[i].end(), std::back_inserter(stage.backward));
    }
    nodes_.free_gathered();  // an update that is less split than the parameter gathers it itself
  }

 private:
  void emit_route(int32_t route, bool split_backward, std::vector<TaskList>* weights) {
    // Forward passes go from the rank's first stage to its last, then backward passes the other
    // way, as in time for one micro-batch: so a value that a later stage looks for is there.
    nodes_.begin_route(route);
    for (StageTemplate& stage : rank_.out.stages) {
      if (stage.route != route) continue;
      emit_stage(stage, graph::Phase::forward, stage.forward);
      emit_sums_of_outputs(stage);
      nodes_.free_gathered_again();
    }
    for (size_t i = rank_.out.stages.size(); i-- > 0;) {
      StageTemplate& stage = rank_.out.stages[i];
      if (stage.route != route) continue;
      emit_stage(stage, graph::Phase::backward, stage.backward);
      if (!split_backward) continue;
      const auto begin = std::stable_partition(
          stage.backward.begin(), stage.backward.end(),
          [&](const TaskTemplate& made) { return !nodes_.makes_weight_gradients(made); });
      (*weights)[i].assign(std::move_iterator(begin), std::move_iterator(stage.backward.end()));
      stage.backward.erase(begin, stage.backward.end());
    }
  }

  void emit_stage(const StageTemplate& stage, graph::Phase phase, TaskList& list) {
    // A parameter that is stored split is gathered for each layer and freed after it. Gathers of a
    // layer stand before the work of the layer that precedes it: they overlap with that compute,
    // and at most two layers are gathered at a time.
    TaskList previous;  // work of the layer before, which stands after the gathers of this one
    TaskList layer;
    int32_t which = graph::kNoLayer;
    const auto end_layer = [&] {
      const auto work = std::stable_partition(layer.begin(), layer.end(),
                                              [](const TaskTemplate& made) { return made.ahead; });
      std::move(layer.begin(), work, std::back_inserter(list));
      std::move(previous.begin(), previous.end(), std::back_inserter(list));
      previous.assign(std::move_iterator(work), std::move_iterator(layer.end()));
      layer.clear();
      if (rank_.layouts.reshard_after_forward) {
        nodes_.free_gathered();
      }
    };
    for (size_t n = 0; n < rank_.graph.nodes.size(); ++n) {
      const graph::Node& node = rank_.graph.nodes[n];
      if (node.phase != phase || rank_.stage_of(node) != stage.stage) continue;
      if (node.layer != which) {
        end_layer();
        which = node.layer;
      }
      nodes_.emit(node, rank_.layouts.node[n], static_cast<int32_t>(n),
                  {&layer, phase_of(node), node.layer, stage.stage});
    }
    end_layer();
    end_layer();
  }

  /// Sums the outputs of a micro-batch that the rank has as partial sums: the host reads whole
  /// values. Outputs that add up over micro-batches are summed once per step, see step.cc.
  void emit_sums_of_outputs(StageTemplate& stage) {
    TaskSite site{&stage.forward, program::Phase::forward, graph::kNone, stage.stage};
    std::vector<TensorId> partial;
    std::vector<Layout> wanted;
    for (const TensorId tensor : rank_.graph.outputs) {
      const Layout& layout = rank_.layouts.tensor[tensor];
      const ValueId value = rank_.values.find(tensor, layout);
      if (value == kNone || rank_.values[value].accumulator || summed(layout, rank_.mesh) == layout)
        continue;
      site.layer = rank_.graph.tensor(tensor).layer;
      partial.push_back(tensor);
      wanted.push_back(summed(layout, rank_.mesh));
    }
    nodes_.reduce_inputs_together(partial, wanted, site);
    for (size_t i = 0; i < partial.size(); ++i) {
      rank_.values[nodes_.get(partial[i], wanted[i], site)].output = true;
    }
  }

  RankState& rank_;
  NodeLowering& nodes_;
};

}  // namespace

void lower_stages(RankState& rank, NodeLowering& nodes, bool split_backward) {
  StageLowering(rank, nodes).run(split_backward);
}

}  // namespace hocket::parallel
