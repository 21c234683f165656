// SPDX-License-Identifier: Apache-2.0
// Ctrl-C ends a search with the best so far.
#pragma once

#include <csignal>

namespace hocket::cli {

/// While it lives, the first SIGINT or SIGTERM ends a search, and a second one the process.
class Interrupt {
 public:
  Interrupt();
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;
  /// Returns whether a signal came since the latest instance was constructed.
  static bool came();

 private:
  struct sigaction before_[2];
};

}  // namespace hocket::cli
