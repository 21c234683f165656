// SPDX-License-Identifier: Apache-2.0
// Plans as files: a run.yaml, or the files of Megatron-LM and torchtitan. Shared by `hocket plan`
// and `hocket plan convert`.
#pragma once

#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "cli/args.h"
#include "interop/foreign.h"
#include "run/config.h"

namespace hocket::cli {

/// RUN, its format, and the keys that the command line sets.
struct PlanFile {
  std::string path;
  std::string from;       ///< "megatron", "torchtitan"; empty: a run.yaml or a MODEL
  std::string model_out;  ///< folder of the model's config.json; empty: into the run
  std::vector<std::string> set;
  std::optional<int64_t> global_batch, seq_len;

  /// --set, --global-batch and --seq-len as assignments of keys.
  std::vector<std::string> overrides() const;
  /// Returns whether --set names the model.
  bool sets_model() const;
};

/// Adds RUN, --set, --from, --model-out, --global-batch and --seq-len.
void add_plan_file(Args& args, PlanFile* file);
/// Adds --emit.
void add_emit(Args& args, std::string* emit, std::string help);

/// Throws Error unless each is a known format or empty, and --model-out goes with --from megatron.
void expect_formats(const std::string& verb, const PlanFile& file, const std::string& emit);

/// Reads the run that another trainer's file describes. Prints notes and ignored settings to
/// `messages`. Writes the model's config.json if the file has its sizes. With `keeps_plan` the plan
/// must fit; otherwise only the keys are resolved. `model_name` receives the file's name of the
/// model, or stays empty.
engine::Run read_foreign(const PlanFile& file, const interop::RanksOfFile& ranks, bool keeps_plan,
                         std::FILE* messages, std::string* model_name);

/// Prints which model the run has, if the file named one without its sizes.
void note_model(std::FILE* messages, const std::string& model_name, const engine::Run& run);

/// Returns `run` in the form of another trainer, or as a run.yaml with `comment` at its head.
interop::Emitted text_of(const engine::Run& run, const std::string& emit_format,
                         const std::string& comment);

/// hocket plan convert: a run of another trainer as ours, or the other way round.
void declare_plan_convert(Args& args);

}  // namespace hocket::cli
