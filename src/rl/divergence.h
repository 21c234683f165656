// SPDX-License-Identifier: Apache-2.0
// Estimators of a divergence from one sampled token (Schulman, http://joschu.net/blog/kl-approx).
#pragma once

#include <algorithm>
#include <cmath>
#include <string>

namespace hocket::rl {

/// Limits of k3, as in op policy_loss (docs/rl-losses.md).
inline constexpr double kLargestLogRatio = 20, kLargestK3 = 10;

/// Returns e^x - 1 - x without limits: k3 of q from p at x = log p - log q of a token of q.
inline double k3_of(double x) { return std::exp(x) - 1 - x; }

/// Returns the estimate by d = log pi - log reference of a token that pi sampled. `estimator`: k1,
/// k2 or k3.
inline double divergence(const std::string& estimator, double d) {
  if (estimator == "k1") return d;
  if (estimator == "k2") return d * d / 2;
  return std::min(k3_of(std::clamp(-d, -kLargestLogRatio, kLargestLogRatio)), kLargestK3);
}

}  // namespace hocket::rl
