// SPDX-License-Identifier: Apache-2.0
#include "data/tokenizer/regex_syntax.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/format.h>
#include <pcre2.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "data/tokenizer/regex.h"

namespace hocket::data {

// Letters, marks, decimal digits, connectors and what else is alphabetic.
const char* const kWordChars =
    R"(\p{L}\p{M}\p{Nd}\p{Nl}\p{Pc}\x{24B6}-\x{24E9}\x{1F130}-\x{1F149}\x{1F150}-\x{1F169}\x{1F170}-\x{1F189}\x{200C}\x{200D})";

namespace {

// Unicode's White_Space, which Oniguruma's \s is; PCRE2's has U+180E besides.
constexpr std::string_view kSpaces =
    R"(\x{9}-\x{d}\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";
constexpr std::string_view kHexDigits = "0-9a-fA-F";
constexpr int kMaxDepth = 50;  // of classes in classes

/// Names of Oniguruma's \p{...} and [:...:], each with the inside of a class of PCRE2 with the same
/// characters. Names are in small letters, without _, - and blanks.
const std::pair<std::string_view, std::string_view> kNamed[] = {
    {"alnum", R"(\p{Alphabetic}\p{Nd})"},
    {"alpha", R"(\p{Alphabetic})"},
    {"ascii", R"(\x{0}-\x{7f})"},
    {"blank", R"(\p{Zs}\x{9})"},
    {"cntrl", R"(\p{Cc})"},
    {"digit", R"(\p{Nd})"},
    {"lower", R"(\p{Lowercase})"},
    {"punct", R"(\p{P}\p{S})"},
    {"space", kSpaces},
    {"upper", R"(\p{Uppercase})"},
    {"whitespace", kSpaces},
    {"xdigit", kHexDigits},
    // General categories by their long names.
    {"letter", R"(\p{L})"},
    {"casedletter", R"(\p{L&})"},
    {"lc", R"(\p{L&})"},
    {"uppercaseletter", R"(\p{Lu})"},
    {"lowercaseletter", R"(\p{Ll})"},
    {"titlecaseletter", R"(\p{Lt})"},
    {"modifierletter", R"(\p{Lm})"},
    {"otherletter", R"(\p{Lo})"},
    {"mark", R"(\p{M})"},
    {"nonspacingmark", R"(\p{Mn})"},
    {"spacingmark", R"(\p{Mc})"},
    {"enclosingmark", R"(\p{Me})"},
    {"number", R"(\p{N})"},
    {"decimalnumber", R"(\p{Nd})"},
    {"letternumber", R"(\p{Nl})"},
    {"othernumber", R"(\p{No})"},
    {"punctuation", R"(\p{P})"},
    {"connectorpunctuation", R"(\p{Pc})"},
    {"dashpunctuation", R"(\p{Pd})"},
    {"openpunctuation", R"(\p{Ps})"},
    {"closepunctuation", R"(\p{Pe})"},
    {"initialpunctuation", R"(\p{Pi})"},
    {"finalpunctuation", R"(\p{Pf})"},
    {"otherpunctuation", R"(\p{Po})"},
    {"symbol", R"(\p{S})"},
    {"mathsymbol", R"(\p{Sm})"},
    {"currencysymbol", R"(\p{Sc})"},
    {"modifiersymbol", R"(\p{Sk})"},
    {"othersymbol", R"(\p{So})"},
    {"separator", R"(\p{Z})"},
    {"spaceseparator", R"(\p{Zs})"},
    {"lineseparator", R"(\p{Zl})"},
    {"paragraphseparator", R"(\p{Zp})"},
};

char small(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c | 0x20) : c; }

/// Returns whether PCRE2 knows a script of that name.
bool is_script(const std::string& name) {
  const std::string pattern = R"(\p{sc:)" + name + "}";
  int error = 0;
  PCRE2_SIZE at = 0;
  auto* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                             PCRE2_UTF | PCRE2_UCP, &error, &at, nullptr);
  pcre2_code_free(code);
  return code != nullptr;
}

/// Characters: the inside of a class, or those that it lacks.
struct Chars {
  std::string inside;
  bool negated = false;
};

