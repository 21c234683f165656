// SPDX-License-Identifier: Apache-2.0
// Joins the folders of a checkpoint that was saved on hosts without a shared file system.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace hocket::checkpoint {

/// Summary of a joined checkpoint.
struct Joined {
  int64_t step = 0;
  int64_t bytes = 0;                 ///< bytes of tensor files in the joined checkpoint
  int64_t hosts = 0;                 ///< number of hosts that the checkpoint was saved on
  std::vector<int32_t> given_hosts;  ///< hosts of the given folders, ascending
};

/// Writes `out`, a whole checkpoint, from `folders`, which hold the parts of the same checkpoint on
/// different hosts. Data that several hosts hold is copied once. A host's folder may be left out if
/// the others hold all of its data. `out` is complete or absent. Throws Error for a folder that is
/// damaged, of another checkpoint (saving a step twice makes two), of a host given before, or whole
/// already. Throws it also for parts that no folder has, with their rank and host, and for
/// an `out` that exists or is named after another step.
Joined join_checkpoint(const std::vector<std::string>& folders, const std::string& out);

}  // namespace hocket::checkpoint
