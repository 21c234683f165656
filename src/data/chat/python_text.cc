// SPDX-License-Identifier: Apache-2.0
#include "data/chat/python_text.h"

#include <algorithm>
#include <cstring>
#include <iterator>

#include "base/utf8.h"

namespace hocket::data::jinja {
namespace {

struct CaseRun {
  uint32_t first, last, stride;
  int32_t difference;
};
struct CaseText {
  uint32_t code_point, out[3];
};
struct CodeRange {
  uint32_t first, last;
};

#include "data/chat/python_text_tables.inc"

constexpr uint32_t kCapitalSigma = 0x3A3, kSmallSigma = 0x3C3, kFinalSigma = 0x3C2;

template <size_t N>
void in_runs(const CaseRun (&runs)[N], uint32_t c, uint32_t* out) {
  const CaseRun* run = std::upper_bound(std::begin(runs), std::end(runs), c,
                                        [](uint32_t x, const CaseRun& r) { return x < r.first; });
  if (run == std::begin(runs)) return;
  --run;
  if (c <= run->last && (c - run->first) % run->stride == 0) {
    *out = static_cast<uint32_t>(static_cast<int32_t>(c) + run->difference);
  }
}

template <size_t N>
const CaseText* in_texts(const CaseText (&texts)[N], uint32_t c) {
  const CaseText* found =
      std::lower_bound(std::begin(texts), std::end(texts), c,
                       [](const CaseText& t, uint32_t x) { return t.code_point < x; });
  return found != std::end(texts) && found->code_point == c ? found : nullptr;
}

void append(const CaseText& text, std::string* out) {
  for (const uint32_t c : text.out) {
    if (c != 0) {
      append_utf8(c, out);
    }
  }
}

void append_upper(uint32_t c, std::string* out) {
  uint32_t upper = c;
  if (c < 0x80) {
    *out += static_cast<char>(c >= 'a' && c <= 'z' ? c - 'a' + 'A' : c);
  } else if (const CaseText* text = in_texts(kUpperTexts, c)) {
    append(*text, out);
  } else {
    in_runs(kUpperRuns, c, &upper);
    append_utf8(upper, out);
  }
}

void append_lower(uint32_t c, std::string* out) {
  uint32_t lower = c;
  if (c < 0x80) {
    *out += static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
  } else if (const CaseText* text = in_texts(kLowerTexts, c)) {
    append(*text, out);
  } else {
    in_runs(kLowerRuns, c, &lower);
    append_utf8(lower, out);
  }
}

void append_title(uint32_t c, std::string* out) {
  if (const CaseText* text = in_texts(kTitleTexts, c)) {
    append(*text, out);
  } else {
    append_upper(c, out);
  }
}

// Returns whether a sigma is final: after a letter, where no letter follows (Unicode,
// SpecialCasing).
bool is_final_sigma(std::string_view text, size_t at, size_t end) {
  size_t begin = at;
  while (begin > 0 && (static_cast<uint8_t>(text[begin - 1]) & 0xC0) == 0x80) {
    --begin;
  }
  if (begin == 0) return false;
  size_t previous = begin - 1;
  if (!is_cased(next_code_point(text, &previous))) return false;
  return end >= text.size() || !is_cased(next_code_point(text, &end));
}

bool breaks_line(uint32_t c) {
  return (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 ||
         c == 0x2029;
}

bool contains(const std::string& characters, uint32_t c) {
  for (size_t at = 0; at < characters.size();) {
    if (next_code_point(characters, &at) == c) return true;
  }
  return false;
}

// Start of the character that ends at `end`, which is not 0.
size_t character_before(std::string_view text, size_t end) {
  size_t begin = end - 1;
  while (begin > 0 && end - begin < 4 && (static_cast<uint8_t>(text[begin]) & 0xC0) == 0x80) {
    --begin;
  }
  const int length = utf8_length(text, begin);
  return begin + static_cast<size_t>(length) == end ? begin : end - 1;
}

std::vector<std::string> split_space(std::string_view text, int64_t limit) {
  std::vector<std::string> parts;
  for (text = strip_left(text); !text.empty(); text = strip_left(text)) {
    size_t end = 0;
    if (limit >= 0 && std::ssize(parts) == limit) {
      parts.emplace_back(strip_right(text));
      break;
    }
    while (end < text.size()) {
      size_t next = end;
      if (is_space(next_code_point(text, &next))) break;
      end = next;
    }
    parts.emplace_back(text.substr(0, end));
    text.remove_prefix(end);
  }
  return parts;
}

std::vector<std::string> split_space_from_right(std::string_view text, int64_t limit) {
  std::vector<std::string> parts;
  for (text = strip_right(text); !text.empty(); text = strip_right(text)) {
    if (limit >= 0 && std::ssize(parts) == limit) {
      parts.emplace_back(strip_left(text));
      break;
    }
    size_t begin = text.size();
    while (begin > 0) {
      const size_t before = character_before(text, begin);
      size_t at = before;
      if (is_space(next_code_point(text, &at))) break;
      begin = before;
    }
    parts.emplace_back(text.substr(begin));
    text = text.substr(0, begin);
  }
  std::reverse(parts.begin(), parts.end());
  return parts;
}

}  // namespace

size_t find_text(std::string_view text, std::string_view part, size_t from) {
  if (part.empty() || from >= text.size()) {
    return part.empty() && from <= text.size() ? from : std::string_view::npos;
  }
  const void* found = memmem(text.data() + from, text.size() - from, part.data(), part.size());
  if (found == nullptr) return std::string_view::npos;
  return static_cast<size_t>(static_cast<const char*>(found) - text.data());
}

uint32_t next_code_point(std::string_view text, size_t* at) {
  const int length = utf8_length(text, *at);
  if (length == 0) return static_cast<uint8_t>(text[(*at)++]);
  const uint32_t c = utf8_code_point(text, *at, length);
  *at += static_cast<size_t>(length);
  return c;
}

int64_t count_characters(std::string_view text) {
  return std::count_if(text.begin(), text.end(),
                       [](char c) { return (static_cast<uint8_t>(c) & 0xC0) != 0x80; });
}

size_t byte_of_character(std::string_view text, int64_t index) {
  size_t at = 0;
  for (int64_t i = 0; i < index && at < text.size(); ++i) {
    next_code_point(text, &at);
  }
  return at;
}

bool is_space(uint32_t c) {
  return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 ||
         c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F ||
         c == 0x205F || c == 0x3000;
}

bool is_printable(uint32_t c) {
  if (c < 0x80) return c >= 0x20 && c < 0x7F;
  const CodeRange* range =
      std::upper_bound(std::begin(kUnprintable), std::end(kUnprintable), c,
                       [](uint32_t x, const CodeRange& r) { return x < r.first; });
  return range == std::begin(kUnprintable) || c > (range - 1)->last;
}

bool is_lower(uint32_t c) {
  if (c < 0x80) return c >= 'a' && c <= 'z';
  std::string upper, own;
  append_upper(c, &upper);
  append_utf8(c, &own);
  return upper != own;
}

bool is_upper(uint32_t c) {
  if (c < 0x80) return c >= 'A' && c <= 'Z';
  std::string lower, own;
  append_lower(c, &lower);
  append_utf8(c, &own);
  return lower != own;
}

bool is_cased(uint32_t c) { return is_lower(c) || is_upper(c); }

std::string_view strip_left(std::string_view text, const std::string* characters) {
  size_t begin = 0;
  while (begin < text.size()) {
    size_t next = begin;
    const uint32_t c = next_code_point(text, &next);
    if (characters != nullptr ? !contains(*characters, c) : !is_space(c)) break;
    begin = next;
  }
  return text.substr(begin);
}

std::string_view strip_right(std::string_view text, const std::string* characters) {
  size_t end = text.size();
  while (end > 0) {
    const size_t before = character_before(text, end);
    size_t at = before;
    const uint32_t c = next_code_point(text, &at);
    if (characters != nullptr ? !contains(*characters, c) : !is_space(c)) break;
    end = before;
  }
  return text.substr(0, end);
}

std::string_view strip(std::string_view text, const std::string* characters) {
  return strip_right(strip_left(text, characters), characters);
}

std::string to_upper(std::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    append_upper(next_code_point(text, &at), &out);
  }
  return out;
}

std::string to_lower(std::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const size_t begin = at;
    const uint32_t c = next_code_point(text, &at);
    if (c == kCapitalSigma) {
      append_utf8(is_final_sigma(text, begin, at) ? kFinalSigma : kSmallSigma, &out);
    } else {
      append_lower(c, &out);
    }
  }
  return out;
}

