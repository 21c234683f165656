// SPDX-License-Identifier: Apache-2.0
// A run as the text of a run.yaml.
#pragma once

#include <string>

#include "run/config.h"

namespace hocket::cli {

/// Returns the keys of `run` that are not defaults, as YAML that reads back to the same run, with
/// the lines of `comment` at its head.
std::string run_yaml(const engine::Run& run, const std::string& comment);

}  // namespace hocket::cli
