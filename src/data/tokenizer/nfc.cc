// SPDX-License-Identifier: Apache-2.0
#include "data/tokenizer/nfc.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "base/utf8.h"

namespace hocket::data {
namespace {

struct CombiningRun {
  uint32_t first, last;
  uint8_t combining;
};
struct SingletonRun {
  uint32_t first, target, count;
};
struct Pair {
  uint32_t whole, first, second;
};

#include "data/tokenizer/nfc_tables.inc"

// Hangul syllables are composed by arithmetic (The Unicode Standard, 3.12).
constexpr uint32_t kS = 0xAC00, kL = 0x1100, kV = 0x1161, kT = 0x11A7;
constexpr uint32_t kVCount = 21, kTCount = 28, kSCount = 19 * kVCount * kTCount;

struct Tables {
  std::unordered_map<uint32_t, uint8_t> combining;
  std::unordered_map<uint32_t, std::pair<uint32_t, uint32_t>> parts;  // second is 0 for one part
  std::unordered_map<uint64_t, uint32_t> composed;
  std::unordered_map<uint32_t, bool> second_parts;

  Tables() {
    for (const CombiningRun& r : kCombining) {
      for (uint32_t c = r.first; c <= r.last; ++c) {
        combining[c] = r.combining;
      }
    }
    for (const SingletonRun& r : kSingletons) {
      for (uint32_t i = 0; i < r.count; ++i) {
        parts[r.first + i] = {r.target + i, 0};
      }
    }
    for (const Pair& p : kExcluded) {
      parts[p.whole] = {p.first, p.second};
    }
    for (const Pair& p : kComposites) {
      parts[p.whole] = {p.first, p.second};
      composed[uint64_t{p.first} << 32 | p.second] = p.whole;
      second_parts[p.second] = true;
    }
  }
  uint8_t combining_class(uint32_t c) const {
    const auto found = combining.find(c);
    return found == combining.end() ? 0 : found->second;
  }
  // 0 if they do not compose.
  uint32_t compose(uint32_t a, uint32_t b) const {
    if (a >= kL && a < kL + 19 && b >= kV && b < kV + kVCount) {
      return kS + ((a - kL) * kVCount + (b - kV)) * kTCount;
    }
    if (a >= kS && a < kS + kSCount && (a - kS) % kTCount == 0 && b > kT && b < kT + kTCount) {
      return a + (b - kT);
    }
    const auto found = composed.find(uint64_t{a} << 32 | b);
    return found == composed.end() ? 0 : found->second;
  }
  void decompose(uint32_t c, std::vector<uint32_t>* out) const {
    if (c >= kS && c < kS + kSCount) {
      const uint32_t s = c - kS;
      out->push_back(kL + s / (kVCount * kTCount));
      out->push_back(kV + s % (kVCount * kTCount) / kTCount);
      if (s % kTCount != 0) {
        out->push_back(kT + s % kTCount);
      }
      return;
    }
    const auto found = parts.find(c);
    if (found == parts.end()) {
      out->push_back(c);
      return;
    }
    decompose(found->second.first, out);
    if (found->second.second != 0) {
      decompose(found->second.second, out);
    }
  }
  // Characters that stand alone in form C whatever precedes them.
  bool inert(uint32_t c) const {
    if (c < 0x300) return true;
    if (c >= kV && c < kT + kTCount) return false;
    return combining_class(c) == 0 && !second_parts.contains(c) &&
           (!parts.contains(c) || composes_back(c));
  }

 private:
  bool composes_back(uint32_t c) const {
    const auto [a, b] = parts.at(c);
    return b != 0 && composed.contains(uint64_t{a} << 32 | b);
  }
};

const Tables& tables() {
  static const Tables t;
  return t;
}

// Composes a decomposed, canonically ordered text in place.
void compose(std::vector<uint32_t>* text) {
  const Tables& t = tables();
  size_t kept = 0;
  ptrdiff_t starter = -1;
  int last_class = -1;  // combining class of the last kept mark since the starter; -1: none
  for (const uint32_t c : *text) {
    const int combining = t.combining_class(c);
    if (starter >= 0 && last_class < combining) {
      uint32_t& base = (*text)[starter];
      if (const uint32_t whole = t.compose(base, c); whole != 0) {
        base = whole;
        continue;
      }
    }
    if (combining == 0) {
      starter = kept;
      last_class = -1;
    } else {
      last_class = combining;
    }
    (*text)[kept++] = c;
  }
  text->resize(kept);
}

}  // namespace

bool may_need_nfc(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    if (static_cast<uint8_t>(text[i]) < 0xCC) {  // below U+0300, or a malformed byte
      ++i;
      continue;
    }
    const int length = utf8_length(text, i);
    if (length > 0 && !tables().inert(utf8_code_point(text, i, length))) return true;
    i += std::max(length, 1);
  }
  return false;
}

std::string normalize_nfc(std::string_view text) {
  // Unicode's three steps over every stretch of valid UTF-8: decompose, put combining marks into
  // the order of their classes (stable: marks of one class keep theirs), compose. Bytes that are no
  // UTF-8 stay as they are and separate the stretches.
  if (!may_need_nfc(text)) return std::string(text);
  const Tables& t = tables();
  std::string out;
  std::vector<uint32_t> points;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = utf8_valid_until(text, begin);
    points.clear();
    for (size_t i = begin; i < end;) {
      const int length = utf8_length(text, i);
      t.decompose(utf8_code_point(text, i, length), &points);
      i += length;
    }
    for (size_t i = 0; i < points.size();) {
      size_t run = i;
      while (run < points.size() && t.combining_class(points[run]) != 0) {
        ++run;
      }
      std::stable_sort(points.begin() + i, points.begin() + run, [&](uint32_t a, uint32_t b) {
        return t.combining_class(a) < t.combining_class(b);
      });
      i = run + 1;
    }
    compose(&points);
    for (const uint32_t c : points) {
      append_utf8(c, &out);
    }
    begin = end;
    while (begin < text.size() && utf8_length(text, begin) == 0) {
      out.push_back(text[begin++]);
    }
  }
  return out;
}

}  // namespace hocket::data