/// The characters of \p{name}: of a script those that have it, where PCRE2 by itself would add
/// those that it shares with others.
Chars property(std::string_view name) {
  Chars chars;
  if (name.starts_with('^')) {
    chars.negated = true;
    name.remove_prefix(1);
  }
  std::string plain;
  for (const char c : name) {
    if (c != ' ' && c != '_' && c != '-') {
      plain += small(c);
    }
  }
  const auto known = std::find_if(std::begin(kNamed), std::end(kNamed),
                                  [&](const auto& row) { return row.first == plain; });
  if (plain == "word") {
    chars.inside = kWordChars;
  } else if (known != std::end(kNamed)) {
    chars.inside = known->second;
  } else if (plain.size() > 2 && is_script(plain)) {
    chars.inside = R"(\p{sc:)" + plain + "}";
  } else {
    chars.inside = fmt::format(R"(\p{{{}}})", name);
  }
  return chars;
}

class Translation {
 public:
  explicit Translation(std::string_view pattern) : pattern_(pattern) {}

  std::string run() {
    while (at_ < pattern_.size()) {
      const char c = pattern_[at_];
      if (c == '\\' && at_ + 1 < pattern_.size()) {
        escaped();
      } else if (c == '[') {
        ++at_;
        out_ += char_class(0);
      } else {
        outside(c);
        ++at_;
      }
    }
    return std::move(out_);
  }

 private:
  [[noreturn]] void refuse(const char* what) const {
    fail("tokenizer", "{} are not supported in a regular expression; got {}", what,
         quote(pattern_));
  }
  std::string_view rest() const { return pattern_.substr(at_); }
  bool done() const { return at_ >= pattern_.size(); }

  /// Reads an escape that stands for characters, and goes behind it; false for any other.
  bool read_chars(Chars* chars) {
    const char c = pattern_[at_ + 1];
    const char kind = small(c);
    if (kind == 's' || kind == 'w' || kind == 'h') {
      *chars = {std::string(kind == 's'   ? kSpaces
                            : kind == 'w' ? std::string_view(kWordChars)
                                          : kHexDigits),
                c != kind};
      at_ += 2;
      return true;
    }
    const size_t end = pattern_.find('}', at_);
    if (kind != 'p' || at_ + 2 >= pattern_.size() || pattern_[at_ + 2] != '{' ||
        end == pattern_.npos) {
      return false;
    }
    *chars = property(pattern_.substr(at_ + 3, end - at_ - 3));
    chars->negated ^= c == 'P';
    at_ = end + 1;
    return true;
  }

  /// Another escape, with the name behind it, which is no interval.
  std::string other_escape() {
    constexpr size_t kDigits = 4;
    const size_t begin = at_;
    const char c = pattern_[at_ + 1];
    if (c == 'X') refuse("grapheme clusters, \\X,");
    at_ += 2;
    if (c == 'u' && rest().size() >= kDigits) {
      at_ += kDigits;
      return fmt::format(R"(\x{{{}}})", pattern_.substr(begin + 2, kDigits));
    }
    const size_t end = pattern_.find('}', at_);
    if (rest().starts_with('{') && std::string_view("pPxkgo").find(c) < 6 && end != pattern_.npos) {
      at_ = end + 1;
    }
    return std::string(pattern_.substr(begin, at_ - begin));
  }

  void escaped() {
    Chars chars;
    const char c = pattern_[at_ + 1];
    if (c == 'b' || c == 'B') {
      // PCRE2's words have no marks.
      at_ += 2;
      out_ += c == 'b' ? fmt::format("(?:(?<=[{0}])(?![{0}])|(?<![{0}])(?=[{0}]))", kWordChars)
                       : fmt::format("(?:(?<=[{0}])(?=[{0}])|(?<![{0}])(?![{0}]))", kWordChars);
    } else if (read_chars(&chars)) {
      out_ += fmt::format("[{}{}]", chars.negated ? "^" : "", chars.inside);
    } else {
      out_ += other_escape();
    }
  }

  /// A POSIX class, such as [:alpha:], at this place; false if there is none.
  bool read_posix(Chars* chars) {
    const size_t end = pattern_.find(":]", at_ + 2);
    if (!rest().starts_with("[:") || end == pattern_.npos) return false;
    const std::string_view name = pattern_.substr(at_ + 2, end - at_ - 2);
    if (name.find_first_of("[]\\") != name.npos) return false;
    *chars = property(name);
    at_ = end + 2;
    return true;
  }

