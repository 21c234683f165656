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
  /// Of ranks on other kinds of devices than those of `tasks`: hold_ns by kind (from 1), class and
  /// task, and the kind of every rank. Empty: there are none.
  std::vector<std::vector<std::vector<int64_t>>> others = {};
  std::vector<size_t> kind_of_rank = {};

  /// How long a rank of the class holds its lane for the task.
  int64_t hold_ns(int32_t rank, size_t cls, size_t task) const {
    const size_t kind = kind_of_rank.empty() ? 0 : kind_of_rank[static_cast<size_t>(rank)];
    return kind == 0 ? tasks[cls][task].hold_ns : others[kind - 1][cls][task];
  }
};

}  // namespace hocket::runtime
