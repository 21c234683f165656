// SPDX-License-Identifier: Apache-2.0
// A measured run, independent of its source: ops with their worker and times, dependencies, and
// groups that start together. Importers make it; replay and analysis read it.
//
// Steps repeat, and so do data-parallel replicas. A run is therefore a *pattern* of ops and a table
// of times, with a row per op of the pattern and a column, a *sample*, per step and replica. Runs
// without equal replicas (a program per rank) have one replica, and the pattern holds all ranks.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "whatif/ids.h"

namespace hocket::whatif {

/// Traffic that ops of a kind cause between workers.
enum class Traffic : uint8_t { none, message, collective, gradients };

/// Ops that do the same work and could take the same time: the unit that is made ideal, or k times
/// faster. The time of a communication is its transfer's, once all members have started.
struct OpKind {
  std::string name;
  Traffic traffic = Traffic::none;
  bool communicates() const { return traffic != Traffic::none; }
};

/// An op of the pattern.
struct Op {
  NameId name;
  BlockId block;
  PatternWorkerId worker;
  int32_t stream = 0;  ///< in-order queue of the worker
  int32_t micro_batch = kNone, chunk = kNone;
  int32_t sequence = 0;  ///< the index among ops of its name on its worker in the step
  GroupId group = kNone;
  int64_t bytes = 0;  ///< payload of a communication on its rank; 0: the trace does not say
};

/// Ops of one worker that together are one element of the op-duration tensor of their kind: the
/// forward pass of a micro-batch through a chunk, or a single op.
struct Block {
  OpKindId kind;
  PatternWorkerId worker;
  int32_t micro_batch = kNone, chunk = kNone;
};

/// Ops that transfer only once all of them have started.
struct Group {
  std::vector<OpId> ops;
  bool across_replicas = false;  ///< and so have these ops in all replicas of the step
  /// A message with a sender, ops[0], that does not wait; ops[1] transfers once both have started.
  bool eager = false;
};

/// Worker that runs an op: one of the pattern, in one replica.
struct Worker {
  int64_t rank = 0;  ///< number in the trace
  StageId stage;
  DataRank replica;
  std::string name;
  /// Ops of it, or how long they took, are not in the trace: time between others may be theirs.
  bool records_lost = false;
};

/// Parts of the trace left out of the run, with the reason; one sentence each.
struct Dropped {
  std::vector<std::string> notes;
  int64_t events = 0, steps = 0;
};

struct MeasuredRun {
  std::string source;      ///< which importer read it
  std::string waits_from;  ///< where waits_for is from, in words
  std::string stand_for;   ///< of a simulation: that its ranks stand for others, too, in words
  std::vector<std::string> names;
  std::vector<OpKind> kinds;
  std::vector<Op> ops;
  std::vector<Block> blocks;
  std::vector<Group> groups;
  std::vector<std::vector<OpId>> waits_for;  ///< by op: ops of the pattern that end before it
  /// By op: ops of the step before that it depends on. Empty if every step begins with no work
  /// left. Otherwise a step's length is the difference between its end and the end of the step
  /// before. A host may have launched much of it by then.
  std::vector<std::vector<OpId>> waits_for_last;
  std::vector<int64_t> steps;  ///< their numbers in the trace
  int32_t replicas = 1;
  int32_t pattern_workers = 0, stages = 1;
  std::vector<Worker> workers;  ///< [pattern worker * replicas + replica]
  /// Seconds, [op * samples() + step * replicas + replica]. A communication's duration is that of
  /// its transfer: from when its last member started (settle_transfers()).
  std::vector<double> start, duration;
  /// By step: from the first start to the last end; with waits_for_last from the end of the step
  /// before, or where that is not in the trace from when the device could begin.
  std::vector<double> measured_step;
  /// By op: seconds from the begin of the first step before which it cannot begin, for work that
  /// was queued earlier: negative where a host was ahead. -1e300: no limit. Empty: ops without
  /// dependencies begin with the step.
  std::vector<double> ready;
  /// By step: whether it only fills queues for the next one, and means leave it out. Empty: none.
  std::vector<char> warms_up;
  bool has_hosts = false;     ///< ops in streams below 0 are calls of hosts, which launch others
  bool has_starts = true;     ///< else it is not known how long a step took
  bool clocks_apart = false;  ///< waiting among members is unknown (settle_transfers())
  Dropped dropped;

  int32_t samples() const { return std::ssize(steps) * replicas; }
  size_t at(OpId op, SampleId sample) const { return size_t{op} * samples() + sample; }
  SampleId sample(StepIndex step, ReplicaId replica) const {
    return step.value() * replicas + replica;
  }
  StepIndex step_of(SampleId sample) const { return sample.value() / replicas; }
  ReplicaId replica_of(SampleId sample) const { return sample.value() % replicas; }
  const OpKind& kind(OpId op) const { return kinds[blocks[ops[op].block].kind]; }
  bool is_of_host(OpId op) const { return has_hosts && ops[op].stream < 0; }
  OpKindId kind_of(OpId op) const { return blocks[ops[op].block].kind; }
  WorkerId worker_id(PatternWorkerId worker, ReplicaId replica) const {
    return worker.value() * replicas + replica;
  }
  PatternWorkerId pattern_worker(WorkerId worker) const { return worker.value() / replicas; }
  ReplicaId replica_of(WorkerId worker) const { return worker.value() % replicas; }
  const Worker& worker(OpId op, ReplicaId replica) const {
    return workers[worker_id(ops[op].worker, replica)];
  }
  size_t num_ops() const { return ops.size() * samples(); }
  bool steps_overlap() const { return !waits_for_last.empty(); }
  bool counts(StepIndex step) const { return warms_up.empty() || warms_up[step] == 0; }
  /// Returns the mean of values by step, over the steps that count.
  double mean_of_steps(const std::vector<double>& by_step) const;
  /// Returns whether the run's previous step is also the trace's previous step.
  bool follows(StepIndex step) const { return step > 0 && steps[step] == steps[step - 1] + 1; }
};

/// An op as it was seen. Times in seconds.
struct Observed {
  double start = 0, duration = 0;
  int64_t step = 0;
  ReplicaId replica;
  PatternWorkerId worker;
  NameId name;
  int32_t sequence = kNone;
  int32_t stream = 0, micro_batch = kNone, chunk = kNone;
};

/// Fills ops, steps and times from observations. Numbers observations without a sequence by name
/// and worker, in the order of starts. The pattern is the one that most samples have, among equals
/// the one with most ops. Drops steps with a deviating sample, and a note gives which and why.
/// Leaves blocks, groups and dependencies to the importer. Ops named by `optional` may be
/// absent, and take no time there. Requires: `replicas` and `pattern_workers` are
/// set. Throws Error if no repeating step is left.
void assemble(std::vector<Observed> seen, const std::string& where, MeasuredRun* run,
              NameId optional = kNone);

/// Adds a note that the run's only step is not whole, because a file that is `cut` off ended within
/// it.
void note_cut_step(bool cut, int64_t last_step, MeasuredRun* run);

/// Gives every op without a block one of its own, of the kind of its name. `traffic` is by name.
void give_blocks(const std::vector<Traffic>& traffic, MeasuredRun* run);

/// Adds `before` to the dependencies of `op`, if absent.
void add_wait(MeasuredRun* run, OpId op, OpId before);

}  // namespace hocket::whatif
