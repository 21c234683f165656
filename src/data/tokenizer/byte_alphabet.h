// SPDX-License-Identifier: Apache-2.0
// The printable alphabet of byte-level BPE: every byte has a printable code point, the one that
// GPT-2's encoder.py (bytes_to_unicode) gave it, so that a vocabulary file is plain text.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace hocket::data {

/// Code point that stands for each byte in vocabulary files: printable Latin-1 stands for itself,
/// the other 68 bytes, in order, are U+0100 to U+0143.
const std::array<uint32_t, 256>& byte_alphabet();

/// Bytes as a vocabulary file writes them.
std::string to_alphabet(std::string_view bytes);

/// The inverse; false (and `*out` unspecified) if `text` has a character outside of the alphabet.
bool from_alphabet(std::string_view text, std::string* out);

}  // namespace hocket::data
