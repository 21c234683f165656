// SPDX-License-Identifier: Apache-2.0
// The way from a run's configuration to its program: model graph -> autodiff -> graph passes ->
// templates -> their passes -> stamping -> program passes -> dependencies and memory plan. Check,
// simulator and executor take the result.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "collectives/transport.h"
#include "graph/graph.h"
#include "parallel/lowering/template.h"
#include "program/program.h"
#include "run/config.h"

namespace hocket::engine {

/// What there is of a compilation after a stage: templates and program are empty until they are
/// made.
struct Progress {
  const graph::Graph& graph;
  const parallel::Templates& templates;
  const program::Program& program;
};
/// Called after every stage and pass with its name: "graph", "backward", "templates", "lower",
/// "program", or that of the pass.
using Observer = std::function<void(const std::string&, const Progress&)>;

/// Their names, in this order: train, evaluate, gradients, logits, generate.
enum class Purpose {
  train,     ///< forward, backward, optimizer
  loss,      ///< forward only, losses
  grads,     ///< forward, backward; outputs grad.<param>
  logits,    ///< forward only; output logits
  generate,  ///< forward of one sequence with a KV cache; parameters whole on dp ranks
};

struct CompileOptions {
  Purpose purpose = Purpose::train;
  /// Sequences per dp rank and micro-batch, sequence length and micro-batches; 0: as in the run.
  int64_t micro_batch = 0, seq_len = 0, num_micro_batches = 0;
  int64_t new_tokens = 1, cache_slots = 0;  ///< generate: the most in a step, and in the cache
  std::vector<std::string> skip_passes;
  Observer observe;
};

struct Compiled {
  graph::Graph reference;  ///< single-device graph before any pass: what check compares with
  program::Program program;
  int64_t tokens_per_step = 0;
  /// What is saved by choosing layouts over the whole graph, if something is.
  std::optional<parallel::LayoutsSaved> layouts_saved;
};

/// How a graph becomes a program, besides the plan.
struct Lowering {
  std::vector<std::string> passes;       ///< names, in order
  std::vector<std::string> skip_passes;  ///< of these
  passes::PassOptions pass_options;
  std::string config;   ///< Program::config: what the program was made from
  std::string purpose;  ///< Program::purpose
  Observer observe;
  /// How those collectives are done that are not written as messages, where ranks are processes.
  std::optional<comm::Collectives> collectives;
};

/// The program that computes what the graph of one global micro-batch says, under a plan: passes of
/// every level, each after what it rewrites was made, dependencies and memory plan. Any application
/// can call it with any graph; those below call it for a model and a run's configuration.
Compiled compile(graph::Graph reference, const parallel::Plan& plan, const Lowering& how);

/// The single-device graph of a run: the model's, with what the purpose adds. Nothing is lowered.
graph::Graph reference(const Run& run, const CompileOptions& options = {});
/// The run's program, of that graph. Passes that are commands rewrite all of a run's programs but
/// the one that generates.
Compiled compile(const Run& run, const CompileOptions& options = {});

/// `run` with this program, whatever it is, in place of the one that is lowered for its purpose:
/// what check compares it with, and the tokens of its step. Nothing is lowered. Error: the run has
/// another number of micro-batches, or no such purpose.
Compiled with_program(const Run& run, program::Program given);
/// To be trained: Error if it is for something else, or of another mesh of ranks, or of other
/// nodes, than the run's plan.
Compiled compile_given(const Run& run, program::Program given);
/// True if the program has the ranks of the run's plan.
bool has_ranks_of(const program::Program& program, const parallel::Plan& plan);

/// The purpose with this name ("": train). Error: there is none.
Purpose purpose_named(const std::string& name, const std::string& where);
/// The program of a run for this purpose, as `hocket graph --for` shows it.
CompileOptions options_for(const Run& run, Purpose purpose);
/// How held-out data is evaluated under the run's plan: forward only, losses.
CompileOptions evaluation_options(const Run& run);
/// The most tokens behind those in the cache that a step of generation reads.
inline constexpr int64_t kPrefill = 64;
/// The program that generates, under the run's plan, but that plan.shard.params splits nothing. It
/// is the same for all texts that the model has positions for, and for longer ones by their length.
CompileOptions generation_options(const Run& run, int64_t longest_text);
/// True if training this run also evaluates: it names data, and some of that is held out.
bool evaluates(const Run& run);

/// How a run's collectives are done that are not written as messages, if its ranks are processes.
std::optional<comm::Collectives> collectives_of(const Run& run);
/// Threads of a rank's compute lane on this machine.
int threads_per_rank(const parallel::Plan& plan);

}  // namespace hocket::engine
