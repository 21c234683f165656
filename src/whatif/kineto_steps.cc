// SPDX-License-Identifier: Apache-2.0
#include "whatif/kineto_steps.h"

#include <algorithm>

#include "base/stats.h"

namespace hocket::whatif::kineto {
namespace {

constexpr double kNever = 1e300;

/// Returns whether an activity began when another one had just ended.
bool begins_at_an_end(const Activity& activity, const Profile& profile) {
  constexpr double kAtOnce = 1e-5;  // seconds
  return std::any_of(profile.device.begin(), profile.device.end(), [&](const Activity& other) {
    return other.end <= activity.start + kClockError && other.end >= activity.start - kAtOnce;
  });
}

/// Returns by stream when a device ends work that is not in the profile. The first activity that a
/// step launches in a stream then begins long after its launch.
std::map<int32_t, double> unrecorded_ends(const Profile& profile, int64_t step) {
  constexpr double kLongest = 1e-4;  // seconds from a launch to its activity, on an idle device
  std::map<int32_t, double> ends;
  std::set<int32_t> seen;
  for (const Activity& call : profile.host) {
    if (call.step != step || call.launches == kNone) continue;
    const Activity& activity = profile.device[call.launches];
    if (!seen.insert(activity.stream).second || activity.start - call.end <= kLongest ||
        begins_at_an_end(activity, profile)) {
      continue;
    }
    ends[activity.stream] = activity.start;
  }
  return ends;
}

}  // namespace

std::map<int32_t, double> ends_of_earlier(const Profile& profile, int64_t step) {
  std::map<int32_t, double> ends;
  for (const Activity& activity : profile.device) {
    if (!activity.earlier && (activity.step == kNone || activity.step >= step)) continue;
    const auto [at, added] = ends.try_emplace(activity.stream, activity.end);
    at->second = std::max(at->second, activity.end);
  }
  return ends.empty() ? unrecorded_ends(profile, step) : ends;
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
