// SPDX-License-Identifier: Apache-2.0
// What the messages between the stages of a pipeline take: priced as the simulator prices sends,
// with the ranks of a node sharing its adapters. Levels of the network above nodes are not shared
// out.
#pragma once

#include <cstdint>

#include "cost/cost_model.h"
#include "planner/pipeline_shape.h"

namespace hocket::planner {

/// Messages of one size between the ranks of a pipeline, each of which is so many devices.
class Messages {
 public:
  Messages(const cost::CostModel& costs, int64_t devices, double bytes);

  /// Of one from a rank of the pipeline to another, while all devices of the rank send theirs.
  double seconds(int64_t from, int64_t to) const;

  /// What a micro-batch sends over the links of a node and out of it.
  struct Load {
    double inside = 0, across = 0;  ///< messages of the device that sends most of them
    double adapter = 0;             ///< messages through the adapters of the busiest node, each
    double hops_inside = 0, hops_across = 0;  ///< from the first rank of the pipeline to the last
  };
  static Load load_of(const PipelineShape& shape, const cost::Cluster& cluster, int64_t devices);
  /// Seconds between two micro-batches of a schedule, and none has less between them: a device
  /// sends one message after the other, and an adapter carries no more than it can.
  double least_s(const Load& load) const;
  /// The same with messages that all devices of a rank send at once.
  double shared_s(const Load& load) const;
  /// From the first rank to the last, and back.
  double there_and_back_s(const Load& load) const {
    return 2 * (load.hops_inside * inside_s_ + load.hops_across * across_s_);
  }

 private:
  int64_t devices_, per_node_;
  double inside_s_ = 0;  ///< of one that stays on its node
  /// Of one that leaves it: alone, with those that share the adapter, and of an adapter's time.
  double alone_s_ = 0, across_s_ = 0, adapter_s_ = 0;
};

/// Seconds of a transfer while so many like it, one on each of as many groups of a node, share its
/// adapters; `used`: of which each takes so many.
double beside_others_s(const cost::Way& way, const cost::Cluster& cluster, double groups,
                       double used);

}  // namespace hocket::planner
