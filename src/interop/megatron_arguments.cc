// SPDX-License-Identifier: Apache-2.0
#include "interop/megatron_arguments.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/product.h"
#include "base/text.h"
#include "interop/tables.h"

namespace hocket::interop {

MegatronArguments::MegatronArguments(const std::string& text, const std::string& name)
    : name_(name) {
  // Behind the .py file of a command stand the arguments of the trainer, in front of it those of
  // its launcher; a file without such a command only assigns them.
  const ShellScript script = read_shell(text, name);
  notes_ = script.notes;
  find_command(script);
  if (flags_.empty()) {
    collect(script.assigned, &flags_);
  }
  if (flags_.empty()) {
    fail(name,
         "has no arguments of Megatron-LM; expected a command with pretrain_gpt.py and arguments "
         "such as --num-layers 32 behind it, or assignments of them");
  }
  refuse_unknown();
}

namespace {

/// Commands that only name a program, or handle its file.
bool only_names(const std::string& word) {
  constexpr std::string_view kNames[] = {
      "echo", "printf", "[",      "[[",    "test",    "ls",   "cat",   "cp",   "mv",
      "rm",   "mkdir",  "cd",     "touch", "chmod",   "grep", "sed",   "awk",  "basename",
      "exit", "return", "source", ".",     "dirname", "set",  "unset", "which"};
  return std::find(std::begin(kNames), std::end(kNames), word) != std::end(kNames);
}

/// A command's words, where `sh -c "a b"` and `eval "a b"` are a and b.
std::vector<ShellWord> words_within(const std::vector<ShellWord>& command) {
  std::vector<ShellWord> words;
  for (const ShellWord& word : command) {
    const bool is_command =
        word.text.find(".py ") != std::string::npos && word.text.find(" --") != std::string::npos;
    if (!is_command) {
      words.push_back(word);
      continue;
    }
    for (const std::string& part : split(word.text, ' ')) {
      if (!part.empty()) {
        words.push_back({part, word.line});
      }
    }
  }
  return words;
}

}  // namespace

void MegatronArguments::refuse_calls(const ShellScript& script) const {
  std::set<std::string> functions;
  for (const std::vector<ShellWord>& command : script.commands) {
    const bool opens = command.size() > 1 && command[1].text == "{";
    const bool has_keyword = command[0].text == "function" && command.size() > 1;
    if (opens || has_keyword) {
      functions.insert(command[has_keyword ? 1 : 0].text);
    }
  }
  for (const std::vector<ShellWord>& command : script.commands) {
    if (functions.count(command[0].text) == 0) continue;
    for (const ShellWord& word : command) {
      const std::string flag = word.text.substr(0, word.text.find('='));
      if (flag.starts_with("--") && find_known(flag.substr(2)) != nullptr) {
        fail(name_,
             "line {}: {} is given to the function {}, whose arguments are not followed; expected "
             "it in the command that starts the trainer",
             word.line, flag, command[0].text);
      }
    }
  }
}

void MegatronArguments::find_command(const ShellScript& script) {
  refuse_calls(script);
  bool found = false;
  for (const std::vector<ShellWord>& command : script.commands) {
    if (only_names(command.front().text)) continue;
    const std::vector<ShellWord> words = words_within(command);
    const auto program = std::find_if(words.begin(), words.end(), [](const ShellWord& word) {
      return word.text.ends_with(".py");
    });
    if (program == words.end()) continue;
    Flags launcher, flags;
    collect({words.begin(), program}, &launcher);
    collect({program + 1, words.end()}, &flags);
    // Programs beside the trainer prepare its data.
    const size_t slash = program->text.rfind('/') + 1;
    const std::string file = program->text.substr(slash);
    if (flags.empty() || (file.find("pretrain") == file.npos && file.find("train") == file.npos &&
                          file.starts_with("preprocess"))) {
      continue;
    }
    if (found) {
      fail(name_, "line {}: a second command with {}; expected one", program->line, program->text);
    }
    found = true;
    expect_torchrun({words.begin(), program});
    launcher_ = std::move(launcher);
    flags_ = std::move(flags);
  }
}

void MegatronArguments::expect_torchrun(const std::vector<ShellWord>& words) const {
  static const KnownKeys kTorchrun(std::vector<KeyGroup>{
      {KeyEffect::none, "",
       "nnodes nproc-per-node node-rank master-addr master-port rdzv-backend rdzv-endpoint rdzv-id "
       "rdzv-conf standalone max-restarts monitor-interval start-method role module no-python "
       "run-path log-dir redirects tee local-ranks-filter local-addr node-addr logs-specs use-env "
       "event-log-handler virtual-local-rank numa-binding local-rank signals-to-handle "
       "duplicate-stdout-filters duplicate-stderr-filters rdzv-timeout help"}});
  const auto launcher = std::find_if(words.begin(), words.end(), [](const ShellWord& word) {
    return word.text.ends_with("torchrun") || word.text.starts_with("torch.distributed.");
  });
  if (launcher == words.end()) return;
  Flags flags;
  collect({launcher + 1, words.end()}, &flags);
  for (const auto& [flag, values] : flags) {
    std::string name = flag.substr(2);
    std::replace(name.begin(), name.end(), '_', '-');
    if (kTorchrun.find(name) == nullptr) {
      fail(name_, "{} is no argument of torchrun{}", flag, try_nearest(kTorchrun, name, "--"));
    }
  }
}

void MegatronArguments::refuse_unknown() const {
  const KnownKeys& known = megatron_keys();
  for (const auto& [flag, words] : flags_) {
    const std::string name = flag.substr(2);
    if (find_known(name) != nullptr) continue;
    std::string dashed = name;
    std::replace(dashed.begin(), dashed.end(), '_', '-');
    if (dashed != name && known.find(dashed) != nullptr) {
      fail(name_, "{} has underscores; expected dashes, as Megatron-LM does; try --{}", flag,
           dashed);
    }
    fail(name_, "{} is no argument of Megatron-LM; expected one of megatron/training{}", flag,
         try_nearest(known, dashed, "--"));
  }
}

const KnownKeys::Key* MegatronArguments::find_known(std::string_view name) {
  const KnownKeys& known = megatron_keys();
  const KnownKeys::Key* key = known.find(name);
  // Flags that are on by default have one with no- in front.
  return key == nullptr && name.starts_with("no-") ? known.find(name.substr(3)) : key;
}

std::string MegatronArguments::text(const std::string& flag) {
  const std::vector<std::string>* words = find(flag);
  if (!words) return "";
  if (words->size() != 1) {
    fail(name_, "{} has {}; expected one", flag, counted(std::ssize(*words), "value"));
  }
  return words->front();
}

std::vector<std::string> MegatronArguments::words(const std::string& flag) {
  const std::vector<std::string>* words = find(flag);
  return words ? *words : std::vector<std::string>{};
}

int64_t MegatronArguments::integer(const std::string& flag, int64_t otherwise) {
  if (!has(flag)) return otherwise;
  int64_t value = 0;
  if (!parse_int(text(flag), &value)) {
    fail(name_, "{} is {}; expected an integer, written out or assigned in this file", flag,
         quote(text(flag)));
  }
  return value;
}

double MegatronArguments::number(const std::string& flag, double otherwise) {
  if (!has(flag)) return otherwise;
  double value = 0;
  if (!parse_double(text(flag), &value)) {
    fail(name_, "{} is {}; expected a number, written out or assigned in this file", flag,
         quote(text(flag)));
  }
  return value;
}

int64_t MegatronArguments::at_least(int64_t least, const std::string& flag, int64_t otherwise) {
  const int64_t value = integer(flag, otherwise);
  if (has(flag) && value < least) {
    fail(name_, "{} is {}; expected at least {}", flag, value, least);
  }
  return value;
}

int64_t MegatronArguments::launcher(const std::string& flag, int64_t otherwise) {
  for (auto at = launcher_.rbegin(); at != launcher_.rend(); ++at) {
    std::string given = at->first;
    std::replace(given.begin(), given.end(), '_', '-');
    if (given != flag) continue;
    const std::string text = at->second.empty() ? "" : at->second.front();
    int64_t value = 0;
    if (parse_int(text, &value) && value >= 1) return value;
    // torchrun counts devices itself.
    const bool counts = text == "auto" || text == "gpu" || text == "cpu";
    if (!counts && text.find('$') == std::string::npos) {
      fail(name_, "{} of the launcher is {}; expected an integer of at least 1", flag, quote(text));
    }
    notes_.push_back(fmt::format("{} of the launcher is {}, which this file does not say", flag,
                                 counts ? text : quote(text)));
    return 0;
  }
  return otherwise;
}

KeyReport MegatronArguments::unread(const Beside& beside) const {
  KeyReport report;
  report.notes = notes_;
  for (const auto& [flag, words] : flags_) {
    const auto reason = reasons_.find(flag);
    if (reason == reasons_.end() && asked_.count(flag) > 0) continue;
    const std::string text =
        flag + (words.empty() ? "" : " " + shown_value(flag, join(words, " ")));
    if (reason != reasons_.end()) {
      report.ignored.push_back(text + ": " + reason->second);
    } else {
      const std::string value = words.empty() ? "on" : join(words, " ");
      report_unread(*find_known(flag.substr(2)), value, text, name_, beside, &report);
    }
  }
  return report;
}

void MegatronArguments::collect(const std::vector<ShellWord>& words, Flags* flags) {
  for (const ShellWord& word : words) {
    const bool flag = word.text.starts_with("--") && word.text.size() > 2;
    if (flag) {
      const size_t equal = word.text.find('=');
      flags->push_back({word.text.substr(0, equal), {}});
      if (equal != std::string::npos) {
        flags->back().second.push_back(word.text.substr(equal + 1));
      }
    } else if (!flags->empty()) {
      flags->back().second.push_back(word.text);
    }
  }
}

/// Finds the words of a flag, of several the last, as argparse does.
const std::vector<std::string>* MegatronArguments::find(const std::string& flag) {
  asked_.insert(flag);
  for (auto at = flags_.rbegin(); at != flags_.rend(); ++at) {
    if (at->first == flag) return &at->second;
  }
  return nullptr;
}

namespace {

class Pattern {
 public:
  explicit Pattern(std::string text) {
    for (const char letter : text) {
      if (letter != ' ' && letter != '\'' && letter != '"') {
        text_ += letter;
      }
    }
  }
  bool read(std::vector<int64_t>* list) { return sum(list) && at_ == text_.size(); }

