// SPDX-License-Identifier: Apache-2.0
// Completion of a text that was written or edited by hand.
#pragma once

#include <string>
#include <string_view>

#include "program/program.h"

namespace hocket::passes {

/// Fills in derived fields: output types and costs of kinds without them, payloads and workspaces,
/// and the lanes of communication. Unused kinds stay as they are. Throws Error, with the kind and
/// its line, if its op does not accept the operands. `text`: the source text, if any.
void complete(program::Program& program, const std::string& where = "program",
              std::string_view text = {});
/// Returns the program with its dependencies and without a memory plan. Throws Error, in the
/// check's words, if its tasks do not fit together or read buffers that nothing has written.
program::Program with_dependencies(const program::Program& program, const std::string& where);
/// Completes the program: adds dependencies and a memory plan. Throws Error, in the check's words,
/// if no memory plan can be made. Other faults are left to the check.
void finish(program::Program& program, const std::string& where, std::string_view text = {});

}  // namespace hocket::passes
