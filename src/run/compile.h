// SPDX-License-Identifier: Apache-2.0
// The way from a run's configuration to its program: model graph -> autodiff -> graph passes ->
// templates -> their passes -> stamping -> program passes -> dependencies and memory plan. Check,
// simulator and executor take the result.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "collectives/implementation.h"
#include "graph/graph.h"
#include "models/build.h"
#include "parallel/lowering/template.h"
#include "program/program.h"
#include "run/config.h"

namespace hocket::autodiff {
struct OptimizerConfig;
}

namespace hocket::engine {

/// State of a compilation after a stage; templates and program are empty until they are made.
struct Progress {
  const graph::Graph& graph;
  const parallel::Templates& templates;
  const program::Program& program;
};
/// Called after every stage and pass with its name: "graph", "backward", "templates", "lower",
/// "program", or that of the pass.
using Observer = std::function<void(const std::string&, const Progress&)>;

struct Compiled {
  graph::Graph reference;  ///< single-device graph before any pass: the check's reference
  program::Program program;
  int64_t tokens_per_step = 0;
  /// Saving by choosing layouts over the whole graph, if any.
  std::optional<parallel::LayoutsSaved> layouts_saved;
};

/// Options of compilation besides the plan.
struct Lowering {
  std::vector<std::string> passes;       ///< names, in order
  std::vector<std::string> skip_passes;  ///< of `passes`
  passes::PassOptions pass_options;
  std::string config;   ///< Program::config: the source configuration
  std::string purpose;  ///< Program::purpose
  Observer observe;
  /// Implementation of collectives that are not messages, for ranks that are processes.
  std::optional<comm::Collectives> collectives;
};

/// Compiles the graph of one global micro-batch under a plan: passes of every level, dependencies
/// and memory plan. Any application can call it with any graph; the functions below call it for a
/// model and a run's configuration.
Compiled compile(graph::Graph reference, const parallel::Plan& plan, const Lowering& options);

/// Specification of a program: its computation, plan and lowering. An application with a graph of
/// its own makes one; those below are of a run's model.
struct ProgramSpec {
  /// Names it among the programs of a model: equal keys, equal programs. A changed spec needs
  /// another key.
  std::string key;
  std::string where;  ///< in errors
  /// Builds the single-device graph of a micro-batch of all ranks. The observer sees it before and
  /// after its backward pass, if it has one.
  std::function<graph::Graph(const Observer& observe)> graph;
  parallel::Plan plan;
  Lowering lowering;
  int64_t tokens_per_step = 0;
};
/// Compiles a program. Throws Error if the plan has experts on ranks of their own, and the program
/// does not allow that.
Compiled compile(const ProgramSpec& spec);

/// Sizes of a program that are not those of the run; 0: as there.
struct Sizes {
  int64_t micro_batch = 0;  ///< sequences per dp rank and micro-batch
  int64_t seq_len = 0;
  int64_t num_micro_batches = 0;
};
/// Programs of a run's model. Passes that are commands rewrite all but the one that generates.
/// Forward, backward, optimizer.
ProgramSpec training(const Run& run, const Sizes& sizes = {});
/// Forward only, losses.
ProgramSpec losses(const Run& run, const Sizes& sizes = {});
/// Forward only; log-probabilities and entropies of the targets, and of answers where the objective
/// is one of them. References run it.
ProgramSpec logprobs(const Run& run, const Sizes& sizes = {});
/// Forward, backward; outputs grad.<param>.
ProgramSpec gradients(const Run& run, const Sizes& sizes = {});
/// Forward only; output logits. Parameters lie as in the other programs.
ProgramSpec logits(const Run& run, const Sizes& sizes = {});
/// Returns the spec of evaluating held-out data under the run's plan: losses.
ProgramSpec evaluation(const Run& run);
/// Data-parallel ranks of a generating program, which divide sequences: those of dp and cp.
int64_t generation_parts(const Run& run);
/// Forward of the new tokens of sequences with a paged KV cache, and tokens drawn from it
/// (models::Generation). Each data-parallel rank has at most `new_tokens` of them in a step. Every
/// such rank has sequences, tokens and pages of its own; tokens go to their experts as in training.
/// Parameters are whole on data-parallel ranks: gathered for every token, they would take longer
/// than all else.
ProgramSpec generation(const Run& run, int64_t new_tokens, const models::Generation& sizes);
/// The program that generates one text of the longest that the model has positions for.
ProgramSpec generation(const Run& run);

/// Returns the name of a program of a run: train, evaluate, gradients, logits, logprobs or
/// generate; "" is train. Throws Error for any other.
std::string program_name(const std::string& name, const std::string& where);
/// The program with this name, as `hocket graph --for` shows it. Throws Error as program_name()
/// does.
ProgramSpec spec_named(const Run& run, const std::string& name, const std::string& where);

/// The program that trains a run.
Compiled compile(const Run& run);
/// Graph of a run's training for one device. Nothing is lowered.
graph::Graph reference(const Run& run);

/// Returns `run` compiled with this program in place of the lowered one of its name, with the
/// check's reference and the tokens of its step. Throws Error if the number of micro-batches
/// differs, or for an unknown program name.
Compiled with_program(const Run& run, program::Program program);
/// Returns the same for a program that was read from text, to be trained. Throws Error if it is for
/// something else, or of another mesh of ranks, or of other nodes, than the run's plan.
Compiled compile_program_text(const Run& run, program::Program program);
/// Returns whether the program has the ranks of the run's plan.
bool has_ranks_of(const program::Program& program, const parallel::Plan& plan);

/// Returns whether training this run also evaluates: it names data, and some of that is held out.
bool evaluates(const Run& run);

/// Answers (rl: samples) that a sequence has room for, with dpo two per pair; 0: the loss is of
/// tokens.
int64_t answers_per_sequence(const Run& run);

/// Returns the optimizer of a training.
autodiff::OptimizerConfig optimizer_of(const OptimizerSection& optimizer,
                                       const TrainSection& train);

/// Returns the implementation of a run's collectives that are not messages, if its ranks are
/// processes.
std::optional<comm::Collectives> collectives_of(const Run& run);
/// Threads of a rank's compute lane on this machine.
int threads_per_rank(const parallel::Plan& plan);

}  // namespace hocket::engine
