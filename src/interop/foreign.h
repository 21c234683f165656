// SPDX-License-Identifier: Apache-2.0
// Files of other trainers, read into a run: Megatron-LM's command line in a shell script,
// torchtitan's job files, DeepSpeed's JSON, verl's and Axolotl's YAML. The first two are also
// written from one. docs/interop.md describes the mapping,
// docs/config.md has the names on both sides.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "interop/known_keys.h"
#include "planner/space.h"
#include "run/config.h"

namespace hocket::interop {

/// Content of another trainer's file.
struct Imported {
  /// Keys of the run, "plan.tp" to "8".
  std::map<std::string, std::string> keys;
  /// The model as a Hugging Face config.json; empty where the file only names it, or the run has
  /// one of its own.
  std::string config_json;
  std::string model_name;            ///< as the file names it, where it does, for people
  std::string model_path;            ///< a folder or hub id of the model; empty: the file has none
  std::vector<std::string> ignored;  ///< each argument that is not in `keys` or the model, and why
  std::vector<std::string> notes;    ///< where a run says the same in another way
};

/// Number of ranks for a file; its data-parallel degree follows from it.
struct RanksOfFile {
  int64_t asked = 0;      ///< whatever its launcher says; 0: as the file says
  int64_t otherwise = 0;  ///< where the file does not say; 0: not known
};

/// Reads a Megatron-LM script. `name` is the file, for errors. If `beside` names a model, the
/// script need not have one. Throws Error, naming the argument, for settings that Hocket cannot
/// express, and for those that no release has.
Imported import_megatron(const std::string& text, const std::string& name, const RanksOfFile& ranks,
                         const Beside& beside = {});
/// Reads a job file of torchtitan: TOML, or the JSON that debug.save_config_file writes.
Imported import_torchtitan(const std::string& text, const std::string& name,
                           const RanksOfFile& ranks, const Beside& beside = {});
/// Reads DeepSpeed's JSON, which has neither the model nor the length of sequences.
Imported import_deepspeed(const std::string& text, const std::string& name,
                          const RanksOfFile& ranks, const Beside& beside = {});
/// Reads verl's YAML, or a script that starts one of its trainers with overrides.
Imported import_verl(const std::string& text, const std::string& name, const RanksOfFile& ranks,
                     const Beside& beside = {});
/// Reads Axolotl's YAML.
Imported import_axolotl(const std::string& text, const std::string& name, const RanksOfFile& ranks,
                        const Beside& beside = {});

/// An importer by the name of --from; null: there is none.
using Importer = Imported (*)(const std::string& text, const std::string& name,
                              const RanksOfFile& ranks, const Beside& beside);
Importer importer_of(const std::string& format);
/// Names that importer_of knows.
std::vector<std::string> import_formats();

/// A run as their file.
struct Emitted {
  std::string text;
  std::vector<std::string> notes;  ///< where it says something else than the run
};
/// Writes a run as Megatron-LM's arguments. This and the next one throw Error for a key that the
/// trainer cannot express.
Emitted emit_megatron(const engine::Run& run);
Emitted emit_torchtitan(const engine::Run& run);

/// Returns a test of whether Megatron-LM can express a search's choice beside the other keys of
/// `run`. Throws Error if it cannot express those.
std::function<bool(const planner::PlanCandidate&)> expressed_by_megatron(const engine::Run& run);
std::function<bool(const planner::PlanCandidate&)> expressed_by_torchtitan(const engine::Run& run);
/// Returns whether Megatron-LM waits for each message between the stages of a candidate.
bool waits_in_megatron(const planner::PlanCandidate& plan);
/// Returns assignments that make a search predict what emit_megatron writes, where the run leaves
/// these keys open: the ops of selective recomputation.
std::vector<std::string> keys_for_megatron(const engine::Run& run);

}  // namespace hocket::interop