  /// An operand of &&, or all of a class without one.
  struct Operand {
    std::string items;               // the inside of a class
    std::vector<std::string> parts;  // further expressions that match one character

    void add(const Chars& chars) {
      // A hyphen beside a class of characters stands for itself.
      if (items.ends_with('-') && !items.ends_with("\\-")) {
        items.insert(items.size() - 1, 1, '\\');
      }
      if (!chars.negated) {
        items += chars.inside;
      } else if (chars.inside == kSpaces) {
        items += R"(\S\x{180e})";  // PCRE2's \S lacks only that
      } else if (chars.inside.starts_with(R"(\p{)") &&
                 chars.inside.find('}') + 1 == chars.inside.size()) {
        items += R"(\P)" + chars.inside.substr(2);
      } else {
        parts.push_back(fmt::format("[^{}]", chars.inside));
      }
    }
    bool empty() const { return items.empty() && parts.empty(); }
    std::string expression() {
      if (!items.empty()) {
        parts.push_back(fmt::format("[{}]", items));
      }
      return parts.size() == 1 ? parts[0] : fmt::format("(?:{})", fmt::join(parts, "|"));
    }
  };

  /// Reads a class behind its '['. One without classes in it stays one; unions, intersections and
  /// complements of several become alternatives and look-aheads that match one character.
  std::string char_class(int depth) {
    if (depth > kMaxDepth) refuse("deeply nested classes");
    const bool negated = rest().starts_with('^');
    at_ += negated ? 1 : 0;
    std::vector<std::string> operands;
    Operand now;
    for (bool first = true;; first = false) {
      if (done()) {
        fail("tokenizer", "the regular expression does not compile: a class has no end; got {}",
             quote(pattern_));
      }
      if (pattern_[at_] == ']' && !first) break;
      if (rest().starts_with("&&")) {
        if (now.empty()) refuse("intersections with nothing");
        operands.push_back(now.expression());
        now = {};
        at_ += 2;
      } else {
        class_item(depth, &now);
      }
    }
    ++at_;
    if (now.empty()) refuse("intersections with nothing");
    if (operands.empty() && now.parts.empty()) {
      return fmt::format("[{}{}]", negated ? "^" : "", now.items);
    }
    std::string all = now.expression();
    for (auto operand = operands.rbegin(); operand != operands.rend(); ++operand) {
      all = fmt::format("(?:(?={}){})", *operand, all);
    }
    return negated ? fmt::format("(?:(?!{})(?s:.))", all) : all;
  }

  /// Reads one item of a class.
  void class_item(int depth, Operand* now) {
    const char c = pattern_[at_];
    const bool escapes = c == '\\' && at_ + 1 < pattern_.size();
    Chars chars;
    if (escapes ? read_chars(&chars) : read_posix(&chars)) {
      now->add(chars);
      if (rest().starts_with('-') && !rest().starts_with("-]")) {
        now->items += R"(\-)";
        ++at_;
      }
    } else if (c == '[') {
      ++at_;
      now->parts.push_back(char_class(depth + 1));
    } else if (escapes) {
      now->items += other_escape();
    } else {
      now->items += c == ']' || c == '^' ? std::string{'\\', c} : std::string(1, c);
      ++at_;
    }
  }

  void outside(char c) {
    if (rest().starts_with("(?")) {
      // Options: Ruby's m is the others' s, and x would change the meaning of blanks.
      const size_t end = pattern_.find_first_of(":)=!<>#P|&", at_ + 2);
      if (end != pattern_.npos &&
          pattern_.substr(at_ + 2, end - at_ - 2).find_first_of("mx") != std::string::npos &&
          (pattern_[end] == ':' || pattern_[end] == ')')) {
        refuse("the options m and x");
      }
    }
    if (c == '}' && at_ + 1 < pattern_.size() && pattern_[at_ + 1] == '+') {
      refuse("'+' behind an interval (a repetition of it, not a possessive one)");
    }
    out_ += c;
  }

  std::string_view pattern_;
  std::string out_;
  size_t at_ = 0;
};

}  // namespace

std::string pcre2_syntax(std::string_view pattern) { return Translation(pattern).run(); }

}  // namespace hocket::data
