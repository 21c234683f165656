// SPDX-License-Identifier: Apache-2.0
// Mutated inputs for readers, until a time is over: HOCKET_FUZZ_SECONDS=S makes tests longer, and
// HOCKET_SEED=S draws others; the printed seed draws the same again.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/rng.h"

namespace hocket::test {

/// Calls `read` with inputs drawn by `draw`, for `seconds` unless the environment says otherwise.
/// Fails if one takes more than 20 s, or throws anything but an input Error; `text` shows an input.
/// Expects that some are read and some are refused.
void fuzz(double seconds, const std::function<std::string(Rng* rng)>& draw,
          const std::function<void(const std::string& input)>& read);

/// Changes one to four values of a JSON text: another value, none, twice, or that of another place.
std::string mutated_json(const std::vector<nlohmann::json>& seeds, Rng* rng);

/// Changes one to four places among the first `head` bytes: other bytes, large numbers, cuts,
/// repetitions.
std::string mutated_bytes(std::string bytes, size_t head, Rng* rng);

}  // namespace hocket::test
