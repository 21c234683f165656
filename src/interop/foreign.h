// SPDX-License-Identifier: Apache-2.0
// Plans of other trainers: Megatron-LM's command line, in a shell script, and torchtitan's job
// files, read into a run and written from one. docs/planner.md has the names on both sides.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "planner/space.h"
#include "run/config.h"

namespace hocket::interop {

/// What a file of another trainer says.
struct Imported {
  /// Keys of the run, "plan.tp" to "8".
  std::map<std::string, std::string> keys;
  /// The model as a Hugging Face config.json; empty where the file only names it, or the run has
  /// one of its own.
  std::string config_json;
  std::string model_name;            ///< as the file names it, where it does
  std::vector<std::string> lacks;    ///< parts of the model that `config_json` is without
  std::vector<std::string> ignored;  ///< each argument that is not in `keys` or the model, and why
  std::vector<std::string> notes;    ///< where a run says the same in another way
};

/// How many ranks a run of a file has, from which its data-parallel ranks follow.
struct RanksOfFile {
  int64_t asked = 0;      ///< whatever its launcher says; 0: as the file says
  int64_t otherwise = 0;  ///< where the file does not say; 0: not known
};

/// `name`: the file, in errors. Error: what there is no run for, by argument. `has_model`: the run
/// names its model, so that the script need not have one.
Imported import_megatron(const std::string& text, const std::string& name, const RanksOfFile& ranks,
                         bool has_model);
Imported import_torchtitan(const std::string& text, const std::string& name,
                           const RanksOfFile& ranks);

/// A run as their file.
struct Emitted {
  std::string text;
  std::vector<std::string> notes;  ///< where it says something else than the run
};
/// Error: a key that they cannot express.
Emitted emit_megatron(const engine::Run& run);
Emitted emit_torchtitan(const engine::Run& run);

/// Says of what a search chooses whether they can express it beside the other keys of `run`, which
/// they can (or there is an Error).
std::function<bool(const planner::Choice&)> expressed_by_megatron(const engine::Run& run);
std::function<bool(const planner::Choice&)> expressed_by_torchtitan(const engine::Run& run);

}  // namespace hocket::interop
