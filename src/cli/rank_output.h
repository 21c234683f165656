// SPDX-License-Identifier: Apache-2.0
// Output of ranks as processes: rank 0 prints where it was started, the others into files.
#pragma once

#include <string>

namespace hocket::cli {

/// Sends this process's output to `<folder>/rank-N.log` from now on, if it is rank N > 0 of
/// several; with no folder, discards it.
void redirect_output(const std::string& folder);
/// Reports the error that ended this process, once for all of them. If all have the same error
/// (comm::mark_common_error), only rank 0 does. Otherwise rank 0 reports to the launcher's stream,
/// or rank 1 if rank 0 failed, and the others to their files. A single process reports to standard
/// error. `own` marks an error of this process, which ends the others too, in contrast to one
/// received from them.
void print_error(const std::string& text, bool own);
/// Waits until all processes have finished their work.
void end_together();

}  // namespace hocket::cli
