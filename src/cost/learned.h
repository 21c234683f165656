// SPDX-License-Identifier: Apache-2.0
// Durations of ops that were never timed, learned from tasks of other ops. CDMPP (EuroSys 2024)
// learns a task's time from the leaves of its loop nests (their arithmetic and traffic), which
// generalises to unseen operators and sizes. A task here is one leaf. The roofline is one of its
// features, so that the model learns by how much kernels fall short of it.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ops/op.h"

namespace hocket::cost {

/// Arithmetic and memory traffic of a task.
struct Leaf {
  std::string op;
  ops::CostClass cost_class = ops::CostClass::memory;
  double roofline_s = 0;  ///< without launch; above 0
  double flops = 0;
  double bytes = 0;
};

struct TimedLeaf {
  Leaf leaf;
  double ns = 0;  ///< above 0
};

/// Ridge regression of log(time) on log(roofline), log(FLOPs), log(bytes), the arithmetic intensity
/// and the kind of kernel. Features are standardised; the intercept is not penalised.
class LearnedTimes {
 public:
  /// Fits the timed tasks. Learns nothing from fewer than kMinTasks tasks or kMinOps ops.
  explicit LearnedTimes(const std::vector<TimedLeaf>& timed);

  /// Returns whether the predictions of held-out ops are better than the roofline's.
  bool useful() const { return learned_ && held_out_ < roofline_held_out_; }
  double ns(const Leaf& leaf) const;

  /// Median of max(predicted / timed, timed / predicted) - 1 over all tasks, each predicted from
  /// the tasks of all other ops; and the same for the roofline, scaled by the others' median ratio.
  double held_out() const { return held_out_; }
  double roofline_held_out() const { return roofline_held_out_; }

  static constexpr size_t kMinTasks = 12, kMinOps = 4;

 private:
  static constexpr size_t kFeatures = 7;
  using Features = std::array<double, kFeatures>;
  struct Fit {
    Features mean = {}, scale = {}, weight = {};
    double constant = 0;
    double log_ns(const Features& features) const;
  };
  static Features features_of(const Leaf& leaf);
  static Fit fit(const std::vector<TimedLeaf>& timed, std::string_view without_op);

  Fit fit_;
  bool learned_ = false;
  double held_out_ = 0, roofline_held_out_ = 0;
};

}  // namespace hocket::cost
