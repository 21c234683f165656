// SPDX-License-Identifier: Apache-2.0
// Memory of local ranks: a check before anything is allocated, and the comparison of use with the
// plan.
#pragma once

#include <vector>

#include "engine/session.h"
#include "program/memory.h"

namespace hocket::engine {

/// Returns the memory available without swapping, in bytes; 0: unknown.
int64_t available_memory();

/// Throws Error (exit code 2) if a rank of the program needs more memory than cluster.memory_budget
/// allows. Without a budget, throws if all local ranks need more than this machine has to give.
/// Also throws for more addresses than a process has. Requires: nothing is allocated for the ranks
/// yet. `planned` is by class.
void require_memory(const engine::Run& run, const program::Program& program,
                    const std::vector<program::Memory>& planned);
/// The same for a program without evaluation.
void require_memory(const engine::Run& run, const program::Program& program);

/// Returns why ranks with these bytes do not fit, like require_memory for later needs, or "".
std::string why_too_large(const engine::Run& run, const std::vector<int64_t>& by_rank);

/// Bytes of the class that needs most.
int64_t most_planned(const std::vector<program::Memory>& planned);

/// Compares the ranks' memory with the plan, step by step.
class MemoryWatch {
 public:
  explicit MemoryWatch(const engine::Run& run) : run_(run) {}
  /// Checks the memory after a step. Warns once, when a rank first has taken more than planned:
  /// routing is less even than ragged buffers count on. Throws Error (exit code 1) beyond
  /// cluster.memory_budget.
  void after_step(const engine::Session& session, const std::vector<program::Memory>& planned);
  /// Bytes of the rank that has taken most.
  int64_t most() const { return most_; }

 private:
  const engine::Run& run_;
  int64_t most_ = 0;
  bool warned_ = false;
};

}  // namespace hocket::engine
