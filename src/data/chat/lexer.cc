// SPDX-License-Identifier: Apache-2.0
#include "data/chat/lexer.h"

#include <algorithm>
#include <charconv>
#include <limits>

#include "base/error.h"
#include "base/text.h"
#include "base/utf8.h"
#include "data/chat/python_text.h"

namespace hocket::data::jinja {
namespace {

using Kind = Token::Kind;

constexpr std::string_view kOperators[] = {"//", "**", "==", "!=", ">=", "<=", "+", "-", "/",
                                           "*",  "%",  "~",  "[",  "]",  "(",  ")", "{", "}",
                                           ">",  "<",  "=",  ".",  ":",  "|",  ",", ";"};

constexpr std::string_view kOpening = "([{";
constexpr std::string_view kClosing = ")]}";

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_name_character(char c) {
  return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

std::string with_plain_line_ends(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\r') {
      out += text[i];
      continue;
    }
    out += '\n';
    if (i + 1 < text.size() && text[i + 1] == '\n') {
      ++i;
    }
  }
  return out;
}

class Lexer {
 public:
  Lexer(std::string_view source, const std::string& where) : where_(where) {
    text_ = with_plain_line_ends(source);
    if (text_.ends_with('\n')) {
      text_.pop_back();
    }
  }

  // Splits the template: text up to the next tag, the tag, text and so on. `line_starting_` is true
  // where the previous match ended a line, so that blanks before the next block tag are its
  // indentation.
  std::vector<Token> run() {
    while (at_ < text_.size()) {
      const size_t tag = next_tag(at_);
      if (tag == kNotFound) {
        push(Kind::data, text_.substr(at_));
        break;
      }
      const char kind = text_[tag + 1];
      const size_t raw = kind == '%' ? after_raw(tag) : kNotFound;
      size_t begin = tag + 2;
      const char sign = begin < text_.size() && (text_[begin] == '-' || text_[begin] == '+')
                            ? text_[begin++]
                            : ' ';
      data(at_, tag, sign, kind != '{');
      if (raw != kNotFound) {
        raw_block(raw);
      } else if (kind == '#') {
        comment(tag, begin);
      } else {
        move_to(begin);
        push(kind == '%' ? Kind::block_begin : Kind::variable_begin, "");
        inside(kind == '%' ? '%' : '}');
      }
    }
    push(Kind::end, "");
    return std::move(tokens_);
  }

 private:
  template <typename... Args>
  [[noreturn]] void refuse(fmt::format_string<Args...> what, Args&&... args) const {
    fail(where_, "line {}: {}", line_, fmt::format(what, std::forward<Args>(args)...));
  }

  void push(Kind kind, std::string text) {
    if (kind == Kind::data && text.empty()) return;
    tokens_.push_back({kind, line_, std::move(text)});
  }
  void move_to(size_t end) {
    line_ += static_cast<int>(std::count(text_.begin() + static_cast<ptrdiff_t>(at_),
                                         text_.begin() + static_cast<ptrdiff_t>(end), '\n'));
    line_starting_ = end > 0 && text_[end - 1] == '\n';
    at_ = end;
  }
  size_t skip_space(size_t at) const {
    const std::string_view rest = std::string_view(text_).substr(at);
    return at + (rest.size() - strip_left(rest).size());
  }
  bool stands(size_t at, std::string_view text) const {
    return std::string_view(text_).substr(std::min(at, text_.size())).starts_with(text);
  }

  size_t next_tag(size_t from) const {
    for (size_t at = from; (at = text_.find('{', at)) != kNotFound; ++at) {
      if (stands(at + 1, "%") || stands(at + 1, "{") || stands(at + 1, "#")) return at;
    }
    return kNotFound;
  }

  // End of the tag `{% raw %}` at `tag`, or none if another tag is there.
  size_t after_raw(size_t tag) const {
    size_t at = tag + 2;
    if (stands(at, "-") || stands(at, "+")) {
      ++at;
    }
    at = skip_space(at);
    if (!stands(at, "raw")) return kNotFound;
    at = skip_space(at + 3);
    if (stands(at, "-%}")) return skip_space(at + 3);
    return stands(at, "%}") ? at + 2 : kNotFound;
  }

  void data(size_t begin, size_t end, char sign, bool strips_indent) {
    std::string_view text = std::string_view(text_).substr(begin, end - begin);
    if (sign == '-') {
      text = strip_right(text);
    } else if (sign != '+' && strips_indent) {
      const size_t line = text.rfind('\n') + 1;  // 0 without a line end
      if ((line > 0 || line_starting_) && strip_left(text.substr(line)).empty()) {
        text = text.substr(0, line);
      }
    }
    push(Kind::data, std::string(text));
  }

