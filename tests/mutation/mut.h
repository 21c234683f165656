// SPDX-License-Identifier: Apache-2.0
// MUT(k) is true in a process with HOCKET_MUT=k: run.py puts it around the mutants of mutants.py.
#pragma once

#include <cstdlib>

inline int hocket_mutant() {
  static const int number = [] {
    const char* text = std::getenv("HOCKET_MUT");
    return text ? std::atoi(text) : 0;
  }();
  return number;
}
#define MUT(k) (hocket_mutant() == (k))