std::string capitalize(std::string_view text) {
  if (text.empty()) return "";
  std::string out;
  size_t at = 0;
  append_title(next_code_point(text, &at), &out);
  return out + to_lower(text.substr(at));
}

std::string to_title(std::string_view text) {
  std::string out;
  bool in_word = false;
  for (size_t at = 0; at < text.size();) {
    const uint32_t c = next_code_point(text, &at);
    in_word ? append_lower(c, &out) : append_title(c, &out);
    in_word = is_cased(c);
  }
  return out;
}

std::string swap_case(std::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const uint32_t c = next_code_point(text, &at);
    is_upper(c) ? append_lower(c, &out) : append_upper(c, &out);
  }
  return out;
}

std::vector<std::string> split_text(std::string_view text, const std::string* separator,
                                    int64_t limit, bool from_right) {
  if (separator == nullptr) {
    return from_right ? split_space_from_right(text, limit) : split_space(text, limit);
  }
  std::vector<std::string> parts;
  const auto may_cut = [&] { return limit < 0 || std::ssize(parts) < limit; };
  if (!from_right) {
    for (size_t at; may_cut() && (at = find_text(text, *separator)) != std::string_view::npos;) {
      parts.emplace_back(text.substr(0, at));
      text.remove_prefix(at + separator->size());
    }
    parts.emplace_back(text);
    return parts;
  }
  for (size_t at; may_cut() && (at = text.rfind(*separator)) != std::string_view::npos;) {
    parts.emplace_back(text.substr(at + separator->size()));
    text = text.substr(0, at);
  }
  parts.emplace_back(text);
  std::reverse(parts.begin(), parts.end());
  return parts;
}