  // End of a closing tag at `at`, with the white space that it takes along; none if there is none.
  size_t after_close(size_t at, std::string_view close) const {
    if (stands(at, "-") && stands(at + 1, close)) return skip_space(at + 1 + close.size());
    if (close == "}}") return stands(at, close) ? at + close.size() : kNotFound;
    if (stands(at, "+") && stands(at + 1, close)) return at + 1 + close.size();
    if (!stands(at, close)) return kNotFound;
    at += close.size();
    return stands(at, "\n") ? at + 1 : at;
  }

  void comment(size_t tag, size_t begin) {
    for (size_t at = begin; at < text_.size(); ++at) {
      if (const size_t end = after_close(at, "#}"); end != kNotFound) return move_to(end);
    }
    move_to(tag);
    refuse("a comment does not end; expected '#}}'");
  }

  void raw_block(size_t begin) {
    move_to(begin);
    for (size_t at = begin; (at = text_.find("{%", at)) != kNotFound; at += 2) {
      const char sign = stands(at + 2, "-") ? '-' : stands(at + 2, "+") ? '+' : ' ';
      size_t word = skip_space(at + (sign == ' ' ? 2 : 3));
      if (!stands(word, "endraw")) continue;
      word = skip_space(word + 6);
      if (const size_t end = after_close(word, "%}"); end != kNotFound) {
        data(begin, at, sign, true);
        return move_to(end);
      }
    }
    refuse("a raw block does not end; expected '{{% endraw %}}'");
  }

  // Adds the tokens up to the end of a tag, which is none inside of brackets: `{{ {'a': {}} }}`.
  void inside(char close) {
    const std::string_view closing = close == '%' ? "%}" : "}}";
    std::string brackets;
    for (;;) {
      move_to(skip_space(at_));
      if (at_ >= text_.size()) refuse("a tag does not end; expected '{}'", closing);
      if (brackets.empty()) {
        if (const size_t end = after_close(at_, closing); end != kNotFound) {
          push(close == '%' ? Kind::block_end : Kind::variable_end, "");
          return move_to(end);
        }
      }
      const char c = text_[at_];
      if (is_digit(c)) {
        number();
      } else if (is_name_character(c)) {
        size_t end = at_;
        while (end < text_.size() && is_name_character(text_[end])) {
          ++end;
        }
        push(Kind::name, text_.substr(at_, end - at_));
        move_to(end);
      } else if (c == '\'' || c == '"') {
        string(c);
      } else {
        operation(&brackets);
      }
    }
  }

  void operation(std::string* brackets) {
    const auto* found = std::find_if(std::begin(kOperators), std::end(kOperators),
                                     [&](std::string_view op) { return stands(at_, op); });
    if (found == std::end(kOperators)) {
      const int length = utf8_length(text_, at_);
      refuse("unexpected character {}",
             quote(text_.substr(at_, static_cast<size_t>(std::max(length, 1)))));
    }
    const char c = (*found)[0];
    if (const size_t opened = kOpening.find(c); opened != kNotFound) {
      *brackets += kClosing[opened];
    } else if (kClosing.find(c) != kNotFound) {
      if (brackets->empty()) refuse("unexpected '{}'", c);
      if (brackets->back() != c) refuse("unexpected '{}'; expected '{}'", c, brackets->back());
      brackets->pop_back();
    }
    push(Kind::op, std::string(*found));
    move_to(at_ + found->size());
  }

  // End of digits with single _ between them; `at` if there are none.
  template <class IsDigit>
  size_t digits(size_t at, const IsDigit& is) const {
    while (at < text_.size()) {
      const bool gap = text_[at] == '_' && at + 1 < text_.size() && is(text_[at + 1]);
      if (!is(text_[at]) && !gap) break;
      at += gap ? 2 : 1;
    }
    return at;
  }

  size_t after_fraction(size_t at) const {
    return at + 1 < text_.size() && text_[at] == '.' && is_digit(text_[at + 1])
               ? digits(at + 1, is_digit)
               : at;
  }
  size_t after_exponent(size_t at) const {
    if (!stands(at, "e") && !stands(at, "E")) return at;
    size_t digit = at + 1;
    if (stands(digit, "+") || stands(digit, "-")) {
      ++digit;
    }
    return digit < text_.size() && is_digit(text_[digit]) ? digits(digit, is_digit) : at;
  }

