// SPDX-License-Identifier: Apache-2.0
// Workers behind the threads of a straggler trace: a process per data-parallel rank, in it a worker
// per pipeline and tensor rank, with a thread for each kind of op. Reports missing workers.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "whatif/measured_run.h"
#include "whatif/megatron.h"

namespace hocket::whatif::straggler {

/// A row of the list of threads of a file.
using ThreadIndex = Id<struct Thread>;

/// A thread of the file, with the ranks in its name "PP rank 1, TP rank 0, compute".
struct Thread {
  int64_t pid = 0, tid = 0;
  StageId stage = kNone;
  int32_t tensor = 0;
  std::string label;  ///< the whole name
  bool used = false;  ///< has events of known ops
};

struct Workers {
  std::vector<Worker> list;                   ///< as MeasuredRun::workers
  std::vector<megatron::PipelineCell> cells;  ///< by worker of the pattern
  std::vector<std::pair<PatternWorkerId, ReplicaId>> of_thread;
  int32_t replicas = 1, stages = 1;
  std::vector<std::string> notes;  ///< workers without events, as sentences
};

/// Returns the workers of `threads`. `replica_named` maps a process to the number in its name "DP
/// rank [3]", or kNone for another name. Data-parallel ranks follow these names, or the order of
/// processes if not all have a distinct one.
Workers find_workers(std::vector<Thread> threads, const std::map<int64_t, int32_t>& replica_named);

}  // namespace hocket::whatif::straggler
