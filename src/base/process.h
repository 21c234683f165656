// SPDX-License-Identifier: Apache-2.0
// Commands of the user's, run by the shell.
#pragma once

#include <string>
#include <string_view>

namespace hocket {

/// Runs `command` with /bin/sh, gives it `input` on its standard input, and returns what it wrote
/// to its standard output. What it writes to standard error is passed on as it comes. Error (of a
/// run, not of the input): it could not be started, ended with another status than 0, or was ended
/// by a signal; `what` names it in the message.
std::string run_command(const std::string& command, std::string_view input,
                        const std::string& what);

}  // namespace hocket
