// SPDX-License-Identifier: Apache-2.0
// Random single faults in a good program: what a wrong lowering or pass could do. Used to measure
// the check (`hocket check --mutate N --seed S`): a mutant must be refused with the right task
// named, or be harmless.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "check/check.h"
#include "program/program.h"

namespace hocket::check {

struct Mutation {
  std::string kind;  ///< a row of mutation_kinds()
  std::string text;  ///< what was changed, with the task's name
  /// Tasks of the mutated program that were changed, or next to which one was removed.
  std::vector<TaskRef> tasks;
  /// `tasks` and the tasks that share a buffer, an edge, a message or a collective with them before
  /// or after the change.
  std::set<TaskRef> near;
};

/// Names of the kinds of faults.
std::vector<std::string> mutation_kinds();

/// Applies one random fault, chosen by `seed`, in place. `kind`: only this kind ("" : any). False
/// if the program has nothing that this kind can change.
bool mutate(program::Program& program, uint64_t seed, Mutation* mutation,
            const std::string& kind = "");

/// How well a verdict on a mutant names the fault.
enum class Localisation : uint8_t {
  accepted,  ///< nothing was refused: the mutant must be harmless
  exact,     ///< the first problem names a changed task
  near,      ///< the first problem names, or relates to, a task directly connected to a changed one
  missed,    ///< refused, but with other tasks named
};
Localisation localise(const Mutation& mutation, const Verdict& verdict);

}  // namespace hocket::check
