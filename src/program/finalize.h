// SPDX-License-Identifier: Apache-2.0
// Last steps of building a program: dependencies between lanes and the memory plan.
#pragma once

#include <array>
#include <vector>

#include "program/program.h"

namespace hocket::program {

/// Position in every lane up to which tasks are known to have finished (-1: none).
using Clock = std::array<int32_t, kNumLanes>;

/// Merges the events that either knows to have finished.
void merge(Clock& into, const Clock& other);

/// Adds to every task the dependencies on tasks of other lanes that its buffers, or buffers on
/// the same memory, require: read after write, write after read, write after write. Drops
/// dependencies that others imply, given ones too. Needs tasks in an order that respects data
/// flow.
void add_dependencies(const Program& program, RankClass& cls);

/// Returns the clock of every task at its start: the events before it. Requires: deps point
/// backwards.
std::vector<Clock> clocks(const RankClass& cls);
/// Position of every task inside its lane.
std::vector<int32_t> lane_positions(const RankClass& cls);

/// Assigns an offset in the arena of its space to every step buffer and workspace. Two buffers
/// share memory only if all uses of one happen before the first use of the other, by lane order and
/// dependencies. Ragged buffers (with an expected size) are in slots of their own, with tenants of
/// one size that start together, away from dense buffers: the touched memory is the largest content
/// so far.
void plan_memory(const Program& program, RankClass& cls);

/// add_dependencies and plan_memory for every class.
void finalize(Program& program);

}  // namespace hocket::program
