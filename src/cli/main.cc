// SPDX-License-Identifier: Apache-2.0
// The one binary. A reader that goes away ends it quietly, even if the parent ignores SIGPIPE. A
// file beyond the shell's limit (ulimit -f) does not end it: the write fails, the error is
// reported, and the partial file is removed.
#include <csignal>

#include "cli/verbs.h"

int main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_DFL);
  std::signal(SIGXFSZ, SIG_IGN);
  return hocket::cli::main_of({argv + 1, argv + argc});
}
