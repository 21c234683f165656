// SPDX-License-Identifier: Apache-2.0
#include "interop/shell.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <utility>

#include "base/error.h"
#include "base/text.h"

namespace hocket::interop {

namespace {

bool is_name(char letter) {
  return std::isalnum(static_cast<unsigned char>(letter)) != 0 || letter == '_';
}

class Reader {
 public:
  Reader(std::string_view text, const std::string& name) : text_(text), name_(name) {}

  ShellScript read() {
    // A command ends at the end of a line, a semicolon, or an operator that joins commands.
    // Remembers assignments in front of it, and the words of arrays.
    while (at_ < text_.size()) {
      read_command();
    }
    return std::move(script_);
  }

 private:
  struct Value {
    std::vector<std::string> words;
    bool array = false;

    bool is_empty() const { return words.empty() || (words.size() == 1 && words[0].empty()); }
  };

  char now() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  char after() const { return at_ + 1 < text_.size() ? text_[at_ + 1] : '\0'; }
  char next() {
    const char letter = text_[at_++];
    line_ += letter == '\n' ? 1 : 0;
    return letter;
  }
  bool blank() const { return now() == ' ' || now() == '\t' || now() == '\r'; }
  bool joined() const { return now() == '\\' && (after() == '\n' || after() == '\r'); }
  bool ends() const {
    return at_ >= text_.size() || now() == '\n' || now() == ';' || now() == '|' || now() == '&';
  }

  void skip_blanks(bool lines) {
    while (at_ < text_.size()) {
      if (joined()) {
        while (next() != '\n' && at_ < text_.size()) {
        }
      } else if (blank() || (lines && now() == '\n')) {
        next();
      } else if (now() == '#') {
        while (at_ < text_.size() && now() != '\n') {
          next();
        }
      } else {
        return;
      }
    }
  }

  void read_command() {
    std::vector<ShellWord> words;
    skip_blanks(false);
    while (!ends()) {
      if (now() == '<' || now() == '>' || now() == '(' || now() == ')') {
        next();
      } else if (!words.empty() || !read_assignment()) {
        const int line = line_;
        for (std::string& word : read_word()) {
          words.push_back({std::move(word), line});
        }
      }
      skip_blanks(false);
    }
    if (at_ < text_.size()) {
      next();
    }
    if (words.empty()) return;
    if (words[0].text == "export" || words[0].text == "local") return;
    for (const char* word : {"if", "for", "while", "case", "until", "elif"}) {
      if (words[0].text != word) continue;
      script_.notes.push_back(fmt::format(
          "line {}: {} is not evaluated: its content is read as written", words[0].line, word));
    }
    script_.commands.push_back(std::move(words));
  }

  /// NAME=word, NAME+=word or NAME=(words), also behind `export`; false: it is none.
  bool read_assignment() {
    const size_t begin = at_;
    const int line = line_;
    for (const std::string_view word : {"export", "local", "declare", "readonly"}) {
      if (text_.substr(at_, word.size()) == word && at_ + word.size() < text_.size() &&
          text_[at_ + word.size()] == ' ') {
        at_ += word.size();
        skip_blanks(false);
      }
    }
    std::string variable;
    while (is_name(now())) {
      variable += next();
    }
    const bool more = now() == '+' && after() == '=';
    if (variable.empty() || std::isdigit(static_cast<unsigned char>(variable[0])) != 0 ||
        (now() != '=' && !more)) {
      at_ = begin;
      line_ = line;
      return false;
    }
    at_ += more ? 2 : 1;
    Value value;
    if (now() == '(') {
      next();
      value.array = true;
      skip_blanks(true);
      while (now() != ')') {
        if (at_ >= text_.size()) {
          fail(name_, "line {}: the array {} does not end; expected )", line, variable);
        }
        const int word_line = line_;
        if (ends() || now() == '(') {
          fail(name_, "line {}: the array {} has an unquoted {}; expected words up to )", line_,
               variable, now());
        }
        for (std::string& word : read_word()) {
          script_.assigned.push_back({word, word_line});
          value.words.push_back(std::move(word));
        }
        skip_blanks(true);
      }
      next();
    } else if (!ends() && !blank()) {
      value.words = {read_text()};
      for (const std::string& word : words_of(value.words[0])) {
        script_.assigned.push_back({word, line});
      }
    }
    Value& known = values_[variable];
    if (more) {
      known.words.insert(known.words.end(), value.words.begin(), value.words.end());
    } else {
      known = std::move(value);
    }
    return true;
  }

