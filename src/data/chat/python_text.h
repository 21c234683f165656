// SPDX-License-Identifier: Apache-2.0
// Python's str operations on UTF-8: what counts is a code point, not a byte.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace hocket::data::jinja {

constexpr size_t kNotFound = std::string_view::npos;

/// std::string_view::find in linear time, whatever the two are.
size_t find_text(std::string_view text, std::string_view part, size_t from = 0);

/// Code point of the character at `*at`, which moves behind it. A byte that is not UTF-8 counts as
/// a character.
uint32_t next_code_point(std::string_view text, size_t* at);
int64_t count_characters(std::string_view text);
/// Byte offset of the `index`-th character; the end for an index of the length or more.
size_t byte_of_character(std::string_view text, int64_t index);

bool is_space(uint32_t code_point);      ///< str.isspace
bool is_printable(uint32_t code_point);  ///< str.isprintable
bool is_cased(uint32_t code_point);      ///< has an upper or a lower case
bool is_upper(uint32_t code_point);
bool is_lower(uint32_t code_point);

/// Parts of `text` without white space at the ends, or without characters of `*characters`.
std::string_view strip_left(std::string_view text, const std::string* characters = nullptr);
std::string_view strip_right(std::string_view text, const std::string* characters = nullptr);
std::string_view strip(std::string_view text, const std::string* characters = nullptr);

std::string to_upper(std::string_view text);
std::string to_lower(std::string_view text);
std::string capitalize(std::string_view text);
std::string to_title(std::string_view text);
std::string swap_case(std::string_view text);

/// str.split and str.rsplit: at most `limit` cuts, any number if negative; without a separator at
/// runs of white space.
std::vector<std::string> split_text(std::string_view text, const std::string* separator,
                                    int64_t limit, bool from_right);
std::vector<std::string> split_lines(std::string_view text, bool keep_ends);
/// str.replace: the first `limit` occurrences, all if negative.
std::string replace_text(std::string_view text, std::string_view old, std::string_view now,
                         int64_t limit);
/// Occurrences that do not overlap.
int64_t count_text(std::string_view text, std::string_view part);
bool is_ascii(std::string_view text);

}  // namespace hocket::data::jinja
