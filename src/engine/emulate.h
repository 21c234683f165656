// SPDX-License-Identifier: Apache-2.0
// Emulated device, for more ranks than cores: a small run computes its own results, while its tasks
// and messages have the durations and bytes of a larger run on another cluster.
#pragma once

#include <memory>
#include <string>

#include "cost/cost_model.h"
#include "engine/session.h"
#include "run/compile.h"
#include "runtime/emulated_device.h"

namespace hocket::engine {

/// Returns the run with the emulated durations and bytes: `run` with the keys of emulate.set.
/// Throws Error for invalid keys.
Run emulated_run(const Run& run);

/// Returns the cost model of emulate.cluster, as `hocket simulate` uses it. Throws Error if the
/// profile is not one of the cluster's devices.
cost::CostModel emulated_costs(const Run& run);

/// Returns the durations and message bytes of the emulated run, for a training program of the run;
/// null if emulate.cluster is empty. Throws Error if the two programs have different tasks, a
/// message of the emulated one has fewer bytes, or a task takes longer than plan.timeout_s.
std::shared_ptr<const runtime::EmulatedDevice> emulate(const Run& run,
                                                       const program::Program& program);

/// Describes the emulated device, "emulated: tasks last as long as those of qwen3_moe ...", for
/// every report of measurements on it; "" if emulate.cluster is empty.
std::string emulation_text(const Run& run);

/// Time that the lanes of local ranks were held in the session's last step, and the excess of their
/// tasks over that: the part that the machine could not emulate. In seconds.
struct HeldTime {
  double held_s = 0, over_s = 0;
};
HeldTime held_time(const Session& session);

}  // namespace hocket::engine
