// SPDX-License-Identifier: Apache-2.0
// One whole checkpoint from the folders that hosts without a shared file system have of it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace hocket::checkpoint {

struct Joined {
  int64_t step = 0;
  int64_t bytes = 0;        ///< of tensors, in the whole checkpoint
  int64_t hosts = 0;        ///< that the checkpoint lies on
  std::vector<int32_t> of;  ///< those whose folders were given, ascending
};

/// Makes `out`, a checkpoint as one file system has it, of `folders`: each what one host has of the
/// same checkpoint, wherever it was copied to. What several hosts have is copied once, and hosts
/// are not asked for of which others have everything. `out` is complete or not there. Error: a
/// folder that is damaged, of another checkpoint (a step saved twice is two), of a host that was
/// given before, or of no host since it is whole; parts that no folder has, with who wrote them and
/// where; an `out` that is there already, or is named after another step.
Joined join_checkpoint(const std::vector<std::string>& folders, const std::string& out);

}  // namespace hocket::checkpoint
