// SPDX-License-Identifier: Apache-2.0
// hocket profile RUN: timings on this machine, which need the kernels.
#pragma once

#include <string>
#include <vector>

namespace hocket::cli {

struct ProfileVerbOptions {
  std::string run, out;
  std::vector<std::string> set;
  double seconds = 1.5;
  bool json = false;
};

/// Times the tasks of the run's program and writes the file; then says where the time of a step
/// goes.
int profile_tasks(const ProfileVerbOptions& options);

}  // namespace hocket::cli
