// SPDX-License-Identifier: Apache-2.0
#include "serve/grammar/pattern.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "base/utf8.h"

namespace hocket::serve::grammar {
namespace {

constexpr int kMaxGroups = 100;           // inside one another
constexpr int32_t kMaxCount = 10'000;     // of {m,n}
constexpr int64_t kMaxNfaWork = 200'000;  // parts after counts are written out

struct Part {
  enum class Kind : uint8_t { set, sequence, choice, repeat, begin, end };
  Kind kind = Kind::sequence;
  CodeSet set = {};
  std::vector<std::unique_ptr<Part>> parts = {};
  int32_t least = 0, most = 0;  ///< most -1: any number
};
using PartPtr = std::unique_ptr<Part>;

PartPtr part_of(Part::Kind kind) {
  auto part = std::make_unique<Part>();
  part->kind = kind;
  return part;
}

const CodeSet& digit_chars() {
  static const CodeSet set = code_set({{'0', '9'}});
  return set;
}
const CodeSet& word_chars() {
  static const CodeSet set = code_set({{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}});
  return set;
}
/// Characters of \d in some dialect: Python and others take the digits of all scripts.
const CodeSet& any_digit_chars() {
  static const CodeSet set = [] {
    std::vector<CodeRange> digits;
    for (uint32_t c = 0; c <= 0x10FFFF; ++c) {
      if (utf8proc_category(static_cast<utf8proc_int32_t>(c)) == UTF8PROC_CATEGORY_ND) {
        digits.push_back({c, c});
      }
    }
    return code_set(std::move(digits));
  }();
  return set;
}
/// Characters of \W in every dialect: ASCII's, and blocks without letters, marks and numbers.
const CodeSet& no_word_chars() {
  static const CodeSet set = code_set({{0x00, 0x2F},
                                       {0x3A, 0x40},
                                       {0x5B, 0x5E},
                                       {0x60, 0x60},
                                       {0x7B, 0xA9},
                                       {0x2000, 0x200B},
                                       {0x2010, 0x203E},
                                       {0x20A0, 0x20BF},
                                       {0x2190, 0x23FF},
                                       {0x2500, 0x2775},
                                       {0x3000, 0x3003},
                                       {0x1F300, 0x1F64F},
                                       {0x1F680, 0x1F6C5}});
  return set;
}
/// Characters of \s that ECMA-262 and other dialects have in common.
const CodeSet& space_chars() {
  static const CodeSet set = code_set({{0x09, 0x0D},
                                       {0x20, 0x20},
                                       {0xA0, 0xA0},
                                       {0x1680, 0x1680},
                                       {0x2000, 0x200A},
                                       {0x2028, 0x2029},
                                       {0x202F, 0x202F},
                                       {0x205F, 0x205F},
                                       {0x3000, 0x3000}});
  return set;
}
/// Characters of \S: neither ECMA-262 nor Python and PCRE2 take one of them for \s.
const CodeSet& no_space_chars() {
  static const CodeSet set = [] {
    std::vector<CodeRange> spaces = space_chars();
    spaces.insert(spaces.end(), {{0x1C, 0x1F}, {0x85, 0x85}, {0x180E, 0x180E}, {0xFEFF, 0xFEFF}});
    return code_complement(code_set(std::move(spaces)));
  }();
  return set;
}
const CodeSet& dot_chars() {
  static const CodeSet set =
      code_complement(code_set({{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}}));
  return set;
}

class PatternParser {
 public:
  PatternParser(std::string_view pattern, const std::string& where)
      : text_(pattern), where_(where) {
    if (!is_utf8(pattern)) bad("is not UTF-8");
  }

  PartPtr parse() {
    PartPtr part = choice();
    if (at_ < text_.size()) bad("has a ) without (");
    return part;
  }

