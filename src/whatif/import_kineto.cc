// SPDX-License-Identifier: Apache-2.0
// Implements: read_kineto (importers.h). PyTorch profiles (Kineto), one file per rank: kernels and
// copies in streams, and the host that launches them and waits for them. Clocks of ranks are set by
// the ends of collectives. Where records of collectives are lost, those ends match them too.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "base/text.h"
#include "whatif/cycles.h"
#include "whatif/importers.h"
#include "whatif/kineto_collectives.h"
#include "whatif/kineto_ops.h"
#include "whatif/kineto_profile.h"
#include "whatif/kineto_ranks.h"
#include "whatif/kineto_steps.h"
#include "whatif/transfers.h"

namespace hocket::whatif {
namespace kineto {
namespace {

constexpr double kMinIdleShare = 0.05;  // of a step: idle time of a device that is an op

class KinetoReader {
 public:
  MeasuredRun read(const std::vector<std::string>& paths) {
    // Reads files, chooses ranks and steps, sets one clock, matches collectives, adds ops with
    // their dependencies within a rank, then groups.
    run_.source = "kineto";
    run_.has_hosts = true;
    run_.waits_from = "of streams and of the host's calls";
    for (const std::string& path : paths) {
      profiles_.push_back(read_profile(path, &run_.dropped));
    }
    const std::set<int64_t> steps = choose_ranks_and_steps(&profiles_, &run_.dropped);
    const double apart = set_clocks(steps, &profiles_, &run_.dropped);
    number_collectives(apart, &profiles_);
    ops(steps);
    kinds();
    waits();
    groups();
    if (const int64_t parted = break_cycles(&run_); parted > 0) {
      note(0,
           fmt::format("the other members of {}, which wait for each other in a cycle: records are "
                       "missing, or clocks are apart",
                       counted(parted, "collective")),
           &run_.dropped);
    }
    settle_transfers(&run_);
    return std::move(run_);
  }

 private:
  void ops(const std::set<int64_t>& steps) {
    const StepTimes times = step_times(steps, profiles_);
    // Dependencies come from one used step; all steps are taken to be alike.
    Names names;
    std::vector<Observed> seen;
    std::vector<RankOps> ranks;
    for (const Profile& profile : profiles_) {
      const PatternWorkerId worker = run_.workers.size();
      ranks.emplace_back(profile, worker, times.begins, kMinIdleShare * times.usual_length(steps),
                         &names);
      ranks.back().add_ops(steps, &seen);
      run_.workers.push_back({profile.rank, 0, worker.value(), fmt::format("rank {}", profile.rank),
                              profile.lost_records()});
      report_lacks(profile);
    }
    run_.pattern_workers = profiles_.size();
    run_.names = names.list;
    const auto idle = names.ids.find(kDeviceIdle);
    assemble(std::move(seen), profiles_[0].path, &run_,
             idle == names.ids.end() ? NameId(kNone) : idle->second);
    leave_out_cold(times);
    carry_in(times);
    for (StepIndex step = 0; step < run_.steps.size() && !times.begins.empty(); ++step) {
      run_.measured_step[step] = times.length(run_.steps[step]);
    }
    const StepIndex step = step_of_waits();
    for (RankOps& rank : ranks) {
      rank.add_waits(run_.follows(step) ? steps : std::set<int64_t>(), run_.steps[step], &waits_);
    }
    if (run_.follows(step)) {
      run_.waits_for_last.resize(run_.ops.size());
    }
  }

  /// Sets from when ops of the first step can begin: a host from where it was, a stream from the
  /// end of earlier work.
  void carry_in(const StepTimes& times) {
    if (times.begins.empty()) return;
    const int64_t step = run_.steps.front();
    const double begin = times.begin(step);
    run_.ready.assign(run_.ops.size(), -1e300);
    std::vector<std::map<int32_t, double>> earlier;
    for (const Profile& profile : profiles_) {
      earlier.push_back(ends_of_earlier(profile, step));
    }
    for (OpId op = 0; op < run_.ops.size(); ++op) {  // of a worker in the order of starts
      const Op& row = run_.ops[op];
      std::map<int32_t, double>& of_worker = earlier[row.worker];
      const auto stream = of_worker.find(row.stream);
      if (run_.names[row.name] == kHostStart) {
        run_.ready[op] = std::min(run_.start[run_.at(op, 0)] - begin, 0.0);
      } else if (stream != of_worker.end() && run_.names[row.name] != kDeviceIdle) {
        run_.ready[op] = stream->second - begin;
        of_worker.erase(stream);
      }
    }
  }

  /// Takes steps that begin cold for warm-up, if others remain.
  void leave_out_cold(const StepTimes& times) {
    const std::set<int64_t> cold = times.cold(run_.steps);
    if (cold.empty() || cold.size() == run_.steps.size()) return;
    for (const int64_t step : run_.steps) {
      run_.warms_up.push_back(cold.count(step) ? 1 : 0);
      if (!cold.count(step)) continue;
      note(0,
           fmt::format("no event, but step {} counts in no mean: it begins with an idle device, "
                       "while hosts begin other steps before their device ends the last one",
                       step),
           &run_.dropped);
    }
  }

