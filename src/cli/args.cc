// SPDX-License-Identifier: Apache-2.0
#include "cli/args.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/config_print.h"
#include "base/error.h"
#include "base/text.h"

namespace hocket::cli {

Args::Args(std::string name) : name_(std::move(name)) {}
Args::~Args() = default;

void Args::about(std::string summary, std::string text) {
  summary_ = std::move(summary);
  text_ = std::move(text);
}

namespace {

/// Reads an integer, also with a suffix: k, m, g, t are powers of 1,000, and K, M, G, T of 1,024.
bool parse_count(const std::string& text, int64_t* out) {
  if (parse_int(text, out)) return true;
  constexpr std::string_view kSuffixes = "kmgtKMGT";
  const size_t suffix = text.empty() ? kSuffixes.npos : kSuffixes.find(text.back());
  double number = 0;
  if (suffix == kSuffixes.npos || !parse_double(text.substr(0, text.size() - 1), &number)) {
    return false;
  }
  number *= std::pow(suffix < 4 ? 1e3 : 1024.0, static_cast<double>(suffix % 4 + 1));
  if (number != std::floor(number) || std::abs(number) > 9e15) return false;
  *out = static_cast<int64_t>(number);
  return true;
}

std::string default_of(const Target& target) {
  struct Shown {
    std::string operator()(const bool*) const { return ""; }
    std::string operator()(const std::string* text) const { return *text; }
    std::string operator()(const int64_t* v) const { return fmt::format("{}", *v); }
    std::string operator()(const double* v) const { return fmt::format("{}", *v); }
    std::string operator()(const std::optional<int64_t>*) const { return ""; }
    std::string operator()(const std::optional<double>*) const { return ""; }
    std::string operator()(const std::vector<std::string>* v) const { return join(*v, ","); }
  };
  return std::visit(Shown(), target);
}

}  // namespace

void Args::positional(std::string name, std::string* value, std::string help, bool required) {
  positionals_.push_back(std::make_unique<Option>(
      Option{"", std::move(name), value, std::move(help), default_of(value), required}));
}

void Args::positional(std::string name, std::vector<std::string>* values, std::string help,
                      bool required) {
  positionals_.push_back(
      std::make_unique<Option>(Option{"", std::move(name), values, std::move(help), "", required}));
}

void Args::rest(std::string name, std::vector<std::string>* values, std::string help) {
  positional(std::move(name), values, std::move(help));
  takes_rest_ = true;
}

void Args::option(std::string flag, std::string value_name, Target target, std::string help) {
  std::string shown = default_of(target);
  options_.push_back(std::make_unique<Option>(
      Option{std::move(flag), std::move(value_name), target, std::move(help), std::move(shown)}));
}

void Args::option(std::string flag, std::string value_name, Target target, std::string help,
                  int64_t least, int64_t most) {
  option(std::move(flag), std::move(value_name), target, std::move(help));
  options_.back()->least = least;
  options_.back()->most = most;
}

void Args::flag(std::string flag, bool* value, std::string help) {
  option(std::move(flag), "", value, std::move(help));
}

void Args::list(std::string flag, std::string value_name, std::vector<std::string>* values,
                std::string help) {
  option(std::move(flag), std::move(value_name), values, std::move(help));
  options_.back()->takes_words = true;
}

void Args::positional_option(std::string flag) {
  const Option& positional = *positionals_.at(0);
  const std::string& name = positional.value_name;
  options_.push_back(std::make_unique<Option>(
      Option{std::move(flag), name, positional.target, "another way to give " + name, ""}));
  options_.back()->is_positional = true;
}

void Args::example(std::string command, std::string what) {
  examples_.push_back({std::move(command), std::move(what)});
}

Args& Args::sub(std::string name) {
  subs_.push_back(std::make_unique<Args>(name_ + " " + name));
  return *subs_.back();
}

void Args::replaced(std::string flag, std::string command) {
  foreign(std::move(flag), "is a command of its own now; try: " + command);
}

void Args::foreign(std::string flag, std::string text) {
  others_.emplace_back(std::move(flag), std::move(text));
}

void Args::convert(Option& option) const {
  if (option.given.empty()) {
    if (option.required) {
      fail("hocket " + name_, "{} is missing; {}; try: hocket {} --help", option.value_name,
           option.help, name_);
    }
    return;
  }
  const std::string shown = option.flag.empty() ? option.value_name : option.flag;
  auto integer = [&] {
    int64_t v = 0;
    if (!parse_count(option.given.back(), &v)) {
      fail("hocket " + name_, "{} is {}; expected {}", shown, quote(option.given.back()),
           integer_text(option.given.back()));
    }
    if (v < option.least || v > option.most) {
      fail("hocket " + name_, "{} is {}; expected {} to {}", shown, v, option.least, option.most);
    }
    return v;
  };
  auto number = [&] {
    double v = 0;
    if (!parse_double(option.given.back(), &v)) {
      fail("hocket " + name_, "{} is {}; expected a number", shown, quote(option.given.back()));
    }
    return v;
  };
  if (option.given.size() > 1 &&
      !std::holds_alternative<std::vector<std::string>*>(option.target)) {
    if (option.flag.empty()) {
      unexpected(option.given[1]);
    }
    fail("hocket " + name_, "{} is given {} times; expected once", shown, option.given.size());
  }
  if (auto* remove_reference = std::get_if<bool*>(&option.target)) {
    **remove_reference = true;
  } else if (auto* remove_reference = std::get_if<std::string*>(&option.target)) {
    **remove_reference = option.given.back();
  } else if (auto* remove_reference = std::get_if<int64_t*>(&option.target)) {
    **remove_reference = integer();
  } else if (auto* remove_reference = std::get_if<double*>(&option.target)) {
    **remove_reference = number();
  } else if (auto* remove_reference = std::get_if<std::optional<int64_t>*>(&option.target)) {
    **remove_reference = integer();
  } else if (auto* remove_reference = std::get_if<std::optional<double>*>(&option.target)) {
    **remove_reference = number();
  } else {
    **std::get_if<std::vector<std::string>*>(&option.target) = option.given;
  }
}

void Args::unexpected(const std::string& word) const {
  const bool expanded = std::any_of(options_.begin(), options_.end(), [](const auto& o) {
    return o->value_name == "GLOB" && !o->given.empty();
  });
  fail("hocket " + name_, "unexpected argument {}; try: {}", quote(word),
       expanded ? "quotes around the pattern of --files, which the shell has expanded"
                : "hocket " + name_ + " --help");
}

void Args::unknown_option(const std::string& word) const {
  std::vector<std::string> flags = {"--help"};
  for (const auto& o : options_) {
    flags.push_back(o->flag);
  }
  const std::string bare = word.substr(0, word.find('='));
  for (const auto& [flag, text] : others_) {
    if (flag == bare) fail("hocket " + name_, "{} {}", flag, text);
  }
  const std::string near = nearest(bare, flags);
  fail("hocket " + name_, "unknown option {}; {}", quote(bare),
       near.empty() ? fmt::format("the options are {}", join(flags, ", "))
                    : fmt::format("did you mean {}?", near));
}

void Args::assign_word(const std::string& word, Option* list, std::vector<ListWord>* unsure) {
  if (list == nullptr) {
    positionals_[0]->given.push_back(word);
  } else if (!positionals_[0]->given.empty()) {
    list->given.push_back(word);
  } else {
    unsure->push_back({list, word});
  }
}

bool Args::assign(const std::vector<std::string>& words) {
  HOCKET_CHECK(positionals_.size() <= 1, "{}: a second positional gets nothing", name_);
  bool options_end = false;              // after "--" every word is a positional
  const std::string* surplus = nullptr;  // reported at the end, since --help may follow
  Option* list = nullptr;                // whose values the last words were
  std::vector<ListWord> unsure;
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    // "-" and negative numbers are values.
    const bool is_value = word.size() < 2 || word[0] != '-' || (word[1] >= '0' && word[1] <= '9');
    if (options_end || is_value) {
      options_end = options_end || takes_rest_;
      if (!positionals_.empty()) {
        assign_word(word, options_end ? nullptr : list, &unsure);
      } else if (surplus == nullptr) {
        surplus = &word;
      }
      continue;
    }
    list = nullptr;
    if (word == "--") {
      options_end = true;
      continue;
    }
    if (word == "--help" || word == "-h") return true;
    const size_t equals = word.find('=');
    const auto found = std::find_if(options_.begin(), options_.end(), [&](const auto& o) {
      return o->flag == word.substr(0, equals);
    });
    if (found == options_.end()) {
      unknown_option(word);
    }
    Option& option = **found;
    const bool takes_value = !std::holds_alternative<bool*>(option.target);
    std::vector<std::string>& given = option.is_positional ? positionals_[0]->given : option.given;
    if (!takes_value && equals != std::string::npos) {
      fail("hocket " + name_, "{} takes no value; got {}", option.flag, quote(word));
    }
    if (!takes_value) {
      option.given.assign(1, "");  // twice says no more than once
    } else if (equals != std::string::npos) {
      given.push_back(word.substr(equals + 1));
    } else if (++i == words.size()) {
      fail("hocket " + name_, "{} needs a value ({}); {}", word, option.value_name, option.help);
    } else {
      given.push_back(words[i]);
      list = option.takes_words ? &option : nullptr;
    }
  }
  for (size_t i = 0; i < unsure.size(); ++i) {
    const bool is_positional = i + 1 == unsure.size() && positionals_[0]->given.empty();
    (is_positional ? positionals_[0]->given : unsure[i].list->given).push_back(unsure[i].word);
  }
  if (surplus != nullptr) {
    unexpected(*surplus);
  }
  return false;
}

