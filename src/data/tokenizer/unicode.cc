// SPDX-License-Identifier: Apache-2.0
#include "data/tokenizer/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/utf8.h"

namespace hocket::data {
namespace {

// No character from here on decomposes, combines, or is composed.
constexpr uint32_t kFirstPlain = 0x30000;
// Hangul syllables and their conjoining vowels and finals (The Unicode Standard, 3.12).
constexpr uint32_t kHangul = 0xAC00, kHangulEnd = 0xD7A4, kVowels = 0x1161, kFinalsEnd = 0x11C3;

utf8proc_category_t category(uint32_t c) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(c));
}
int combining_class(uint32_t c) {
  return utf8proc_get_property(static_cast<utf8proc_int32_t>(c))->combining_class;
}

// Longest decomposition in Unicode: 18 characters, of U+FDFA.
using Decomposed = std::array<utf8proc_int32_t, 32>;

size_t decompose(uint32_t c, int options, Decomposed* out) {
  int unused = 0;
  const auto count =
      utf8proc_decompose_char(static_cast<utf8proc_int32_t>(c), out->data(), out->size(),
                              static_cast<utf8proc_option_t>(options), &unused);
  HOCKET_CHECK(count > 0 && std::cmp_less_equal(count, out->size()), "U+{:04X} gives {}", c, count);
  return static_cast<size_t>(count);
}

size_t compose(utf8proc_int32_t* text, size_t count) {
  constexpr int kOptions = UTF8PROC_COMPOSE | UTF8PROC_STABLE;
  const auto left = utf8proc_normalize_utf32(text, static_cast<utf8proc_ssize_t>(count),
                                             static_cast<utf8proc_option_t>(kOptions));
  HOCKET_CHECK(left >= 0, "composition of {} characters gives {}", count, left);
  return static_cast<size_t>(left);
}

}  // namespace

size_t utf8_before(std::string_view text, size_t end) {
  for (size_t n = 1; n <= 4 && n <= end; ++n) {
    if (std::cmp_equal(utf8_length(text.substr(0, end), end - n), n)) return end - n;
  }
  return end;
}

bool is_white_space(uint32_t c) {
  return (c >= 9 && c <= 13) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

bool is_word_char(uint32_t c) {
  if (c < 0x80) {
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_';
  }
  switch (category(c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
      return true;
    default:
      // Circled, squared and joining characters that are alphabetic or join.
      return (c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) ||
             (c >= 0x1F150 && c <= 0x1F169) || (c >= 0x1F170 && c <= 0x1F189) || c == 0x200C ||
             c == 0x200D;
  }
}

bool is_mark(uint32_t c) {
  const utf8proc_category_t kind = category(c);
  return kind == UTF8PROC_CATEGORY_MN || kind == UTF8PROC_CATEGORY_MC ||
         kind == UTF8PROC_CATEGORY_ME;
}

void append_lower(uint32_t c, std::string* out) {
  // The only character whose lower case, apart from context and language, is two.
  if (c == 0x130) {
    *out += "i\u0307";
    return;
  }
  append_utf8(static_cast<uint32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))), out);
}

NormalForm::NormalForm(bool compatibility, bool composed)
    : options_(UTF8PROC_DECOMPOSE | UTF8PROC_STABLE | (compatibility ? UTF8PROC_COMPAT : 0)),
      composed_(composed),
      inert_(kFirstPlain, true) {
  Decomposed parts;
  for (uint32_t c = 0; c < kFirstPlain; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    if (combining_class(c) != 0) {
      inert_[c] = false;
    }
    if (utf8proc_get_property(static_cast<utf8proc_int32_t>(c))->decomp_seqindex == UINT16_MAX) {
      continue;
    }
    const size_t count = decompose(c, options_, &parts);
    if (!composed) {
      inert_[c] = inert_[c] && count == 1 && std::cmp_equal(parts[0], c);
      continue;
    }
    // Each part but the first may be composed with what stands before it.
    for (size_t i = 1; i < count; ++i) {
      inert_[parts[i]] = false;
    }
    const size_t left = compose(parts.data(), count);
    if (left != 1 || std::cmp_not_equal(parts[0], c)) {
      inert_[c] = false;
    }
  }
  for (uint32_t c = kVowels; composed && c < kFinalsEnd; ++c) {
    inert_[c] = false;
  }
  for (uint32_t c = kHangul; !composed && c < kHangulEnd; ++c) {
    inert_[c] = false;
  }
}

bool NormalForm::inert(uint32_t c) const { return c >= kFirstPlain || inert_[c]; }

bool NormalForm::next(std::string_view text, size_t at, size_t* begin, size_t* end) const {
  size_t before = at;  // start of the character before `at`, or `at` behind malformed bytes
  while (at < text.size()) {
    if (static_cast<uint8_t>(text[at]) < 0x80) {
      before = at++;
      continue;
    }
    const int length = utf8_length(text, at);
    if (length == 0) {
      before = ++at;
      continue;
    }
    if (inert(utf8_code_point(text, at, length))) {
      before = at;
      at += length;
      continue;
    }
    *begin = before;
    while (at < text.size()) {
      const int next = utf8_length(text, at);
      if (next == 0 || inert(utf8_code_point(text, at, next))) break;
      at += next;
    }
    *end = at;
    return true;
  }
  return false;
}

void NormalForm::append(std::string_view stretch, std::string* out) const {
  // Unicode's steps: decompose, put marks into the order of their classes (stable: marks of one
  // class keep theirs), compose.
  std::vector<utf8proc_int32_t> points;
  Decomposed parts;
  for (size_t i = 0; i < stretch.size();) {
    const int length = utf8_length(stretch, i);
    const size_t count = decompose(utf8_code_point(stretch, i, length), options_, &parts);
    points.insert(points.end(), parts.begin(), parts.begin() + count);
    i += length;
  }
  for (size_t i = 0; i < points.size();) {
    size_t run = i;
    while (run < points.size() && combining_class(points[run]) != 0) {
      ++run;
    }
    std::stable_sort(points.begin() + i, points.begin() + run,
                     [](auto a, auto b) { return combining_class(a) < combining_class(b); });
    i = run + 1;
  }
  if (composed_) {
    points.resize(compose(points.data(), points.size()));
  }
  for (const utf8proc_int32_t c : points) {
    append_utf8(static_cast<uint32_t>(c), out);
  }
}

}  // namespace hocket::data
