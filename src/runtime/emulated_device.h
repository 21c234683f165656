// SPDX-License-Identifier: Apache-2.0
// Emulated devices: tasks compute their results, and take the time of the real device.
#pragma once

#include <cstdint>
#include <vector>

namespace hocket::runtime {

/// Emulated durations and traffic of a program, by class and task.
struct EmulatedDevice {
  struct Task {
    /// Minimum time that the lane is held after the task's start. Communication lasts its actual
    /// time.
    int64_t min_ns = 0;
    double traffic = 1;  ///< comm::Call::traffic
  };
  std::vector<std::vector<Task>> tasks;
  /// For ranks on other devices (a heterogeneous cluster): min_ns by device type (from 1), class
  /// and task, and the device type of every rank. Empty: all ranks are of type 0.
  std::vector<std::vector<std::vector<int64_t>>> others = {};
  std::vector<size_t> device_type_of_rank = {};

  /// Returns the least time that a rank of the class holds its lane for the task, in nanoseconds.
  int64_t min_ns(int32_t rank, size_t cls, size_t task) const {
    const size_t device_type =
        device_type_of_rank.empty() ? 0 : device_type_of_rank[static_cast<size_t>(rank)];
    return device_type == 0 ? tasks[cls][task].min_ns : others[device_type - 1][cls][task];
  }
};

}  // namespace hocket::runtime
