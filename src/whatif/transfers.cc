// SPDX-License-Identifier: Apache-2.0
#include "whatif/transfers.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>

#include "base/text.h"

namespace hocket::whatif {

double tolerance(const MeasuredRun& run) {
  constexpr double kOfStep = 1e-3;  // a thousandth
  double sum = 0;
  for (const double seconds : run.measured_step) {
    sum += seconds;
  }
  return std::max(kSimultaneousSeconds, kOfStep * sum / run.measured_step.size());
}

bool is_absent(const MeasuredRun& run, size_t cell) {
  return run.start[cell] == 0 && run.duration[cell] == 0;
}

bool has_others(const Group& group, const MeasuredRun& run) {
  return group.ops.size() > 1 || (group.across_replicas && run.replicas > 1);
}

void Starts::of(const Group& group, bool timed) {
  std::fill(last.begin(), last.end(), -1e300);
  std::fill(first.begin(), first.end(), 1e300);
  for (const OpId op : group.ops) {
    const double* start = &run_.start[run_.at(op, 0)];
    const double* duration = &run_.duration[run_.at(op, 0)];
    for (size_t sample = 0; sample < last.size(); ++sample) {
      if (timed && duration[sample] == 0) continue;
      last[sample] = std::max(last[sample], start[sample]);
      first[sample] = std::min(first[sample], start[sample]);
    }
  }
  const size_t replicas = run_.replicas;
  for (size_t sample = 0; group.across_replicas && sample < last.size(); sample += replicas) {
    const std::span last_of_step = std::span(last).subspan(sample, replicas);
    const std::span first_of_step = std::span(first).subspan(sample, replicas);
    std::ranges::fill(last_of_step, std::ranges::max(last_of_step));
    std::ranges::fill(first_of_step, std::ranges::min(first_of_step));
  }
}

void measure_steps(MeasuredRun* run) {
  run->measured_step.clear();
  for (StepIndex step = 0; step < run->steps.size(); ++step) {
    double first = 1e300, last = -1e300;
    for (OpId op = 0; op < run->ops.size(); ++op) {
      for (ReplicaId replica = 0; replica < run->replicas; ++replica) {
        const size_t cell = run->at(op, run->sample(step, replica));
        if (is_absent(*run, cell)) continue;
        first = std::min(first, run->start[cell]);
        last = std::max(last, run->start[cell] + run->duration[cell]);
      }
    }
    run->measured_step.push_back(last - first);
  }
}

namespace {

/// Returns whether communication times are the transfer alone.
bool is_of_transfers(const MeasuredRun& run) {
  Starts starts(run);
  int64_t groups = 0, at_once = 0;
  for (const Group& group : run.groups) {
    if (!has_others(group, run)) continue;
    starts.of(group, /*timed=*/true);
    for (size_t sample = 0; sample < starts.last.size(); ++sample) {
      ++groups;
      at_once += starts.last[sample] - starts.first[sample] < kSimultaneousSeconds;
    }
  }
  return at_once * kImpossibleOneIn >= groups * (kImpossibleOneIn - 1);
}

}  // namespace

void settle_transfers(MeasuredRun* run, Early early_ends) {
  const int32_t samples = run->samples();
  Starts starts(*run);
  // A kernel of a collective lasts from its own start, also where all ranks start it at once.
  const bool transfers = !run->has_hosts && is_of_transfers(*run);
  const double apart = tolerance(*run);
  int64_t all = 0, early = 0, negative = 0;
  for (const Group& group : run->groups) {
    starts.of(group);
    for (const OpId op : group.ops) {
      if (group.eager && op == group.ops.front()) continue;
      for (SampleId sample = 0; sample < samples; ++sample) {
        const size_t cell = run->at(op, sample);
        const double waited = starts.last[sample] - run->start[cell];
        ++all;
        early += std::max(run->duration[cell], 0.0) - waited < -apart;
        if (!transfers) {
          run->duration[cell] -= waited;
          run->start[cell] += waited;
        }
        const bool reported = run->duration[cell] <= -kReportedEarlySeconds;
        negative += reported;
        if (reported || early_ends == Early::zero) {
          run->duration[cell] = std::max(run->duration[cell], 0.0);
        }
      }
    }
  }
  run->clocks_apart = !transfers && early * kImpossibleOneIn > all;
  if (run->clocks_apart) {
    run->dropped.notes.push_back(
        fmt::format("clocks apart: {} of {} ended more than {} before all had started; the time "
                    "that members wait for each other is not known, and no cause is named",
                    early, counted(all, "transfer"), human_time(apart)));
  } else if (negative > 0) {
    run->dropped.notes.push_back(
        fmt::format("the time of {} that ended more than 10 ms before all had started: clocks "
                    "apart; taken as 0",
                    counted(negative, "transfer")));
  }
}

}  // namespace hocket::whatif
