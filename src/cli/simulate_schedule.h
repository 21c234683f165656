// SPDX-License-Identifier: Apache-2.0
// hocket simulate --schedule: a pipeline schedule without a model.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace hocket::cli {

struct ScheduleOptions {
  std::string schedule;  ///< a built-in name or a CSV file
  /// Without one: what the file has, or a default.
  std::optional<int64_t> ranks, chunks, micro_batches;
  std::string cost;
  std::string svg, out;  ///< files to write
  bool json = false;
};

/// Simulates it, and writes what is asked for.
int simulate_schedule(const ScheduleOptions& options);

}  // namespace hocket::cli
