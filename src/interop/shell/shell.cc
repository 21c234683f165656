// SPDX-License-Identifier: Apache-2.0
#include "interop/shell/shell.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "interop/shell/branches.h"
#include "interop/shell/words.h"

namespace hocket::interop {

namespace {

class Reader {
 public:
  Reader(std::string_view text, const std::string& name) : text_(text, name) {}

  ShellScript read() {
    // A command ends at the end of a line, a semicolon, or an operator that joins commands.
    // Remembers assignments in front of it, and the words of arrays.
    while (!text_.is_at_end()) {
      read_command();
    }
    return std::move(script_);
  }

 private:
  void read_command() {
    std::vector<ShellWord> words;
    text_.skip_blanks(false);
    if (branches_.read_keyword()) return;
    std::string here;  // word that ends the text behind <<
    while (!text_.ends() || text_.is_redirection()) {
      if (text_.now() == '<' && text_.after() == '<') {
        here = read_here();
      } else if (text_.is_redirection()) {
        read_redirection(&words);
      } else if (text_.now() == '(' || text_.now() == ')') {
        text_.next();
      } else if (!words.empty() || !read_assignment()) {
        const int line = text_.line();
        for (std::string& word : text_.read_word(true)) {
          words.push_back({std::move(word), line});
        }
      }
      text_.skip_blanks(false);
    }
    if (!here.empty()) {
      skip_here(here);
    } else if (!text_.is_at_end()) {
      text_.next();
    }
    if (words.empty() || !branches_.is_read()) return;
    if (words[0].text == "export" || words[0].text == "local") return;
    if (words[0].text == "for" || words[0].text == "while" || words[0].text == "until") {
      script_.notes.push_back(unread_note(words[0].line, words[0].text));
    }
    script_.commands.push_back(std::move(words));
  }

  /// Skips ">file", "2>&1" and "&> file", with the number in front.
  void read_redirection(std::vector<ShellWord>* words) {
    if (is_shell_digit(text_.before()) && !words->empty() &&
        std::all_of(words->back().text.begin(), words->back().text.end(), is_shell_digit)) {
      words->pop_back();
    }
    while (text_.now() == '<' || text_.now() == '>' || text_.now() == '&') {
      text_.next();
    }
    text_.skip_blanks(false);
    if (!text_.ends() && text_.now() != '(' && text_.now() != ')') {
      text_.read_word(true);
    }
  }

  /// The word behind <<, without quotes. "<<<" has a text in place of lines.
  std::string read_here() {
    text_.next();
    text_.next();
    if (text_.now() == '<') {
      text_.next();
      return "";
    }
    if (text_.now() == '-') {
      text_.next();
    }
    text_.skip_blanks(false);
    std::string word;
    while (!text_.ends() && !text_.blank()) {
      word += text_.next();
    }
    std::erase_if(word,
                  [](char letter) { return letter == '\'' || letter == '"' || letter == '\\'; });
    return word;
  }

  /// Skips the rest of a line and the lines up to `word`.
  void skip_here(const std::string& word) {
    std::string line;
    while (!text_.is_at_end() && text_.next() != '\n') {
    }
    while (!text_.is_at_end()) {
      const char letter = text_.next();
      if (letter == '\n') {
        if (trim(line) == word) return;
        line.clear();
      } else {
        line += letter;
      }
    }
  }

  /// NAME=word, NAME+=word or NAME=(words), also behind `export`; false: it is none.
  bool read_assignment() {
    const ShellWords::Cursor begin = text_.cursor();
    const int line = text_.line();
    for (const std::string_view word : {"export", "local", "declare", "readonly"}) {
      const std::string_view rest = text_.rest();
      if (rest.starts_with(word) && rest.size() > word.size() && rest[word.size()] == ' ') {
        text_.advance(word.size());
        text_.skip_blanks(false);
      }
    }
    std::string variable;
    while (is_shell_name(text_.now())) {
      variable += text_.next();
    }
    const bool more = text_.now() == '+' && text_.after() == '=';
    if (variable.empty() || is_shell_digit(variable[0]) || (text_.now() != '=' && !more)) {
      text_.return_to(begin);
      return false;
    }
    text_.advance(more ? 2 : 1);
    ShellWords::Value value;
    if (text_.now() == '(') {
      text_.next();
      value.array = true;
      text_.skip_blanks(true);
      while (text_.now() != ')') {
        if (text_.is_at_end()) {
          fail(text_.name(), "line {}: the array {} does not end; expected )", line, variable);
        }
        const int word_line = text_.line();
        if (text_.ends() || text_.now() == '(') {
          fail(text_.name(), "line {}: the array {} has an unquoted {}; expected words up to )",
               text_.line(), variable, text_.now());
        }
        for (std::string& word : text_.read_word()) {
          for (const std::string& part : shell_words_of(word)) {
            if (branches_.is_read()) {
              script_.assigned.push_back({part, word_line});
            }
          }
          value.words.push_back(std::move(word));
        }
        text_.skip_blanks(true);
      }
      text_.next();
    } else if (!text_.ends() && !text_.blank()) {
      value.words = {text_.read_text()};
      for (const std::string& word : shell_words_of(value.words[0])) {
        if (branches_.is_read()) {
          script_.assigned.push_back({word, line});
        }
      }
    }
    if (!branches_.is_read()) return true;
    ShellWords::Value& known = text_.values()[variable];
    if (more) {
      known.words.insert(known.words.end(), value.words.begin(), value.words.end());
    } else {
      known = std::move(value);
    }
    return true;
  }

  ShellScript script_;
  ShellWords text_;
  ShellBranches branches_{text_, script_.notes};
};

}  // namespace

ShellScript read_shell(std::string_view text, const std::string& name) {
  return Reader(text, name).read();
}

}  // namespace hocket::interop
