// SPDX-License-Identifier: Apache-2.0
#include "interop/shell/words.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "interop/shell/sum.h"

namespace hocket::interop {

std::vector<std::string> shell_words_of(const std::string& text) {
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

void ShellWords::skip_blanks(bool lines) {
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

/// Words of a text with its variables; false: one has no value here.
bool ShellWords::words_in(const std::string& text, std::vector<std::string>* words) {
  const std::string_view outer = std::exchange(text_, text);
  const size_t place = std::exchange(at_, 0);
  const int line = line_;
  std::string word;
  bool any = false;
  while (at_ < text_.size()) {
    if (blank()) {
      next();
      if (any) {
        words->push_back(std::exchange(word, ""));
      }
      any = false;
      continue;
    }
    any = true;
    const Piece piece = read_piece();
    word += piece.is_array ? join(piece.array, " ") : piece.text;
  }
  if (any) {
    words->push_back(word);
  }
  text_ = outer;
  at_ = place;
  line_ = line;
  return std::none_of(words->begin(), words->end(), [](const std::string& one) {
    return one.find('$') != one.npos || one.find('`') != one.npos;
  });
}

/// A word of an assignment: expansions do not split it.
std::string ShellWords::read_text() {
  std::string text;
  while (!ends() && !blank() && now() != ')') {
    text += read_piece().text;
  }
  return text;
}

std::vector<std::string> ShellWords::read_word(bool of_command) {
  std::vector<std::string> words;
  std::string word;
  bool any = false;
  while (!ends() && !blank() && now() != ')' && now() != '(' && !(of_command && is_redirection())) {
    if (joined()) break;
    const bool quoted = now() == '"' || now() == '\'';
    Piece piece = read_piece();
    if (piece.is_array) {
      for (const std::string& element : piece.array) {
        if (quoted) {
          words.push_back(element);
          continue;
        }
        // Outside of quotes an element of several words is several words.
        const std::vector<std::string> parts = shell_words_of(element);
        words.insert(words.end(), parts.begin(), parts.end());
      }
      continue;
    }
    if (!piece.splits) {
      word += piece.text;
      any = any || quoted || !piece.text.empty();
      continue;
    }
    const std::vector<std::string> parts = shell_words_of(piece.text);
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
ShellWords::Piece ShellWords::read_piece() {
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
ShellWords::Piece ShellWords::expand(bool quoted) {
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
  while (is_shell_name(now())) {
    variable += next();
  }
  return value_of(variable, begin);
}

/// NAME, NAME[@] or NAME:-default, also with = for -, and without the colon, which takes an empty
/// value for none.
ShellWords::Piece ShellWords::value_of(const std::string& inside, size_t begin, bool quoted) {
  const auto end = std::find_if_not(inside.begin(), inside.end(), is_shell_name);
  const std::string variable(inside.begin(), end);
  std::string rest(end, inside.end());
  const bool all = rest.starts_with("[@]") || rest.starts_with("[*]");
  rest.erase(0, all ? 3 : 0);
  const bool colon = rest.starts_with(":");
  const std::string operation = rest.substr(colon ? 1 : 0, 1);
  const auto known = values_.find(variable);
  const bool has = known != values_.end() && !(colon && known->second.is_empty());
  const Piece as_written = {std::string(text_.substr(begin, at_ - begin))};
  if (!rest.empty() && operation != "-" && operation != "=") return as_written;
  if (!has && rest.empty()) return as_written;
  if (!has) {
    Piece otherwise = otherwise_of(rest.substr(colon ? 2 : 1), quoted);
    if (operation == "=") {
      values_[variable].words = {otherwise.text};
    }
    return otherwise;
  }
  if (all) return {"", false, known->second.words, true};
  return {known->second.words.empty() ? "" : known->second.words[0], true};
}

/// Counts an expansion inside of others. Throws Error for too many.
void ShellWords::enter_expansion() {
  constexpr int kMaxExpansions = 64;
  if (++expansions_ > kMaxExpansions) {
    fail(name_, "line {}: more than {} expansions inside of each other", line_, kMaxExpansions);
  }
}

/// Reads a default value by the shell's rules: its quotes are no letters, and a quoted text is
/// one word.
ShellWords::Piece ShellWords::otherwise_of(const std::string& inside, bool quoted) {
  const std::string_view outer = std::exchange(text_, inside);
  const size_t place = std::exchange(at_, 0);
  const int line = line_;
  enter_expansion();
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
  --expansions_;
  return piece;
}

/// $(( ... )) of numbers and + - * / and parentheses; as it stands where it is something else.
ShellWords::Piece ShellWords::arithmetic(size_t begin) {
  next();
  next();
  enter_expansion();
  std::string inside;
  int depth = 0;
  while (at_ < text_.size() && !(depth == 0 && now() == ')' && after() == ')')) {
    if (now() == '$') {
      inside += expand().text;
      continue;
    }
    depth += now() == '(' ? 1 : 0;
    depth -= now() == ')' ? 1 : 0;
    if (is_shell_name(now()) && !is_shell_digit(now())) {
      std::string variable;
      while (is_shell_name(now())) {
        variable += next();
      }
      inside += value_of(variable, at_).text;
      continue;
    }
    inside += next();
  }
  if (at_ >= text_.size()) fail(name_, "line {}: $(( does not end", line_);
  --expansions_;
  next();
  next();
  if (const std::optional<int64_t> value = shell_sum(inside)) return {std::to_string(*value)};
  return {std::string(text_.substr(begin, at_ - begin))};
}

}  // namespace hocket::interop
