// SPDX-License-Identifier: Apache-2.0
// Small text helpers: nearest name (for error messages), splitting, strict number parsing, and
// sizes, times and counts as people read them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace hocket {

/// Edits that turn `a` into `b`: insert, delete, replace, or swap of neighbours (optimal string
/// alignment). O(|a| |b|) time.
int edit_distance(std::string_view text, std::string_view b);

/// The candidate closest to `word`, the first of equals; empty if none is close enough to be meant
/// (more edits than a third of the longer name, at least 2 allowed), ignoring case.
std::string nearest(std::string_view word, const std::vector<std::string>& candidates);

/// Returns the text without leading and trailing blanks, tabs and line ends. The view is into
/// `text`.
std::string_view trim(std::string_view text);

/// Pieces between separators; `split("a,,b", ',')` has three. An empty text has one empty piece.
std::vector<std::string> split(std::string_view text, char separator);

std::string join(const std::vector<std::string>& parts, std::string_view separator);

/// Parses the whole text strictly: no blanks, no trailing characters, no overflow. False and `*out`
/// untouched if it does not parse. Doubles: decimal or exponent form; no inf or nan.
bool parse_int(std::string_view text, int64_t* out);
bool parse_double(std::string_view text, double* out);

/// "817 B", "1.5 KiB", "12.3 GiB".
std::string human_bytes(double bytes);
/// "850 ns", "12.3 us", "4.56 ms", "1.23 s", "2 min 05 s", "3 h 20 min".
std::string human_time(double seconds);
/// "950", "1.23 k", "30.5 B" (k, M, B, T: 10^3 to 10^12).
std::string human_count(double count);

/// "0.25", "inf", "nan": what is no number has no sign.
std::string number_text(double value);

/// "1 file", "3 files".
std::string counted(int64_t count, std::string_view noun);

/// `text` with backslashes, control characters and the characters of `also` written as \xHH, so
/// that none of them occurs in it.
std::string escape(std::string_view text, std::string_view also);
/// Inverse of escape, whatever `also` was. False if a backslash begins no \xHH.
bool unescape(std::string_view text, std::string* out);

/// Quotes `text` for an error message: control characters and bytes beyond ASCII escaped, at most
/// `limit` bytes of it shown.
std::string quote(std::string_view text, size_t limit = 80);

/// `word` as a shell reads it back: as it is, or in single quotes.
std::string shell_quoted(const std::string& word);

/// `text` for a terminal: control characters but line ends and tabs written as \xHH, so that none
/// of them acts there.
std::string printable(std::string_view text);

}  // namespace hocket
