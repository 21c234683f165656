// SPDX-License-Identifier: Apache-2.0
#include "serve/grammar/encoding.h"

#include <algorithm>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "base/error.h"

namespace hocket::serve::grammar {
namespace {

/// A digit of a number in some base, its range, and the largest digit at its place.
struct DigitSpan {
  uint32_t first, last;
};
using Digits = std::vector<uint32_t>;

/// Calls `found` with boxes of digits that together hold the numbers from low to high.
template <class Found>
void each_box(std::span<const uint32_t> low, std::span<const uint32_t> high,
              std::span<const uint32_t> top, std::vector<DigitSpan>* prefix, const Found& found) {
  const auto with = [&](DigitSpan digit, const auto& rest) {
    prefix->push_back(digit);
    rest();
    prefix->pop_back();
  };
  if (low.size() == 1) {
    with({low[0], high[0]}, [&] { found(*prefix); });
    return;
  }
  const auto low_rest = low.subspan(1), high_rest = high.subspan(1), top_rest = top.subspan(1);
  if (low[0] == high[0]) {
    with({low[0], low[0]}, [&] { each_box(low_rest, high_rest, top_rest, prefix, found); });
    return;
  }
  const bool whole_low = std::all_of(low_rest.begin(), low_rest.end(), [](auto d) { return !d; });
  const bool whole_high = std::equal(high_rest.begin(), high_rest.end(), top_rest.begin());
  const Digits zeros(low_rest.size(), 0);
  if (!whole_low) {
    with({low[0], low[0]}, [&] { each_box(low_rest, top_rest, top_rest, prefix, found); });
  }
  const uint32_t first = low[0] + (whole_low ? 0 : 1), last = high[0] - (whole_high ? 0 : 1);
  if (first <= last && last <= high[0]) {
    const size_t depth = prefix->size();
    prefix->push_back({first, last});
    for (uint32_t most : top_rest) {
      prefix->push_back({0, most});
    }
    found(*prefix);
    prefix->resize(depth);
  }
  if (!whole_high) {
    with({high[0], high[0]},
         [&] { each_box(std::span<const uint32_t>(zeros), high_rest, top_rest, prefix, found); });
  }
}

template <class Found>
void each_box(const Digits& low, const Digits& high, const Digits& top, const Found& found) {
  std::vector<DigitSpan> prefix;
  each_box(std::span<const uint32_t>(low), std::span<const uint32_t>(high),
           std::span<const uint32_t>(top), &prefix, found);
}

/// Returns the part of a range between two code points; empty if first > last.
CodeRange overlap(CodeRange range, uint32_t first, uint32_t last) {
  return {std::max(range.first, first), std::min(range.last, last)};
}

void add_utf8(CodeRange range, std::vector<BytePath>* out) {
  constexpr uint32_t kEnds[] = {0x7F, 0x7FF, 0xFFFF, 0x10FFFF};
  constexpr uint32_t kLeads[] = {0, 0xC0, 0xE0, 0xF0};
  uint32_t begin = 0;
  for (int more = 0; more < 4; begin = kEnds[more] + 1, ++more) {
    const CodeRange r = overlap(range, begin, kEnds[more]);
    if (r.first > r.last) continue;
    const auto digits = [more](uint32_t c) {
      Digits out_digits = {c >> (6 * more)};
      for (int i = more - 1; i >= 0; --i) {
        out_digits.push_back(c >> (6 * i) & 0x3F);
      }
      return out_digits;
    };
    Digits top(static_cast<size_t>(more) + 1, 0x3F);
    each_box(digits(r.first), digits(r.last), top, [&](const std::vector<DigitSpan>& box) {
      BytePath path;
      for (size_t i = 0; i < box.size(); ++i) {
        const uint32_t base = i == 0 ? kLeads[more] : 0x80;
        path.push_back(
            {static_cast<uint8_t>(base + box[i].first), static_cast<uint8_t>(base + box[i].last)});
      }
      out->push_back(std::move(path));
    });
  }
}

/// Returns paths with a hexadecimal digit behind each.
std::vector<BytePath> with_hex(const std::vector<BytePath>& paths, DigitSpan digit) {
  std::vector<ByteSpan> spans;
  const auto add = [&](uint32_t first, uint32_t last, uint32_t begin, char letter) {
    const uint32_t low = std::max(digit.first, first), high = std::min(digit.last, last);
    if (low <= high) {
      spans.push_back({static_cast<uint8_t>(static_cast<uint32_t>(letter) + low - begin),
                       static_cast<uint8_t>(static_cast<uint32_t>(letter) + high - begin)});
    }
  };
  add(0, 9, 0, '0');
  add(10, 15, 10, 'a');
  add(10, 15, 10, 'A');
  std::vector<BytePath> out;
  for (const BytePath& path : paths) {
    for (const ByteSpan& span : spans) {
      out.push_back(path);
      out.back().push_back(span);
    }
  }
  return out;
}

BytePath path_of(std::string_view text) {
  BytePath path;
  for (char c : text) {
    path.push_back({static_cast<uint8_t>(c), static_cast<uint8_t>(c)});
  }
  return path;
}

std::vector<BytePath> with_text(std::vector<BytePath> paths, std::string_view text) {
  for (BytePath& path : paths) {
    const BytePath more = path_of(text);
    path.insert(path.end(), more.begin(), more.end());
  }
  return paths;
}

/// Adds \uXXXX, and pairs of them beyond U+FFFF.
void add_escapes(CodeRange range, std::vector<BytePath>* out) {
  const auto nibble = [](uint32_t c, int i) { return c >> (4 * i) & 0xF; };
  if (const CodeRange r = overlap(range, 0, 0xFFFF); r.first <= r.last) {
    const auto digits = [&](uint32_t c) {
      return Digits{nibble(c, 3), nibble(c, 2), nibble(c, 1), nibble(c, 0)};
    };
    each_box(digits(r.first), digits(r.last), {15, 15, 15, 15}, [&](const auto& box) {
      std::vector<BytePath> paths = {path_of("\\u")};
      for (const DigitSpan& digit : box) {
        paths = with_hex(paths, digit);
      }
      out->insert(out->end(), paths.begin(), paths.end());
    });
  }
  if (const CodeRange r = overlap(range, 0x10000, 0x10FFFF); r.first <= r.last) {
    // 10 bits in each half, behind D8 to DB and DC to DF.
    const auto digits = [&](uint32_t c) {
      const uint32_t v = c - 0x10000;
      return Digits{v >> 18,    nibble(v >> 10, 1), nibble(v >> 10, 0),
                    v >> 8 & 3, nibble(v, 1),       nibble(v, 0)};
    };
    each_box(digits(r.first), digits(r.last), {3, 15, 15, 3, 15, 15}, [&](const auto& box) {
      std::vector<BytePath> paths = {path_of("\\u")};
      for (size_t i = 0; i < box.size(); ++i) {
        if (i == 3) {
          paths = with_text(std::move(paths), "\\u");
        }
        const uint32_t base = i == 0 ? 8 : i == 3 ? 12 : 0;
        if (i % 3 == 0) {
          paths = with_hex(paths, {13, 13});
        }
        paths = with_hex(paths, {base + box[i].first, base + box[i].last});
      }
      out->insert(out->end(), paths.begin(), paths.end());
    });
  }
}

/// The subset construction over what is left of the paths.
class ByteDfaBuilder {
 public:
  explicit ByteDfaBuilder(const std::vector<BytePath>& paths) {
    std::vector<int32_t> all;
    for (const BytePath& path : paths) {
      HOCKET_CHECK(!path.empty(), "an empty path of bytes");
      int32_t rest = kEnd;
      for (size_t i = path.size(); i-- > 0;) {
        rest = intern(path[i], rest);
      }
      all.push_back(rest);
    }
    state_of(std::move(all));
    for (size_t i = 0; i < sets_.size(); ++i) {
      fill(i);
    }
  }
  ByteDfa take() { return std::move(dfa_); }

