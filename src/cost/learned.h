// SPDX-License-Identifier: Apache-2.0
// Times of tasks whose op was never timed, learned from those of other ops. CDMPP (EuroSys 2024)
// learns a task's time from the leaves of its loop nests, what each computes and moves, so that it
// speaks of operators and sizes that it has not seen; a task here is one leaf, and what the
// roofline says of it is among its features, so that what is learned is by how much kernels fall
// short of that.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ops/op.h"

namespace hocket::cost {

/// What a task computes and moves.
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

/// A ridge regression of log(time) on log(roofline), log(FLOPs), log(bytes), the intensity between
/// them, and the kind of kernel. Features are standardised, and the constant is not shrunk.
class LearnedTimes {
 public:
  /// Learns nothing from fewer than kLeastTasks tasks of kLeastOps ops.
  explicit LearnedTimes(const std::vector<TimedLeaf>& timed);

  /// Whether it says more of ops that were left out than the roofline does.
  bool useful() const { return learned_ && held_out_ < roofline_held_out_; }
  double ns(const Leaf& leaf) const;

  /// Median of max(predicted / timed, timed / predicted) - 1 over all tasks, each predicted from
  /// the tasks of all other ops; and that of the roofline, scaled to the others' median.
  double held_out() const { return held_out_; }
  double roofline_held_out() const { return roofline_held_out_; }

  static constexpr size_t kLeastTasks = 12, kLeastOps = 4;

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
