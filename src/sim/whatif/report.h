// SPDX-License-Identifier: Apache-2.0
// Text, JSON and HTML forms of what `hocket whatif` found.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "sim/whatif/analysis.h"
#include "sim/whatif/bottleneck.h"
#include "sim/whatif/measured_run.h"
#include "sim/whatif/scale.h"

namespace hocket::sim::whatif {

/// A step with one scale, or, without a text, with all of them.
struct ScaledStep {
  std::string text;
  double seconds = 0;
};

struct Findings {
  Analysis analysis;
  std::vector<ScaledStep> scaled;
  std::optional<Surface> surface;
  std::optional<Bottleneck> bottleneck;
};

std::string to_text(const MeasuredRun& run, const Findings& findings);
/// Keys T, T_ideal, S, S_step, S_stage, S_dp, M_S, M_W and more (docs/whatif.md); seconds.
std::string to_json(const MeasuredRun& run, const Findings& findings);
/// A page that needs nothing else: heat maps of workers and of stages by step, causes.
std::string to_html(const MeasuredRun& run, const Findings& findings);

}  // namespace hocket::sim::whatif
