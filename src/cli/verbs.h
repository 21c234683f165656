// SPDX-License-Identifier: Apache-2.0
// The verbs of `hocket`: verbs.inc as declarations and as a table.
#pragma once

#include <string>
#include <vector>

#include "cli/args.h"

namespace hocket::cli {

#define HOCKET_GROUP(job)
#define HOCKET_VERB(name) void verb_##name(Args& args);
#include "cli/verbs.inc"
#undef HOCKET_VERB
#undef HOCKET_GROUP

struct Verb {
  const char* name;
  void (*declare)(Args&);  ///< declares the options and the body
};
struct VerbGroup {
  const char* job;
  std::vector<Verb> verbs;
};
const std::vector<VerbGroup>& verb_groups();

/// `hocket --help`: the verbs by job, each group with two examples.
std::string help_text();

/// Runs `hocket <words>`; returns the exit code and never throws.
int main_of(const std::vector<std::string>& words);

/// The command as typed, quoted for a shell: for reports.
const std::string& command_line();

}  // namespace hocket::cli
