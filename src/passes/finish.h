// SPDX-License-Identifier: Apache-2.0
// What makes a program of a text that was written or edited by hand.
#pragma once

#include <string>

#include "program/program.h"

namespace hocket::passes {

/// Fills in what follows from the rest: output types of kinds that name none, costs of kinds that
/// have none, payloads and workspaces, and the lanes of communication. Throws Error where they do
/// not follow.
void complete(program::Program& program);
/// The same, and dependencies and the memory plan. What else is wrong is for the check, but for
/// what no plan can be made of: Error, with the check's words.
void finish(program::Program& program, const std::string& where);

}  // namespace hocket::passes
