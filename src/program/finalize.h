// SPDX-License-Identifier: Apache-2.0
// Last steps of building a program: dependencies between lanes and the memory plan.
#pragma once

#include <array>
#include <vector>

#include "program/program.h"

namespace hocket::program {

/// Position in every lane up to which tasks are known to have finished (-1: none).
using Clock = std::array<int32_t, kNumLanes>;

/// What either knows to have finished.
void merge(Clock& into, const Clock& other);

/// Adds to every task the dependencies on tasks of other lanes that its buffers, and those that
/// they have memory in common with, ask for (read after write, write after read, write after
/// write), beyond those already there, and drops those that others imply. Needs tasks in an order
/// that respects data flow.
void add_dependencies(const Program& program, RankClass& cls);

/// Clock of every task at its start: what happened before it. Needs deps to point backwards.
std::vector<Clock> clocks(const RankClass& cls);
/// Position of every task inside its lane.
std::vector<int32_t> lane_positions(const RankClass& cls);

/// The memory that kernels of a lane work in: there they have their workspaces.
Space space_of(Lane lane);

/// Gives every step buffer and workspace an offset in the arena of its space. Two buffers share
/// memory only if all uses of one happen before the first use of the other, by lane order and
/// dependencies. Ragged buffers (with an expected size) lie in slots of their own, each of tenants
/// of one size, which begin together and which no dense buffer cuts: what is touched there is the
/// largest content so far, not more.
void plan_memory(const Program& program, RankClass& cls);

/// add_dependencies and plan_memory for every class.
void finalize(Program& program);

}  // namespace hocket::program