  /// Returns the last step that follows another one, else the last step.
  StepIndex step_of_waits() const {
    const StepIndex last = run_.steps.size() - 1;
    for (StepIndex step = last; step >= 0; --step) {
      if (run_.follows(step)) return step;
    }
    return last;
  }

  void report_lacks(const Profile& profile) {
    if (profile.orphans > 0) {
      note(profile.orphans,
           fmt::format("{} of rank {} without a launch in the profile, or in no step",
                       counted(profile.orphans, "kernel"), profile.rank),
           &run_.dropped);
    }
    if (profile.unrecorded > 0) {
      note(0,
           fmt::format("the work launched by {} of rank {}: no record in the profile",
                       counted(profile.unrecorded, "call"), profile.rank),
           &run_.dropped);
    }
    if (profile.outside > 0) {
      note(profile.outside,
           fmt::format("{} of rank {} outside of the profiler's steps",
                       counted(profile.outside, "call"), profile.rank),
           &run_.dropped);
    }
  }

  /// Adds kinds and blocks: the k-th op of a name is of one kind on all ranks. Sums that another
  /// thread than the one which calls first launches are of gradients: PyTorch runs the backward
  /// pass in a thread of its own.
  void kinds() {
    std::map<std::pair<NameId, int32_t>, OpKindId> kinds;
    for (Op& op : run_.ops) {
      const std::string& name = run_.names[op.name];
      const auto sent = waits_.sent.find({op.worker, op.name, op.sequence});
      const bool is_gradient = sent != waits_.sent.end() && sent->second.of_backward;
      op.bytes = sent == waits_.sent.end() ? 0 : sent->second.bytes;
      const auto [at, added] = kinds.try_emplace({op.name, op.sequence}, run_.kinds.size());
      if (added) {
        run_.kinds.push_back(
            {fmt::format("{} {}", name, op.sequence), is_gradient           ? Traffic::gradients
                                                      : is_collective(name) ? Traffic::collective
                                                                            : Traffic::none});
      }
      op.block = run_.blocks.size();
      run_.blocks.push_back({at->second, op.worker, kNone, kNone});
    }
  }

  void waits() {
    std::map<OpKey, OpId> op_of;
    for (OpId op = 0; op < run_.ops.size(); ++op) {
      const Op& row = run_.ops[op];
      op_of[{row.worker, row.name, row.sequence}] = op;
    }
    for (const auto& [key, before] : waits_.of) {
      const auto op = op_of.find(key);
      if (op == op_of.end()) continue;
      for (const OpEnd& place : before) {
        const auto other = op_of.find({std::get<0>(key), place.name, place.sequence});
        if (other == op_of.end()) continue;
        if (place.of_last_step) {
          run_.waits_for_last[op->second].push_back(other->second);
        } else {
          add_wait(&run_, op->second, other->second);
        }
      }
    }
  }

  /// Makes a group of the collectives of a name and number on all ranks that have it.
  void groups() {
    std::map<std::pair<NameId, int32_t>, std::vector<OpId>> members;
    for (OpId op = 0; op < run_.ops.size(); ++op) {
      if (run_.kind(op).communicates()) {
        members[{run_.ops[op].name, run_.ops[op].sequence}].push_back(op);
      }
    }
    int64_t lacking = 0;
    std::string example;
    for (auto& [key, ops] : members) {
      lacking += ops.size() < profiles_.size();
      if (ops.size() < profiles_.size() && example.empty()) {
        example = lack(ops);
      }
      for (const OpId op : ops) {
        run_.ops[op].group = run_.groups.size();
      }
      run_.groups.push_back({ops, false, false});
    }
    if (lacking > 0) {
      run_.dropped.notes.push_back(
          fmt::format("the other members of {}: not all ranks have them (one is {}); they wait for "
                      "those that do",
                      counted(lacking, "collective"), example));
    }
  }

  /// Returns "ncclKernel_AllReduce 3 of rank 5", of the first rank that is not among `members`.
  std::string lack(const std::vector<OpId>& members) const {
    const Op& any = run_.ops[members[0]];
    std::set<PatternWorkerId> have;
    for (const OpId op : members) {
      have.insert(run_.ops[op].worker);
    }
    PatternWorkerId worker = 0;
    while (have.count(worker)) {
      ++worker;
    }
    return fmt::format("{} {} of rank {}", quote(run_.names[any.name]), any.sequence,
                       profiles_[worker].rank);
  }

  MeasuredRun run_;
  std::vector<Profile> profiles_;
  Waits waits_;
};

}  // namespace
}  // namespace kineto

MeasuredRun read_kineto(const std::vector<std::string>& paths, const cost::Cluster* /*cluster*/) {
  return kineto::KinetoReader().read(paths);
}

bool is_kineto(const std::string& beginning) {
  return beginning.find("\"schemaVersion\"") != beginning.npos ||
         beginning.find("\"deviceProperties\"") != beginning.npos;
}

}  // namespace hocket::whatif