 private:
  [[noreturn]] void bad(std::string_view what) const {
    fail(where_, "pattern {}, byte {}; got {}; expected a regular expression of ECMA-262", what,
         at_, quote(text_));
  }
  [[noreturn]] void refuse(std::string_view what) const {
    fail(where_,
         "pattern has {}, which no finite automaton can hold; got {}; try a pattern without it",
         what, quote(text_));
  }

  bool more() const { return at_ < text_.size(); }
  bool take(std::string_view expected) {
    if (!text_.substr(at_).starts_with(expected)) return false;
    at_ += expected.size();
    return true;
  }
  uint32_t take_char() {
    const int length = utf8_length(text_, at_);
    const uint32_t c = utf8_code_point(text_, at_, length);
    at_ += static_cast<size_t>(length);
    return c;
  }

  PartPtr choice() {
    if (++depth_ > kMaxGroups) bad("has too many groups inside one another");
    PartPtr out = part_of(Part::Kind::choice);
    do {
      out->parts.push_back(sequence());
    } while (take("|"));
    --depth_;
    return out;
  }

  PartPtr sequence() {
    PartPtr out = part_of(Part::Kind::sequence);
    while (more() && text_[at_] != '|' && text_[at_] != ')') {
      const bool anchor = text_[at_] == '^' || text_[at_] == '$';
      PartPtr part = atom();
      out->parts.push_back(quantified(std::move(part), anchor));
    }
    return out;
  }

  PartPtr quantified(PartPtr part, bool anchor) {
    int32_t least = 1, most = 1;
    if (take("*")) {
      least = 0, most = -1;
    } else if (take("+")) {
      most = -1;
    } else if (take("?")) {
      least = 0;
    } else if (more() && text_[at_] == '{') {
      counts(&least, &most);
    } else {
      return part;
    }
    if (anchor) bad("repeats ^ or $");
    take("?");  // a lazy one accepts the same texts
    if (more() && std::strchr("*+?{", text_[at_]) != nullptr) bad("repeats a repetition");
    PartPtr out = part_of(Part::Kind::repeat);
    out->least = least;
    out->most = most;
    out->parts.push_back(std::move(part));
    return out;
  }

  int32_t number() {
    if (!more() || text_[at_] < '0' || text_[at_] > '9') bad("has a { without a number");
    int32_t value = 0;
    while (more() && text_[at_] >= '0' && text_[at_] <= '9') {
      value = value * 10 + (text_[at_++] - '0');
      if (value > kMaxCount) bad(fmt::format("repeats more than {} times", kMaxCount));
    }
    return value;
  }

  void counts(int32_t* least, int32_t* most) {
    take("{");
    *least = *most = number();
    if (take(",")) {
      *most = more() && text_[at_] == '}' ? -1 : number();
    }
    if (!take("}")) bad("has a { without }");
    if (*most >= 0 && *most < *least) bad("has counts out of order");
  }

  PartPtr atom() {
    if (take("(")) return group();
    if (take("[")) return set_part(char_class());
    if (take("^")) return part_of(Part::Kind::begin);
    if (take("$")) return part_of(Part::Kind::end);
    if (take(".")) return set_part(dot_chars());
    if (text_[at_] == '\\') return set_part(escape(/*in_class=*/false, /*negated=*/false));
    if (std::strchr("*+?{", text_[at_]) != nullptr) bad("repeats nothing");
    if (text_[at_] == '}' || text_[at_] == ']') bad("has a closing bracket without its opening");
    const uint32_t c = take_char();
    return set_part({{c, c}});
  }

  PartPtr group() {
    if (take("?=") || take("?!")) refuse("a look-ahead");
    if (take("?<=") || take("?<!")) refuse("a look-behind");
    if (take("?<")) {
      const size_t end = text_.find('>', at_);
      if (end == std::string_view::npos) bad("has a group's name without its end");
      at_ = end + 1;
    } else if (take("?") && !take(":")) {
      bad("has an unknown kind of group");
    }
    PartPtr out = choice();
    const bool closed = take(")");
    if (!closed) bad("has a ( without )");
    return out;
  }