int Args::call(const std::vector<std::string>& words) {
  // A verb with commands hands the words on to one of them. Otherwise they are assigned to options
  // first and converted afterwards, so that `--help` is answered even beside values that do not
  // fit.
  if (!subs_.empty()) {
    std::vector<std::string> names;
    for (const auto& s : subs_) {
      names.push_back(s->name_.substr(name_.size() + 1));
      if (!words.empty() && words[0] == names.back()) {
        return s->call({words.begin() + 1, words.end()});
      }
    }
    if (!body_) {
      if (words.empty() || words[0] == "--help" || words[0] == "-h") {
        fmt::print("{}", help());
        return words.empty() ? 2 : 0;
      }
      const std::string near = nearest(words[0], names);
      fail("hocket " + name_, "unknown command {}; expected one of {}{}", quote(words[0]),
           join(names, ", "), near.empty() ? "" : fmt::format("; did you mean {}?", near));
    }
  }

  if (assign(words)) {
    fmt::print("{}", help());
    return 0;
  }
  for (auto& option : options_) {
    convert(*option);
  }
  for (auto& option : positionals_) {
    convert(*option);
  }
  return body_();
}

std::string wrap(const std::string& text, size_t indent, size_t width) {
  std::string out;
  for (const std::string& paragraph : split(text, '\n')) {
    std::string line(indent, ' ');
    // A line that begins with a blank is shown as it is.
    if (!paragraph.empty() && paragraph[0] == ' ') {
      out += line + paragraph + "\n";
      continue;
    }
    bool empty = true;
    for (const std::string& word : split(paragraph, ' ')) {
      if (!empty && line.size() + 1 + word.size() > width) {
        out += line + "\n";
        line = std::string(indent, ' ');
        empty = true;
      }
      line += (empty ? "" : " ") + word;
      empty = false;
    }
    while (!line.empty() && line.back() == ' ') {
      line.pop_back();
    }
    out += line + "\n";
  }
  return out;
}

