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
/// The same, and dependencies and the memory plan. What else is wrong is for the check, but for
/// what no plan can be made of: Error, with the check's words.
void finish(program::Program& program, const std::string& where, std::string_view text = {});

}  // namespace hocket::passes
