// SPDX-License-Identifier: Apache-2.0
#include "sim/whatif/replay.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "base/error.h"

namespace hocket::sim::whatif {

Replayer::Replayer(const MeasuredRun& run) : run_(run) {
  // Units are groups, and ops without one; those that wait for nothing go first.
  const auto num_ops = static_cast<int32_t>(run.ops.size());
  const auto num_groups = static_cast<int32_t>(run.groups.size());
  std::vector<int32_t> unit_of(run.ops.size());
  std::vector<std::vector<int32_t>> ops_of(run.groups.size());
  for (int32_t op = 0; op < num_ops; ++op) {
    const int32_t group = run.ops[op].group;
    if (group == kNone || run.groups[group].eager) {
      unit_of[op] = static_cast<int32_t>(ops_of.size());
      ops_of.push_back({op});
    } else {
      unit_of[op] = group;
    }
  }
  // What starts an eager send starts the transfer of its message as well.
  std::vector<std::vector<int32_t>> waits_for = run.waits_for;
  for (int32_t group = 0; group < num_groups; ++group) {
    const std::vector<int32_t>& ops = run.groups[group].ops;
    if (!run.groups[group].eager) {
      ops_of[group] = ops;
      continue;
    }
    const std::vector<int32_t>& starts = run.waits_for[ops[0]];
    waits_for[ops[1]].insert(waits_for[ops[1]].end(), starts.begin(), starts.end());
  }
  wait_from_.push_back(0);
  std::vector<int32_t> waits(ops_of.size(), 0);
  std::vector<std::vector<int32_t>> next(ops_of.size());
  for (int32_t op = 0; op < num_ops; ++op) {
    for (const int32_t before : waits_for[op]) {
      wait_.push_back(before);
      next[unit_of[before]].push_back(unit_of[op]);
      ++waits[unit_of[op]];
    }
    wait_from_.push_back(static_cast<int32_t>(wait_.size()));
  }
  std::vector<int32_t> ready;
  for (size_t unit = 0; unit < ops_of.size(); ++unit) {
    if (waits[unit] == 0) {
      ready.push_back(static_cast<int32_t>(unit));
    }
  }
  for (size_t i = 0; i < ready.size(); ++i) {
    const int32_t unit = ready[i];
    units_.push_back({static_cast<int32_t>(members_.size()),
                      static_cast<int32_t>(ops_of[unit].size()),
                      unit < num_groups && run.groups[unit].across_replicas});
    members_.insert(members_.end(), ops_of[unit].begin(), ops_of[unit].end());
    for (const int32_t after : next[unit]) {
      if (--waits[after] == 0) {
        ready.push_back(after);
      }
    }
  }
  if (ready.size() != ops_of.size()) {
    const auto stuck = static_cast<size_t>(
        std::find_if(waits.begin(), waits.end(), [](int32_t n) { return n > 0; }) - waits.begin());
    const Op& op = run.ops[ops_of[stuck].front()];
    fail("hocket whatif",
         "{} of {} ops and groups wait for each other in a circle, one is {} {} of worker {}; "
         "expected a trace whose ranks launch messages in one order",
         ops_of.size() - ready.size(), ops_of.size(), run.names[static_cast<size_t>(op.name)],
         op.sequence, op.worker);
  }
  end_.assign(run.duration.size(), 0);
  barrier_.assign(static_cast<size_t>(run.lanes()), 0);
}

std::vector<double> Replayer::replay(std::span<const double> duration) {
  HOCKET_CHECK(duration.size() == end_.size(), "{} durations of {}", duration.size(), end_.size());
  const auto lanes = static_cast<size_t>(run_.lanes());
  const auto replicas = static_cast<size_t>(run_.replicas);
  double* barrier = barrier_.data();
  for (const Unit& unit : units_) {
    // When the last member started, by lane.
    std::fill(barrier_.begin(), barrier_.end(), 0.0);
    const int32_t* members = members_.data() + unit.first;
    for (int32_t m = 0; m < unit.count; ++m) {
      for (int32_t w = wait_from_[members[m]]; w < wait_from_[members[m] + 1]; ++w) {
        const double* before = end_.data() + static_cast<size_t>(wait_[w]) * lanes;
        for (size_t lane = 0; lane < lanes; ++lane) {
          barrier[lane] = std::max(barrier[lane], before[lane]);
        }
      }
    }
    for (size_t lane = 0; unit.across_replicas && lane < lanes; lane += replicas) {
      const double last = *std::max_element(barrier + lane, barrier + lane + replicas);
      std::fill(barrier + lane, barrier + lane + replicas, last);
    }
    for (int32_t m = 0; m < unit.count; ++m) {
      const size_t row = static_cast<size_t>(members[m]) * lanes;
      for (size_t lane = 0; lane < lanes; ++lane) {
        end_[row + lane] = barrier[lane] + duration[row + lane];
      }
    }
  }
  std::fill(barrier_.begin(), barrier_.end(), 0.0);
  for (size_t row = 0; row < end_.size(); row += lanes) {
    for (size_t lane = 0; lane < lanes; ++lane) {
      barrier[lane] = std::max(barrier[lane], end_[row + lane]);
    }
  }
  std::vector<double> steps;
  for (size_t lane = 0; lane < lanes; lane += replicas) {
    steps.push_back(*std::max_element(barrier + lane, barrier + lane + replicas));
  }
  return steps;
}

double Replayer::mean(std::span<const double> duration) {
  const std::vector<double> steps = replay(duration);
  return std::accumulate(steps.begin(), steps.end(), 0.0) / static_cast<double>(steps.size());
}

}  // namespace hocket::sim::whatif
