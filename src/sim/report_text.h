// SPDX-License-Identifier: Apache-2.0
// Output of `hocket simulate`: text for people and JSON for scripts.
#pragma once

#include <string>

#include "program/program.h"
#include "sim/simulator.h"

namespace hocket::sim {

/// Returns the report as lines of text that end with a newline.
std::string to_text(const Program& program, const SimReport& report);

/// Returns one JSON object; times in seconds, memory in bytes.
std::string to_json(const Program& program, const SimReport& report);

/// Parts of to_text that other reports print too. The interval (empty if the prediction rests on no
/// measurement) and the provenance are one line each. The path has several lines and ends with a
/// newline.
std::string interval_text(const SimReport& report);
std::string provenance_text(const SimReport& report);
std::string path_text(const SimReport& report);

/// Returns the longest task of an entry and its payload: "reduce_scatter grad ... on rank 0:
/// gradient of model.layers.19.mlp.down_proj.weight, 112 MiB over 16 ranks between nodes".
std::string longest_text(const PathEntry& entry);

/// Returns the effects that the simulation leaves out, as printed.
const std::vector<std::string>& not_modelled();

}  // namespace hocket::sim
