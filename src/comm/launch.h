// SPDX-License-Identifier: Apache-2.0
// Whoever started this process as one of several.
#pragma once

#include <functional>

#include "comm/wire.h"

namespace hocket::comm {

/// Reads a variable of the environment; null: it is not set.
using Environment = std::function<const char*(const char*)>;

/// What a launcher says in the environment: `hocket launch`, torchrun and whatever sets RANK,
/// WORLD_SIZE, MASTER_ADDR and MASTER_PORT as it does (Kubernetes operators); mpirun of Open MPI;
/// srun. Of size 1 where there is none. Error: variables that are missing or contradict each other.
Place launched(const Environment& get);
/// Of this process.
const Place& launched();

}  // namespace hocket::comm