  static PartPtr set_part(CodeSet set) {
    PartPtr out = part_of(Part::Kind::set);
    out->set = std::move(set);
    return out;
  }

  uint32_t hex(int digits) {
    uint32_t value = 0;
    for (int i = 0; i < digits; ++i) {
      const char c = more() ? text_[at_++] : ' ';
      const char* all = "0123456789abcdef";
      const char* found = std::strchr(all, c >= 'A' && c <= 'F' ? c - 'A' + 'a' : c);
      if (found == nullptr || c == '\0') bad("has an escape without its hexadecimal digits");
      value = value * 16 + static_cast<uint32_t>(found - all);
    }
    return value;
  }

  uint32_t unicode_escape() {
    if (take("{")) {
      uint32_t value = 0;
      int digits = 0;
      while (more() && text_[at_] != '}') {
        value = value * 16 + hex(1);
        if (++digits > 6 || value > 0x10FFFF) bad("has a character beyond U+10FFFF");
      }
      if (digits == 0 || !take("}")) bad("has \\u{ without digits or }");
      return value;
    }
    const uint32_t high = hex(4);
    if (high >= 0xD800 && high < 0xDC00 && take("\\u")) {
      const uint32_t low = hex(4);
      if (low < 0xDC00 || low > 0xDFFF) bad("has half of a surrogate pair");
      return 0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00);
    }
    if (high >= 0xD800 && high <= 0xDFFF) bad("has half of a surrogate pair");
    return high;
  }

  /// Reads an escape; a class escape such as \d gives the characters that are in it in every
  /// dialect, or, where the class around it is `negated`, in some dialect.
  CodeSet escape(bool in_class, bool negated) {
    ++at_;
    if (!more()) bad("ends in a \\");
    const uint32_t c = take_char();
    const auto one = [](uint32_t code) { return CodeSet{{code, code}}; };
    switch (c) {
      case 'd':
        return negated ? any_digit_chars() : digit_chars();
      case 'D':
        return code_complement(negated ? digit_chars() : any_digit_chars());
      case 'w':
        return negated ? code_complement(no_word_chars()) : word_chars();
      case 'W':
        return negated ? code_complement(word_chars()) : no_word_chars();
      case 's':
        return negated ? code_complement(no_space_chars()) : space_chars();
      case 'S':
        return negated ? code_complement(space_chars()) : no_space_chars();
      case 't':
        return one('\t');
      case 'n':
        return one('\n');
      case 'r':
        return one('\r');
      case 'f':
        return one('\f');
      case 'v':
        return one('\v');
      case 'x':
        return one(hex(2));
      case 'u':
        return one(unicode_escape());
      case 'b':
        if (in_class) return one('\b');
        refuse("\\b");
      case 'B':
        refuse("\\B");
      case 'k':
        refuse("a back reference");
      case 'p':
      case 'P':
        refuse("a class of Unicode (\\p)");
      case 'c':
        refuse("a control escape (\\c)");
      default:
        break;
    }
    if (c == '0' && !(more() && text_[at_] >= '0' && text_[at_] <= '9')) return one(0);
    if (c >= '0' && c <= '9') refuse("a back reference");
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) bad("has an unknown escape");
    return one(c);
  }

  CodeSet char_class() {
    const bool negated = take("^");
    std::vector<CodeRange> ranges;
    while (true) {
      if (!more()) bad("has a [ without ]");
      if (take("]")) break;
      const CodeSet first = class_member(negated);
      const bool range =
          more() && text_[at_] == '-' && at_ + 1 < text_.size() && text_[at_ + 1] != ']';
      if (!range) {
        ranges.insert(ranges.end(), first.begin(), first.end());
        continue;
      }
      ++at_;
      const CodeSet last = class_member(negated);
      const auto single = [](const CodeSet& set) {
        return set.size() == 1 && set[0].first == set[0].last;
      };
      if (!single(first) || !single(last)) bad("has a range between classes");
      if (first[0].first > last[0].first) bad("has a range out of order");
      ranges.push_back({first[0].first, last[0].first});
    }
    const CodeSet set = code_set(std::move(ranges));
    return negated ? code_complement(set) : set;
  }