 private:
  static constexpr int64_t kMaxEntries = 1 << 16;

  bool take(char letter) {
    if (at_ >= text_.size() || text_[at_] != letter) return false;
    ++at_;
    return true;
  }
  bool integer(int64_t* value) {
    const size_t begin = at_;
    while (at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9') {
      ++at_;
    }
    return parse_int(std::string_view(text_).substr(begin, at_ - begin), value);
  }
  bool one(std::vector<int64_t>* list) {
    if (take('(')) {
      return sum(list) && take(')');
    }
    if (!take('[')) return false;
    do {
      int64_t value = 0;
      if (!integer(&value)) return false;
      list->push_back(value);
    } while (take(','));
    return take(']');
  }
  bool product(std::vector<int64_t>* list) {
    std::vector<int64_t> part;
    if (!one(&part)) return false;
    while (take('*')) {
      int64_t times = 0;
      if (!integer(&times) || product_at_most({times, std::ssize(part)}) > kMaxEntries) {
        return false;
      }
      const std::vector<int64_t> once = part;
      part.clear();
      for (int64_t i = 0; i < times; ++i) {
        part.insert(part.end(), once.begin(), once.end());
      }
    }
    list->insert(list->end(), part.begin(), part.end());
    return std::ssize(*list) <= kMaxEntries;
  }
  bool sum(std::vector<int64_t>* list) {
    do {
      if (!product(list)) return false;
    } while (take('+'));
    return true;
  }

