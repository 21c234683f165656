// SPDX-License-Identifier: Apache-2.0
// hocket profile --import: logs of nccl-tests and Vidur's tables become a cluster file.
#pragma once

#include <string>
#include <vector>

namespace hocket::cli {

struct ImportOptions {
  std::vector<std::string> files;
  std::string cluster;  ///< the base; empty: the shipped one of the logs' device
  std::string op;       ///< where the logs do not say it
  std::string out;
  std::string
      hold_out;  ///< "16" or "16,32": group sizes to hold out of the fit; their times are predicted
  bool json = false;
};

/// Writes the cluster. Prints the fit, the times left out, and the error on held-out times.
int import_logs(const ImportOptions& options);

}  // namespace hocket::cli
