// SPDX-License-Identifier: Apache-2.0
// Translation of Oniguruma's regular expressions (Ruby syntax, UTF-8) into PCRE2's. Internal to
// src/data/tokenizer.
#pragma once

#include <string>
#include <string_view>

namespace hocket::data {

/// Returns an expression that PCRE2, with PCRE2_UCP and PCRE2_MULTILINE, reads as Oniguruma reads
/// `pattern`. Throws Error for a construct that PCRE2 takes for another, and that has no
/// translation.
std::string pcre2_syntax(std::string_view pattern);

}  // namespace hocket::data
