// SPDX-License-Identifier: Apache-2.0
// UTF-8, well-formed only: no overlong forms, no surrogates, nothing above U+10FFFF.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace hocket {

/// Length in bytes of the well-formed character at `text[at]`; 0 if there is none.
int utf8_length(std::string_view text, size_t at);

/// End of the longest well-formed stretch that starts at `begin`.
size_t utf8_valid_until(std::string_view text, size_t begin);

/// The code point of the well-formed character at `text[at]`, `length` bytes long.
uint32_t utf8_code_point(std::string_view text, size_t at, int length);

void append_utf8(uint32_t code_point, std::string* out);

bool is_utf8(std::string_view text);

}  // namespace hocket
