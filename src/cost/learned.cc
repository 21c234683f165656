// SPDX-License-Identifier: Apache-2.0
#include "cost/learned.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/linear.h"
#include "base/stats.h"

namespace hocket::cost {

namespace {

/// Ridge penalty on standardised features: a fit to few tasks is shrunk more towards their mean.
constexpr double kRidge = 1.0;

/// Returns max(a / b, b / a) - 1.
double off_by(double a, double b) { return std::max(a / b, b / a) - 1; }

}  // namespace

LearnedTimes::Features LearnedTimes::features_of(const Leaf& leaf) {
  const double flops = std::log1p(leaf.flops);
  const double bytes = std::log1p(leaf.bytes);
  return {std::log(leaf.roofline_s), flops, bytes,
          // Above the ridge point of the roofline, more arithmetic per byte costs time; below, it
          // is free.
          std::max(0.0, flops - bytes), leaf.cost_class == ops::CostClass::matmul ? 1.0 : 0.0,
          leaf.cost_class == ops::CostClass::attention ? 1.0 : 0.0,
          leaf.cost_class == ops::CostClass::memory ? bytes : 0.0};
}

double LearnedTimes::Fit::log_ns(const Features& features) const {
  double sum = constant;
  for (size_t i = 0; i < kFeatures; ++i) {
    sum += weight[i] * (features[i] - mean[i]) / scale[i];
  }
  return sum;
}

LearnedTimes::Fit LearnedTimes::fit(const std::vector<TimedLeaf>& timed,
                                    std::string_view without_op) {
  // Features are standardised; then (X'X + ridge) w = X'y is solved.
  std::vector<Features> rows;
  std::vector<double> log_ns;
  for (const TimedLeaf& task : timed) {
    if (task.leaf.op == without_op) continue;
    rows.push_back(features_of(task.leaf));
    log_ns.push_back(std::log(task.ns));
  }
  const auto count = static_cast<double>(rows.size());
  Fit fit;
  for (double y : log_ns) {
    fit.constant += y / count;
  }
  for (size_t i = 0; i < kFeatures; ++i) {
    double squares = 0;
    for (const Features& row : rows) {
      fit.mean[i] += row[i] / count;
    }
    for (const Features& row : rows) {
      squares += (row[i] - fit.mean[i]) * (row[i] - fit.mean[i]) / count;
    }
    fit.scale[i] = squares > 1e-12 ? std::sqrt(squares) : 1;
  }
  std::vector<std::vector<double>> system(kFeatures, std::vector<double>(kFeatures + 1));
  for (size_t n = 0; n < rows.size(); ++n) {
    Features x;
    for (size_t i = 0; i < kFeatures; ++i) {
      x[i] = (rows[n][i] - fit.mean[i]) / fit.scale[i];
    }
    for (size_t i = 0; i < kFeatures; ++i) {
      for (size_t j = 0; j < kFeatures; ++j) {
        system[i][j] += x[i] * x[j];
      }
      system[i][kFeatures] += x[i] * (log_ns[n] - fit.constant);
    }
  }
  for (size_t i = 0; i < kFeatures; ++i) {
    system[i][i] += kRidge;
  }
  const std::vector<double> weights = solve_normal(std::move(system));
  HOCKET_CHECK(weights.size() == kFeatures, "a ridge leaves no equations that depend on others");
  std::copy(weights.begin(), weights.end(), fit.weight.begin());
  return fit;
}

LearnedTimes::LearnedTimes(const std::vector<TimedLeaf>& timed) {
  std::set<std::string> ops;
  for (const TimedLeaf& task : timed) {
    ops.insert(task.leaf.op);
  }
  if (timed.size() < kMinTasks || ops.size() < kMinOps) return;
  std::vector<double> errors;
  std::vector<double> roofline_errors;
  for (const std::string& op : ops) {
    const Fit others = fit(timed, op);
    std::vector<double> ratios;
    for (const TimedLeaf& task : timed) {
      if (task.leaf.op != op) {
        ratios.push_back(task.ns / task.leaf.roofline_s);
      }
    }
    const double ratio = median(std::move(ratios));
    for (const TimedLeaf& task : timed) {
      if (task.leaf.op != op) continue;
      errors.push_back(off_by(std::exp(others.log_ns(features_of(task.leaf))), task.ns));
      roofline_errors.push_back(off_by(ratio * task.leaf.roofline_s, task.ns));
    }
  }
  held_out_ = median(std::move(errors));
  roofline_held_out_ = median(std::move(roofline_errors));
  fit_ = fit(timed, "");
  learned_ = true;
}

double LearnedTimes::ns(const Leaf& leaf) const { return std::exp(fit_.log_ns(features_of(leaf))); }

}  // namespace hocket::cost