  static std::vector<std::string> words_of(const std::string& text) {
    std::vector<std::string> words;
    std::string word;
    for (const char letter : text + " ") {
      if (letter == ' ' || letter == '\t' || letter == '\n' || letter == '\r' || letter == '\\') {
        if (!word.empty()) {
          words.push_back(std::move(word));
        }
        word.clear();
      } else {
        word += letter;
      }
    }
    return words;
  }

  /// A word of an assignment: expansions do not split it.
  std::string read_text() {
    std::string text;
    while (!ends() && !blank() && now() != ')') {
      text += read_piece().text;
    }
    return text;
  }

  struct Piece {
    std::string text;
    bool splits = false;  ///< of an expansion outside of quotes
    std::vector<std::string> array = {};
    bool is_array = false;
  };

  std::vector<std::string> read_word() {
    std::vector<std::string> words;
    std::string word;
    bool any = false;
    while (!ends() && !blank() && now() != ')' && now() != '(') {
      if (joined()) break;
      const bool quoted = now() == '"' || now() == '\'';
      Piece piece = read_piece();
      if (piece.is_array) {
        words.insert(words.end(), piece.array.begin(), piece.array.end());
        continue;
      }
      if (!piece.splits) {
        word += piece.text;
        any = any || quoted || !piece.text.empty();
        continue;
      }
      const std::vector<std::string> parts = words_of(piece.text);
      for (size_t i = 0; i < parts.size(); ++i) {
        if (i > 0) {
          words.push_back(std::move(word));
          word.clear();
        }
        word += parts[i];
        any = true;
      }
    }
    if (any) {
      words.push_back(std::move(word));
    }
    if (words.empty() && !any && now() == '(') {
      next();
    }
    return words;
  }

  /// A letter, a quoted text or an expansion.
  Piece read_piece() {
    const int line = line_;
    if (now() == '\'') {
      next();
      Piece piece;
      while (now() != '\'') {
        if (at_ >= text_.size()) fail(name_, "line {}: a text in ' does not end", line);
        piece.text += next();
      }
      next();
      return piece;
    }
    if (now() == '"') {
      next();
      Piece piece;
      while (now() != '"') {
        if (at_ >= text_.size()) fail(name_, "line {}: a text in \" does not end", line);
        if (joined()) {
          while (next() != '\n' && at_ < text_.size()) {
          }
          piece.text += ' ';
        } else if (now() == '\\' && (after() == '"' || after() == '$' || after() == '\\')) {
          next();
          piece.text += next();
        } else if (now() == '$') {
          Piece inside = expand(true);
          if (inside.is_array && piece.text.empty() && now() == '"') {
            next();
            return inside;
          }
          piece.text += inside.is_array ? join(inside.array, " ") : inside.text;
        } else {
          piece.text += next();
        }
      }
      next();
      return piece;
    }
    if (now() == '$') return expand();
    if (now() == '\\' && at_ + 1 < text_.size()) {
      next();
    }
    return {std::string(1, next())};
  }

  /// Expands a dollar expression; `quoted` means inside of ", where the result is not split.
  Piece expand(bool quoted = false) {
    const size_t begin = at_;
    next();
    if (now() == '(' && after() == '(') return arithmetic(begin);
    if (now() == '(' || now() == '{') {
      const char close = now() == '(' ? ')' : '}';
      const char open = now();
      next();
      std::string inside;
      int depth = 1;
      while (at_ < text_.size()) {
        depth += now() == open ? 1 : 0;
        depth -= now() == close ? 1 : 0;
        if (depth == 0) break;
        inside += next();
      }
      if (at_ >= text_.size()) fail(name_, "line {}: ${} does not end", line_, open);
      next();
      const bool command = open == '(';
      if (command) {
        return {std::string(text_.substr(begin, at_ - begin))};
      }
      return value_of(inside, begin, quoted);
    }
    if (now() == '@' || now() == '*') {
      next();
      return {"", false, {}, true};
    }
    std::string variable;
    while (is_name(now())) {
      variable += next();
    }
    return value_of(variable, begin);
  }

  /// NAME, NAME[@] or NAME:-default, also with = for -, and without the colon, which takes an empty
  /// value for none.
  Piece value_of(const std::string& inside, size_t begin, bool quoted = false) {
    const auto end = std::find_if_not(inside.begin(), inside.end(), is_name);
    const std::string variable(inside.begin(), end);
    std::string rest(end, inside.end());
    const bool all = rest.starts_with("[@]") || rest.starts_with("[*]");
    rest.erase(0, all ? 3 : 0);
    const bool colon = rest.starts_with(":");
    const std::string how = rest.substr(colon ? 1 : 0, 1);
    const auto known = values_.find(variable);
    const bool has = known != values_.end() && !(colon && known->second.is_empty());
    const Piece as_written = {std::string(text_.substr(begin, at_ - begin))};
    if (!rest.empty() && how != "-" && how != "=") return as_written;
    if (!has && rest.empty()) return as_written;
    if (!has) {
      Piece otherwise = otherwise_of(rest.substr(colon ? 2 : 1), quoted);
      if (how == "=") {
        values_[variable].words = {otherwise.text};
      }
      return otherwise;
    }
    if (all) return {"", false, known->second.words, true};
    return {known->second.words.empty() ? "" : known->second.words[0], true};
  }

