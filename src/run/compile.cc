// SPDX-License-Identifier: Apache-2.0
#include "run/compile.h"

#include <fmt/format.h>

#include <algorithm>
#include <thread>

#include "autodiff/autodiff.h"
#include "base/error.h"
#include "base/math.h"
#include "base/stop.h"
#include "base/text.h"
#include "collectives/implementation.h"
#include "comm/launch.h"
#include "data/index.h"
#include "models/build.h"
#include "ops/workspace.h"
#include "parallel/layouts/given_layouts.h"
#include "parallel/lowering/stamp.h"
#include "parallel/lowering/template.h"
#include "passes/pass.h"
#include "passes/roles.h"
#include "program/finalize.h"
#include "program/text.h"
#include "program/traffic.h"

namespace hocket::engine {

namespace {

/// Adds to the kinds of collectives the transport's memory for the largest of their groups; threads
/// need none.
void note_transport(const std::optional<comm::Collectives>& collectives,
                    program::Program* program) {
  const std::vector<int64_t> members = program::most_members(*program);
  for (size_t k = 0; k < program->kinds.size(); ++k) {
    program::Kind& kind = program->kinds[k];
    if (!program::is_communication(kind)) continue;
    const comm::Op& op = comm::op(kind.communication);
    kind.workspace = collectives ? comm::transport_bytes(*collectives, op, kind.attrs, kind.in,
                                                         kind.out, members[k])
                                 : 0;
  }
}

}  // namespace

Compiled compile(graph::Graph reference, const parallel::Plan& plan, const Lowering& options) {
  // The given graph is the check's reference; graph passes rewrite a copy. It is lowered to
  // templates, which have passes of their own, and these are stamped into a program. If experts
  // have ranks of their own, these are lowered as well, and both become one program. Program passes
  // follow, then dependencies and the memory plan. The observer sees every stage.
  Compiled result;
  result.reference = std::move(reference);
  graph::Graph graph = result.reference;
  parallel::Templates templates;
  const auto seen = [&](const std::string& what) {
    stop_if_asked();
    if (options.observe) {
      options.observe(what, {graph, templates, result.program});
    }
  };
  passes::PassRunner runner(options.passes, options.skip_passes, options.pass_options);
  runner.after = [&](const passes::Pass& pass) { seen(pass.name); };
  runner.run(graph);
  templates = parallel::make_templates(graph, plan);
  result.layouts_saved = templates.layouts_saved;
  seen("templates");
  runner.run(templates);
  result.program = parallel::stamp(templates);
  if (plan.expert_ranks > 0) {
    parallel::Templates of_experts = parallel::make_templates(graph, plan.of_experts());
    passes::PassRunner quiet(options.passes, options.skip_passes, options.pass_options);
    quiet.run(of_experts);
    result.program =
        passes::with_expert_role(graph, std::move(result.program), parallel::stamp(of_experts));
  }
  result.program.config = options.config;
  result.program.purpose = options.purpose;
  seen("lower");
  runner.run(result.program);
  program::finalize(result.program);
  note_transport(options.collectives, &result.program);
  seen("program");
  return result;
}

std::optional<comm::Collectives> collectives_of(const Run& run) {
  if (run.c10d) return comm::Collectives::c10d;
  if (run.ranks == Ranks::local) return std::nullopt;
  return comm::Collectives::own;
}

Compiled compile(const ProgramSpec& spec) {
  graph::Graph reference = spec.graph(spec.lowering.observe);
  if (spec.plan.expert_ranks > 0 && !reference.grads.empty()) {
    fail(
        spec.where,
        "plan.expert_ranks is {}: experts on ranks of their own run forward only: hocket eval, or "
        "hocket graph --for evaluate, whose text check and simulate take; try plan.expert_ranks: 0",
        spec.plan.expert_ranks);
  }
  if (spec.plan.expert_ranks > 0 && spec.plan.zigzag) {
    fail(
        spec.where,
        "plan.expert_ranks is {}: rows of tokens go to their experts in one run of a sequence; try "
        "plan.cp_order: contiguous",
        spec.plan.expert_ranks);
  }
  if (spec.plan.expert_ranks > 0 && !reference.symbols.empty()) {
    fail(spec.where,
         "plan.expert_ranks is {}: experts on ranks of their own do not generate; try "
         "plan.expert_ranks: 0",
         spec.plan.expert_ranks);
  }
  try {
    Compiled result = compile(std::move(reference), spec.plan, spec.lowering);
    result.tokens_per_step = spec.tokens_per_step;
    return result;
  } catch (const Error& error) {
    if (error.code() != Error::Code::command) throw;
    throw error.with(fmt::format("the given program has purpose {}",
                                 program_name(spec.lowering.purpose, spec.where)));
  }
}

namespace {

/// Appends the end of a model's graph, after its losses or logits.
using Append = std::function<void(graph::Graph&)>;

/// The model's graph with the run's adapter, differentiated if there is something to append to
/// that. `train`: with the adapter's dropout.
std::function<graph::Graph(const Observer&)> graph_of(const Run& run,
                                                      const models::BuildOptions& build_options,
                                                      const Append& append, bool train = false) {
  const auto grad_type = run.config.train.grad_dtype == "model" ? autodiff::GradType::params
                                                                : autodiff::GradType::sums;
  return [model = run.model, lora = run.lora, freeze = run.config.train.freeze, name = run.name,
          build_options, append, grad_type, train](const Observer& observe) {
    graph::Graph graph = models::build(model, build_options);
    if (lora) {
      models::apply_lora(graph, models::match_lora(model, *lora, name), train);
    }
    models::freeze(graph, freeze, name);
    const parallel::Templates no_templates;
    const program::Program no_program;
    const auto seen = [&](const std::string& what) {
      if (observe) {
        observe(what, {graph, no_templates, no_program});
      }
    };
    seen("graph");
    if (append) {
      autodiff::differentiate(graph, grad_type);
      append(graph);
      seen("backward");
    }
    return graph;
  };
}

/// Returns the spec of the run's model in other sizes, without its graph. `name`: "" is the
/// training.
ProgramSpec sized(const Run& run, const std::string& name, const Sizes& sizes,
                  models::BuildOptions* build_options) {
  ProgramSpec spec;
  spec.where = run.name;
  spec.plan = run.plan;
  build_options->sequence_length = sizes.seq_len > 0 ? sizes.seq_len : run.config.train.seq_len;
  spec.plan.uneven_parts =
      run.plan.ring && run.plan.zigzag && build_options->sequence_length % (2 * run.plan.cp) != 0;
  if (sizes.micro_batch > 0) {
    spec.plan.micro_batch = sizes.micro_batch;
    spec.plan.dp_samples.clear();
  }
  if (sizes.num_micro_batches > 0) {
    spec.plan.num_micro_batches = sizes.num_micro_batches;
  }
  build_options->tokens = spec.plan.sequences() * build_options->sequence_length;
  build_options->dtype = graph::parse_dtype(run.config.model.dtype);
  build_options->float8 = run.config.model.float8;
  build_options->num_micro_batches = spec.plan.num_micro_batches;
  spec.tokens_per_step = build_options->tokens * spec.plan.num_micro_batches;
  spec.key = fmt::format("{} {} {} {}", name, spec.plan.micro_batch, build_options->sequence_length,
                         spec.plan.num_micro_batches);
  spec.lowering.passes = run.config.plan.passes;
  spec.lowering.pass_options = run.config.plan.pass_options;
  spec.lowering.config = run.resolved.to_json_text();
  spec.lowering.purpose = name;
  spec.lowering.collectives = collectives_of(run);
  return spec;
}

/// Returns the attribute of preference_loss: ops/preference_terms.h.
std::string terms_of(const PreferenceSection& preference) {
  const std::vector<std::string>& losses = preference.loss_type;
  if (losses.size() == 1 && preference.loss_weights.empty()) return losses[0];
  std::vector<std::string> terms;
  for (size_t i = 0; i < losses.size(); ++i) {
    const double weight = preference.loss_weights.empty() ? 1 : preference.loss_weights[i];
    terms.push_back(fmt::format("{}:{:.17g}", losses[i], weight));
  }
  return join(terms, ",");
}

/// The ops of a policy's loss, from the keys of section rl. With gspo samples have a loss of their
/// own, and the loss of tokens keeps divergence and entropy.
models::PolicyLoss policy_loss_of(const Run& run, const ProgramSpec& spec) {
  const RlSection& rl = run.config.rl;
  const bool of_samples = rl.loss == "gspo";
  models::PolicyLoss loss;
  if (of_samples) {
    loss.samples = spec.plan.sequences() * answers_per_sequence(run);
    loss.of_samples.set("clip_low", rl.clip_low);
    loss.of_samples.set("clip_high", rl.clip_high);
  }
  const bool kl = rl.kl_coef > 0 && rl.kl_in == "loss";
  if (of_samples && !kl && rl.entropy_coef == 0) return loss;
  loss.of_tokens = {{"kind", of_samples ? std::string("none") : rl.loss},
                    {"clip_low", rl.clip_low},
                    {"clip_high", rl.clip_high},
                    {"dual_clip", of_samples ? 0 : rl.dual_clip},
                    {"kl", kl ? rl.kl_estimator : std::string("none")},
                    {"kl_coef", kl ? rl.kl_coef : 0},
                    {"entropy_coef", rl.entropy_coef}};
  return loss;
}

/// Gives the head the loss of the run's objective: of tokens, of answers, or of a policy.
void set_loss(const Run& run, const ProgramSpec& spec, models::BuildOptions* build_options) {
  if (run.model.value_head) {
    build_options->value_clip = run.config.rl.critic.clip;
    return;
  }
  if (run.config.objective == Objective::rl) {
    build_options->policy = policy_loss_of(run, spec);
    build_options->temperature = run.config.rl.temperature;
  }
  build_options->token_metrics = run.config.objective == Objective::sft;
  if (!run.config.prefers()) return;
  const PreferenceSection& preference = run.config.preference;
  build_options->answers = spec.plan.sequences() * answers_per_sequence(run);
  build_options->answer_loss_attrs.set("beta", preference.beta);
  build_options->answer_loss = "kto_loss";
  if (run.config.objective == Objective::dpo) {
    build_options->answer_loss = "preference_loss";
    build_options->answer_loss_attrs.set("loss", terms_of(preference));
    build_options->answer_loss_attrs.set("label_smoothing", preference.label_smoothing);
  }
}

/// Nothing in a program of logits goes along the head by position, but programs of one run hold it
/// alike: as the one with losses does.
void pin_head(const Run& run, models::BuildOptions with_losses, ProgramSpec* spec) {
  if (spec->plan.tp <= 1) return;
  with_losses.mode = models::BuildOptions::Mode::train;
  with_losses.grad = false;
  const std::vector<std::string> pins =
      parallel::positional_pins(graph_of(run, with_losses, nullptr)({}));
  spec->plan.layouts.insert(spec->plan.layouts.begin(), pins.begin(), pins.end());
}

}  // namespace

int64_t answers_per_sequence(const Run& run) {
  const int64_t most = run.config.preference.answers_per_sequence;
  switch (run.config.objective) {
    case Objective::dpo:
      return 2 * most;
    case Objective::kto:
      return most;
    case Objective::rl:
      // A sample takes one place at least, of a prompt of one token: its last token is no input.
      return run.config.rl.loss == "gspo" ? run.config.train.seq_len : 0;
    default:
      return 0;
  }
}

autodiff::OptimizerConfig optimizer_of(const OptimizerSection& optimizer,
                                       const TrainSection& train) {
  constexpr double kMomentum = 0.95;
  const bool muon = optimizer.name == "muon";
  autodiff::OptimizerConfig config;
  config.beta1 = optimizer.beta1;
  config.beta2 = optimizer.beta2;
  config.eps = optimizer.eps;
  config.weight_decay = optimizer.weight_decay;
  config.max_norm = train.max_grad_norm;
  config.skip_above = train.skip_grad_norm;
  config.name = optimizer.name;
  config.momentum = optimizer.momentum.value_or(muon ? kMomentum : optimizer.beta1);
  config.nesterov = optimizer.nesterov.value_or(muon);
  config.ns_steps = optimizer.ns_steps;
  config.adjust_lr = optimizer.adjust_lr;
  for (const OptimizerGroup& group : optimizer.groups) {
    config.groups.push_back({group.match,
                             group.lr ? *group.lr / train.lr : group.lr_scale.value_or(1),
                             group.weight_decay, group.optimizer.value_or("")});
  }
  return config;
}

ProgramSpec training(const Run& run, const Sizes& sizes) {
  const TrainSection& train = run.config.train;
  models::BuildOptions build_options;
  ProgramSpec spec = sized(run, "", sizes, &build_options);
  build_options.balance_coef = train.balance_coef.value_or(run.model.router_aux_loss_coef);
  build_options.dropout = train.dropout;
  build_options.dropout_seed = train.seed;
  build_options.routes_given = run.replays_routes();
  build_options.padded = run.config.objective != Objective::pretrain;
  set_loss(run, spec, &build_options);
  const autodiff::OptimizerConfig optimizer = optimizer_of(run.config.optimizer, train);
  spec.graph = graph_of(
      run, build_options,
      [optimizer](graph::Graph& graph) { autodiff::append_optimizer(graph, optimizer); }, true);
  return spec;
}

ProgramSpec losses(const Run& run, const Sizes& sizes) {
  models::BuildOptions build_options;
  ProgramSpec spec = sized(run, "evaluate", sizes, &build_options);
  build_options.grad = false;
  build_options.padded = run.config.objective != Objective::pretrain;
  set_loss(run, spec, &build_options);
  spec.graph = graph_of(run, build_options, nullptr);
  return spec;
}

ProgramSpec logprobs(const Run& run, const Sizes& sizes) {
  models::BuildOptions build_options;
  ProgramSpec spec = sized(run, "logprobs", sizes, &build_options);
  build_options.mode = models::BuildOptions::Mode::logprobs;
  if (run.config.objective == Objective::rl) {
    build_options.temperature = run.config.rl.temperature;
    build_options.routes_given = run.replays_routes();
  } else {
    build_options.answers = spec.plan.sequences() * answers_per_sequence(run);
  }
  spec.graph = graph_of(run, build_options, nullptr);
  return spec;
}

ProgramSpec gradients(const Run& run, const Sizes& sizes) {
  models::BuildOptions build_options;
  ProgramSpec spec = sized(run, "gradients", sizes, &build_options);
  spec.graph = graph_of(run, build_options, autodiff::append_grad_outputs);
  return spec;
}

ProgramSpec logits(const Run& run, const Sizes& sizes) {
  models::BuildOptions build_options;
  ProgramSpec spec = sized(run, "logits", sizes, &build_options);
  pin_head(run, build_options, &spec);
  build_options.mode = models::BuildOptions::Mode::logits;
  spec.graph = graph_of(run, build_options, nullptr);
  return spec;
}

ProgramSpec evaluation(const Run& run) {
  // Enough micro-batches to keep a pipeline busy; more would only make the last step emptier.
  return losses(run, {.num_micro_batches = run.plan.pp > 1 ? run.plan.num_micro_batches : 1});
}

int64_t generation_parts(const Run& run) { return run.plan.dp * run.plan.cp; }

ProgramSpec generation(const Run& run, int64_t new_tokens, const models::Generation& sizes) {
  models::BuildOptions build_options;
  ProgramSpec spec =
      sized(run, "generate", {.micro_batch = 1, .num_micro_batches = 1}, &build_options);
  parallel::Plan& plan = spec.plan;
  plan.shard.params = parallel::Shard::none;
  pin_head(run, build_options, &spec);
  build_options.mode = models::BuildOptions::Mode::generate;
  build_options.generation = sizes;
  build_options.parts = generation_parts(run);
  build_options.tokens = spec.tokens_per_step = build_options.parts * new_tokens;
  build_options.token_ranks =
      build_options.parts * (plan.ep > 1 && plan.sequence_parallel ? plan.tp : 1);
  if (build_options.token_ranks > build_options.parts) {
    // Attention over all tokens of a part continues by token, to the experts.
    std::string pin = "*attn.out edp:S0 edp_inner:S0 ep:S0 ep_inner:S0 cp:S0";
    pin += plan.sequence_parallel ? " tp:S0" : "";
    plan.layouts.insert(plan.layouts.begin(), pin);
  }
  std::erase_if(spec.lowering.passes,
                [](const std::string& pass) { return pass.starts_with(passes::kCommand); });
  spec.key += fmt::format(" {} {} {} {} {} {} {} {} {}", new_tokens, sizes.sequences, sizes.longest,
                          sizes.pages, sizes.rows, sizes.changes, sizes.alternatives, sizes.vocab,
                          sizes.head_parts);
  spec.graph = graph_of(run, build_options, nullptr);
  return spec;
}

ProgramSpec generation(const Run& run) {
  constexpr int64_t kPrefill = 64;
  const int64_t longest = run.model.max_position;
  return generation(run, kPrefill,
                    {.longest = longest, .pages = ceil_div(longest, ops::kPageTokens)});
}

namespace {

struct Named {
  const char* name;
  ProgramSpec (*spec)(const Run& run);
};
constexpr Named kNamed[] = {
    {"train", [](const Run& run) { return training(run); }},
    {"evaluate", evaluation},
    {"gradients", [](const Run& run) { return gradients(run); }},
    {"logits", [](const Run& run) { return logits(run); }},
    {"logprobs", [](const Run& run) { return logprobs(run); }},
    {"generate", [](const Run& run) { return generation(run); }},
};

const Named& named(const std::string& name, const std::string& where) {
  if (name.empty()) return kNamed[0];
  const auto found = std::find_if(std::begin(kNamed), std::end(kNamed),
                                  [&](const Named& each) { return each.name == name; });
  if (found != std::end(kNamed)) return *found;
  std::vector<std::string> names;
  for (const Named& each : kNamed) {
    names.emplace_back(each.name);
  }
  fail(where, "the purpose is {}; expected one of {}", quote(name), join(names, ", "));
}

}  // namespace

std::string program_name(const std::string& name, const std::string& where) {
  return named(name, where).name;
}

ProgramSpec spec_named(const Run& run, const std::string& name, const std::string& where) {
  return named(name, where).spec(run);
}

Compiled compile(const Run& run) { return compile(training(run)); }

graph::Graph reference(const Run& run) { return training(run).graph({}); }

Compiled with_program(const Run& run, program::Program program) {
  const ProgramSpec spec = spec_named(run, program.purpose, run.name);
  if (program.num_micro_batches != spec.plan.num_micro_batches) {
    fail(run.name,
         "the program has {} micro-batches, the configuration in it {}: train.global_batch {} / {} "
         "sequences of a micro-batch; expected the same number",
         program.num_micro_batches, spec.plan.num_micro_batches, run.config.train.global_batch,
         spec.plan.sequences());
  }
  note_transport(collectives_of(run), &program);
  return {spec.graph({}), std::move(program), spec.tokens_per_step, {}};
}

bool has_ranks_of(const program::Program& program, const parallel::Plan& plan) {
  return plan.expert_ranks == 0 && program.roles.size() == 1 &&
         program.roles[0].mesh == plan.mesh();
}

Compiled compile_program_text(const Run& run, program::Program program) {
  // Batches are cut, and ranks started, as the plan says.
  if (program_name(program.purpose, run.name) != "train") {
    fail(run.name,
         "the program has the purpose {}; expected one without such a line, to be trained",
         program.purpose);
  }
  const graph::Mesh mesh = run.plan.mesh();
  if (program.roles.size() != 1) {
    fail(run.name,
         "the program has {} roles; training runs programs of one: role 0 all mesh=\"{}\"",
         program.roles.size(), to_string(mesh));
  }
  if (program.roles[0].mesh != mesh) {
    fail(run.name,
         "the program is of another mesh of ranks than the plan in its configuration; got "
         "mesh=\"{}\"; expected mesh=\"{}\" (pp {}, dp {}, ep {}, cp {}, tp {}); try to lower it "
         "again: hocket graph RUN --out FILE",
         to_string(program.roles[0].mesh), to_string(mesh), run.plan.pp, run.plan.dp, run.plan.ep,
         run.plan.cp, run.plan.tp);
  }
  // The transfers that leave a node were decided for nodes of this size.
  if (program.ranks_per_node != run.plan.ranks_per_node) {
    fail(run.name,
         "the program has {} ranks per node (0: all on one), the plan in its configuration {}; try "
         "to lower it again: hocket graph RUN --out FILE",
         program.ranks_per_node, run.plan.ranks_per_node);
  }
  return with_program(run, std::move(program));
}

bool evaluates(const Run& run) {
  const DataSection& data = run.config.data;
  if (run.config.objective == Objective::rl) return false;  // it evaluates by generating
  if (!data.evaluation.empty()) return true;
  if (run.config.objective != Objective::pretrain) {
    return data.valid_fraction > 0 || std::any_of(data.sources.begin(), data.sources.end(),
                                                  [](const hocket::data::SourceOptions& source) {
                                                    return source.split == "valid";
                                                  });
  }
  if (data.dir.empty()) return false;
  return data::holds_out(data.dir).value_or(data.valid_fraction > 0 || !data.valid_files.empty());
}

int threads_per_rank(const parallel::Plan& plan) {
  if (plan.threads_per_rank > 0) return static_cast<int>(plan.threads_per_rank);
  const int64_t cores = std::max(1u, std::thread::hardware_concurrency());
  const comm::LaunchInfo& launch = comm::launch_info();
  const int64_t ranks_here = launch.size > 1 ? launch.local_size : plan.world();
  return static_cast<int>(std::max<int64_t>(1, cores / ranks_here));
}

}  // namespace hocket::engine
