// SPDX-License-Identifier: Apache-2.0
// What writers of other trainers' files have in common.
#pragma once

#include <string>
#include <vector>

#include "engine/config.h"

namespace hocket::plan {

/// Error, naming the key, if the run sets a key of `plan` to something else than its default that
/// is neither among those that every trainer has in some form nor among `others`. `trainer`: who
/// cannot express it.
void expect_expressed(const engine::Run& run, const std::string& trainer,
                      const std::vector<std::string>& others);
/// Error of a key whose value cannot be expressed.
[[noreturn]] void refuse_key(const engine::Run& run, const std::string& trainer,
                             const std::string& key, const std::string& value,
                             const std::string& expected);

}  // namespace hocket::plan