  /// Reads a default value by the shell's rules: its quotes are no letters, and a quoted text is
  /// one word.
  Piece otherwise_of(const std::string& inside, bool quoted) {
    const std::string_view outer = std::exchange(text_, inside);
    const size_t place = std::exchange(at_, 0);
    const int line = line_;
    constexpr int kMaxDefaults = 64;  // inside of each other
    if (++defaults_ > kMaxDefaults) {
      fail(name_, "line {}: more than {} defaults inside of each other", line, kMaxDefaults);
    }
    Piece piece = {"", true};
    while (at_ < text_.size()) {
      piece.splits = piece.splits && now() != '"' && (quoted || now() != '\'');
      if (quoted && now() == '\'') {
        piece.text += next();
        continue;
      }
      const Piece part = read_piece();
      piece.text += part.is_array ? join(part.array, " ") : part.text;
    }
    text_ = outer;
    at_ = place;
    line_ = line;
    --defaults_;
    return piece;
  }

  /// $(( ... )) of numbers and + - * / and parentheses; as it stands where it is something else.
  Piece arithmetic(size_t begin) {
    next();
    next();
    std::string inside;
    int depth = 0;
    while (at_ < text_.size() && !(depth == 0 && now() == ')' && after() == ')')) {
      if (now() == '$') {
        inside += expand().text;
        continue;
      }
      depth += now() == '(' ? 1 : 0;
      depth -= now() == ')' ? 1 : 0;
      if (is_name(now()) && std::isdigit(static_cast<unsigned char>(now())) == 0) {
        std::string variable;
        while (is_name(now())) {
          variable += next();
        }
        inside += value_of(variable, at_).text;
        continue;
      }
      inside += next();
    }
    if (at_ >= text_.size()) fail(name_, "line {}: $(( does not end", line_);
    next();
    next();
    size_t place = 0;
    int64_t value = 0;
    if (sum(inside, &place, &value) &&
        inside.find_first_not_of(" \t", place) == std::string::npos) {
      return {std::to_string(value)};
    }
    return {std::string(text_.substr(begin, at_ - begin))};
  }

  static void skip(const std::string& text, size_t* at) {
    while (*at < text.size() && (text[*at] == ' ' || text[*at] == '\t')) {
      ++*at;
    }
  }
  static bool number(const std::string& text, size_t* at, int64_t* value) {
    skip(text, at);
    if (*at < text.size() && text[*at] == '(') {
      ++*at;
      if (!sum(text, at, value)) return false;
      skip(text, at);
      const bool ends = *at < text.size() && text[*at] == ')';
      ++*at;
      return ends;
    }
    const size_t begin = *at;
    while (*at < text.size() && std::isdigit(static_cast<unsigned char>(text[*at])) != 0) {
      ++*at;
    }
    return parse_int(std::string_view(text).substr(begin, *at - begin), value);
  }
  static bool product(const std::string& text, size_t* at, int64_t* value) {
    if (!number(text, at, value)) return false;
    for (skip(text, at); *at < text.size() && (text[*at] == '*' || text[*at] == '/');
         skip(text, at)) {
      const char sign = text[(*at)++];
      int64_t more = 0;
      if (!number(text, at, &more) || (sign == '/' && more == 0)) return false;
      if (sign == '/') {
        *value /= more;
      } else if (__builtin_mul_overflow(*value, more, value)) {
        return false;
      }
    }
    return true;
  }
  static bool sum(const std::string& text, size_t* at, int64_t* value) {
    if (!product(text, at, value)) return false;
    for (skip(text, at); *at < text.size() && (text[*at] == '+' || text[*at] == '-');
         skip(text, at)) {
      const char sign = text[(*at)++];
      int64_t more = 0;
      if (!product(text, at, &more)) return false;
      if (__builtin_add_overflow(*value, sign == '+' ? more : -more, value)) return false;
    }
    return true;
  }

  std::string_view text_;
  const std::string& name_;
  size_t at_ = 0;
  int line_ = 1;
  int defaults_ = 0;
  std::map<std::string, Value> values_;
  ShellScript script_;
};

}  // namespace

ShellScript read_shell(std::string_view text, const std::string& name) {
  return Reader(text, name).read();
}

}  // namespace hocket::interop
