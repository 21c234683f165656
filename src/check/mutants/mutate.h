// SPDX-License-Identifier: Apache-2.0
// Random single faults in a program, as a wrong lowering or pass could make them. They measure the
// check (`hocket check --mutate N --seed S`): a mutant must be refused with the right task named,
// or be harmless.
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
  std::string text;  ///< the change, with the task's name
  /// Changed tasks of the mutated program, or the neighbours of a removed task.
  std::vector<TaskRef> tasks;
  /// `tasks`, and all tasks that share a buffer, an edge, a message or a collective with them,
  /// before or after the change.
  std::set<TaskRef> near;
};

/// Returns the names of all kinds of faults.
std::vector<std::string> mutation_kinds();

/// Applies one random fault, chosen by `seed`, in place. `kind`: only this kind; "": any. Returns
/// false if the program has nothing that this kind can change.
bool mutate(program::Program& program, uint64_t seed, Mutation* mutation,
            const std::string& kind = "");

/// Quality of the localisation of a fault by a verdict.
enum class Localisation : uint8_t {
  accepted,  ///< nothing was refused; the mutant must be harmless
  exact,     ///< the first problem names a changed task
  near,      ///< the first problem names a task directly connected to a changed one
  missed,    ///< refused, but with other tasks named
};
Localisation localise(const Mutation& mutation, const Verdict& verdict);

}  // namespace hocket::check
