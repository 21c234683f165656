// SPDX-License-Identifier: Apache-2.0
// The one binary. A reader that goes away ends it quietly, even if the parent ignores SIGPIPE.
#include <csignal>

#include "cli/verbs.h"

int main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_DFL);
  return hocket::cli::main_of({argv + 1, argv + argc});
}
