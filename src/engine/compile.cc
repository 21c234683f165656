// SPDX-License-Identifier: Apache-2.0
#include "engine/compile.h"

#include <algorithm>
#include <thread>

#include "autodiff/autodiff.h"
#include "base/error.h"
#include "data/index.h"
#include "models/build.h"
#include "parallel/lower.h"
#include "passes/pass.h"
#include "program/finalize.h"
#include "program/memory.h"
#include "program/text.h"

namespace hocket::engine {

namespace {

/// The model's graph for one micro-batch of all ranks. The purposes differ in what it ends with
/// (losses, logits), whether it is to be differentiated, and whether it has a KV cache.
graph::Graph build_graph(const Run& run, const CompileOptions& options, int64_t tokens,
                         int64_t seq_len, int64_t num_micro_batches) {
  using Mode = models::BuildOptions::Mode;
  const TrainSection& train = run.config.train;
  models::BuildOptions how;
  how.tokens = tokens;
  how.sequence_length = seq_len;
  how.dtype = graph::parse_dtype(run.config.model.dtype);
  how.num_micro_batches = num_micro_batches;
  switch (options.purpose) {
    case Purpose::train:
      how.balance_coef = train.balance_coef.value_or(run.model.router_aux_loss_coef);
      break;
    case Purpose::grads:
      break;
    case Purpose::loss:
      how.grad = false;
      break;
    case Purpose::logits:
      how.mode = Mode::logits;
      break;
    case Purpose::generate:
      how.mode = Mode::generate;
      how.cache_slots = options.cache_slots;
      break;
  }
  return models::build(run.model, how);
}

}  // namespace

Compiled compile(const Run& run, const CompileOptions& options) {
  // The whole pipeline: the model's graph for one global micro-batch; its backward and optimizer
  // (this is what check compares with); graph passes; lowering to a program; program passes;
  // dependencies and memory plan. `observe` sees every stage. Generation runs on one rank whatever
  // the plan is.
  parallel::Plan plan = run.plan;
  if (options.micro_batch > 0) {
    plan.micro_batch = options.micro_batch;
  }
  if (options.num_micro_batches > 0) {
    plan.num_micro_batches = options.num_micro_batches;
  }
  const int64_t seq_len = options.seq_len > 0 ? options.seq_len : run.config.train.seq_len;
  int64_t tokens = plan.micro_batch * plan.dp * seq_len;
  if (options.purpose == Purpose::generate) {
    plan = parallel::Plan{};
    plan.threads_per_rank = run.plan.threads_per_rank;
    tokens = options.new_tokens;
  }
  const TrainSection& train = run.config.train;
  Compiled result;
  auto observe = [&](const std::string& what, const graph::Graph& graph,
                     const program::Program& program) {
    if (options.observe) {
      options.observe(what, graph, program);
    }
  };

  graph::Graph graph = build_graph(run, options, tokens, seq_len, plan.num_micro_batches);
  observe("graph", graph, result.program);
  if (options.purpose == Purpose::train || options.purpose == Purpose::grads) {
    autodiff::differentiate(graph);
    if (options.purpose == Purpose::grads) {
      autodiff::append_grad_outputs(graph);
    } else {
      autodiff::append_adamw(
          graph, {train.beta1, train.beta2, train.eps, train.weight_decay, train.max_grad_norm});
    }
    observe("backward", graph, result.program);
  }
  result.reference = graph;

  passes::PassRunner runner(run.config.plan.passes, options.skip_passes,
                            run.config.plan.pass_options);
  runner.after = [&](const passes::Pass& pass) { observe(pass.name, graph, result.program); };
  runner.run(graph);
  result.program = parallel::lower(graph, plan);
  result.program.config = run.resolved.to_json_text();
  observe("lower", graph, result.program);
  runner.run(result.program);
  program::finalize(result.program);
  observe("program", graph, result.program);
  result.tokens_per_step = tokens * plan.num_micro_batches;
  return result;
}

Compiled compile_given(const Run& run, const std::string& program_text) {
  Compiled compiled = compile(run);
  program::Program given = program::parse_program(program_text);
  // Batches are cut, and ranks started, as the plan says.
  if (given.roles != compiled.program.roles) {
    fail(run.name,
         "the program is of another mesh of ranks than the plan in its configuration; "
         "expected pp {}, dp {}, ep {}; try to lower it again: hocket graph RUN --out FILE",
         run.plan.pp, run.plan.dp, run.plan.ep);
  }
  // Which of its transfers leave a node was decided for nodes of this size.
  if (given.ranks_per_node != compiled.program.ranks_per_node) {
    fail(run.name,
         "the program has {} ranks per node (0: all on one), the plan in its configuration {}; try "
         "to lower it again: hocket graph RUN --out FILE",
         given.ranks_per_node, compiled.program.ranks_per_node);
  }
  compiled.program = std::move(given);
  return compiled;
}

CompileOptions evaluation_options(const Run& run) {
  CompileOptions how;
  how.purpose = Purpose::loss;
  // Enough micro-batches to keep a pipeline busy; more would only make the last step emptier.
  how.num_micro_batches = run.plan.pp > 1 ? run.plan.num_micro_batches : 1;
  return how;
}

bool evaluates(const Run& run) {
  const DataSection& data = run.config.data;
  if (data.dir.empty()) return false;
  return data::holds_out(data.dir).value_or(data.valid_fraction > 0);
}

std::vector<int64_t> evaluation_bytes(const program::Program& evaluation,
                                      const program::Program& training) {
  const std::vector<program::Memory> memory = program::memory_of(evaluation);
  const std::vector<program::ClassId> class_of = evaluation.class_table();
  std::vector<int64_t> bytes(training.classes.size(), 0);
  for (size_t cls = 0; cls < bytes.size(); ++cls) {
    for (const int32_t rank : training.ranks_of(cls)) {
      if (static_cast<size_t>(rank) >= class_of.size()) continue;
      const program::Memory& beside = memory[class_of[static_cast<size_t>(rank)]];
      bytes[cls] = std::max(bytes[cls], beside.total() - beside.persistent);
    }
  }
  return bytes;
}

int threads_per_rank(const parallel::Plan& plan) {
  if (plan.threads_per_rank > 0) return static_cast<int>(plan.threads_per_rank);
  const int64_t cores = std::max(1u, std::thread::hardware_concurrency());
  return static_cast<int>(std::max<int64_t>(1, cores / plan.world()));
}

}  // namespace hocket::engine
