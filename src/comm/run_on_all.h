// SPDX-License-Identifier: Apache-2.0
// Work outside of steps that succeeds in all processes of a run, or fails in all of them.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "comm/communicator.h"

namespace hocket::comm {

/// Runs `work` in every process and returns the results by process index. If it fails in some,
/// every process throws the error of the first of them, prefixed with its name ("rank 3", see
/// Processes::name). In a run of one process the error is unchanged. Collective.
std::vector<std::string> run_on_all(Processes& processes, const std::function<std::string()>& work);

/// Throws Error in all processes unless all pass the same text: "rank 1 has [what] ..; rank 0 has
/// ..". Collective.
void expect_same(Processes& processes, std::string_view where, std::string_view what,
                 const std::string& mine);

}  // namespace hocket::comm