  void number() {
    const size_t whole = digits(at_, is_digit);
    const size_t end = after_exponent(after_fraction(whole));
    const bool after_dot = at_ > 0 && text_[at_ - 1] == '.';
    if (end > whole && !after_dot) return real(end);
    int base = 10;
    size_t begin = at_, last = whole;
    if (text_[at_] == '0') {
      const char letter = at_ + 1 < text_.size() ? static_cast<char>(text_[at_ + 1] | 0x20) : ' ';
      base = letter == 'x' ? 16 : letter == 'o' ? 8 : letter == 'b' ? 2 : 10;
      const auto is = [&](char c) { return digit_value(c) < base; };
      const size_t after = base == 10 ? at_ : digits(at_ + 2, is);
      if (base != 10 && after > at_ + 2) {
        begin = at_ + 2;
        last = after;
      } else {
        base = 10;
        last = digits(at_, [](char c) { return c == '0'; });
      }
    }
    std::string plain = text_.substr(begin, last - begin);
    std::erase(plain, '_');
    Token token{Kind::integer, line_, plain};
    const auto read =
        std::from_chars(plain.data(), plain.data() + plain.size(), token.integer, base);
    if (read.ec != std::errc()) refuse("the number {} is beyond 64 bits", quote(plain));
    tokens_.push_back(std::move(token));
    move_to(last);
  }

  void real(size_t end) {
    std::string plain = text_.substr(at_, end - at_);
    std::erase(plain, '_');
    Token token{Kind::real, line_, plain};
    const auto read = std::from_chars(plain.data(), plain.data() + plain.size(), token.real);
    if (read.ec != std::errc()) refuse("the number {} is out of range", quote(plain));
    tokens_.push_back(std::move(token));
    move_to(end);
  }

  static int digit_value(char c) {
    if (is_digit(c)) return c - '0';
    const char lower = static_cast<char>(c | 0x20);
    return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : std::numeric_limits<int>::max();
  }

  void string(char quote_mark) {
    size_t end = at_ + 1;
    while (end < text_.size() && text_[end] != quote_mark) {
      end += text_[end] == '\\' ? 2 : 1;
    }
    if (end >= text_.size()) refuse("a string does not end; expected {}", quote_mark);
    push(Kind::text, unescaped(std::string_view(text_).substr(at_ + 1, end - at_ - 1)));
    move_to(end + 1);
  }

  // Python's escapes of a string literal.
  std::string unescaped(std::string_view text) const {
    static constexpr std::string_view kLetters = "abfnrtv\\'\"";
    static constexpr std::string_view kMeanings = "\a\b\f\n\r\t\v\\'\"";
    std::string out;
    for (size_t i = 0; i < text.size(); ++i) {
      if (text[i] != '\\') {
        out += text[i];
        continue;
      }
      const char c = text[++i];
      if (const size_t known = kLetters.find(c); known != kNotFound) {
        out += kMeanings[known];
      } else if (c == 'x' || c == 'u' || c == 'U') {
        code_point(text, &i, c == 'x' ? 2 : c == 'u' ? 4 : 8, &out);
      } else if (c >= '0' && c <= '7') {
        uint32_t value = 0;
        size_t end = i;
        for (; end < std::min(i + 3, text.size()) && text[end] >= '0' && text[end] <= '7'; ++end) {
          value = value * 8 + static_cast<uint32_t>(text[end] - '0');
        }
        append_utf8(value, &out);
        i = end - 1;
      } else if (c == 'N') {
        refuse("the escape \\N in a string is not supported; try the character itself");
      } else if (c != '\n') {  // a line end behind a backslash is none
        out += '\\';
        out += c;
      }
    }
    return out;
  }

  void code_point(std::string_view text, size_t* at, size_t length, std::string* out) const {
    const std::string_view digits = text.substr(std::min(*at + 1, text.size()), length);
    uint32_t value = 0;
    const auto read = std::from_chars(digits.data(), digits.data() + digits.size(), value, 16);
    if (read.ptr != digits.data() + length) refuse("truncated escape \\{} in a string", text[*at]);
    if (value > 0x10FFFF || (value >= 0xD800 && value < 0xE000)) {
      refuse("the escape \\{}{} in a string is no character", text[*at], digits);
    }
    append_utf8(value, out);
    *at += length;
  }

  const std::string& where_;
  std::string text_;
  std::vector<Token> tokens_;
  size_t at_ = 0;
  int line_ = 1;
  bool line_starting_ = true;
};

}  // namespace

std::vector<Token> tokenize(std::string_view source, const std::string& where) {
  return Lexer(source, where).run();
}

}  // namespace hocket::data::jinja
