// SPDX-License-Identifier: Apache-2.0
// Times of collectives that others measured, as samples (interop/comm_log_reader.h makes them of
// files).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace hocket::cost {

/// One size of one collective on one group, ranks in order over the nodes.
struct CommSample {
  std::string op;    ///< of the registry: "all_reduce"
  double bytes = 0;  ///< its payload: what a rank contributes or receives, whichever is more
  int32_t ranks = 0;
  int32_t nodes = 1;
  int32_t per_node = 0;  ///< fewest ranks on any node
  double seconds = 0;
  /// Devices that one process drives: it launches them one after another, which is all that short
  /// transfers then show.
  int32_t per_process = 1;
};

/// What a file says.
struct CommLog {
  std::string path;
  std::string device;                ///< "A100-SXM4-40GB"; empty: the file does not say
  int64_t devices_per_node = 0;      ///< most that any node has here; 0: unknown
  std::vector<CommSample> samples;   ///< by size, then by group
  std::vector<std::string> dropped;  ///< what was left out and why, a clause each
  std::vector<std::string> assumed;  ///< what it does not say, and what it was taken for
};

}  // namespace hocket::cost
