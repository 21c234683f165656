// SPDX-License-Identifier: Apache-2.0
// How one pipeline rank is lowered: stage.cc makes the tasks of its stages for a micro-batch,
// step.cc those at the end of the step.
#pragma once

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "base/error.h"
#include "ops/op.h"
#include "parallel/layouts/reshard.h"
#include "parallel/lowering/places.h"
#include "parallel/lowering/stage.h"
#include "parallel/plan.h"

namespace hocket::parallel {

using graph::Graph;
using graph::kNone;
using graph::Layout;
using graph::Placement;
using graph::TensorId;
using graph::TensorKind;
using graph::TensorType;
using program::Group;
using program::Kind;
using program::Lane;
using program::Phase;
using program::Program;

class RankLowering {
 public:
  RankLowering(const Graph& graph, const Layouts& layouts, const Pipeline& pipeline,
               const Places& places, int32_t rank, program::ClassId cls, Program& program)
      : graph_(graph),
        layouts_(layouts),
        pipeline_(pipeline),
        places_(places),
        rank_(rank),
        cls_(cls),
        coords_(program.coords(program.ranks_of(cls)[0])),
        program_(program),
        mesh_(program.roles[0].mesh),
        paths_(mesh_),
        pp_axis_(mesh_.axis(kStageAxis)),
        values_of_(graph.tensors.size()),
        accumulated_(graph.tensors.size(), false),
        is_output_(graph.tensors.size(), false),
        total_(graph::read_in_step(graph)) {
    // What all ranks must agree on is found in the whole graph: which tensors add up over
    // micro-batches (losses, contributions to gradients, whatever else the step reads), and which
    // the host reads.
    for (int32_t route = 0; route < pipeline.num_routes(); ++route) {
      for (int32_t stage = 0; stage < pipeline.num_stages(); ++stage) {
        if (pipeline.rank_of(stage, route) == rank) {
          out_.stages.push_back({.stage = stage, .route = route, .forward = {}, .backward = {}});
        }
      }
    }
    for (TensorId id : graph.losses) {
      accumulated_[id] = true;
      total_[id] = false;
    }
    for (const auto& grad : graph.grads) {
      for (TensorId id : grad.contributions) {
        accumulated_[id] = true;
        total_[id] = false;
      }
    }
    for (TensorId id : graph.outputs) {
      is_output_[id] = true;
    }
  }

  RankTemplate run(bool split_backward);

 private:
  using List = std::vector<TaskTemplate>;

  int32_t stage_of(const graph::Node& node) const { return pipeline_.stage_of(node.layer); }
  int32_t rank_of(int32_t stage) const { return pipeline_.rank_of(stage, route_); }
  /// The stage of a layer if this rank has it, else its first: where the tasks at the end of the
  /// step belong, which run wherever a parameter lives.
  int32_t own_stage(int32_t layer) const {
    const int32_t stage = pipeline_.stage_of(layer);
    const bool own = std::any_of(out_.stages.begin(), out_.stages.end(),
                                 [&](const StageTemplate& made) { return made.stage == stage; });
    return own || out_.stages.empty() ? stage : out_.stages.front().stage;
  }
  void begin_route(int32_t route);

  /// The ranks that differ in their place in the pipeline alone; `some`: these only, all if empty.
  Group over_ranks(std::vector<int32_t> some) const {
    return {0, {pp_axis_}, pp_axis_, std::move(some)};
  }
  Lane comm_lane(program::GroupId group);
  Lane peer_lane(int32_t peer, comm::Role role);

