// SPDX-License-Identifier: Apache-2.0
// Implements: MeasuredTimes::seconds (cluster.h). Interpolates the times of a group between their
// sizes: a monotone cubic in logarithms.
#include <algorithm>
#include <cmath>

#include "cost/cluster.h"

namespace hocket::cost {
namespace {

/// Returns the slope at the point between two intervals of lengths `before` and `after` with the
/// secants `left` and `right`: their weighted harmonic mean, so that the curve stays monotone
/// (Fritsch and Butland, SIAM J. Sci. Stat. Comput. 5, 1984).
double slope_between(double before, double after, double left, double right) {
  if (left * right <= 0) return 0;
  const double wide = 2 * after + before, narrow = after + 2 * before;
  return (wide + narrow) / (wide / left + narrow / right);
}

/// Returns the slope at an end: of the parabola through three points, within what keeps the curve
/// monotone.
double slope_at_end(double near, double far, double secant, double next) {
  const double slope = ((2 * near + far) * secant - near * next) / (near + far);
  if (slope * secant <= 0) return 0;
  if (secant * next <= 0 && std::abs(slope) > 3 * std::abs(secant)) return 3 * secant;
  return slope;
}

}  // namespace

double MeasuredTimes::seconds(double size) const {
  const auto above = std::lower_bound(bytes.begin(), bytes.end(), size);
  if (above == bytes.begin()) return us.front() * 1e-6;
  if (above == bytes.end()) return us.back() * 1e-6 * size / bytes.back();
  const auto i = static_cast<size_t>(above - bytes.begin()) - 1;  // the interval's lower end
  const auto length = [&](size_t k) { return std::log(bytes[k + 1] / bytes[k]); };
  const auto secant = [&](size_t k) { return std::log(us[k + 1] / us[k]) / length(k); };
  const size_t last = bytes.size() - 1;
  const auto slope = [&](size_t k) {
    if (last == 1) return secant(0);
    if (k == 0) return slope_at_end(length(0), length(1), secant(0), secant(1));
    if (k == last) {
      return slope_at_end(length(k - 1), length(k - 2), secant(k - 1), secant(k - 2));
    }
    return slope_between(length(k - 1), length(k), secant(k - 1), secant(k));
  };
  const double wide = length(i), t = std::log(size / bytes[i]) / wide;
  const double rest = 1 - t;
  const double log_us = rest * rest * (1 + 2 * t) * std::log(us[i]) +
                        t * t * (3 - 2 * t) * std::log(us[i + 1]) +
                        t * rest * wide * (rest * slope(i) - t * slope(i + 1));
  return std::exp(log_us) * 1e-6;
}

}  // namespace hocket::cost
