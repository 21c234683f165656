// SPDX-License-Identifier: Apache-2.0
// hocket plan --codecs: which gradients of a plan travel through which codec.
#pragma once

#include <string>
#include <vector>

namespace hocket::cli {

struct PlanCodecs {
  std::string run;               ///< RUN or MODEL
  std::string cluster, profile;  ///< files; empty: those of the run, else this machine
  std::string out;               ///< where the run goes; empty: nowhere
  std::vector<std::string> set;
  std::vector<std::string> codecs;
  double time_limit_s = 0;  ///< 0: none
  bool offload = false;     ///< hosts may encode, too
  bool json = false;
};
/// Prints what is decided of each transfer, and the predicted steps; returns the exit code.
int plan_codecs(const PlanCodecs& options);

/// Prints the decisions of Espresso's public selector (planner/codecs/espresso.h) of the gradients
/// in a file; returns the exit code.
int plan_espresso(const std::string& file, const std::vector<std::string>& set);

}  // namespace hocket::cli
