// SPDX-License-Identifier: Apache-2.0
// Unicode normalisation form C (Unicode Standard Annex 15), which some tokenizers apply first.
#pragma once

#include <string>
#include <string_view>

namespace hocket::data {

/// False only if `text` surely is in form C already: it holds no character that combines,
/// decomposes or can be the second part of a composition.
bool may_need_nfc(std::string_view text);

/// `text` in form C. Malformed bytes stay as they are and combine with nothing.
std::string normalize_nfc(std::string_view text);

}  // namespace hocket::data
