// SPDX-License-Identifier: Apache-2.0
#include "cost/merge_measured.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <tuple>

namespace hocket::cost {

namespace {

/// Adds the sizes of `older` that `times` lacks.
void add_older_sizes(const MeasuredTimes& older, MeasuredTimes* times) {
  std::map<double, double> us_of;  // by size
  for (const MeasuredTimes* of : {static_cast<const MeasuredTimes*>(times), &older}) {
    for (size_t i = 0; i < of->bytes.size(); ++i) {
      us_of.emplace(of->bytes[i], of->us[i]);
    }
  }
  if (us_of.size() == times->bytes.size()) return;
  if (!older.source.ends_with(times->source)) {
    times->source = older.source + "; " + times->source;
  } else {
    times->source = older.source;
  }
  times->bytes.clear();
  times->us.clear();
  for (const auto& [bytes, us] : us_of) {
    times->bytes.push_back(bytes);
    times->us.push_back(us);
  }
}

}  // namespace

std::vector<MeasuredTimes> merge_measured(const std::vector<MeasuredTimes>& older,
                                          const std::vector<MeasuredTimes>& newer) {
  std::map<std::tuple<std::string, int64_t, int64_t>, MeasuredTimes> groups;
  for (const MeasuredTimes& times : newer) {
    groups.emplace(std::tuple(times.op, times.ranks, times.nodes), times);
  }
  for (const MeasuredTimes& times : older) {
    const auto [at, is_new] = groups.emplace(std::tuple(times.op, times.ranks, times.nodes), times);
    if (!is_new) {
      add_older_sizes(times, &at->second);
    }
  }
  std::vector<MeasuredTimes> all;
  for (const auto& [group, times] : groups) {
    all.push_back(times);
  }
  return all;
}

}  // namespace hocket::cost
