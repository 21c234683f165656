// SPDX-License-Identifier: Apache-2.0
// `hocket profile`: times a program's distinct tasks one by one on this machine, with the inputs
// that they have in a real step, and the links between ranks.
#pragma once

#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <string>

#include "cost/cost_model.h"
#include "cost/profile.h"
#include "kernels/backend.h"
#include "run/compile.h"
#include "run/machine.h"
#include "runtime/local_ranks.h"

namespace hocket::train {

struct ProfileOptions {
  double seconds = 1.5;  ///< per rank class: passes are repeated at least this long, 5 at least
  /// This number of repetitions ends a measurement sooner, but not before 5 passes.
  int max_repeats = std::numeric_limits<int>::max();
  std::function<void(const std::string& text)> progress;
  /// Results of measure_links() between processes; empty: ranks are threads, and their links are
  /// timed with the tasks.
  std::map<std::string, cost::TimedLink> links;
  /// Device with the kernels to time; null: this machine's CPU.
  std::shared_ptr<runtime::Device> device;
};

/// Times the tasks of a rank one at a time, in program order. Other ranks of the machine do the
/// same meanwhile, as far as there are cores, so that memory is shared. Inputs are valid, and
/// caches hold the same data as in a step: repeating one task on warm buffers makes an optimizer
/// look ten times too fast. A kind's time is the median over passes of its mean in a pass.
/// Parameters and optimizer state are scratch; a run is not touched.
cost::Profile profile(const engine::Run& run, const engine::Compiled& compiled,
                      const std::shared_ptr<kernels::Backend>& backend,
                      const ProfileOptions& options);

/// Measures the links between the ranks, in all of their processes together, with at most
/// `max_repeats` repetitions. Empty where all ranks are here.
std::map<std::string, cost::TimedLink> measure_links(const engine::Run& run,
                                                     runtime::LocalRanks& ranks, int max_repeats);

/// Returns the timings for a training's prediction: those of cluster.profile, if they have every
/// task of the program, from this CPU with these kernels and threads (the mismatch is printed);
/// else those of output.dir/profile.json from an earlier start; else new ones, which are written
/// there. The file of cluster.profile is never written. Throws Error (exit code 2) if
/// cluster.profile is absent or no profile.
cost::Profile profile_for(const engine::Run& run, const engine::Compiled& compiled,
                          const std::shared_ptr<kernels::Backend>& backend,
                          const ProfileOptions& options);

}  // namespace hocket::train
