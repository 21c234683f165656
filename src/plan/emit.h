// SPDX-License-Identifier: Apache-2.0
// What writers of other trainers' files have in common.
#pragma once

#include <string>
#include <vector>

#include "engine/config.h"

namespace hocket::plan {

/// Error, naming the key, if the run sets a key of `plan` to something else than its default that
/// is not among `expressed`. `trainer`: who cannot express it.
void expect_expressed(const engine::Run& run, const std::string& trainer,
                      const std::vector<std::string>& expressed);
/// Error of a key whose value cannot be expressed.
[[noreturn]] void refuse_key(const engine::Run& run, const std::string& trainer,
                             const std::string& key, const std::string& value,
                             const std::string& expected);

}  // namespace hocket::plan
