// SPDX-License-Identifier: Apache-2.0
// Commands of the user's, run by the shell.
#pragma once

#include <string>
#include <string_view>

namespace hocket {

/// Runs `command` with /bin/sh and `input` as standard input; returns its standard output. Standard
/// error is passed through. Throws a run Error that names `what` if it did not start, ended with a
/// status other than 0, or by a signal.
std::string run_command(const std::string& command, std::string_view input,
                        const std::string& what);

}  // namespace hocket
