// SPDX-License-Identifier: Apache-2.0
#include "whatif/straggler_workers.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <set>
#include <tuple>

#include "base/text.h"

namespace hocket::whatif::straggler {
namespace {

constexpr int64_t kThreadsPerWorker = 5;  // compute, pp, tp and dp communication, others

/// Returns a thread's rank, where threads are numbered as StragglerAnalysis does.
int64_t rank_of(const Thread& thread) { return thread.tid / kThreadsPerWorker; }

/// Returns whether a label names one of a worker's threads, as "PP rank 1, TP rank 0, compute"
/// does; "PP rank 1" names all of them.
bool names_one(const std::string& label) {
  return std::count(label.begin(), label.end(), ',') >= 2;
}

class Finder {
 public:
  Finder(std::vector<Thread> threads, const std::map<int64_t, int32_t>& replica_named)
      : threads_(std::move(threads)), replica_named_(replica_named) {}

  Workers find() {
    // Stages of threads without names; which threads are one worker's; processes; the table.
    by_number();
    members();
    number_ranks();
    replicas();
    pattern();
    missing_stages();
    return std::move(found_);
  }

 private:
  /// Stage, tensor rank, and index among threads equal in both.
  using WorkerKey = std::array<int64_t, 3>;
  struct Member {
    int64_t rank = 0, first_thread = 0;
    PatternWorkerId worker;
  };

  // ---- threads without names ----

  /// Numbers stages in the order of ranks. A stage without events in any process shows as a gap.
  /// Ranks must go stage by stage for that, with an equal distance between stages in all processes.
  void by_number() {
    std::map<int64_t, std::set<int64_t>> ranks_of;  // by process
    for (const Thread& thread : threads_) {
      if (thread.used && thread.stage == kNone) {
        ranks_of[thread.pid].insert(rank_of(thread));
      }
    }
    const int64_t apart = stages_apart(ranks_of);
    for (Thread& thread : threads_) {
      if (!thread.used || thread.stage != kNone) continue;
      const std::set<int64_t>& ranks = ranks_of[thread.pid];
      const auto at = ranks.find(rank_of(thread));
      thread.stage = apart > 0 ? *at / apart : std::distance(ranks.begin(), at);
    }
  }

  /// Returns the distance in ranks between stages, or 0 if ranks do not show missing stages.
  static int64_t stages_apart(const std::map<int64_t, std::set<int64_t>>& ranks_of) {
    int64_t apart = 0;
    for (const auto& [pid, ranks] : ranks_of) {
      for (const int64_t rank : ranks) {
        apart = std::gcd(apart, rank - *ranks.begin());
      }
    }
    if (apart == 0) return 0;
    std::set<int64_t> first, there;
    for (const auto& [pid, ranks] : ranks_of) {
      first.insert(*ranks.begin() / apart);
      for (const int64_t rank : ranks) {
        there.insert(rank / apart);
      }
    }
    const int64_t missing = *there.rbegin() + 1 - std::ssize(there);
    return first.size() == 1 && missing < std::ssize(there) ? apart : 0;
  }

  // ---- workers ----

  /// Finds the worker of each thread. Threads of equal names belong to different workers.
  void members() {
    std::map<std::pair<int64_t, std::string>, std::set<int64_t>> alike;
    const auto which = [](const Thread& thread) {
      return names_one(thread.label) ? thread.tid : rank_of(thread);
    };
    for (const Thread& thread : threads_) {
      if (!thread.label.empty()) {
        alike[{thread.pid, thread.label}].insert(which(thread));
      }
    }
    for (const Thread& thread : threads_) {
      WorkerKey place{thread.stage.value(), thread.tensor, 0};
      if (!thread.label.empty()) {
        const std::set<int64_t>& list = alike[{thread.pid, thread.label}];
        place[2] = std::distance(list.begin(), list.find(which(thread)));
      }
      key_of_.push_back(place);
      if (!thread.used) continue;
      const auto [at, added] =
          of_process_[thread.pid].try_emplace(place, Member{rank_of(thread), thread.tid, 0});
      numbered_ = numbered_ && at->second.rank == rank_of(thread);
      at->second.first_thread = std::min(at->second.first_thread, thread.tid);
    }
  }

  /// Numbers ranks in the order of threads where these are numbered in another way than by
  /// StragglerAnalysis.
  void number_ranks() {
    std::set<int64_t> ranks;
    for (const auto& [pid, members] : of_process_) {
      for (const auto& [place, member] : members) {
        numbered_ = ranks.insert(member.rank).second && numbered_;
      }
    }
    if (numbered_) return;
    std::vector<std::tuple<int64_t, int64_t, Member*>> order;
    for (auto& [pid, members] : of_process_) {
      for (auto& [place, member] : members) {
        order.emplace_back(member.first_thread, pid, &member);
      }
    }
    std::sort(order.begin(), order.end());
    for (size_t rank = 0; rank < order.size(); ++rank) {
      std::get<2>(order[rank])->rank = rank;
    }
  }