  CodeSet class_member(bool negated) {
    if (!more()) bad("has a [ without ]");
    if (text_[at_] == '\\') return escape(/*in_class=*/true, negated);
    const uint32_t c = take_char();
    return {{c, c}};
  }

  std::string_view text_;
  const std::string& where_;
  size_t at_ = 0;
  int depth_ = 0;
};

class NfaBuilder {
 public:
  explicit NfaBuilder(CharNfa* nfa) : nfa_(nfa) {}
  bool too_large() const { return work_ > kMaxNfaWork; }

  /// Adds the part behind `from`; returns the state behind it.
  int32_t build(const Part& part, int32_t from) {
    if (++work_ > kMaxNfaWork) return from;
    switch (part.kind) {
      case Part::Kind::set: {
        const int32_t to = nfa_->add_state();
        nfa_->add_edge(from, part.set, to);
        return to;
      }
      case Part::Kind::begin:
      case Part::Kind::end: {
        const int32_t to = nfa_->add_state();
        nfa_->add_empty(
            from, to,
            part.kind == Part::Kind::begin ? CharNfa::When::at_begin : CharNfa::When::at_end);
        return to;
      }
      case Part::Kind::sequence: {
        int32_t at = from;
        for (const PartPtr& each : part.parts) {
          at = build(*each, at);
        }
        return at;
      }
      case Part::Kind::choice: {
        const int32_t to = nfa_->add_state();
        for (const PartPtr& each : part.parts) {
          const int32_t start = nfa_->add_state();
          nfa_->add_empty(from, start);
          nfa_->add_empty(build(*each, start), to);
        }
        return to;
      }
      case Part::Kind::repeat:
        break;
    }
    return repeat(part, from);
  }

 private:
  int32_t repeat(const Part& part, int32_t from) {
    const Part& child = *part.parts[0];
    int32_t at = from;
    for (int32_t i = 0; i < part.least && !too_large(); ++i) {
      at = build(child, at);
    }
    if (part.most < 0) {
      const int32_t loop = nfa_->add_state();
      nfa_->add_empty(at, loop);
      nfa_->add_empty(build(child, loop), loop);
      return loop;
    }
    const int32_t end = nfa_->add_state();
    for (int32_t i = part.least; i < part.most && !too_large(); ++i) {
      nfa_->add_empty(at, end);
      const int32_t start = nfa_->add_state();
      nfa_->add_empty(at, start);
      at = build(child, start);
    }
    nfa_->add_empty(at, end);
    return end;
  }

  CharNfa* nfa_;
  int64_t work_ = 0;
};

}  // namespace

CharDfa pattern_dfa(std::string_view pattern, const std::string& where) {
  const PartPtr part = PatternParser(pattern, where).parse();
  CharNfa nfa;
  NfaBuilder builder(&nfa);
  const CodeSet every = code_complement({});
  const int32_t start = nfa.add_state();
  nfa.add_edge(start, every, start);
  const int32_t found = builder.build(*part, start);
  const int32_t rest = nfa.add_state();
  nfa.add_empty(found, rest);
  nfa.add_edge(rest, every, rest);
  std::optional<CharDfa> dfa;
  if (!builder.too_large()) {
    dfa = nfa.determinise(start, rest);
  }
  if (!dfa) {
    fail(where, "pattern needs too many states; got {}; expected at most {}; try smaller counts",
         quote(pattern), kMaxDfaStates);
  }
  return *std::move(dfa);
}

}  // namespace hocket::serve::grammar
