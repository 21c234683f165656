// SPDX-License-Identifier: Apache-2.0
// Durations of a run of which some are other ones.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/whatif/measured_run.h"

namespace hocket::sim::whatif {

/// Durations `some` of the ops of which `chosen(op, replica)` is true, `others` of all others; both
/// as MeasuredRun::duration.
template <typename Chosen>
std::vector<double> blend(const MeasuredRun& run, const std::vector<double>& some,
                          const std::vector<double>& others, Chosen&& chosen) {
  std::vector<double> mixed = others;
  const auto replicas = static_cast<size_t>(run.replicas);
  const size_t lanes = static_cast<size_t>(run.lanes());
  for (size_t op = 0; op < run.ops.size(); ++op) {
    for (size_t replica = 0; replica < replicas; ++replica) {
      if (!chosen(static_cast<int32_t>(op), static_cast<int32_t>(replica))) continue;
      for (size_t cell = op * lanes + replica; cell < (op + 1) * lanes; cell += replicas) {
        mixed[cell] = some[cell];
      }
    }
  }
  return mixed;
}

}  // namespace hocket::sim::whatif
