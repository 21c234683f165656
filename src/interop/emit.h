// SPDX-License-Identifier: Apache-2.0
// What writers of other trainers' files have in common.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "run/config.h"

namespace hocket::interop {

/// Error, naming the key, if the run sets a key of `plan` to something else than its default that
/// is neither among those that every trainer has in some form nor among `others`. `trainer`: who
/// cannot express it.
void expect_expressed(const engine::Run& run, const std::string& trainer,
                      const std::vector<std::string>& others);
/// A note of each of `keys` that the run sets to something else than its default.
std::vector<std::string> notes_of_left_out(const engine::Run& run, const std::string& trainer,
                                           const std::vector<std::string>& keys);
/// As many whole units of `seconds` as last as long at least; a note where that is longer.
int64_t timeout_in(int64_t seconds, const engine::Run& run, const std::string& trainer,
                   std::vector<std::string>* notes);
/// Error of a key whose value cannot be expressed.
[[noreturn]] void refuse_key(const engine::Run& run, const std::string& trainer,
                             const std::string& key, const std::string& value,
                             const std::string& expected);

}  // namespace hocket::interop
