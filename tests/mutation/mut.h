// SPDX-License-Identifier: Apache-2.0
// MUT(k) is true in a process with HOCKET_MUT=k: run.py puts it around the mutants of mutants.py,
// draw.py around those that it draws. With HOCKET_MUT_REACHED=FILE a process appends the number of
// each mutant that it evaluates to FILE, once.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>

inline int hocket_mutant() {
  static const int number = [] {
    const char* text = std::getenv("HOCKET_MUT");
    return text ? std::atoi(text) : 0;
  }();
  return number;
}

inline void hocket_record_mutant(int number) {
  static const char* const file = std::getenv("HOCKET_MUT_REACHED");
  static std::atomic<bool> seen[1024];
  if (!file || seen[number].exchange(true)) return;
  char line[16];
  const int length = std::snprintf(line, sizeof(line), "%d\n", number);
  const int out = ::open(file, O_WRONLY | O_APPEND | O_CREAT, 0644);
  if (out < 0 || ::write(out, line, static_cast<size_t>(length)) != length) {
    std::abort();
  }
  ::close(out);
}

inline bool hocket_is_mutant(int number) {
  hocket_record_mutant(number);
  return hocket_mutant() == number;
}
#define MUT(k) hocket_is_mutant(k)
