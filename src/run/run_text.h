// SPDX-License-Identifier: Apache-2.0
// A run as the text of a run.yaml, or as overrides.
#pragma once

#include <string>
#include <vector>

#include "run/config.h"

namespace hocket::engine {

/// Returns the keys of `run` that are not defaults, as YAML that reads back to the same run. The
/// lines of `comment` are at its head.
std::string run_yaml(const Run& run, const std::string& comment);

/// Returns the keys of `run` that are not defaults, as overrides "KEY=VALUE" of an empty file. A
/// list of sections is one of them, since an override cannot add to a list.
std::vector<std::string> assignments_of(const Run& run);

}  // namespace hocket::engine
