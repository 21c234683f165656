// SPDX-License-Identifier: Apache-2.0
// What ranks as processes print: rank 0 to where it was started, the others to files.
#pragma once

#include <string>

namespace hocket::cli {

/// From now on, what this process prints goes to `<folder>/rank-N.log`, if it is rank N > 0 of
/// several; with no folder, nowhere.
void redirect_output(const std::string& folder);
/// What ended this process, told once for all of them: by rank 0 alone where all have the same
/// error (comm::mark_common_error); to where they were started by rank 0, or by rank 1 if it was
/// rank 0 that failed; by the others to their files. Alone, to standard error. `own`: it is this
/// process's, and ends the others, too; else it came from them.
void tell_error(const std::string& text, bool own);
/// Waits until all processes have done what they were started for.
void end_together();

}  // namespace hocket::cli
