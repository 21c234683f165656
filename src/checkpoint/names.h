// SPDX-License-Identifier: Apache-2.0
// The names of checkpoints in the folder of a run.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace hocket::checkpoint {

/// "step-000100".
std::string step_name(int64_t step);
/// The step of a checkpoint's folder name; -1 for other names.
int64_t step_of(std::string_view name);

/// Where a checkpoint is written before it has its name.
std::string temporary_name(const std::string& final_path, int64_t pid);
/// How the names of the files begin that processes look for each other with (run_folder.h).
inline constexpr const char* kMark = ".seen-";
/// Removes the temporary folders of processes that are gone, and their marks. Error: a name of a
/// checkpoint that is no folder.
void remove_left_behind(const std::string& run_folder);

}  // namespace hocket::checkpoint
