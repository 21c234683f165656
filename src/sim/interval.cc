// SPDX-License-Identifier: Apache-2.0
#include "sim/interval.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "base/text.h"
#include "cost/datasheets.h"

namespace hocket::sim {
namespace {

/// Ends for a file that was compared with nothing. Shares of fitted files are up to 1.4 times the
/// typical ones in products; datasheets with assumed shares of 0.7 to 0.85 were up to 2.6 times too
/// fast on published steps.
constexpr double kUnknownLow = 0.7, kUnknownHigh = 2.6;
/// Ranks over those of the steps from which they are many more.
constexpr int64_t kManyTimes = 4;
/// A smaller share of the time does not count.
constexpr double kMinShare = 0.005;

/// Cluster file and device of some ranks.
struct JudgedNodes {
  const cost::Accuracy* accuracy;
  const cost::Device* device;
  const cost::Framework* framework;
};

std::string basis_of(const JudgedNodes& nodes) {
  const cost::Accuracy& accuracy = *nodes.accuracy;
  if (!accuracy.given()) {
    return fmt::format(
        "the cluster file names no errors{}; datasheets with assumed shares were up to {:g} times "
        "too fast on published steps",
        nodes.device->efficiency.typical.empty() ? "" : " and not all shares of the peaks",
        kUnknownHigh);
  }
  const bool measured = accuracy.basis == "measured";
  const auto rows = [&](const std::vector<std::string>& list) {
    return counted(static_cast<int64_t>(list.size()), measured ? "step" : "published step") +
           (accuracy.device.empty() ? "" : " of " + accuracy.device);
  };
  std::string text = accuracy.basis == "fitted"
                         ? fmt::format("fitted to {}, {:.1f} % off on them", rows(accuracy.fitted),
                                       100 * accuracy.fitted_error)
                     : measured ? "kernels measured one by one"
                                : "a datasheet with typical efficiencies";
  if (!accuracy.held_out.empty()) {
    text += fmt::format("; {:.1f} % off on {} {}", 100 * accuracy.held_out_error,
                        rows(accuracy.held_out),
                        accuracy.in_view ? "in view while the file was made" : "not fitted");
  }
  return text;
}

/// Ends of a step's time over the predicted one, and their grounds.
struct Ends {
  double low = 1, high = 1;
  std::string why;
};

/// Returns the ends of one file. Their grounds name what is unlike the steps of its `accuracy`: no
/// published step says by how much the ends would have to be wider.
Ends ends_of(const JudgedNodes& nodes, const JudgedStep& step) {
  const cost::Accuracy& accuracy = *nodes.accuracy;
  if (!accuracy.given()) return {kUnknownLow, kUnknownHigh, basis_of(nodes)};
  std::vector<std::string> unlike;
  if (!accuracy.device.empty() &&
      cost::device_model(accuracy.device) != cost::device_model(nodes.device->name)) {
    unlike.push_back(fmt::format("on {}", nodes.device->name));
  }
  if (step.has_experts && !accuracy.experts) {
    unlike.push_back("with experts");
  }
  if (accuracy.ranks > 0 && step.ranks > kManyTimes * accuracy.ranks &&
      !nodes.framework->speed_by_devices.given()) {
    unlike.push_back(fmt::format("on more than {}", counted(accuracy.ranks, "rank")));
  }
  std::string why = basis_of(nodes);
  if (!unlike.empty()) {
    why += "; none of these steps is " + join(unlike, ", nor ");
  }
  return {accuracy.low, accuracy.high, std::move(why)};
}

/// Returns the widest ends of the files whose devices the step's ranks have.
Ends ends_of(const cost::Cluster& cluster, const JudgedStep& step) {
  if (cluster.heterogeneous_nodes.empty()) {
    return ends_of({&cluster.accuracy, &cluster.device, &cluster.framework}, step);
  }
  Ends widest;
  std::vector<std::string> seen;
  const std::vector<int64_t> count = cluster.ranks_of_device_types(step.ranks);
  for (size_t type = 0; type < count.size(); ++type) {
    if (count[type] == 0) continue;
    const cost::NodeGroup* const nodes =
        type > 0 ? &cluster.heterogeneous_nodes[type - 1] : nullptr;
    const bool of_file = nodes && !nodes->cluster.empty();
    const std::string file = of_file ? nodes->cluster : "";
    if (std::find(seen.begin(), seen.end(), file) != seen.end()) continue;
    seen.push_back(file);
    const Ends ends = ends_of({of_file ? &nodes->accuracy : &cluster.accuracy,
                               &cluster.device_of(type), &cluster.framework},
                              step);
    widest.low = std::min(widest.low, ends.low);
    widest.high = std::max(widest.high, ends.high);
    widest.why += (widest.why.empty() ? "" : "; ") +
                  (file.empty() ? "" : "nodes of " + file + ": ") + ends.why;
  }
  return widest;
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

bool has_experts(const Program& program) {
  return std::any_of(program.kinds.begin(), program.kinds.end(), [](const program::Kind& kind) {
    return kind.op.starts_with("grouped_linear");
  });
}

Interval interval_of(const cost::Cluster& cluster, const ProvenanceShares& provenance,
                     const JudgedStep& step) {
  constexpr double kMaxError = 0.5;
  const Ends ends = ends_of(cluster, step);
  if (provenance.judged > kMinShare) {
    if (provenance.error > kMaxError) {
      return {0, 0,
              fmt::format("none: the timings spread too much (+-{:.0f} %); is the machine busy?",
                          100 * provenance.error),
              true};
    }
    return with_known_error(provenance, ends, step.ns);
  }
  return {scaled(ends.low, step.ns), scaled(ends.high, step.ns),
          fmt::format("{:+.0f} to {:+.0f} %: {}", 100 * (ends.low - 1), 100 * (ends.high - 1),
                      ends.why),
          false};
}

Interval interval_of_collective(const cost::Cluster& cluster, const cost::GroupShape& shape,
                                const JudgedStep& step) {
  std::vector<const cost::LinkErrors*> used;
  if (shape.per_node > 1) {
    used.push_back(&cluster.links.intra.held_out);
  }
  if (shape.nodes > 1) {
    used.push_back(&cluster.links.inter.held_out);
  }
  const bool known = !used.empty() && cluster.heterogeneous_nodes.empty() &&
                     std::all_of(used.begin(), used.end(), [&](const cost::LinkErrors* errors) {
                       return errors->ranks >= shape.members;
                     });
  if (!known) return interval_of(cluster, {}, step);
  constexpr double kLowest = 0.01;
  double mean = 0, worst = 0;
  for (const cost::LinkErrors* errors : used) {
    mean = std::max(mean, errors->mean);
    worst = std::max(worst, errors->worst);
  }
  const double low = std::max(kLowest, 1 - worst), high = 1 + worst;
  return {scaled(low, step.ns), scaled(high, step.ns),
          fmt::format("{:+.1f} to {:+.1f} %: greatest error of the links on times that they were "
                      "not fitted to (of 1 MiB and more), {:.1f} % in the mean",
                      100 * (low - 1), 100 * (high - 1), 100 * mean),
          false};
}

int64_t framework_ns(const cost::Framework& framework, int64_t tasks_ns, int64_t devices) {
  const cost::ShareCurve& speed = framework.speed_by_devices;
  const double kept = speed.given() ? speed.at(static_cast<double>(devices)) : 1;
  const double tasks = static_cast<double>(tasks_ns);
  return static_cast<int64_t>(std::llround(tasks / kept - tasks + framework.step.value * 1e9));
}

}  // namespace hocket::sim
