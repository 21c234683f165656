// SPDX-License-Identifier: Apache-2.0
// Arithmetic of shell scripts: what $(( )) holds.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace hocket::interop {

/// Returns the value of integers with + - * / and parentheses; none for any other text, a division
/// by 0, and numbers beyond 64 bits.
std::optional<int64_t> shell_sum(const std::string& text);

}  // namespace hocket::interop
