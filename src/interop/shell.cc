// SPDX-License-Identifier: Apache-2.0
#include "interop/shell.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <optional>
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
    if (read_keyword()) return;
    std::string here;  // word that ends the text behind <<
    while (!ends() || is_redirection()) {
      if (now() == '<' && after() == '<') {
        here = read_here();
      } else if (is_redirection()) {
        read_redirection(&words);
      } else if (now() == '(' || now() == ')') {
        next();
      } else if (!words.empty() || !read_assignment()) {
        const int line = line_;
        for (std::string& word : read_word(true)) {
          words.push_back({std::move(word), line});
        }
      }
      skip_blanks(false);
    }
    if (!here.empty()) {
      skip_here(here);
    } else if (at_ < text_.size()) {
      next();
    }
    if (words.empty() || !is_read()) return;
    if (words[0].text == "export" || words[0].text == "local") return;
    if (words[0].text == "for" || words[0].text == "while" || words[0].text == "until") {
      note_unread(words[0].line, words[0].text);
    }
    script_.commands.push_back(std::move(words));
  }

  bool is_redirection() const {
    return now() == '<' || now() == '>' || (now() == '&' && after() == '>');
  }

  /// Skips ">file", "2>&1" and "&> file", with the number in front.
  void read_redirection(std::vector<ShellWord>* words) {
    const auto is_digit = [](char letter) {
      return std::isdigit(static_cast<unsigned char>(letter)) != 0;
    };
    const bool touches = at_ > 0 && is_digit(text_[at_ - 1]);
    if (touches && !words->empty() &&
        std::all_of(words->back().text.begin(), words->back().text.end(), is_digit)) {
      words->pop_back();
    }
    while (now() == '<' || now() == '>' || now() == '&') {
      next();
    }
    skip_blanks(false);
    if (!ends() && now() != '(' && now() != ')') {
      read_word(true);
    }
  }

  void note_unread(int line, const std::string& word) {
    script_.notes.push_back(
        fmt::format("line {}: {} is not evaluated: its content is read as written", line, word));
  }

  /// The word behind <<, without quotes. "<<<" has a text in place of lines.
  std::string read_here() {
    next();
    next();
    if (now() == '<') {
      next();
      return "";
    }
    if (now() == '-') {
      next();
    }
    skip_blanks(false);
    std::string word;
    while (!ends() && !blank()) {
      word += next();
    }
    std::erase_if(word,
                  [](char letter) { return letter == '\'' || letter == '"' || letter == '\\'; });
    return word;
  }

  /// Skips the rest of a line and the lines up to `word`.
  void skip_here(const std::string& word) {
    std::string line;
    while (at_ < text_.size() && next() != '\n') {
    }
    while (at_ < text_.size()) {
      const char letter = next();
      if (letter == '\n') {
        if (trim(line) == word) return;
        line.clear();
      } else {
        line += letter;
      }
    }
  }

  /// Takes the branch of an `if` or a `case` whose condition is known; where it is not, all of
  /// them.
  struct Branch {
    bool is_case = false;
    bool is_known = true;  ///< false: some condition was not
    bool is_taken = false;
    bool is_read = true;  ///< this part of it
    std::string word;     ///< of a case
    bool is_word_known = true;
  };
  bool is_read() const {
    return std::all_of(branches_.begin(), branches_.end(),
                       [](const Branch& branch) { return branch.is_read; });
  }

  /// True of a keyword that stands at `at_`, which is then behind it.
  bool take_keyword(std::string_view word) {
    if (text_.substr(at_, word.size()) != word) return false;
    const size_t end = at_ + word.size();
    const bool ends_there = end >= text_.size() || text_[end] == ' ' || text_[end] == '\n' ||
                            text_[end] == ';' || text_[end] == '\t' || text_[end] == '\r';
    if (!ends_there) return false;
    at_ = end;
    return true;
  }

  bool read_keyword() {
    const int line = line_;
    if (!branches_.empty() && branches_.back().is_case && read_pattern_of_case()) return true;
    for (const char* word : {"then", "do", "{", "}", "done", "!", "time", "exec", "nohup"}) {
      if (take_keyword(word)) return true;
    }
    if (take_keyword("if")) {
      branches_.push_back({});
      enter(line, "if");
    } else if (!branches_.empty() && take_keyword("elif")) {
      enter(line, "elif");
    } else if (!branches_.empty() && take_keyword("else")) {
      Branch& branch = branches_.back();
      branch.is_read = !branch.is_taken || !branch.is_known;
    } else if (!branches_.empty() && (take_keyword("fi") || take_keyword("esac"))) {
      branches_.pop_back();
    } else if (take_keyword("case")) {
      read_case(line);
    } else {
      return false;
    }
    return true;
  }

  void enter(int line, const char* word) {
    const bool outside = is_read_outside();
    const std::string condition = rest_of_condition();
    Branch& branch = branches_.back();
    const std::optional<bool> holds = truth_of(condition);
    if (branch.is_taken && branch.is_known) {
      branch.is_read = false;
    } else if (!holds) {
      branch.is_known = false;
      branch.is_read = true;
      if (outside) {
        note_unread(line, word);
      }
    } else {
      branch.is_read = *holds;
      branch.is_taken = branch.is_taken || *holds;
      // Behind a condition that holds for sure nothing else is read.
      branch.is_known = branch.is_known || *holds;
    }
  }
  bool is_read_outside() const {
    return std::all_of(branches_.begin(), branches_.end() - 1,
                       [](const Branch& branch) { return branch.is_read; });
  }

  /// Text up to `then`, as it stands.
  std::string rest_of_condition() {
    std::string text;
    char quote = 0;
    while (at_ < text_.size()) {
      const char letter = now();
      if (quote == 0 && (letter == ';' || letter == '\n')) {
        next();
        break;
      }
      if (quote == 0 && joined()) {
        skip_blanks(false);
        text += ' ';
        continue;
      }
      quote = quote == letter                                   ? 0
              : quote == 0 && (letter == '"' || letter == '\'') ? letter
                                                                : quote;
      text += next();
    }
    return text;
  }

  /// Evaluates tests of texts and numbers joined by && and ||; none: something in it is not known.
  std::optional<bool> truth_of(const std::string& condition) {
    const size_t either = condition.rfind("||"), both = condition.rfind("&&");
    const size_t cut = either == condition.npos ? both
                       : both == condition.npos ? either
                                                : std::max(either, both);
    if (cut == condition.npos) return truth_of_test(condition);
    const std::optional<bool> left = truth_of(condition.substr(0, cut)),
                              right = truth_of_test(condition.substr(cut + 2));
    const bool wins = condition[cut] == '|';  // true for ||, false for &&
    if ((left && *left == wins) || (right && *right == wins)) return wins;
    return left && right ? std::optional<bool>(!wins) : std::nullopt;
  }

  /// "((a > b))" of two sums.
  std::optional<bool> truth_of_numbers(std::string_view inside) {
    std::vector<std::string> words;
    if (!words_in(std::string(inside), &words)) return std::nullopt;
    for (std::string& word : words) {
      const auto known = values_.find(word);
      if (known != values_.end() && known->second.words.size() == 1) {
        word = known->second.words[0];
      }
    }
    constexpr std::pair<const char*, const char*> kSigns[] = {
        {">", "-gt"}, {">=", "-ge"}, {"<", "-lt"}, {"<=", "-le"}, {"==", "-eq"}, {"!=", "-ne"}};
    for (const auto& [sign, as_test] : kSigns) {
      if (words.size() == 3 && words[1] == sign) {
        return truth_of_words({words[0], as_test, words[2]});
      }
    }
    return std::nullopt;
  }

  std::optional<bool> truth_of_test(const std::string& condition) {
    const std::string_view all = trim(condition);
    if (all.starts_with("((") && all.ends_with("))")) {
      return truth_of_numbers(all.substr(2, all.size() - 4));
    }
    std::vector<std::string> words;
    if (!words_in(condition, &words) || words.size() < 3) return std::nullopt;
    const bool one = words.front() == "[" && words.back() == "]";
    const bool two = words.front() == "[[" && words.back() == "]]";
    if (!one && !two) return std::nullopt;
    words.erase(words.begin());
    words.pop_back();
    bool negated = false;
    while (!words.empty() && words.front() == "!") {
      negated = !negated;
      words.erase(words.begin());
    }
    const std::optional<bool> holds = truth_of_words(words);
    return holds ? std::optional<bool>(*holds != negated) : std::nullopt;
  }

  /// Words of a text with its variables; false: one has no value here.
  bool words_in(const std::string& text, std::vector<std::string>* words) {
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

  static std::optional<bool> truth_of_words(const std::vector<std::string>& words) {
    if (words.size() == 2 && words[0] == "-n") return !words[1].empty();
    if (words.size() == 2 && words[0] == "-z") return words[1].empty();
    if (words.size() != 3) return std::nullopt;
    const std::string& left = words[0];
    const std::string& sign = words[1];
    const std::string& right = words[2];
    int64_t a = 0, b = 0;
    const bool numbers = parse_int(left, &a) && parse_int(right, &b);
    if (sign == "==" || sign == "=") {
      if (right.find_first_of("*?") != right.npos) return std::nullopt;
      return left == right;
    }
    if (sign == "!=" && right.find_first_of("*?") == right.npos) return left != right;
    if (!numbers) return std::nullopt;
    if (sign == "-eq") return a == b;
    if (sign == "-ne") return a != b;
    if (sign == "-gt") return a > b;
    if (sign == "-ge") return a >= b;
    if (sign == "-lt") return a < b;
    if (sign == "-le") return a <= b;
    return std::nullopt;
  }

  void read_case(int line) {
    std::string text;
    while (at_ < text_.size() && now() != '\n' && !take_keyword("in")) {
      text += next();
    }
    std::vector<std::string> words;
    Branch branch;
    branch.is_case = true;
    branch.is_word_known = words_in(text, &words) && words.size() <= 1;
    branch.word = words.empty() ? "" : words[0];
    if (!branch.is_word_known && is_read()) {
      note_unread(line, "case");
    }
    branch.is_known = branch.is_word_known;
    branch.is_read = false;
    branches_.push_back(std::move(branch));
  }

  /// "a|b)" at the head of a part of a case.
  bool read_pattern_of_case() {
    size_t end = at_;
    while (end < text_.size() && text_[end] != ')' && text_[end] != '\n' && text_[end] != '=' &&
           text_[end] != ' ' && text_[end] != '(' && text_[end] != '$') {
      ++end;
    }
    const bool is_pattern = end < text_.size() && text_[end] == ')' && end > at_;
    if (!is_pattern) return false;
    Branch& branch = branches_.back();
    bool fits = false;
    for (std::string pattern : split(text_.substr(at_, end - at_), '|')) {
      std::erase_if(pattern, [](char letter) { return letter == '"' || letter == '\''; });
      const size_t star = pattern.find('*');
      fits = fits || pattern == branch.word ||
             (star != pattern.npos && star + 1 == pattern.size() &&
              branch.word.starts_with(pattern.substr(0, star)));
    }
    at_ = end + 1;
    branch.is_read = !branch.is_known || (fits && !branch.is_taken);
    branch.is_taken = branch.is_taken || fits;
    return true;
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
          for (const std::string& part : words_of(word)) {
            if (is_read()) {
              script_.assigned.push_back({part, word_line});
            }
          }
          value.words.push_back(std::move(word));
        }
        skip_blanks(true);
      }
      next();
    } else if (!ends() && !blank()) {
      value.words = {read_text()};
      for (const std::string& word : words_of(value.words[0])) {
        if (is_read()) {
          script_.assigned.push_back({word, line});
        }
      }
    }
    if (!is_read()) return true;
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

  std::vector<std::string> read_word(bool of_command = false) {
    std::vector<std::string> words;
    std::string word;
    bool any = false;
    while (!ends() && !blank() && now() != ')' && now() != '(' &&
           !(of_command && is_redirection())) {
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
          const std::vector<std::string> parts = words_of(element);
          words.insert(words.end(), parts.begin(), parts.end());
        }
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
  std::vector<Branch> branches_;
  ShellScript script_;
};

}  // namespace

ShellScript read_shell(std::string_view text, const std::string& name) {
  return Reader(text, name).read();
}

}  // namespace hocket::interop