  TensorType local_type(TensorId tensor, const Layout& layout) const;
  ValueId add_value(TensorId tensor, Layout layout, Value::Life life);
  ValueId accumulator(TensorId tensor, const Layout& layout);
  ValueId find(TensorId tensor, const Layout& layout) const;
  ValueId get(TensorId tensor, const Layout& layout, List& list, const graph::Node& user);
  ValueId get_for_step(TensorId param, const Layout& layout, const graph::Node& user);
  void free_gathered();
  void note_gathered_again(TensorId tensor, const List& list, size_t begin);
  void free_gathered_again();
  bool scatters(TensorId tensor) const;
  void scatter(TensorId contribution, List& list, int32_t layer);
  void add_to_total(TensorId tensor, List& list, const graph::Node& node);
  void bring(ValueId part, ValueId sum, TaskTemplate* task);
  void take_totals();
  void sum_outputs_of_step();
  void bring_back(const graph::Node& node, List& list);
  ValueId base(TensorId tensor, List& list, const graph::Node& user);
  graph::Attrs attrs_here(const ReshardStep& step, const Layout& from, const TensorType& whole,
                          const TensorType& type) const;
  ValueId reshard(ValueId from, const Layout& to, List& list, Phase phase, int32_t layer);
  void all_reduce(const std::vector<ValueId>& from, const std::vector<Layout>& to,
                  const ReshardStep& step, List& list, Phase phase, int32_t layer);
  ValueId slice(ValueId from, const ReshardStep& step, List& list, Phase phase, int32_t layer);
  ValueId sizes(TensorId counts, const std::vector<int32_t>& over, int32_t axis, List& list,
                Phase phase, int32_t layer);
  void reduce_inputs_together(const graph::Node& node, const NodeLayouts& wanted, List& list);
  void emit(const graph::Node& node, const NodeLayouts& wanted, int32_t origin, List& list);
  void emit_send(TensorId tensor, List& list, Phase phase, int32_t layer);
  void emit_sums_of_outputs(List& list);
  void emit_grads();
  void emit_stage(StageTemplate& stage, graph::Phase phase, List& list);
  void emit_route(int32_t route, bool split_backward, std::vector<List>* weights);
  void emit_step();
  void emit_sum(graph::NodeId node, List& list);
  ValueId sum_over_pipeline(ValueId part, TensorId total, List& list);
  bool runs_here(graph::NodeId node) const { return contains(places_.runs(node), rank_); }
  PipelineRanks gatherers(graph::NodeId gathering) const;
  void make_room(graph::NodeId gathering, List& list);
  void gather(graph::NodeId gathering, List& list);
  TaskTemplate make(Kind kind, Lane lane, Phase phase, int32_t layer);
  void expect_all_unless_counted(const Kind& kind, const std::vector<ValueId>& out);
  TaskTemplate make_local(ops::Meaning meaning, graph::Attrs attrs, std::vector<ValueId> in,
                          ValueId out, Phase phase, int32_t layer);
  Kind communication_kind(const comm::Op& op, graph::Attrs attrs, const std::vector<ValueId>& in,
                          const std::vector<ValueId>& out) const;
  TaskTemplate& add_communication(const comm::Op& op, graph::Attrs attrs, const Group& group,
                                  std::vector<ValueId> in, std::vector<ValueId> out, List& list,
                                  Phase phase, int32_t layer);
  int32_t offset_to(int32_t stage) const;
  TaskTemplate& add_message(comm::Role role, int32_t stage, ValueId value, List& list, Phase phase,
                            int32_t layer);
  void protect_shared(const std::vector<List*>& lists);

  Phase phase_of(const graph::Node& node) const {
    if (node.phase == graph::Phase::forward) return Phase::forward;
    return node.phase == graph::Phase::backward ? Phase::backward : Phase::optimizer;
  }

  const Graph& graph_;
  const Layouts& layouts_;
  const Pipeline& pipeline_;
  const Places& places_;
  const int32_t rank_;
  const program::ClassId cls_;         ///< that is made
  const std::vector<int32_t> coords_;  ///< of its first rank
  int32_t stage_ = 0;                  ///< whose tasks are being made
  int32_t route_ = 0;                  ///< of whose micro-batches
  Program& program_;
  const graph::Mesh& mesh_;
  ReshardPaths paths_;
  const int32_t pp_axis_;
  RankTemplate out_;
  std::vector<std::vector<ValueId>> values_of_;  // per tensor: its values on this rank
  /// Per tensor, the ranks that read it and do not make it, each with its first stage that does:
  /// the maker sends it to each of them, once.
  std::vector<std::map<int32_t, int32_t>> remote_consumers_;
  /// By tensor: its op adds to what earlier micro-batches made; the host reads it; its sum over
  /// micro-batches is kept beside its value in each of them.
  std::vector<bool> accumulated_, is_output_, total_;
  /// By counts tensor and axes that split experts: of the exchange over the last of them.
  std::map<std::pair<TensorId, std::vector<int32_t>>, ValueId> sizes_of_;
  std::map<program::GroupId, Lane> group_lane_;
  std::map<int32_t, bool> peer_leaves_node_;  // by offset along the pipeline
  /// Where a tensor lies that is gathered over the pipeline: part of a vector.
  struct Home {
    ValueId base;
    int64_t begin;
  };
  std::map<TensorId, Home> home_of_;
  bool in_step_ = false;
  std::vector<TensorId> gathered_;  ///< parameters that are here otherwise than they lie
  std::vector<std::pair<TensorId, ValueId>> gathered_again_;  ///< see Layouts::gathers_again
  std::set<ValueId> scattered_;  ///< contributions to gradients, on their way to accumulators
};

}  // namespace hocket::parallel
