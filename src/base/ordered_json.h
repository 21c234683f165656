// SPDX-License-Identifier: Apache-2.0
// JSON with keys in the order of the text, as messages and tools of a chat need it.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "base/json.h"

namespace hocket {

/// parse_json with keys in the order of the text. Throws Error also for an integer beyond 64 bits.
nlohmann::ordered_json parse_ordered_json(std::string_view text, const std::string& where,
                                          const JsonLimits& limits = {});

}  // namespace hocket
