// SPDX-License-Identifier: Apache-2.0
// The `timed` device, for more ranks than cores: a small run computes exactly what it computes,
// while its tasks take as long, and its messages as many bytes, as those of a large one on another
// cluster.
#pragma once

#include <memory>
#include <string>

#include "cost/cost_model.h"
#include "engine/session.h"
#include "run/compile.h"
#include "runtime/emulated_device.h"

namespace hocket::engine {

/// The run whose durations and bytes are emulated: `run` with the keys of emulate.set. Error: they
/// don't make one.
Run emulated_run(const Run& run);

/// What its tasks take on emulate.cluster, as `hocket simulate` says. Error: a file that does not
/// fit.
cost::CostModel emulated_costs(const Run& run);

/// What is emulated of a training program of the run: the durations and bytes of the tasks of the
/// emulated run; null if
/// emulate.cluster is empty. Error: the two programs have other tasks, a message of the emulated
/// one has fewer bytes, or a task would take longer than plan.timeout_s.
std::shared_ptr<const runtime::EmulatedDevice> emulate(const Run& run,
                                                       const program::Program& program);

/// "timed: the tasks of qwen3_moe ... take as long as on A100 ...": what everything that is
/// measured on it says; "" if emulate.cluster is empty.
std::string emulation_text(const Run& run);

/// How long the lanes of the ranks here were held in the session's last step, and by how much
/// their tasks took longer than that: what the machine could not play.
struct HeldTime {
  double held_s = 0, over_s = 0;
};
HeldTime held_time(const Session& session);

}  // namespace hocket::engine
