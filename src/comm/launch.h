// SPDX-License-Identifier: Apache-2.0
// Detection of the launcher that started this process as one of several.
#pragma once

#include <functional>

#include "comm/transport.h"

namespace hocket::comm {

/// Reads a variable of the environment; null: it is not set.
using Environment = std::function<const char*(const char*)>;

/// Reads the process's rank and address from the variables of its launcher: `hocket launch`,
/// torchrun and others that set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT (Kubernetes
/// operators); mpirun of Open MPI; srun. Size 1 without a launcher. Throws Error for variables that
/// are missing or contradict each other.
LaunchInfo launch_info(const Environment& get);
/// Returns the same for this process's environment.
const LaunchInfo& launch_info();

/// Records that the error that ends this process also ends every process of the launch with the
/// same text, before they are connected: only rank 0 has to print it.
void mark_common_error();
bool is_common_error();

}  // namespace hocket::comm