std::string Args::usage() const {
  std::string text = "hocket " + name_;
  if (!body_) return text + " COMMAND ...";
  for (const auto& p : positionals_) {
    std::string shown = p->value_name;
    if (std::holds_alternative<std::vector<std::string>*>(p->target)) {
      shown += "...";
    }
    text += p->required ? " " + shown : " [" + shown + "]";
  }
  text += options_.empty() ? "" : " [options]";
  return subs_.empty() ? text : text + "\n       hocket " + name_ + " COMMAND ...";
}

std::string Args::help() const {
  // Two columns. Commands are listed by name; each has a help text with its own options.
  constexpr size_t kColumn = 26;
  std::string out = fmt::format("hocket {}: {}\n\nusage: {}\n", name_, summary_, usage());
  if (!text_.empty()) {
    out += "\n" + wrap(text_, 0);
  }
  auto row = [&](const std::string& left, const std::string& right) {
    std::string body = wrap(right, kColumn);
    if (left.size() + 3 <= kColumn) {
      out += "  " + left + body.substr(left.size() + 2);
    } else {
      out += "  " + left + "\n" + body;
    }
  };
  if (!subs_.empty()) {
    out += "\ncommands\n";
    for (const auto& s : subs_) {
      row(s->name_.substr(name_.size() + 1), s->summary_);
    }
  }
  if (body_) {
    if (!positionals_.empty()) {
      out += "\narguments\n";
    }
    for (const auto& p : positionals_) {
      row(p->value_name, p->help);
    }
    out += "\noptions\n";
    for (const auto& o : options_) {
      row(o->value_name.empty() ? o->flag : o->flag + " " + o->value_name,
          o->shown_default.empty() ? o->help : o->help + " [" + o->shown_default + "]");
    }
    row("--help", "this text");
  }
  if (!examples_.empty()) {
    out += "\nexamples\n";
  }
  for (const Example& example : examples_) {
    out += fmt::format("  {}\n{}", example.command, wrap(example.what, 6));
  }
  if (!subs_.empty()) {
    out += fmt::format("\n`hocket {} COMMAND --help` says more about each.\n", name_);
  }
  return out;
}

}  // namespace hocket::cli
