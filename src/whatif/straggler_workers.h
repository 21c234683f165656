// SPDX-License-Identifier: Apache-2.0
// Who the threads of a straggler trace are: a process per data-parallel rank, in it a worker per
// pipeline and tensor rank with a thread for each kind of op. Also who of them is missing.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "whatif/measured_run.h"
#include "whatif/megatron.h"

namespace hocket::whatif::straggler {

/// A thread of the file, with what its name "PP rank 1, TP rank 0, compute" says.
struct Thread {
  int64_t pid = 0, tid = 0;
  int32_t stage = kNone, tensor = 0;
  std::string label;  ///< the whole name
  bool used = false;  ///< has events of known ops
};

struct Workers {
  std::vector<Worker> list;                            ///< as MeasuredRun::workers
  std::vector<megatron::Place> places;                 ///< by worker of the pattern
  std::vector<std::pair<int32_t, int32_t>> of_thread;  ///< worker of the pattern, and replica
  int32_t replicas = 1, stages = 1;
  std::vector<std::string> notes;  ///< who has no events
};

/// `replica_named`: of processes, by "DP rank [3]"; kNone: by another name. Data-parallel ranks are
/// in the order of these names, or of processes if not all have one of their own.
Workers find_workers(std::vector<Thread> threads, const std::map<int64_t, int32_t>& replica_named);

}  // namespace hocket::whatif::straggler
