// SPDX-License-Identifier: Apache-2.0
// Times of the messages between pipeline stages, priced like the simulator's sends, with the ranks
// of a node sharing its adapters. Levels of the network above nodes are not shared.
#pragma once

#include <cstdint>

#include "cost/cost_model.h"
#include "planner/pipeline_shape.h"

namespace hocket::planner {

/// Messages of one size between pipeline ranks of several devices each.
class Messages {
 public:
  Messages(const cost::CostModel& costs, int64_t devices, double bytes);

  /// Returns the time of a message between two pipeline ranks, while all devices of the rank send.
  double seconds(int64_t from, int64_t to) const;

  /// Bytes of a micro-batch over the links of a node and out of it.
  struct Load {
    double inside = 0, across = 0;  ///< messages of the device that sends most of them
    double adapter = 0;             ///< messages through the adapters of the busiest node, each
    double hops_inside = 0, hops_across = 0;  ///< from the first rank of the pipeline to the last
  };
  static Load load_of(const PipelineShape& shape, const cost::Cluster& cluster, int64_t devices);
  /// Seconds between two micro-batches of a schedule, and none has less between them: a device
  /// sends one message after the other, and an adapter carries no more than it can.
  double lower_bound_s(const Load& load) const;
  /// The same with messages that all devices of a rank send at once.
  double shared_s(const Load& load) const;
  /// Seconds of messages from the first rank to the last, and back.
  double there_and_back_s(const Load& load) const {
    return 2 * (load.hops_inside * inside_s_ + load.hops_across * across_s_);
  }

 private:
  int64_t devices_, per_node_;
  double inside_s_ = 0;  ///< of one that stays on its node
  /// A message out of the node: alone, with those on the same adapter, and the adapter's time.
  double alone_s_ = 0, across_s_ = 0, adapter_s_ = 0;
};

/// Returns the seconds of a transfer beside equal ones, one on each of `groups` of a node, which
/// share its adapters; `used`: adapters per transfer.
double beside_others_s(const cost::AlgorithmTime& time, const cost::Cluster& cluster, double groups,
                       double used);

}  // namespace hocket::planner
