// SPDX-License-Identifier: Apache-2.0
// The end of a step on a pipeline rank: gradients summed over their uses and over ranks, norms, the
// optimizer, and the losses that the host reads.
#include <algorithm>

#include "parallel/rank_lowering.h"

namespace hocket::parallel {

/// The optimizer nodes between the contributions to a gradient and their total: ranks sum what
/// they have, in emit_grads.
void RankLowering::find_gradient_sums() {
  sums_gradients_.assign(graph_.nodes.size(), false);
  std::vector<TensorId> open;
  for (const graph::ParamGrad& grad : graph_.grads) {
    if (grad.total != kNone) {
      open.push_back(grad.total);
    }
  }
  while (!open.empty()) {
    const graph::NodeId producer = graph_.tensor(open.back()).producer;
    open.pop_back();
    const graph::Node& node = graph_.nodes[producer];
    if (node.phase != graph::Phase::optimizer) {
      continue;  // a contribution
    }
    sums_gradients_[producer] = true;
    open.insert(open.end(), node.in.begin(), node.in.end());
  }
}

/// Ranks of the pipeline that read the parameter.
std::vector<int32_t> RankLowering::holders(TensorId param) const {
  std::set<int32_t> ranks;
  for (const graph::Node& node : graph_.nodes) {
    if (node.phase == graph::Phase::forward &&
        std::find(node.in.begin(), node.in.end(), param) != node.in.end()) {
      ranks.insert(rank_of(stage_of(node)));
    }
  }
  return {ranks.begin(), ranks.end()};
}

/// Per parameter: sum over its uses here, over the pipeline ranks that hold it, over the
/// data-parallel ranks, in this order, so that the bits do not depend on the pipeline.
void RankLowering::emit_grads() {
  // For each parameter with uses on this rank, what happens to its accumulators when the last
  // micro-batch has added to them: the uses are summed (in their order, under the name that
  // autodiff gave the sum), then the ranks that share the parameter (tied embeddings) sum over
  // the pipeline, then the sum is brought to the layout of the parameter, which sums over the
  // data-parallel ranks. The tasks are kept apart per parameter: the stamper places them as soon as
  // the contributions are complete.
  in_step_ = true;
  for (const auto& grad : graph_.grads) {
    GradReduction reduction;
    const graph::Tensor& param = graph_.tensor(grad.param);
    stage_ = own_stage(param.layer);
    for (TensorId id : grad.contributions) {
      if (ValueId value = find(id, layouts_.tensor[id]); value != kNone) {
        reduction.contributions.push_back(value);
      }
    }
    if (reduction.contributions.empty()) continue;
    List& list = reduction.tasks;
    const TensorId total = grad.total;
    HOCKET_CHECK(total != kNone, "gradients of {} are not summed", param.name);
    ValueId sum = reduction.contributions[0];
    for (size_t i = 1; i < reduction.contributions.size(); ++i) {
      ValueId next = add_value(total, out_.values[sum].layout, Value::Life::step);
      list.push_back(make_local(ops::Meaning::sum, {}, {sum, reduction.contributions[i]}, next,
                                Phase::grad, param.layer));
      sum = next;
    }
    std::vector<int32_t> ranks = holders(grad.param);
    if (ranks.size() > 1) {
      reduction.at_end = true;
      Value value = out_.values[sum];
      ValueId next = add_value(total, value.layout, Value::Life::step);
      // The sum over ranks replaces the rank's own: both are values of the same tensor.
      std::erase(values_of_[total], sum);
      TaskTemplate& made = add_communication(comm::summing(), {}, over_ranks(ranks), {sum}, {next},
                                             list, Phase::grad, param.layer);
      made.shares.push_back({0, sum});
      sum = next;
    }
    ValueId reduced = reshard(sum, layouts_.tensor[grad.param], list, Phase::grad, param.layer);
    if (is_output_[total]) {
      out_.values[reduced].output = true;
      out_.values[reduced].name = graph_.tensor(total).name;
    }
    out_.grads.push_back(std::move(reduction));
  }
}

bool RankLowering::runs_here(const graph::Node& node) const {
  if (node.layer == graph::kEveryStage) return true;
  // Updates run wherever the parameter lives, everything else where its layer does.
  for (TensorId id : node.in) {
    if (graph_.tensor(id).kind == TensorKind::param) {
      const std::vector<int32_t> ranks = holders(id);
      return std::find(ranks.begin(), ranks.end(), rank_) != ranks.end();
    }
  }
  return rank_of(stage_of(node)) == rank_;
}

/// The norm needs every parameter's sum: reduced over the ranks that split the parameter, then
/// over the pipeline, to which ranks that lack a parameter contribute zero.
void RankLowering::gather_norms(const graph::Node& clip, List& list) {
  if (pipeline_.num_ranks == 1) return;
  std::vector<ValueId> in;
  std::vector<ValueId> out;
  for (TensorId id : clip.in) {
    ValueId value = find(id, Layout{});
    if (value == kNone) {
      value = add_value(id, Layout{}, Value::Life::step);
      list.push_back(make_local(ops::Meaning::empty, {{"type", to_string(out_.values[value].type)}},
                                {}, value, Phase::grad, 0));
    }
    in.push_back(value);
    std::erase(values_of_[id], value);
    out.push_back(add_value(id, Layout{}, Value::Life::step));
  }
  TaskTemplate& made =
      add_communication(comm::summing(), {}, over_ranks({}), in, out, list, Phase::grad, 0);
  for (size_t i = 0; i < in.size(); ++i) {
    made.shares.push_back({static_cast<int>(i), in[i]});
  }
}

void RankLowering::emit_step() {
  // The optimizer's nodes, once per step, on the ranks where their parameter lives. Before the
  // clip coefficient the per-parameter sums of squares are made whole: over the ranks that split
  // the parameter, then over the pipeline. Last, the losses: their partial sums become the outputs
  // that the host reads.
  in_step_ = true;
  for (size_t n = 0; n < graph_.nodes.size(); ++n) {
    const graph::Node& node = graph_.nodes[n];
    if (node.phase != graph::Phase::optimizer || !runs_here(node)) continue;
    if (sums_gradients_[n]) {
      continue;  // emit_grads did
    }
    stage_ = own_stage(node.layer);
    if (node.layer == graph::kEveryStage) {
      // Partial sums first, of the parameters that live here.
      graph::Node present = node;
      NodeLayouts wanted;
      present.in.clear();
      for (TensorId id : node.in) {
        if (!values_of_[id].empty()) {
          present.in.push_back(id);
        }
      }
      wanted.in.resize(present.in.size());
      reduce_inputs_together(present, wanted, out_.step);
      for (TensorId id : present.in) {
        get(id, Layout{}, out_.step, present);
      }
      gather_norms(node, out_.step);
    }
    emit(node, layouts_.node[n], static_cast<int32_t>(n), out_.step);
  }
  for (TensorId loss : graph_.losses) {
    ValueId value = find(loss, layouts_.tensor[loss]);
    if (value == kNone) continue;
    stage_ = own_stage(graph_.tensor(loss).layer);
    value = reshard(value, Layout{}, out_.step, Phase::grad, graph_.tensor(loss).layer);
    out_.values[value].output = true;
  }
}

}  // namespace hocket::parallel
