// SPDX-License-Identifier: Apache-2.0
// Implements: apply_correction (advantage.h), by verl's rollout_corr_helper.py.
#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "rl/advantage.h"
#include "rl/divergence.h"

namespace hocket::rl {

namespace {

double limited(double x) { return std::clamp(x, -kLargestLogRatio, kLargestLogRatio); }

/// Returns log pi_old / mu of every token, without limits.
std::vector<double> log_ratios(const LossInputs& inputs) {
  if (inputs.rollout.size() != inputs.old.size()) {
    fail("rl.correction", "{} log-probabilities of sampling for a sample of {} tokens",
         inputs.rollout.size(), inputs.old.size());
  }
  std::vector<double> ratios(inputs.old.size());
  for (size_t t = 0; t < ratios.size(); ++t) {
    ratios[t] = inputs.old[t] - inputs.rollout[t];
  }
  return ratios;
}

/// Replaces the logarithms of tokens' ratios by those of the level, within limits. `each`: tokens
/// are limited before they are summed up (mis), else their sum is (tis).
void set_level(const std::string& level, bool each, std::vector<double>& ratios) {
  if (level == "token") {
    std::transform(ratios.begin(), ratios.end(), ratios.begin(), limited);
    return;
  }
  double sum = 0;
  for (const double ratio : ratios) {
    sum += each ? limited(ratio) : ratio;
  }
  if (level == "geometric" && !ratios.empty()) {
    sum /= static_cast<double>(ratios.size());
  }
  std::fill(ratios.begin(), ratios.end(), each ? sum : limited(sum));
}

}  // namespace

CorrectionStats apply_correction(const engine::RlSection& section,
                                 std::span<LossInputs> loss_inputs) {
  const engine::CorrectionSection& correction = section.correction;
  const bool truncates = correction.type == "tis", leaves_out = correction.type == "mis";
  const double low = std::log(correction.low), high = std::log(correction.high);
  CorrectionStats stats{.mean_ratio = 0, .max_ratio = 0};
  double tokens = 0;
  for (LossInputs& inputs : loss_inputs) {
    if (!truncates && !leaves_out && inputs.rollout.empty()) continue;
    std::vector<double> ratios = log_ratios(inputs);
    if (inputs.counts) {
      for (const double ratio : ratios) {
        const double value = std::exp(limited(ratio));
        stats.mean_ratio += value;
        stats.max_ratio = std::max(stats.max_ratio, value);
        stats.kl += k3_of(limited(ratio));
        ++tokens;
      }
    }
    set_level(correction.level, leaves_out, ratios);
    if (leaves_out && inputs.weights.empty()) {
      inputs.weights.assign(ratios.size(), 1);
    }
    if (truncates) {
      inputs.factors.assign(ratios.size(), 1);
    }
    for (size_t t = 0; t < ratios.size(); ++t) {
      const bool above = ratios[t] > high;
      if (truncates) {
        inputs.factors[t] = std::min(std::exp(ratios[t]), correction.high);
        stats.cut_off += inputs.counts && above ? 1 : 0;
      } else if (leaves_out && (above || ratios[t] < low)) {
        inputs.weights[t] = 0;
        stats.left_out += inputs.counts ? 1 : 0;
      }
    }
  }
  if (tokens == 0) {
    stats.max_ratio = std::numeric_limits<double>::quiet_NaN();
  }
  for (double* sum : {&stats.mean_ratio, &stats.kl, &stats.cut_off, &stats.left_out}) {
    *sum /= tokens;
  }
  return stats;
}

}  // namespace hocket::rl
