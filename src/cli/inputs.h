// SPDX-License-Identifier: Apache-2.0
// Inputs shared by several verbs: RUN (a run.yaml, a program's text, or a model's config.json with
// a default plan), and --set.
#pragma once

#include <cstdio>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/args.h"
#include "cost/cluster.h"
#include "cost/profile.h"
#include "run/compile.h"

namespace hocket::cli {

/// A run as given on the command line.
struct Source {
  engine::Run run;
  std::optional<program::Program> parsed_program;  ///< read from RUN, if that is the text of one

  /// Returns the program that trains the run, or `parsed_program`, for which nothing is lowered.
  engine::Compiled compile() const;
  /// Returns the program that evaluates held-out data beside the run's training; none if there is
  /// no such data, or if `parsed_program` is no training of the plan's ranks.
  std::optional<engine::Compiled> evaluation() const;
};

/// Reads `path`: a run.yaml or a program's text, with `bare_model` also a MODEL. A bare model
/// trains on sequences of 4,096 tokens, or fewer if the model allows fewer. It has one sequence per
/// rank and micro-batch, and four micro-batches per pipeline stage.
Source read_source(const std::string& path, const std::vector<std::string>& overrides,
                   bool bare_model = false);

/// Throws an Error of `verb` if --dtype is not a supported type.
void require_dtype(const char* verb, const std::string& dtype);

/// Text of a run that evaluates or generates with MODEL: its weights, and for a checkpoint of ours
/// the prepared texts and sequence length that it was trained with. The batch follows the plan of
/// `overrides`. `adapter`: a PEFT adapter's folder, or a run of ours that trained one, to be merged
/// into the weights.
engine::Run model_run(const std::string& model, const std::string& dtype,
                      const std::vector<std::string>& overrides, const std::string& adapter = "");

/// Warns if `tokens` positions, described by `what`, exceed the model's maximum.
void warn_if_long(const models::ModelConfig& model, int64_t tokens, const std::string& what);
/// Returns the text of that warning; empty for none.
std::string long_text(const models::ModelConfig& model, int64_t tokens, const std::string& what);

/// Options of a verb that predicts, beside the run.
struct PredictionOptions {
  std::string verb;              ///< "hocket plan", in errors
  std::string source;            ///< RUN
  std::string cluster, profile;  ///< --cluster and --profile; empty uses the run's
  /// Options that name files to write, and these files: none may be one that is read, and each must
  /// be in a place that can be written.
  std::vector<std::pair<std::string, std::string>> outputs;
};
/// Cluster and profile of a prediction.
struct PredictionBasis {
  std::string cluster_file;  ///< empty: this machine
  cost::Cluster cluster;
  std::optional<cost::Profile> profile;
};
/// Timings of another device, CPU or kernels than the cluster's are an Error where --profile names
/// them, and else left aside with a warning.
PredictionBasis prediction_basis(const engine::Run& run, const PredictionOptions& options);

/// Adds --set.
void add_set(Args& args, std::vector<std::string>* overrides);
/// Adds --cluster and --profile. `has_run`: their defaults are keys of a run.
void add_prediction_basis(Args& args, std::string* cluster, std::string* profile,
                          bool has_run = true);
/// Adds --adapter.
void add_adapter(Args& args, std::string* adapter);
/// Adds --tokenizer, whose default is that of the model. Its help begins with `prefix`.
void add_tokenizer(Args& args, std::string* tokenizer, const std::string& prefix = "");
/// Adds --dtype; require_dtype() checks its value.
void add_dtype(Args& args, std::string* dtype);

/// Throws Error if `option` names an output that is also an input of the command: one of `inputs`,
/// or a file inside one. Accepts an empty name, and paths that do not exist yet.
void require_output(const std::string& option, const std::string& path,
                    const std::vector<std::string>& inputs);

/// Throws Error if `path`, given by `option`, cannot be written. Called before long work; writes
/// nothing.
void require_writable(const std::string& option, const std::string& path);

/// Files and folders that a run reads.
std::vector<std::string> inputs_of(const engine::Run& run);

/// Writes `text` to `path`, or to standard output if it is empty or "-".
void emit(const std::string& path, const std::string& text);

/// Returns the stream for a command's messages when its result goes to `path`: standard error if
/// the result takes standard output ("-").
std::FILE* message_stream(const std::string& path);

}  // namespace hocket::cli
