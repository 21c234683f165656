// SPDX-License-Identifier: Apache-2.0
// Bounded reading of config.json keys; every error names the file, the key and the legal values. A
// null key counts as absent. Internal to src/models.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace hocket::models {

/// Bound of the width of any tensor: with it every product of sizes stays below 2^62 bytes.
inline constexpr int64_t kMaxWidth = int64_t{1} << 20;

/// Integer in [low, high]; without a fallback the key must be there.
int64_t read_int(const JsonView& in, std::string_view key, int64_t low, int64_t high,
                 std::optional<int64_t> fallback = {});
/// Number in [low, high].
double read_number(const JsonView& in, std::string_view key, double low, double high,
                   std::optional<double> fallback = {});
/// Integers in [low, high]; one integer counts as a list of one; empty when absent.
std::vector<int64_t> read_ints(const JsonView& in, std::string_view key, int64_t low, int64_t high);
/// The window of transformers' mistral and qwen3_moe where a config does not say it.
inline constexpr int64_t kDefaultWindow = 4096;
/// sliding_window: tokens that a query sees, its own included; 0 if it is null, `absent` if it is
/// not there.
int64_t read_window(const JsonView& in, int64_t absent);
/// Error unless the key is absent, null or false.
void refuse(const JsonView& in, std::string_view key, std::string_view advice);
/// Value as errors show it.
std::string show(const JsonView& value);

}  // namespace hocket::models
