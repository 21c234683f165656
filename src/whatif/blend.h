// SPDX-License-Identifier: Apache-2.0
// Durations of a run with some of them replaced.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "whatif/measured_run.h"

namespace hocket::whatif {

/// `some` of the ops that are chosen, `others` of all others; both as MeasuredRun::duration, and
/// they must outlive it.
struct Blend {
  std::span<const double> some, others;
  std::vector<char> chosen;  ///< [op * replicas + replica]; empty: none is
  /// Whether `others` are equal in all replicas of a step: replicas without chosen ops then replay
  /// as one.
  bool replicas_alike = false;
};

/// Chooses the ops for which `chosen(op, replica)` is true.
template <typename Chosen>
Blend blend(const MeasuredRun& run, const std::vector<double>& some,
            const std::vector<double>& others, Chosen&& chosen) {
  Blend blend{some, others, {}, false};
  blend.chosen.reserve(run.ops.size() * run.replicas);
  const OpId end = run.ops.size();
  for (OpId op = 0; op < end; ++op) {
    for (ReplicaId replica = 0; replica < run.replicas; ++replica) {
      blend.chosen.push_back(chosen(op, replica) ? 1 : 0);
    }
  }
  return blend;
}

}  // namespace hocket::whatif