  std::string text_;
  size_t at_ = 0;
};

bool flatten(const std::string& text, size_t* at, std::string* out) {
  constexpr int64_t kMaxEntries = 1 << 16;
  while (*at < text.size() && text[*at] != ')') {
    std::string part;
    if (text[*at] == ',' || text[*at] == ' ') {
      ++*at;
      continue;
    }
    if (text[*at] == '(') {
      ++*at;
      if (!flatten(text, at, &part) || *at >= text.size()) return false;
      ++*at;
    } else if (std::string_view("ELtm|").find(text[*at]) != std::string_view::npos) {
      part = text[(*at)++];
    } else {
      return false;
    }
    int64_t times = 1;
    if (*at < text.size() && text[*at] == '*') {
      const size_t begin = ++*at;
      while (*at < text.size() && text[*at] >= '0' && text[*at] <= '9') {
        ++*at;
      }
      if (!parse_int(std::string_view(text).substr(begin, *at - begin), &times)) return false;
    }
    if (times < 0 || product_at_most({times, std::ssize(part)}) > kMaxEntries - std::ssize(*out)) {
      return false;
    }
    for (int64_t i = 0; i < times; ++i) {
      *out += part;
    }
  }
  return true;
}

}  // namespace

bool read_pattern(const std::string& text, std::vector<int64_t>* list) {
  return Pattern(text).read(list);
}

bool read_pipeline_layout(const std::string& text, std::string* flat) {
  size_t at = 0;
  return flatten(text, &at, flat) && at == text.size();
}

}  // namespace hocket::interop
