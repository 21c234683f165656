// SPDX-License-Identifier: Apache-2.0
// Reads logs of nccl-tests (all_reduce_perf and its siblings, of any version, with a launcher's
// prefixes) and the network tables of Vidur (CSV) into samples of collectives.
#pragma once

#include <string>
#include <string_view>

#include "cost/comm_log.h"

namespace hocket::interop {

/// Reads a log of either kind. `op`: of the registry, where neither the text nor the file's name
/// says it. Throws Error if nothing in it is a measurement, it is of a collective that the registry
/// lacks, or it does not say its ranks.
cost::CommLog read_comm_log(const std::string& path, const std::string& op = "");
cost::CommLog parse_comm_log(const std::string& text, const std::string& path,
                             const std::string& op = "");

/// The op of the registry that a name of nccl-tests or Vidur means ("allreduce",
/// "all_gather_perf"); empty if there is none.
std::string comm_op_of(std::string_view name);

}  // namespace hocket::interop
