// SPDX-License-Identifier: Apache-2.0
#include "whatif/kineto_steps.h"

#include <algorithm>

#include "base/stats.h"

namespace hocket::whatif::kineto {
namespace {

constexpr double kNever = 1e300;

}  // namespace

std::map<int32_t, double> ends_of_earlier(const Profile& profile, int64_t step) {
  std::map<int32_t, double> ends;
  for (const Activity& activity : profile.device) {
    if (!activity.earlier && (activity.step == kNone || activity.step >= step)) continue;
    const auto [at, added] = ends.try_emplace(activity.stream, activity.end);
    at->second = std::max(at->second, activity.end);
  }
  return ends;
}

double StepTimes::begin(int64_t step) const {
  const auto before = ends.find(step - 1);
  return before != ends.end() ? before->second : begins.at(step);
}

double StepTimes::length(int64_t step) const { return ends.at(step) - begin(step); }

double StepTimes::usual_length(const std::set<int64_t>& steps) const {
  std::vector<double> lengths;
  for (const int64_t step : steps) {
    if (ends.count(step) && (ends.count(step - 1) || begins.count(step))) {
      lengths.push_back(length(step));
    }
  }
  return lengths.empty() ? 0 : median(lengths);
}

std::set<int64_t> StepTimes::cold(const std::vector<int64_t>& steps) const {
  constexpr double kAhead = 0.002;  // of a step
  const std::set<int64_t> used(steps.begin(), steps.end());
  std::vector<double> ahead;
  for (const int64_t step : steps) {
    if (used.count(step - 1) && marks.count(step)) {
      ahead.push_back(std::max(ends.at(step - 1) - marks.at(step), 0.0));
    }
  }
  std::set<int64_t> cold;
  if (ahead.empty() || median(ahead) <= kAhead * usual_length(used)) return cold;
  for (const int64_t step : steps) {
    if (!used.count(step - 1) && marks.count(step) && begins.at(step) <= marks.at(step)) {
      cold.insert(step);
    }
  }
  return cold;
}

StepTimes step_times(const std::set<int64_t>& steps, const std::vector<Profile>& profiles) {
  StepTimes times;
  for (const Profile& profile : profiles) {
    for (const Step& step : profile.steps) {
      const auto [at, added] = times.begins.try_emplace(step.number, step.start);
      at->second = std::max(at->second, step.start);
    }
    for (const auto* list : {&profile.host, &profile.device}) {
      for (const Activity& activity : *list) {
        if (!steps.count(activity.step)) continue;
        const auto [at, added] = times.ends.try_emplace(activity.step, activity.end);
        at->second = std::max(at->second, activity.end);
      }
    }
  }
  times.marks = times.begins;
  for (auto& [step, begin] : times.begins) {
    if (!steps.count(step) || steps.count(step - 1)) continue;
    for (const Profile& profile : profiles) {
      for (const auto& [stream, end] : ends_of_earlier(profile, step)) {
        begin = std::max(begin, end);
      }
    }
  }
  double last = -kNever;
  for (auto& [step, end] : times.ends) {
    last = end = std::max(end, last);
  }
  return times;
}

}  // namespace hocket::whatif::kineto
