// SPDX-License-Identifier: Apache-2.0
// A device that is played: tasks compute what they compute, and take as long as they would on it.
#pragma once

#include <cstdint>
#include <vector>

namespace hocket::runtime {

/// What is played of a program, by class and task.
struct Played {
  struct Task {
    /// Its lane is held so long after its start, however soon the kernel is done. Communication
    /// takes what it takes.
    int64_t hold_ns = 0;
    double traffic = 1;  ///< comm::Call::traffic
  };
  std::vector<std::vector<Task>> tasks;
};

}  // namespace hocket::runtime
