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

/// Notes that the error which now ends this process ends all that were started with it, in the same
/// words, before they know each other: that of rank 0 is enough.
void note_same_error();
bool noted_same_error();

}  // namespace hocket::comm
