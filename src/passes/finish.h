// SPDX-License-Identifier: Apache-2.0
// What makes a program of a text that was written or edited by hand.
#pragma once

#include <string>
#include <string_view>

#include "program/program.h"

namespace hocket::passes {

/// Fills in what follows from the rest: output types of kinds that name none, costs of kinds that
/// have none, payloads and workspaces, and the lanes of communication. Kinds that no task has stay
/// as they are. Error, with the kind and its line: its op does not take these operands. `text`:
/// what the program was read from, if from a text.
void complete(program::Program& program, const std::string& where = "program",
              std::string_view text = {});
/// The program with its dependencies and without a memory plan. Error, with the check's words: no
/// plan can be made of it, since its tasks do not fit together or read what nothing has written.
program::Program with_dependencies(const program::Program& program, const std::string& where);
/// Completes the program, and gives it dependencies and a memory plan. Error, with the check's
/// words: no plan can be made of it. What else is wrong is for the check.
void finish(program::Program& program, const std::string& where, std::string_view text = {});

}  // namespace hocket::passes
