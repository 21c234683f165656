// SPDX-License-Identifier: Apache-2.0
// Formats of strings that JSON Schema names, as patterns.
#pragma once

#include <span>
#include <string_view>

namespace hocket::serve::grammar {

struct StringFormat {
  std::string_view name;
  std::string_view pattern;  ///< texts of the format, not always all of them
  std::string_view note;     ///< the texts that are written
};

std::span<const StringFormat> string_formats();
/// Returns a format by its name; null: it is not enforced.
const StringFormat* find_format(std::string_view name);

}  // namespace hocket::serve::grammar
