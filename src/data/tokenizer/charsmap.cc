// SPDX-License-Identifier: Apache-2.0
#include "data/tokenizer/charsmap.h"

#include <utf8proc.h>

#include <cstring>

#include "base/error.h"
#include "base/utf8.h"
#include "data/tokenizer/normalizer.h"

namespace hocket::data {
namespace {

constexpr size_t kLongestCluster = 6;  // bytes; a longer one is looked up by characters only

// End of the grapheme cluster that begins at `at`. Requires: a well-formed character there.
size_t cluster_end(std::string_view text, size_t at) {
  utf8proc_int32_t state = 0;
  int length = utf8_length(text, at);
  uint32_t last = utf8_code_point(text, at, length);
  for (at += length; at < text.size(); at += length) {
    length = utf8_length(text, at);
    if (length == 0) break;
    const uint32_t c = utf8_code_point(text, at, length);
    if (utf8proc_grapheme_break_stateful(static_cast<utf8proc_int32_t>(last),
                                         static_cast<utf8proc_int32_t>(c), &state)) {
      break;
    }
    last = c;
  }
  return at;
}

}  // namespace

Charsmap::Charsmap(std::string_view table) {
  uint32_t bytes = 0;
  if (table.size() >= sizeof bytes) {
    std::memcpy(&bytes, table.data(), sizeof bytes);
  }
  if (table.size() < sizeof bytes + bytes || bytes == 0 || bytes % sizeof(uint32_t) != 0) {
    fail("tokenizer", "a table of replacements of {} bytes with a trie of {}; expected both whole",
         table.size(), bytes);
  }
  units_.resize(bytes / sizeof(uint32_t));
  std::memcpy(units_.data(), table.data() + sizeof bytes, bytes);
  texts_ = table.substr(sizeof bytes + bytes);
}

// Finds the shortest text of the trie that `text` begins with, as `tokenizers` does.
bool Charsmap::find(std::string_view text, std::string_view* replacement) const {
  const auto step = [](uint32_t unit) { return (unit >> 10) << ((unit & (1u << 9)) >> 6); };
  size_t at = step(units_[0]);
  for (const char c : text) {
    const auto byte = static_cast<uint8_t>(c);
    at ^= byte;
    if (byte == 0 || at >= units_.size()) return false;
    const uint32_t unit = units_[at];
    if ((unit & (1u << 31 | 0xFF)) != byte) return false;
    at ^= step(unit);
    if ((unit >> 8 & 1) == 0) continue;
    if (at >= units_.size()) return false;
    const size_t begin = units_[at] & ~(1u << 31);
    if (begin >= texts_.size()) return false;
    *replacement = std::string_view(texts_).substr(begin);
    *replacement = replacement->substr(0, replacement->find('\0'));
    return true;
  }
  return false;
}

bool Charsmap::apply(const Piece& in, Rewritten* out) const {
  bool changed = false;
  size_t done = 0;
  const auto replaced = [&](size_t begin, size_t end) {
    std::string_view by;
    if (!find(in.text.substr(begin, end - begin), &by)) return false;
    if (!changed) {
      out->start(in);
      out->reserve(in.text.size());
      changed = true;
    }
    out->keep(done, begin);
    out->put(by, begin, end);
    done = end;
    return true;
  };
  for (size_t at = 0; at < in.text.size();) {
    if (utf8_length(in.text, at) == 0) {
      ++at;
      continue;
    }
    const size_t end = cluster_end(in.text, at);
    if (end - at < kLongestCluster && replaced(at, end)) {
      at = end;
      continue;
    }
    while (at < end) {
      const int length = utf8_length(in.text, at);
      replaced(at, at + length);
      at += length;
    }
  }
  if (changed) {
    out->keep(done, in.text.size());
  }
  return changed;
}

}  // namespace hocket::data
