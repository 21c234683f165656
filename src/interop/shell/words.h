// SPDX-License-Identifier: Apache-2.0
// Words of a shell script: a place in its text, quotes, and the variables that are expanded.
#pragma once

#include <cctype>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace hocket::interop {

/// Returns whether a character may occur in the name of a variable.
inline bool is_shell_name(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
}
inline bool is_shell_digit(char letter) {
  return std::isdigit(static_cast<unsigned char>(letter)) != 0;
}

/// Splits an expanded text at blanks, line ends and backslashes.
std::vector<std::string> shell_words_of(const std::string& text);

class ShellWords {
 public:
  struct Value {
    std::vector<std::string> words;
    bool array = false;

    bool is_empty() const { return words.empty() || (words.size() == 1 && words[0].empty()); }
  };
  struct Cursor {
    size_t at = 0;
    int line = 1;
  };

  /// `name` is the file's, in errors. Requires: both outlive it.
  ShellWords(std::string_view text, const std::string& name) : text_(text), name_(name) {}

  const std::string& name() const { return name_; }
  int line() const { return line_; }
  Cursor cursor() const { return {at_, line_}; }
  void return_to(Cursor cursor) {
    at_ = cursor.at;
    line_ = cursor.line;
  }
  bool is_at_end() const { return at_ >= text_.size(); }
  std::string_view rest() const { return text_.substr(at_); }
  char before() const { return at_ > 0 ? text_[at_ - 1] : '\0'; }
  char now() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  char after() const { return at_ + 1 < text_.size() ? text_[at_ + 1] : '\0'; }
  char next() {
    const char letter = text_[at_++];
    line_ += letter == '\n' ? 1 : 0;
    return letter;
  }
  /// Requires: the next `chars` characters have no line end.
  void advance(size_t chars) { at_ += chars; }
  bool blank() const { return now() == ' ' || now() == '\t' || now() == '\r'; }
  /// Returns whether the line goes on in the next one.
  bool joined() const { return now() == '\\' && (after() == '\n' || after() == '\r'); }
  bool ends() const {
    return at_ >= text_.size() || now() == '\n' || now() == ';' || now() == '|' || now() == '&';
  }
  bool is_redirection() const {
    return now() == '<' || now() == '>' || (now() == '&' && after() == '>');
  }
  /// Passes blanks, joined lines and comments; `lines`: line ends, too.
  void skip_blanks(bool lines);

  /// Reads a word of an assignment: expansions do not split it.
  std::string read_text();
  /// Reads a word, which an expansion may split or leave out. Of a command it ends before a
  /// redirection. Throws Error for quotes or parentheses that do not end.
  std::vector<std::string> read_word(bool of_command = false);
  /// Reads the words of another text with the variables as they are; false: one has no value here.
  bool words_in(const std::string& text, std::vector<std::string>* words);

  std::map<std::string, Value>& values() { return values_; }

 private:
  struct Piece {
    std::string text;
    bool splits = false;  ///< of an expansion outside of quotes
    std::vector<std::string> array = {};
    bool is_array = false;
  };
  Piece read_piece();
  Piece expand(bool quoted = false);
  Piece value_of(const std::string& inside, size_t begin, bool quoted = false);
  Piece otherwise_of(const std::string& inside, bool quoted);
  Piece arithmetic(size_t begin);
  void enter_expansion();

  std::string_view text_;
  const std::string& name_;
  size_t at_ = 0;
  int line_ = 1;
  int expansions_ = 0;  ///< that are being read, inside of each other
  std::map<std::string, Value> values_;
};

}  // namespace hocket::interop
