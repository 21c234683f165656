// SPDX-License-Identifier: Apache-2.0
// The command line of one verb: options are named once, with their help, and parsing, conversion,
// errors and --help follow.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace hocket::cli {

struct Example {
  std::string command, what;
};

/// Destination of an option's value. A vector takes the option repeatedly.
using Target = std::variant<bool*, std::string*, int64_t*, double*, std::optional<int64_t>*,
                            std::optional<double>*, std::vector<std::string>*>;

/// One verb, or one subcommand of a verb.
class Args {
 public:
  explicit Args(std::string name);  ///< "check", "data prepare"
  ~Args();
  Args(const Args&) = delete;
  Args& operator=(const Args&) = delete;

  /// Describes the command for a first-time user.
  void about(std::string summary, std::string text);
  /// Declares the positional argument (RUN, MODEL); at most one. A vector takes any number of
  /// words.
  void positional(std::string name, std::string* value, std::string help, bool required = true);
  void positional(std::string name, std::vector<std::string>* values, std::string help,
                  bool required = true);
  /// A positional that takes all words from the first one that is no option on, whatever they are.
  void rest(std::string name, std::vector<std::string>* values, std::string help);
  /// `flag` with dashes; `value_name` is shown in the help ("N", "FILE"). Defaults are those that
  /// the targets hold now.
  void option(std::string flag, std::string value_name, Target target, std::string help);
  /// An option that takes an integer from `least` to `most`; its default may lie elsewhere. As in
  /// vLLM 8k is 8,000, and 8K 8,192; likewise m, g and t.
  void option(std::string flag, std::string value_name, Target target, std::string help,
              int64_t least, int64_t most);
  void flag(std::string flag, bool* value, std::string help);
  /// A repeatable option that also takes the words behind its value, up to the next option. The
  /// last of them is the positional argument if nothing else is.
  void list(std::string flag, std::string value_name, std::vector<std::string>* values,
            std::string help);
  /// An option that is another way to give the positional argument.
  void positional_option(std::string flag);
  void example(std::string command, std::string what);
  /// Sets the body; its result is the exit code.
  void run(std::function<int()> body) { body_ = std::move(body); }
  /// Adds a command below this one. The first word must name one, unless this command has a body
  /// of its own, which then takes every other word.
  Args& sub(std::string name);
  /// An option of earlier releases: giving it is an error that names the command in its place.
  void replaced(std::string flag, std::string command);
  /// An option of another program: giving it is an error with this text.
  void foreign(std::string flag, std::string text);

  /// Parses the words behind the name and runs. Throws Error (exit code 2), with the nearest
  /// option, for words that do not fit. `--help` prints help() and returns 0.
  int call(const std::vector<std::string>& words);
  std::string help() const;

  const std::string& name() const { return name_; }
  const std::string& summary() const { return summary_; }
  const std::vector<Example>& examples() const { return examples_; }

 private:
  struct Option {
    std::string flag;  ///< empty for positionals
    std::string value_name;
    Target target;
    std::string help, shown_default;
    bool required = false;
    int64_t least = INT64_MIN, most = INT64_MAX;  ///< of an integer
    bool takes_words = false;                     ///< list()
    bool is_positional = false;                   ///< positional_option()
    std::vector<std::string> given = {};  ///< its values; a flag that was given has one empty value
  };
  /// A word behind the values of a list() that may be the positional argument.
  struct ListWord {
    Option* list = nullptr;
    std::string word;
  };
  /// Takes a word that is no option and no value of one; `list`: the option whose values it
  /// follows.
  void assign_word(const std::string& word, Option* list, std::vector<ListWord>* unsure);
  /// Words to their options; true if one of them asks for help.
  bool assign(const std::vector<std::string>& words);
  void convert(Option& option) const;
  [[noreturn]] void unexpected(const std::string& word) const;
  [[noreturn]] void unknown_option(const std::string& word) const;
  std::string usage() const;

  std::string name_, summary_, text_;
  bool takes_rest_ = false;
  std::vector<std::unique_ptr<Option>> positionals_, options_;
  std::vector<Example> examples_;
  std::vector<std::unique_ptr<Args>> subs_;
  std::vector<std::pair<std::string, std::string>> others_;  ///< flag, text of the error
  std::function<int()> body_;
};

/// `text` cut into lines of at most `width`, each after `indent` blanks; line ends in it are kept.
std::string wrap(const std::string& text, size_t indent, size_t width = 96);

}  // namespace hocket::cli
