// SPDX-License-Identifier: Apache-2.0
// Reference of ops for authors of program texts.
#pragma once

#include <string>

namespace hocket::cli {

/// Lists every op in a line; with a name, all of that one, and kinds of it as a text has them.
/// Throws Error if there is no such op.
std::string list_ops(const std::string& name);

}  // namespace hocket::cli
