// SPDX-License-Identifier: Apache-2.0
#include "interop/shell/branches.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/text.h"

namespace hocket::interop {

namespace {

std::optional<bool> truth_of_words(const std::vector<std::string>& words) {
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

}  // namespace

std::string unread_note(int line, std::string_view word) {
  return fmt::format("line {}: {} is not evaluated: its content is read as written", line, word);
}

/// Passes a keyword that stands here; false: none does.
bool ShellBranches::take_keyword(std::string_view word) {
  const std::string_view rest = words_.rest();
  if (!rest.starts_with(word)) return false;
  constexpr std::string_view kEnds = " \n;\t\r";
  if (rest.size() > word.size() && kEnds.find(rest[word.size()]) == kEnds.npos) return false;
  words_.advance(word.size());
  return true;
}

bool ShellBranches::read_keyword() {
  const int line = words_.line();
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

void ShellBranches::enter(int line, const char* word) {
  const bool outside = are_read(branches_.size() - 1);
  const std::string condition = rest_of_condition();
  Branch& branch = branches_.back();
  const std::optional<bool> holds = truth_of(condition);
  if (branch.is_taken && branch.is_known) {
    branch.is_read = false;
  } else if (!holds) {
    branch.is_known = false;
    branch.is_read = true;
    if (outside) {
      notes_.push_back(unread_note(line, word));
    }
  } else {
    branch.is_read = *holds;
    branch.is_taken = branch.is_taken || *holds;
    // Behind a condition that holds for sure nothing else is read.
    branch.is_known = branch.is_known || *holds;
  }
}
/// Text up to `then`, as it stands.
std::string ShellBranches::rest_of_condition() {
  std::string text;
  char quote = 0;
  while (!words_.is_at_end()) {
    const char letter = words_.now();
    if (quote == 0 && (letter == ';' || letter == '\n')) {
      words_.next();
      break;
    }
    if (quote == 0 && words_.joined()) {
      words_.skip_blanks(false);
      text += ' ';
      continue;
    }
    quote = quote == letter ? 0 : quote == 0 && (letter == '"' || letter == '\'') ? letter : quote;
    text += words_.next();
  }
  return text;
}

/// Evaluates tests of texts and numbers joined by && and ||, which bind alike, from the left; none:
/// something in it is not known.
std::optional<bool> ShellBranches::truth_of(std::string_view condition) {
  std::optional<bool> truth;
  char joined_by = 0;
  for (size_t begin = 0;;) {
    const size_t end = std::min(condition.find("||", begin), condition.find("&&", begin));
    const std::optional<bool> next = truth_of_test(condition.substr(begin, end - begin));
    const bool wins = joined_by == '|';  // true for ||, false for &&
    if (joined_by == 0) {
      truth = next;
    } else if ((truth && *truth == wins) || (next && *next == wins)) {
      truth = wins;
    } else {
      truth = truth && next ? std::optional<bool>(!wins) : std::nullopt;
    }
    if (end == condition.npos) return truth;
    joined_by = condition[end];
    begin = end + 2;
  }
}

/// "((a > b))" of two sums.
std::optional<bool> ShellBranches::truth_of_numbers(std::string_view inside) {
  std::vector<std::string> words;
  if (!words_.words_in(std::string(inside), &words)) return std::nullopt;
  const auto& values = words_.values();
  for (std::string& word : words) {
    const auto known = values.find(word);
    if (known != values.end() && known->second.words.size() == 1) {
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

std::optional<bool> ShellBranches::truth_of_test(std::string_view condition) {
  const std::string_view all = trim(condition);
  if (all.starts_with("((") && all.ends_with("))")) {
    return truth_of_numbers(all.substr(2, all.size() - 4));
  }
  std::vector<std::string> words;
  if (!words_.words_in(std::string(condition), &words) || words.size() < 3) return std::nullopt;
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

void ShellBranches::read_case(int line) {
  std::string text;
  while (!words_.is_at_end() && words_.now() != '\n' && !take_keyword("in")) {
    text += words_.next();
  }
  std::vector<std::string> words;
  Branch branch;
  branch.is_case = true;
  branch.is_word_known = words_.words_in(text, &words) && words.size() <= 1;
  branch.word = words.empty() ? "" : words[0];
  if (!branch.is_word_known && is_read()) {
    notes_.push_back(unread_note(line, "case"));
  }
  branch.is_known = branch.is_word_known;
  branch.is_read = false;
  branches_.push_back(std::move(branch));
}

/// "a|b)" at the head of a part of a case.
bool ShellBranches::read_pattern_of_case() {
  const std::string_view rest = words_.rest();
  const size_t end = rest.find_first_of(")\n= ($");
  const bool is_pattern = end != rest.npos && rest[end] == ')' && end > 0;
  if (!is_pattern) return false;
  Branch& branch = branches_.back();
  bool fits = false;
  for (std::string pattern : split(rest.substr(0, end), '|')) {
    std::erase_if(pattern, [](char letter) { return letter == '"' || letter == '\''; });
    const size_t star = pattern.find('*');
    fits = fits || pattern == branch.word ||
           (star != pattern.npos && star + 1 == pattern.size() &&
            branch.word.starts_with(pattern.substr(0, star)));
  }
  words_.advance(end + 1);
  branch.is_read = !branch.is_known || (fits && !branch.is_taken);
  branch.is_taken = branch.is_taken || fits;
  return true;
}

}  // namespace hocket::interop
