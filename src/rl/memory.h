// SPDX-License-Identifier: Apache-2.0
// Memory that the programs of a step take in turn, planned for the most micro-batches that samples
// can fill.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "engine/memory.h"
#include "program/memory.h"
#include "run/compile.h"

namespace hocket::rl {

/// Returns a program's spec by its number of micro-batches.
using SpecOf = std::function<engine::ProgramSpec(int64_t micro_batches)>;

/// Returns the memory of a program by rank.
std::vector<program::Memory> memory_by_rank(const program::Program& program);
/// Returns the memory of a program with so many micro-batches, by rank. That of many follows from
/// programs of few, since from there on every further one adds as much. `multiple`: divisor of the
/// number of micro-batches.
std::vector<program::Memory> memory_at(const SpecOf& spec, int64_t micro_batches, int64_t multiple);

class MemoryPlan {
 public:
  /// Requires: both outlive it.
  MemoryPlan(const engine::Run& run, const runtime::LocalRanks& ranks) : run_(run), ranks_(ranks) {}

  /// Adds a program by its memory per rank. `with_store`: its persistent tensors are those of no
  /// program before.
  void add(const std::vector<program::Memory>& by_rank, bool with_store);
  /// Returns the planned memory by class of a program; of a class that of its fullest rank.
  std::vector<program::Memory> by_class(const program::Program& program) const;
  /// Throws Error if a program, compiled after the plan was made, needs more than was planned, and
  /// more than the ranks can have. `remedy` ends the message. All processes call.
  void require(const program::Program& later, const std::string& remedy) const;

 private:
  const engine::Run& run_;
  const runtime::LocalRanks& ranks_;
  std::vector<program::Memory> by_rank_;
};

}  // namespace hocket::rl
