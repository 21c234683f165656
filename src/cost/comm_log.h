// SPDX-License-Identifier: Apache-2.0
// Measured times of collectives as samples (interop/comm_log_reader.h reads them from files).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace hocket::cost {

/// One size of one collective on one group; ranks are placed in order over the nodes.
struct CommSample {
  std::string op;    ///< name in the registry: "all_reduce"
  double bytes = 0;  ///< payload: bytes a rank contributes or receives, whichever is more
  int32_t ranks = 0;
  int32_t nodes = 1;
  int32_t per_node = 0;  ///< fewest ranks on any node
  double seconds = 0;
  /// Devices that one process drives. It launches them one after another, which hides the duration
  /// of short transfers.
  int32_t per_process = 1;
};

/// Contents of a log file.
struct CommLog {
  std::string path;
  std::string device;                ///< "A100-SXM4-40GB"; empty: not in the file
  int64_t devices_per_node = 0;      ///< maximum over the nodes of the log; 0: unknown
  std::vector<CommSample> samples;   ///< by size, then by group
  std::vector<std::string> dropped;  ///< clauses: omitted samples and the reason
  std::vector<std::string> assumed;  ///< clauses: missing facts, and the assumed values
  /// Clauses: numbers of hosts, ranks and devices that do not add up.
  std::vector<std::string> doubtful;
};

}  // namespace hocket::cost