 private:
  static constexpr int32_t kEnd = -1;
  struct Rest {
    ByteSpan span;
    int32_t rest;
    auto operator<=>(const Rest&) const = default;
  };

  int32_t intern(ByteSpan span, int32_t rest) {
    const auto [it, made] = ids_.emplace(Rest{span, rest}, static_cast<int32_t>(rests_.size()));
    if (made) {
      rests_.push_back({span, rest});
    }
    return it->second;
  }

  int16_t state_of(std::vector<int32_t> set) {
    std::sort(set.begin(), set.end());
    set.erase(std::unique(set.begin(), set.end()), set.end());
    if (set.empty()) return ByteDfa::kDead;
    if (set.front() == kEnd) {
      HOCKET_CHECK(set.size() == 1, "a sequence of bytes begins another");
      return ByteDfa::kDone;
    }
    const auto [it, made] = states_.emplace(set, static_cast<int16_t>(sets_.size()));
    if (made) {
      HOCKET_CHECK(sets_.size() < 30'000, "too many states of bytes");
      sets_.push_back(std::move(set));
    }
    return it->second;
  }

  void fill(size_t state) {
    const std::vector<int32_t> set = sets_[state];
    std::array<int16_t, 256> row;
    row.fill(ByteDfa::kDead);
    std::array<bool, 257> cut{};
    for (int32_t id : set) {
      cut[rests_[static_cast<size_t>(id)].span.first] = true;
      cut[rests_[static_cast<size_t>(id)].span.last + 1U] = true;
    }
    int16_t to = ByteDfa::kDead;
    for (uint32_t byte = 0; byte < 256; ++byte) {
      if (cut[byte]) {
        std::vector<int32_t> rest;
        for (int32_t id : set) {
          const Rest& each = rests_[static_cast<size_t>(id)];
          if (each.span.first <= byte && byte <= each.span.last) {
            rest.push_back(each.rest);
          }
        }
        to = state_of(std::move(rest));
      }
      row[byte] = to;
    }
    dfa_.next.push_back(row);
  }

  std::vector<Rest> rests_;
  std::map<Rest, int32_t> ids_;
  std::vector<std::vector<int32_t>> sets_;
  std::map<std::vector<int32_t>, int16_t> states_;
  ByteDfa dfa_;
};

}  // namespace

ByteDfa byte_dfa(const std::vector<BytePath>& paths) { return ByteDfaBuilder(paths).take(); }

std::vector<BytePath> char_paths(const CodeSet& set) {
  std::vector<BytePath> out;
  constexpr std::pair<char, const char*> kShort[] = {{'\b', "\\b"}, {'\t', "\\t"}, {'\n', "\\n"},
                                                     {'\f', "\\f"}, {'\r', "\\r"}, {'"', "\\\""},
                                                     {'\\', "\\\\"}};
  // Characters below U+0080 that stand for themselves.
  constexpr CodeRange kPlain[] = {{0x20, 0x21}, {0x23, 0x5B}, {0x5D, 0x7F}};
  for (const CodeRange& range : set) {
    for (const CodeRange& plain : kPlain) {
      const CodeRange r = overlap(range, plain.first, plain.last);
      if (r.first <= r.last) {
        out.push_back({{static_cast<uint8_t>(r.first), static_cast<uint8_t>(r.last)}});
      }
    }
    for (uint32_t c = range.first; c <= std::min<uint32_t>(range.last, '\\'); ++c) {
      const auto* found = std::find_if(std::begin(kShort), std::end(kShort), [&](const auto& pair) {
        return static_cast<uint32_t>(pair.first) == c;
      });
      if (found != std::end(kShort)) {
        out.push_back(path_of(found->second));
      } else if (c < 0x20) {
        add_escapes({c, c}, &out);
      }
    }
    if (const CodeRange r = overlap(range, 0x7F, 0x10FFFF); r.first <= r.last) {
      add_escapes(r, &out);
    }
    if (const CodeRange r = overlap(range, 0x80, 0x10FFFF); r.first <= r.last) {
      add_utf8(r, &out);
    }
  }
  return out;
}

std::vector<BytePath> any_char_paths() {
  std::vector<BytePath> out = {{{0x20, 0x21}}, {{0x23, 0x5B}}, {{0x5D, 0x7F}}};
  for (const CodeRange& range : code_complement({})) {
    if (const CodeRange r = overlap(range, 0x80, 0x10FFFF); r.first <= r.last) {
      add_utf8(r, &out);
    }
    add_escapes(range, &out);
  }
  for (char c : std::string_view("\"\\/bfnrt")) {
    out.push_back(path_of(std::string("\\") + c));
  }
  return out;
}

}  // namespace hocket::serve::grammar