  /// Numbers the workers of the pattern: (stage, the index among those of that stage in its
  /// process).
  void pattern() {
    std::map<std::pair<StageId, int32_t>, PatternWorkerId> pattern;
    const auto each = [&](auto&& f) {
      for (auto& [pid, members] : of_process_) {
        std::map<StageId, int32_t> in_stage;
        for (auto& [place, member] : members) {
          const StageId stage = place[0];
          f(pid, std::pair(stage, in_stage[stage]++), &member);
        }
      }
    };
    each([&](int64_t, const auto& key, Member*) { pattern.emplace(key, 0); });
    for (auto& [key, index] : pattern) {
      index = found_.cells.size();
      found_.cells.push_back({key.first, key.second});
    }
    found_.list.resize(pattern.size() * found_.replicas);
    each([&](int64_t pid, const auto& key, Member* member) {
      const ReplicaId replica = replica_of_.at(pid);
      member->worker = pattern.at(key);
      found_.list[member->worker.value() * found_.replicas + replica] = {
          member->rank, key.first, replica.value(), "", false};
    });
    found_.of_thread.resize(threads_.size());
    for (ThreadIndex i = 0; i < threads_.size(); ++i) {
      const Thread& thread = threads_[i];
      if (!thread.used) continue;
      found_.of_thread[i] = {of_process_[thread.pid].at(key_of_[i]).worker,
                             replica_of_.at(thread.pid)};
    }
  }

  // ---- present and missing workers ----

  void replicas() {
    std::map<int64_t, int64_t> by_name, by_process;  // number in the trace, to process
    for (const auto& [pid, members] : of_process_) {
      const auto name = replica_named_.find(pid);
      by_process[pid] = pid;
      if (name != replica_named_.end() && name->second >= 0) {
        by_name[name->second] = pid;
      }
    }
    const bool named = by_name.size() == by_process.size();
    const auto& order = named ? by_name : by_process;
    for (const auto& [number, pid] : order) {
      replica_of_.emplace(pid, replica_of_.size());
    }
    found_.replicas = std::max<size_t>(order.size(), 1);
    int64_t last = order.empty() ? 0 : order.rbegin()->first;
    for (const auto& [pid, name] : replica_named_) {
      last = std::max(last, named ? int64_t{name} : last);
    }
    for (const Thread& thread : threads_) {
      last = std::max(last, !named && thread.stage != kNone ? thread.pid : last);
    }
    if (last + 1 > found_.replicas) {
      found_.notes.push_back(fmt::format(
          "{} of data-parallel ranks 0 to {} have no events; those that have are numbered 0 to {}",
          last + 1 - found_.replicas, last, found_.replicas - 1));
    }
  }

  /// Reports stages without events. Threads without events have names, too.
  void missing_stages() {
    std::set<StageId> there;
    for (const megatron::PipelineCell& cell : found_.cells) {
      there.insert(cell.stage);
    }
    for (const Thread& thread : threads_) {
      found_.stages = std::max(found_.stages, thread.stage.value() + 1);
    }
    std::vector<std::string> missing;
    for (StageId stage = 0; stage < found_.stages; ++stage) {
      if (!there.count(stage)) {
        missing.push_back(fmt::format("{}", stage));
      }
    }
    if (missing.size() == 1) {
      found_.notes.push_back(fmt::format(
          "pipeline rank {} has no events; its neighbours do not wait for it", missing[0]));
    } else if (!missing.empty()) {
      found_.notes.push_back(fmt::format(
          "{} of {} pipeline ranks have no events ({}); their neighbours do not wait for "
          "them",
          missing.size(), found_.stages, quote(join(missing, ", "))));
    }
  }

  std::vector<Thread> threads_;
  const std::map<int64_t, int32_t>& replica_named_;
  std::vector<WorkerKey> key_of_;  ///< by thread
  std::map<int64_t, std::map<WorkerKey, Member>> of_process_;
  bool numbered_ = true;                     ///< five threads to a rank
  std::map<int64_t, ReplicaId> replica_of_;  ///< by process
  Workers found_;
};

}  // namespace

Workers find_workers(std::vector<Thread> threads, const std::map<int64_t, int32_t>& replica_named) {
  return Finder(std::move(threads), replica_named).find();
}

}  // namespace hocket::whatif::straggler
