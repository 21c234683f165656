// SPDX-License-Identifier: Apache-2.0
// Implements: the table of verbs (verbs.h), the overall help, and parts common to every call:
// errors, exit codes, the state of standard output.
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <new>
#include <system_error>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "cli/rank_output.h"
#include "cli/verbs.h"

namespace hocket::cli {
namespace {

std::string& stored_command() {
  static std::string text;
  return text;
}

int run_verb(const std::vector<std::string>& words) {
  std::vector<std::string> names;
  for (const VerbGroup& group : verb_groups()) {
    for (const Verb& verb : group.verbs) {
      names.push_back(verb.name);
      if (words[0] != verb.name) continue;
      Args args(verb.name);
      verb.declare(args);
      return args.call({words.begin() + 1, words.end()});
    }
  }
  const std::string near = nearest(words[0], names);
  if (words[0].rfind('-', 0) == 0) {
    fail("hocket", "unknown option {}; expected a verb ({}), --help or --version", quote(words[0]),
         join(names, ", "));
  }
  fail("hocket", "unknown verb {}; {}", quote(words[0]),
       near.empty() ? fmt::format("expected one of {}", join(names, ", "))
                    : fmt::format("did you mean {}?", near));
}

int run(const std::vector<std::string>& words) {
  if (words.empty() || words[0] == "--help" || words[0] == "-h" || words[0] == "help") {
    if (words.size() > 1 && words[0] == "help") return run_verb({words[1], "--help"});
    fmt::print(words.empty() ? stderr : stdout, "{}", help_text());
    return words.empty() ? 2 : 0;
  }
  if (words[0] == "--version") {
    fmt::print("hocket {}\n", HOCKET_VERSION);
    return 0;
  }
  return run_verb(words);
}

int report(const std::string& text, int code, bool own = true) {
  print_error(text, own);
  return code;
}

}  // namespace

const std::vector<VerbGroup>& verb_groups() {
  static const std::vector<VerbGroup> groups = [] {
    std::vector<VerbGroup> list;
#define HOCKET_GROUP(job) list.push_back({job, {}});
#define HOCKET_VERB(name) list.back().verbs.push_back({#name, verb_##name});
#include "cli/verbs.inc"
#undef HOCKET_VERB
#undef HOCKET_GROUP
    return list;
  }();
  return groups;
}

std::string help_text() {
  std::string out =
      "hocket: large language models, mixture-of-experts first. A model and a plan make one\n"
      "program; it is trained, predicted, proven and rewritten.\n\n"
      "usage: hocket VERB ...        hocket VERB --help says everything about one\n";
  for (const VerbGroup& group : verb_groups()) {
    out += fmt::format("\n{}\n", group.job);
    std::vector<std::vector<Example>> examples;
    for (const Verb& verb : group.verbs) {
      Args args(verb.name);
      verb.declare(args);
      out += fmt::format("  {:<11}{}\n", verb.name, args.summary());
      examples.push_back(args.examples());
    }
    // Two for the group: the first of its first verbs, or two of its only one.
    std::vector<std::string> shown;
    for (size_t round = 0; shown.size() < 2 && round < 2; ++round) {
      for (const auto& e : examples) {
        if (shown.size() < 2 && round < e.size()) {
          shown.push_back(e[round].command);
        }
      }
    }
    for (const std::string& command : shown) {
      out += fmt::format("    $ {}\n", command);
    }
  }
  out +=
      "\nRUN is a run.yaml or the text of a program; MODEL a Hugging Face folder, a GGUF file, a "
      "checkpoint\nor run folder of ours, or a hub id in the local cache. Exit codes: "
      "0 ok, 1 failed, 2 bad input,\n128 + n ended by signal n.\nHOCKET_LOG=debug "
      "prints passes, reshardings and the lanes of every rank on standard error.\n";
  return out;
}

const std::string& command_line() { return stored_command(); }

int main_of(const std::vector<std::string>& words) {
  std::string& command = stored_command() = "hocket";
  for (const std::string& text : words) {
    command += " " + shell_quoted(text);
  }
  int code = 0;
  log_level();  // Reports a wrong HOCKET_LOG at once.
  try {
    code = run(words);
    end_together();
  } catch (const Error& error) {
    return report(error.what(), error.exit_code(), error.cause() == Error::Cause::own);
  } catch (const std::bad_alloc&) {
    return report("[hocket] out of memory", 1);
  } catch (const std::system_error& system_error) {
    return report(fmt::format("[hocket] {}", system_error.what()), 1);
  } catch (const std::exception& exception) {
    return report(fmt::format("[hocket] internal error: {}\nThis is a bug of hocket; please report "
                              "it with the command:\n  {}",
                              exception.what(), command),
                  1);
  }
  errno = 0;
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
    return report(fmt::format("[hocket] can't write to standard output: {}", std::strerror(errno)),
                  1);
  }
  return code;
}

}  // namespace hocket::cli