std::vector<std::string> split_lines(std::string_view text, bool keep_ends) {
  std::vector<std::string> lines;
  for (size_t begin = 0; begin < text.size();) {
    size_t end = begin, next = begin;
    while (next < text.size()) {
      const uint32_t c = next_code_point(text, &next);
      if (breaks_line(c)) {
        if (c == '\r' && next < text.size() && text[next] == '\n') {
          ++next;
        }
        break;
      }
      end = next;
    }
    lines.emplace_back(text.substr(begin, (keep_ends ? next : end) - begin));
    begin = next;
  }
  return lines;
}

std::string replace_text(std::string_view text, std::string_view old, std::string_view now,
                         int64_t limit) {
  std::string out;
  size_t at = 0;
  if (old.empty()) {  // between any two characters, and at both ends
    for (; limit != 0; --limit) {
      out += now;
      if (at >= text.size()) break;
      const size_t begin = at;
      next_code_point(text, &at);
      out += text.substr(begin, at - begin);
    }
    return out += text.substr(std::min(at, text.size()));
  }
  for (size_t found; limit != 0 && (found = find_text(text, old, at)) != std::string_view::npos;
       --limit) {
    out += text.substr(at, found - at);
    out += now;
    at = found + old.size();
  }
  return out += text.substr(at);
}

int64_t count_text(std::string_view text, std::string_view part) {
  if (part.empty()) return count_characters(text) + 1;
  int64_t count = 0;
  for (size_t at = 0; (at = find_text(text, part, at)) != std::string_view::npos;
       at += part.size()) {
    ++count;
  }
  return count;
}

bool is_ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return static_cast<uint8_t>(c) < 0x80; });
}

}  // namespace hocket::data::jinja
