// SPDX-License-Identifier: Apache-2.0
// Names of checkpoints in the folder of a run.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace hocket::checkpoint {

/// Returns the folder name of a step, such as "step-000100".
std::string step_name(int64_t step);
/// Returns the step of a checkpoint's folder name; -1 for other names.
int64_t step_of(std::string_view name);

/// Returns the path that a checkpoint is written to before it is renamed.
std::string temporary_name(const std::string& final_path, int64_t pid);
/// Prefix of the marker files by which processes find out whether they share a file system
/// (run_folder.h).
inline constexpr const char* kMarkerPrefix = ".seen-";
/// Removes the temporary folders of dead processes, and stale marker files. Throws Error if
/// something other than a folder has the name of a checkpoint.
void remove_left_behind(const std::string& run_folder);

}  // namespace hocket::checkpoint
