// SPDX-License-Identifier: Apache-2.0
#include "run/compile.h"

#include <fmt/format.h>

#include <algorithm>
#include <thread>

#include "autodiff/autodiff.h"
#include "base/error.h"
#include "base/id.h"
#include "base/stop.h"
#include "base/text.h"
#include "collectives/transport.h"
#include "comm/launch.h"
#include "data/index.h"
#include "models/build.h"
#include "parallel/layouts/stored.h"
#include "parallel/lowering/template.h"
#include "passes/pass.h"
#include "passes/roles.h"
#include "program/finalize.h"
#include "program/text.h"
#include "program/traffic.h"

namespace hocket::engine {

namespace {

/// What a run's options come to: its plan, and the tokens of a micro-batch of all ranks. To
/// generate is to run one sequence, of which all data-parallel ranks have all; where experts are on
/// several ranks these split its tokens, which then go to their experts as in training. Parameters
/// are then whole on data-parallel ranks: gathered for every token, they would take longer than all
/// else.
struct Sizes {
  parallel::Plan plan;
  int64_t seq_len = 0, tokens = 0;
  int64_t token_ranks = 1;  ///< generate: that split the tokens
  int64_t tokens_per_step() const { return tokens * plan.num_micro_batches; }
};

Sizes sizes_of(const Run& run, const CompileOptions& options) {
  Sizes sizes;
  sizes.plan = run.plan;
  sizes.seq_len = options.seq_len > 0 ? options.seq_len : run.config.train.seq_len;
  if (options.micro_batch > 0) {
    sizes.plan.micro_batch = options.micro_batch;
    sizes.plan.dp_samples.clear();
  }
  if (options.num_micro_batches > 0) {
    sizes.plan.num_micro_batches = options.num_micro_batches;
  }
  sizes.tokens = sizes.plan.sequences() * sizes.seq_len;
  if (options.purpose == Purpose::generate) {
    sizes.plan.micro_batch = 1;
    sizes.plan.dp_samples.clear();
    sizes.plan.num_micro_batches = 1;
    sizes.plan.shard.params = parallel::Shard::none;
    sizes.tokens = options.new_tokens;
    const parallel::Plan& plan = run.plan;
    if (plan.ep > 1) {
      sizes.token_ranks = plan.dp * plan.cp * (plan.sequence_parallel ? plan.tp : 1);
    }
  }
  return sizes;
}

/// The model's graph for one micro-batch of all ranks. The purposes differ in what it ends with
/// (losses, logits), whether it is to be differentiated, and whether it has a KV cache.
graph::Graph build_graph(const Run& run, const CompileOptions& options, const Sizes& sizes) {
  using Mode = models::BuildOptions::Mode;
  models::BuildOptions how;
  how.tokens = sizes.tokens;
  how.sequence_length = sizes.seq_len;
  how.dtype = graph::parse_dtype(run.config.model.dtype);
  how.float8 = run.config.model.float8;
  how.num_micro_batches = sizes.plan.num_micro_batches;
  switch (options.purpose) {
    case Purpose::train:
      how.balance_coef = run.config.train.balance_coef.value_or(run.model.router_aux_loss_coef);
      how.dropout = run.config.train.dropout;
      how.dropout_seed = run.config.train.seed;
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
      how.token_ranks = sizes.token_ranks;
      break;
  }
  return models::build(run.model, how);
}

/// The graph before and after its backward pass, if it has one, is shown to the observer.
graph::Graph reference(const Run& run, const CompileOptions& options, const Sizes& sizes) {
  graph::Graph graph = build_graph(run, options, sizes);
  const parallel::Templates no_templates;
  const program::Program no_program;
  const auto seen = [&](const std::string& what) {
    if (options.observe) {
      options.observe(what, {graph, no_templates, no_program});
    }
  };
  seen("graph");
  if (options.purpose != Purpose::train && options.purpose != Purpose::grads) return graph;
  autodiff::differentiate(graph);
  if (options.purpose == Purpose::grads) {
    autodiff::append_grad_outputs(graph);
  } else {
    const TrainSection& train = run.config.train;
    autodiff::append_adamw(
        graph, {train.beta1, train.beta2, train.eps, train.weight_decay, train.max_grad_norm});
  }
  seen("backward");
  return graph;
}

/// Notes in the kinds of collectives what memory they take of a transport, which threads have none
/// of: in the largest of the groups that have them.
void note_transport(const std::optional<comm::Collectives>& how, program::Program* program) {
  const std::vector<int64_t> members = program::most_members(*program);
  for (size_t k = 0; k < program->kinds.size(); ++k) {
    program::Kind& kind = program->kinds[k];
    if (!program::is_communication(kind)) continue;
    const comm::Op& op = comm::op(kind.communication);
    kind.workspace =
        how ? comm::transport_bytes(*how, op, kind.attrs, kind.in, kind.out, members[k]) : 0;
  }
}

}  // namespace

Compiled compile(graph::Graph reference, const parallel::Plan& plan, const Lowering& how) {
  // The graph as it came is what check compares with; graph passes work on a copy of it. Then it is
  // lowered to templates, which have passes of their own, and these are stamped into a program.
  // Where experts have ranks of their own, these are lowered as well, and both become one program.
  // Program passes rewrite that, and last come dependencies and the memory plan. The observer sees
  // every stage.
  Compiled result;
  result.reference = std::move(reference);
  graph::Graph graph = result.reference;
  parallel::Templates templates;
  const auto seen = [&](const std::string& what) {
    stop_if_asked();
    if (how.observe) {
      how.observe(what, {graph, templates, result.program});
    }
  };
  passes::PassRunner runner(how.passes, how.skip_passes, how.pass_options);
  runner.after = [&](const passes::Pass& pass) { seen(pass.name); };
  runner.run(graph);
  templates = parallel::make_templates(graph, plan);
  result.layouts_saved = templates.layouts_saved;
  seen("templates");
  runner.run(templates);
  result.program = parallel::stamp(templates);
  if (plan.expert_ranks > 0) {
    parallel::Templates of_experts = parallel::make_templates(graph, plan.of_experts());
    passes::PassRunner quiet(how.passes, how.skip_passes, how.pass_options);
    quiet.run(of_experts);
    result.program =
        passes::with_expert_role(graph, std::move(result.program), parallel::stamp(of_experts));
  }
  result.program.config = how.config;
  result.program.purpose = how.purpose;
  seen("lower");
  runner.run(result.program);
  program::finalize(result.program);
  note_transport(how.collectives, &result.program);
  seen("program");
  return result;
}

std::optional<comm::Collectives> collectives_of(const Run& run) {
  if (run.c10d) return comm::Collectives::c10d;
  if (run.ranks == Ranks::local) return std::nullopt;
  return comm::Collectives::own;
}

graph::Graph reference(const Run& run, const CompileOptions& options) {
  return reference(run, options, sizes_of(run, options));
}

namespace {

constexpr const char* kNames[] = {"train", "evaluate", "gradients", "logits", "generate"};

/// A command rewrites programs of whole sequences: not the one that generates.
std::vector<std::string> passes_for(const Run& run, Purpose purpose) {
  std::vector<std::string> passes = run.config.plan.passes;
  if (purpose == Purpose::generate) {
    std::erase_if(passes,
                  [](const std::string& name) { return name.starts_with(passes::kCommand); });
  }
  return passes;
}

}  // namespace

Compiled compile(const Run& run, const CompileOptions& options) {
  Sizes sizes = sizes_of(run, options);
  const bool steps = options.purpose == Purpose::train || options.purpose == Purpose::grads;
  if (steps && sizes.plan.expert_ranks > 0) {
    fail(
        run.name,
        "plan.expert_ranks is {}: experts on ranks of their own run forward only: hocket eval, or "
        "hocket graph --for evaluate, whose text check and simulate take; try plan.expert_ranks: 0",
        sizes.plan.expert_ranks);
  }
  if (sizes.plan.expert_ranks > 0 && run.config.plan.pass_options.text("cp_order") == "zigzag") {
    fail(
        run.name,
        "plan.expert_ranks is {}: rows of tokens go to their experts in one run of a sequence; try "
        "plan.cp_order: contiguous",
        sizes.plan.expert_ranks);
  }
  if (options.purpose == Purpose::generate && sizes.plan.expert_ranks > 0) {
    fail(run.name,
         "plan.expert_ranks is {}: experts on ranks of their own do not generate; try "
         "plan.expert_ranks: 0",
         sizes.plan.expert_ranks);
  }
  const bool to_logits = options.purpose == Purpose::logits || options.purpose == Purpose::generate;
  if (to_logits && sizes.plan.tp > 1) {
    // Nothing here goes along the head by position, but programs of one run hold it alike.
    CompileOptions loss = options;
    loss.purpose = Purpose::loss;
    const Sizes whole = sizes_of(run, loss);
    const std::vector<std::string> pins = parallel::positional_pins(build_graph(run, loss, whole));
    sizes.plan.layouts.insert(sizes.plan.layouts.begin(), pins.begin(), pins.end());
  }
  if (sizes.token_ranks > 1) {
    // What attention makes of all tokens goes on by token, to the experts.
    std::string pin = "*attn.out edp:S0 edp_inner:S0 ep:S0 ep_inner:S0 cp:S0";
    pin += sizes.plan.sequence_parallel ? " tp:S0" : "";
    sizes.plan.layouts.insert(sizes.plan.layouts.begin(), pin);
  }
  const Lowering how{passes_for(run, options.purpose),
                     options.skip_passes,
                     run.config.plan.pass_options,
                     run.resolved.to_json_text(),
                     options.purpose == Purpose::train ? "" : kNames[place_of(options.purpose)],
                     options.observe,
                     collectives_of(run)};
  try {
    Compiled result = compile(reference(run, options, sizes), sizes.plan, how);
    result.tokens_per_step = sizes.tokens_per_step();
    return result;
  } catch (const Error& error) {
    if (error.code() != Error::Code::command) throw;
    throw error.with(fmt::format("what it was given is the program with purpose {}",
                                 kNames[place_of(options.purpose)]));
  }
}

Purpose purpose_named(const std::string& name, const std::string& where) {
  if (name.empty()) return Purpose::train;
  const auto found = std::find(std::begin(kNames), std::end(kNames), name);
  if (found == std::end(kNames)) {
    fail(where, "the purpose is {}; expected one of {}", quote(name), fmt::join(kNames, ", "));
  }
  return static_cast<Purpose>(found - std::begin(kNames));
}

CompileOptions options_for(const Run& run, Purpose purpose) {
  if (purpose == Purpose::loss) return evaluation_options(run);
  if (purpose == Purpose::generate) return generation_options(run, 0);
  CompileOptions how;
  how.purpose = purpose;
  return how;
}

Compiled with_program(const Run& run, program::Program given) {
  const CompileOptions how = options_for(run, purpose_named(given.purpose, run.name));
  const Sizes sizes = sizes_of(run, how);
  if (given.num_micro_batches != sizes.plan.num_micro_batches) {
    fail(run.name,
         "the program has {} micro-batches, the configuration in it {}: train.global_batch {} / {} "
         "sequences of a micro-batch; expected the same number",
         given.num_micro_batches, sizes.plan.num_micro_batches, run.config.train.global_batch,
         sizes.plan.sequences());
  }
  note_transport(collectives_of(run), &given);
  return {reference(run, how, sizes), std::move(given), sizes.tokens_per_step(), {}};
}

bool has_ranks_of(const program::Program& program, const parallel::Plan& plan) {
  return plan.expert_ranks == 0 && program.roles.size() == 1 &&
         program.roles[0].mesh == plan.mesh();
}

Compiled compile_given(const Run& run, program::Program given) {
  // Batches are cut, and ranks started, as the plan says.
  if (purpose_named(given.purpose, run.name) != Purpose::train) {
    fail(run.name,
         "the program has the purpose {}; expected one without such a line, to be trained",
         given.purpose);
  }
  const graph::Mesh mesh = run.plan.mesh();
  if (given.roles.size() != 1) {
    fail(run.name,
         "the program has {} roles; training runs programs of one: role 0 all mesh=\"{}\"",
         given.roles.size(), to_string(mesh));
  }
  if (given.roles[0].mesh != mesh) {
    fail(run.name,
         "the program is of another mesh of ranks than the plan in its configuration; got "
         "mesh=\"{}\"; expected mesh=\"{}\" (pp {}, dp {}, ep {}, cp {}, tp {}); try to lower it "
         "again: hocket graph RUN --out FILE",
         to_string(given.roles[0].mesh), to_string(mesh), run.plan.pp, run.plan.dp, run.plan.ep,
         run.plan.cp, run.plan.tp);
  }
  // Which of its transfers leave a node was decided for nodes of this size.
  if (given.ranks_per_node != run.plan.ranks_per_node) {
    fail(run.name,
         "the program has {} ranks per node (0: all on one), the plan in its configuration {}; try "
         "to lower it again: hocket graph RUN --out FILE",
         given.ranks_per_node, run.plan.ranks_per_node);
  }
  return with_program(run, std::move(given));
}

CompileOptions evaluation_options(const Run& run) {
  CompileOptions how;
  how.purpose = Purpose::loss;
  // Enough micro-batches to keep a pipeline busy; more would only make the last step emptier.
  how.num_micro_batches = run.plan.pp > 1 ? run.plan.num_micro_batches : 1;
  return how;
}

CompileOptions generation_options(const Run& run, int64_t longest_text) {
  CompileOptions how;
  how.purpose = Purpose::generate;
  how.new_tokens = kPrefill;
  how.cache_slots = std::max(longest_text, run.model.max_position);
  how.num_micro_batches = 1;
  return how;
}

bool evaluates(const Run& run) {
  const DataSection& data = run.config.data;
  if (data.dir.empty()) return false;
  return data::holds_out(data.dir).value_or(data.valid_fraction > 0);
}

int threads_per_rank(const parallel::Plan& plan) {
  if (plan.threads_per_rank > 0) return static_cast<int>(plan.threads_per_rank);
  const int64_t cores = std::max(1u, std::thread::hardware_concurrency());
  const comm::Place& place = comm::launched();
  const int64_t ranks_here = place.size > 1 ? place.local_size : plan.world();
  return static_cast<int>(std::max<int64_t>(1, cores / ranks_here));
}

}  // namespace hocket::engine
