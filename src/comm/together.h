// SPDX-License-Identifier: Apache-2.0
// Work outside of steps that succeeds in all processes of a run, or fails in all of them.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "comm/communicator.h"

namespace hocket::comm {

/// Runs `work` here, waits until every process has run its own, and returns what they gave, by the
/// number of the process. If it fails in some, all throw the error of the first of them, which
/// names it ("rank 3", see Processes::name); in a run of one process the error is what it was.
std::vector<std::string> together(Processes& processes, const std::function<std::string()>& work);

/// Error, in all processes, unless all say the same: "rank 1 has `what` ..; rank 0 has ..".
void expect_same(Processes& processes, std::string_view where, std::string_view what,
                 const std::string& mine);

}  // namespace hocket::comm
