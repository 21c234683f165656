// SPDX-License-Identifier: Apache-2.0
// Time and memory of a plan without making its program: lower bounds (to prune) and an estimate (to
// order candidates). Both price the nodes of the model's single-device graph, each divided by the
// ranks that can share it, and the collectives that no layout avoids, by the simulator's cost
// model.
//
//   memory >= parameters, their gradients and states, and activations of live micro-batches
//   time   >= the busiest pipeline rank's kernels, its wait for the first micro-batch to come and
//             the last to go back, and all-reduces over tp in forward passes
//          >= the messages between stages: those of a rank, and those through a node's adapters
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "collectives/comm_op.h"
#include "cost/cost_model.h"
#include "graph/graph.h"
#include "planner/messages.h"
#include "planner/model_table.h"
#include "planner/pipeline_shape.h"
#include "planner/space.h"

namespace hocket::planner {

/// A lower bound and an estimate: seconds of a step, bytes of the rank that takes most.
struct Estimate {
  double lower_bound_s = 0, expected_s = 0;
  double lower_bound_any_s = 0;  ///< the bound over all collective algorithms
  double lower_bound_bytes = 0, bytes = 0;
  // Parts of `expected_s`.
  double after_s = 0;     ///< gradient reductions and optimizer, after the passes
  double messages_s = 0;  ///< for which messages between stages occupy their busiest link
};

/// Returns the ratio of a rank's planned memory to the sum of its tensors at their peak: gathered
/// parameters and gradients, and activations of stages in a V, leave gaps in the arena.
double arena_ratio(const PlanCandidate& plan);

struct EstimatorOptions {
  /// Forward passes wait for their all-reduces over tp: no rewrite (src/passes) chunks these.
  bool blocking = true;
  double bucket_bytes = 25 << 20;  ///< plan.bucket_mib
};

/// Prices of one model on one cluster. Each thread has its own.
class Estimator {
 public:
  /// `graph`: of training, one sequence on one rank, before any pass (engine::reference). `costs`:
  /// of a run with the same number of ranks. Requires: `costs` outlives this.
  Estimator(const SearchSpace& space, const graph::Graph& graph, const cost::CostModel& costs,
            EstimatorOptions options);
  ~Estimator();
  Estimator(const Estimator&) = delete;
  Estimator& operator=(const Estimator&) = delete;

  /// Bytes of the model's parameters and optimizer states, each once. Gradients are not among them:
  /// with one micro-batch they may pass by.
  double state_bytes() const;
  /// Lower bound on all plans with this mesh and micro-batch, whatever else they choose.
  Estimate floor_of_mesh(const PlanCandidate& mesh);
  Estimate estimate(const PlanCandidate& plan);
  /// The same, with the plan's schedule replayed if its messages are long enough to matter: the
  /// hidden part depends on the order of passes and messages. Takes milliseconds; estimate() takes
  /// microseconds.
  Estimate with_schedule_replayed(const PlanCandidate& plan);
  /// Returns the number of layers of each stage that evens out the stages' times; none where an
  /// equal split is about as good. Cached, since many plans share it.
  StageLayers layers_by_time(const PlanCandidate& plan);
  /// Returns further splits of the layers, where an equal one takes more than `limit` bytes or
  /// nearly so: by time and memory, and by memory alone.
  std::vector<StageLayers> layers_by_memory(const PlanCandidate& plan, double limit);
  /// Returns the mesh with the fastest expert all-to-all: in one step, or in two with the best
  /// ep_inner.
  PlanCandidate with_fastest_exchange(const PlanCandidate& mesh);

 private:
  struct Layer;   // prices of a layer
  struct Prices;  // of every type of layer, for a mesh, micro-batch and way to recompute
  struct Groups;  // shapes of a mesh's process groups
  struct Pace;    // of heterogeneous devices
  const Groups& groups(const PlanCandidate& plan);
  const Prices& prices(const PlanCandidate& plan);
  const Pace& pace(const PlanCandidate& plan);
  double exchanged_rows(const PlanCandidate& plan) const;
  double exchange_s(const PlanCandidate& plan, const Groups& groups) const;
  using Counts = std::vector<double>;  // layers by type
  const std::vector<Counts>& stages(const PlanCandidate& plan);
  double layer_bytes(const PlanCandidate& plan, const Layer& layer, const PipelineShape::Rank& rank,
                     double share, double most);
  bool has_stage_each(const PlanCandidate& plan);
  StageLoads loads(const PlanCandidate& plan, bool with_bytes);
  std::vector<SharedStages> shared_stages(const PlanCandidate& plan);
  std::vector<int64_t> fitted_by_moves(const PlanCandidate& plan, double limit);
  double held_bytes(const PlanCandidate& plan, int64_t micro_batches, double dense, double experts,
                    bool least) const;
  double working_bytes(const PlanCandidate& plan, size_t type) const;
  struct TransferTime {
    double alone = 0;
    double beside_others = 0;  ///< all ranks of a node do the same, and share its adapters
  };
  const TransferTime& transfer(comm::Id op, double payload, const cost::GroupShape& shape) const;
  double collective_s(comm::Id op, double payload, const cost::GroupShape& shape) const {
    return transfer(op, payload, shape).beside_others;
  }
  double message_bytes(const PlanCandidate& plan) const;
  const Messages& messages(const PlanCandidate& plan);
  const Messages::Load& message_load(const PlanCandidate& plan, const PipelineShape& shape);
  double pipeline_reductions_s(const PlanCandidate& plan, const Groups& groups, double dense,
                               double experts, double tied, bool has_copies) const;
  Layer price(const PlanCandidate& plan, size_t type, const Groups& groups) const;
  void add_collectives(const PlanCandidate& plan, size_t type, const Groups& groups,
                       Layer* layer) const;
  double sync_s(const PlanCandidate& plan, const Groups& groups, double dense, double experts,
                double forward, double backward) const;
  double bucketed_s(comm::Id op, double bytes, const cost::GroupShape& shape) const;

  SearchSpace space_;
  const cost::CostModel& costs_;
  EstimatorOptions options_;
  std::vector<ModelTable> tables_;  // by Recompute
  std::map<std::array<int32_t, 9>, std::unique_ptr<Groups>> groups_;
  std::map<std::array<int32_t, 10>, std::unique_ptr<Prices>> prices_;
  std::map<std::array<int32_t, 5>, Pace> paces_;
  std::map<std::pair<int64_t, StageLayers>, std::vector<Counts>> stages_;  // by their number
  std::map<std::tuple<const Prices*, const Pace*, int32_t>, StageLayers> by_time_;  // pp
  PipelineShapes shapes_;
  /// Key of the cache of transfer times.
  struct Transfer {
    comm::Id op;
    const cost::GroupShape* shape;  ///< of groups_
    double payload;
    bool operator==(const Transfer&) const = default;
  };
  struct HashTransfer {
    size_t operator()(const Transfer& transfer) const;
  };
  mutable std::unordered_map<Transfer, TransferTime, HashTransfer> seconds_;
  std::map<std::pair<int64_t, double>, Messages> messages_;  // by devices of a stage, and bytes
  std::map<std::pair<const PipelineShape*, int64_t>, Messages::Load> message_loads_;
  /// Seconds of the passes of a schedule, replayed.
  std::map<std::tuple<const Prices*, const Pace*, std::array<int32_t, 3>, StageLayers>, double>
      replayed_;  // by schedule, pp and chunks
};

}  // namespace hocket::planner
