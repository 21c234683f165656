// SPDX-License-Identifier: Apache-2.0
#include "sim/interval.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "base/text.h"

namespace hocket::sim {
namespace {

/// Ends for a file that was compared with nothing, wider than those of any shipped file. Assumed:
/// datasheets with shares of 0.7 to 0.85 were up to 2.6 times too fast on published steps.
constexpr double kUnknownLow = 0.7, kUnknownHigh = 1.7;
/// A smaller share of the time does not count.
constexpr double kMinShare = 0.005;

std::string basis_of(const cost::Accuracy& accuracy) {
  if (!accuracy.given()) return "the cluster file names no errors, so the widest of other files'";
  const auto rows = [](const std::vector<std::string>& list) {
    return counted(static_cast<int64_t>(list.size()), "published step");
  };
  std::string text = accuracy.basis == "fitted"
                         ? fmt::format("fitted to {}, {:.1f} % off on them", rows(accuracy.fitted),
                                       100 * accuracy.fitted_error)
                         : "a datasheet with typical efficiencies";
  if (!accuracy.held_out.empty()) {
    text += fmt::format("; {:.1f} % off on {} not fitted", 100 * accuracy.held_out_error,
                        rows(accuracy.held_out));
  }
  return text;
}

/// Ends of a step's time over the predicted one, and their grounds.
struct Ends {
  double low = 1, high = 1;
  std::string why;
};

/// Returns the widest ends of the files whose devices the first `ranks` ranks have.
Ends ends_of(const cost::Cluster& cluster, int64_t ranks) {
  Ends ends;
  std::vector<std::string> seen;
  const auto add = [&](const std::string& file, const cost::Accuracy& accuracy) {
    if (std::find(seen.begin(), seen.end(), file) != seen.end()) return;
    seen.push_back(file);
    ends.low = std::min(ends.low, accuracy.given() ? accuracy.low : kUnknownLow);
    ends.high = std::max(ends.high, accuracy.given() ? accuracy.high : kUnknownHigh);
    ends.why += (ends.why.empty() ? "" : "; ") + (file.empty() ? "" : "nodes of " + file + ": ") +
                basis_of(accuracy);
  };
  if (cluster.heterogeneous_nodes.empty()) {
    add("", cluster.accuracy);
    return ends;
  }
  const std::vector<int64_t> count = cluster.ranks_of_device_types(ranks);
  for (size_t type = 0; type < count.size(); ++type) {
    if (count[type] == 0) continue;
    const cost::NodeGroup* const nodes =
        type > 0 ? &cluster.heterogeneous_nodes[type - 1] : nullptr;
    const bool of_file = nodes && !nodes->cluster.empty();
    add(of_file ? nodes->cluster : "", of_file ? nodes->accuracy : cluster.accuracy);
  }
  return ends;
}

int64_t scaled(double times, int64_t step_ns) {
  return static_cast<int64_t>(std::llround(times * static_cast<double>(step_ns)));
}

/// Returns the interval of a step of which a share has a known error. The rest, links and analytic
/// tasks, has the ends of the cluster file.
Interval with_known_error(const ProvenanceShares& provenance, const Ends& ends, int64_t step_ns) {
  const double known = provenance.judged * provenance.error;
  const double rest = std::max(0.0, 1 - provenance.judged);
  const double low = 1 - known - rest * (1 - ends.low);
  const double high = 1 + known + rest * (ends.high - 1);
  std::string why = fmt::format(
      "{:+.1f} to {:+.1f} %: spread of timings and held-out error of interpolation, "
      "+-{:.1f} % over {:.0f} % of the time",
      100 * (low - 1), 100 * (high - 1), 100 * provenance.error, 100 * provenance.judged);
  if (rest > kMinShare) {
    why += fmt::format("; {:+.0f} to {:+.0f} % over the rest: {}", 100 * (ends.low - 1),
                       100 * (ends.high - 1), ends.why);
  }
  return {scaled(low, step_ns), scaled(high, step_ns), std::move(why), true};
}

}  // namespace

Interval interval_of(const cost::Cluster& cluster, const ProvenanceShares& provenance,
                     int64_t step_ns, int64_t ranks) {
  constexpr double kMaxError = 0.5;
  const Ends ends = ends_of(cluster, ranks);
  if (provenance.judged > kMinShare) {
    if (provenance.error > kMaxError) {
      return {0, 0,
              fmt::format("none: the timings spread too much (+-{:.0f} %); is the machine busy?",
                          100 * provenance.error),
              true};
    }
    return with_known_error(provenance, ends, step_ns);
  }
  return {scaled(ends.low, step_ns), scaled(ends.high, step_ns),
          fmt::format("{:+.0f} to {:+.0f} %: {}", 100 * (ends.low - 1), 100 * (ends.high - 1),
                      ends.why),
          false};
}

int64_t framework_ns(const cost::Framework& framework, int64_t tasks_ns, int64_t devices) {
  const cost::ShareCurve& speed = framework.speed_by_devices;
  const double kept = speed.given() ? speed.at(static_cast<double>(devices)) : 1;
  const double tasks = static_cast<double>(tasks_ns);
  return static_cast<int64_t>(std::llround(tasks / kept - tasks + framework.step.value * 1e9));
}

}  // namespace hocket::sim
