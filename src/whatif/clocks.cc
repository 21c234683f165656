// SPDX-License-Identifier: Apache-2.0
#include "whatif/clocks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/stats.h"
#include "base/text.h"
#include "whatif/transfers.h"

namespace hocket::whatif {
namespace {

/// The clocks of workers, each as that of the first one with which it can be compared.
class Clocks {
 public:
  explicit Clocks(MeasuredRun* run)
      : run_(*run),
        tolerance_(tolerance(*run)),
        offset_(run->workers.size(), 0),
        known_(run->workers.size(), 0) {}

  bool set() {
    // Offsets are kept only if fewer transfers are impossible with them.
    const int64_t before = impossible();
    if (before == 0) return false;
    const int64_t sets = find_offsets();
    double most = 0;
    for (double& offset : offset_) {
      offset = std::fabs(offset) > kSimultaneousSeconds ? offset : 0;
      most = std::max(most, std::fabs(offset));
    }
    if (most == 0) return false;
    const std::vector<double> starts = run_.start;
    move();
    const int64_t after = count();
    if (after >= before) {
      run_.start = starts;
      return false;
    }
    measure_steps(&run_);
    run_.dropped.notes.push_back(fmt::format(
        "no event, but clocks of ranks differed by up to {}; they were set by when collectives "
        "ended and messages arrived: {} had ended before all their members had started, {} still "
        "{}{}",
        human_time(most), counted(before, "transfer"), after, after == 1 ? "has" : "have",
        sets == 1 ? ""
                  : fmt::format("; {} of ranks have no collectives, nor messages both ways, in "
                                "common, and a clock each",
                                counted(sets, "set"))));
    return true;
  }

 private:
  /// Takes a clock that is not known as reference, finds the clocks that can be compared with it,
  /// and repeats for the rest. Returns the number of references.
  int64_t find_offsets() {
    int64_t sets = 0;
    for (WorkerId clock = 0; clock < known_.size(); ++clock) {
      if (known_[clock] != 0) continue;
      known_[clock] = 1;
      ++sets;
      while (follow_collectives() || follow_messages()) {
      }
    }
    return sets;
  }

  WorkerId clock_of(OpId op, SampleId sample) const {
    return run_.worker_id(run_.ops[op].worker, run_.replica_of(sample));
  }
  double end(OpId op, SampleId sample) const {
    return run_.start[run_.at(op, sample)] + run_.duration[run_.at(op, sample)];
  }

  int64_t count() const {
    int64_t early = 0;
    each_transfer(run_, [&](OpId, SampleId, double by) { early += by > tolerance_; });
    return early;
  }

  /// Returns the number of impossible transfers, or 0 if no clock has a tenth of its own
  /// impossible.
  int64_t impossible() const {
    std::vector<int64_t> all(offset_.size(), 0), early(offset_.size(), 0);
    each_transfer(run_, [&](OpId op, SampleId sample, double by) {
      ++all[clock_of(op, sample)];
      early[clock_of(op, sample)] += by > tolerance_;
    });
    int64_t sum = 0;
    bool any = false;
    for (WorkerId clock = 0; clock < all.size(); ++clock) {
      sum += early[clock];
      any = any || early[clock] * kImpossibleOneIn > all[clock];
    }
    return any ? sum : 0;
  }

  /// Calls `f(replica, clock, end)` for the members of a group in a step.
  template <typename F>
  void each_member(const Group& group, StepIndex step, F&& f) const {
    for (const OpId op : group.ops) {
      for (ReplicaId replica = 0; replica < run_.replicas; ++replica) {
        const SampleId sample = run_.sample(step, replica);
        f(replica, clock_of(op, sample), end(op, sample));
      }
    }
  }

  /// Sets unknown clocks that share collectives with a known one. Returns false if there are none.
  bool follow_collectives() {
    std::vector<std::vector<double>> differences(offset_.size());
    std::vector<double> known_end(run_.replicas);
    std::vector<char> has(known_end.size());
    for (const Group& group : run_.groups) {
      if (group.eager || !has_others(group, run_)) continue;
      for (StepIndex step = 0; step < run_.steps.size(); ++step) {
        // Replicas are groups of their own, but for one across all of them.
        const auto one = [&](ReplicaId replica) {
          return group.across_replicas ? ReplicaId(0) : replica;
        };
        std::fill(has.begin(), has.end(), 0);
        each_member(group, step, [&](ReplicaId replica, WorkerId clock, double at) {
          if (known_[clock] == 0 || has[one(replica)] != 0) return;
          has[one(replica)] = 1;
          known_end[one(replica)] = at - offset_[clock];
        });
        each_member(group, step, [&](ReplicaId replica, WorkerId clock, double at) {
          if (known_[clock] == 0 && has[one(replica)] != 0) {
            differences[clock].push_back(at - known_end[one(replica)]);
          }
        });
      }
    }
    bool any = false;
    for (WorkerId clock = 0; clock < offset_.size(); ++clock) {
      if (differences[clock].empty()) continue;
      offset_[clock] = median(differences[clock]);
      known_[clock] = 1;
      any = true;
    }
    return any;
  }

  /// Sets unknown clocks by messages. The shortest times there and back, from a sender's start to
  /// the receiver's end, differ by twice the offset.
  bool follow_messages() {
    constexpr double kNever = 1e300;
    std::vector<double> there(offset_.size(), kNever), back(offset_.size(), kNever);
    for (const Group& group : run_.groups) {
      if (!group.eager) continue;
      for (SampleId sample = 0; sample < run_.samples(); ++sample) {
        const WorkerId from = clock_of(group.ops[0], sample), to = clock_of(group.ops[1], sample);
        if (known_[from] == known_[to]) continue;
        const double takes = (end(group.ops[1], sample) - offset_[to]) -
                             (run_.start[run_.at(group.ops[0], sample)] - offset_[from]);
        double& least = known_[from] != 0 ? there[to] : back[from];
        least = std::min(least, takes);
      }
    }
    bool any = false;
    for (WorkerId clock = 0; clock < offset_.size(); ++clock) {
      if (there[clock] == kNever || back[clock] == kNever) continue;
      offset_[clock] = (there[clock] - back[clock]) / 2;
      known_[clock] = 1;
      any = true;
    }
    return any;
  }

  void move() {
    for (OpId op = 0; op < run_.ops.size(); ++op) {
      for (SampleId sample = 0; sample < run_.samples(); ++sample) {
        const size_t cell = run_.at(op, sample);
        run_.start[cell] -= is_absent(run_, cell) ? 0 : offset_[clock_of(op, sample)];
      }
    }
  }

  MeasuredRun& run_;
  const double tolerance_;
  std::vector<double> offset_;  ///< seconds, by worker as MeasuredRun::workers
  std::vector<char> known_;
};

}  // namespace

bool set_clocks(MeasuredRun* run) { return Clocks(run).set(); }

}  // namespace hocket::whatif
