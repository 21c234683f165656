// SPDX-License-Identifier: Apache-2.0
// What `hocket simulate` prints: as text for people and as JSON for scripts.
#pragma once

#include <string>

#include "program/program.h"
#include "sim/simulator.h"

namespace hocket::sim {

/// Several lines, ends with a newline.
std::string to_text(const Program& program, const SimReport& report);

/// One JSON object; times in seconds, memory in bytes.
std::string to_json(const Program& program, const SimReport& report);

/// Parts of to_text that others print too: one line (empty where nothing measured bears on the
/// prediction), one line, and several lines with a newline at the end.
std::string interval_text(const SimReport& report);
std::string provenance_text(const SimReport& report);
std::string path_text(const SimReport& report);

/// The longest task of an entry, and what it moves: "reduce_scatter grad ... on rank 0: gradient of
/// model.layers.19.mlp.down_proj.weight, 112 MiB over 16 ranks between nodes".
std::string longest_text(const PathEntry& entry);

/// What the simulation leaves out, as printed.
const std::vector<std::string>& not_modelled();

}  // namespace hocket::sim
