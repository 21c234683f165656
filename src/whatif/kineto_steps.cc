// SPDX-License-Identifier: Apache-2.0
#include "whatif/kineto_steps.h"

#include <algorithm>

namespace hocket::whatif::kineto {
namespace {

constexpr double kNever = 1e300;

/// Returns when a rank's device reaches a step: at its first activity, or earlier, once all work
/// before the step has ended.
double device_comes_to(int64_t step, const Profile& profile) {
  double first = kNever, before = -kNever;
  for (const Activity& activity : profile.device) {  // in the order of their starts
    if (activity.step == step) {
      first = activity.start;
      break;
    }
    if (activity.step < step) {  // kNone: of no step, or launched before the profile began
      before = std::max(before, activity.end);
    }
  }
  return std::min(first, before);
}

}  // namespace

double StepTimes::length(int64_t step) const {
  const auto before = ends.find(step - 1);
  return ends.at(step) - (before != ends.end() ? before->second : begins.at(step));
}

StepTimes step_times(const std::set<int64_t>& steps, const std::vector<Profile>& profiles) {
  StepTimes times;
  for (const Profile& profile : profiles) {
    for (const Step& step : profile.steps) {
      const auto [at, added] = times.begins.try_emplace(step.number, step.start);
      at->second = std::min(at->second, step.start);
    }
    for (const auto* list : {&profile.host, &profile.device}) {
      for (const Activity& activity : *list) {
        if (!steps.count(activity.step)) continue;
        const auto [at, added] = times.ends.try_emplace(activity.step, activity.end);
        at->second = std::max(at->second, activity.end);
      }
    }
  }
  for (auto& [step, begin] : times.begins) {
    double comes = kNever;
    for (const Profile& profile : profiles) {
      comes = std::min(comes, device_comes_to(step, profile));
    }
    begin = std::max(begin, comes);
  }
  double last = -kNever;
  for (auto& [step, end] : times.ends) {
    last = end = std::max(end, last);
  }
  return times;
}

}  // namespace hocket::whatif::kineto
