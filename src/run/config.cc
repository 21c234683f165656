// SPDX-License-Identifier: Apache-2.0
#include "run/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>
#include <utility>

#include "autodiff/autodiff.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/math.h"
#include "base/text.h"
#include "checkpoint/adapter.h"
#include "checkpoint/gguf_model.h"
#include "checkpoint/resolve.h"
#include "comm/c10d.h"
#include "comm/launch.h"
#include "parallel/schedules/schedule.h"
#include "passes/pass.h"
#include "run/bounds.h"
#include "run/ineffective_keys.h"
#include "run/rl_checks.h"

namespace hocket::engine {

namespace {

/// The model's configuration, and where its weights are.
void derive_model(Run& run) {
  const ModelSection& model = run.config.model;
  const bool has_config = !model.config->is_null();
  if (model.path.empty() && !has_config) {
    fail(run.name,
         "model has neither path nor config; try model.path: a folder with a config.json");
  }
  if (!model.path.empty() && has_config) {
    fail(run.name, "model has both path and config; expected one of them");
  }
  if (has_config) {
    if (model.init == "weights") {
      fail(run.name,
           "model.init is weights, and model.config names no folder to take them from; "
           "try model.path: a folder with safetensors");
    }
    run.model = models::parse_config(model.config->dump(), run.name + ": model.config", true);
    return;
  }
  const bool required = model.init == "weights";
  const checkpoint::ModelLocation at = checkpoint::resolve_model(
      model.path, required ? checkpoint::Need::weights : checkpoint::Need::config);
  run.model = checkpoint::read_model_config(at.config_file);
  // A path of a config.json means the configuration alone.
  const bool config_only = at.config_file == model.path && at.folder != model.path;
  if (required || (model.init == "auto" && at.has_weights && !config_only)) {
    run.weights = at.folder;
    run.adapter = at.adapter;
  }
}

/// Returns the value of a pattern as a number above 0.
double pattern_value(const std::string& where, const char* key, const std::string& pattern,
                     const std::string& text) {
  double value = 0;
  if (!parse_double(text, &value) || !(value > 0)) {
    fail(where, "adapter.{} has {} for {}; expected a number above 0", key, quote(text),
         quote(pattern));
  }
  return value;
}

/// Returns the adapter that the keys of the section describe.
models::Lora lora_of(const AdapterSection& section, const std::string& where) {
  constexpr std::string_view kRegex = "regex:";
  models::Lora lora;
  lora.r = section.r;
  lora.lora_alpha = section.alpha;
  lora.lora_dropout = section.dropout;
  lora.use_rslora = section.use_rslora;
  const std::vector<std::string>& targets = section.targets;
  for (const std::string& target : targets) {
    if (targets.size() > 1 && target.starts_with(kRegex)) {
      fail(where,
           "adapter.targets has {} in a list of names; expected one regular expression alone, such "
           "as {}.*(q_proj|v_proj)",
           quote(target), kRegex);
    }
  }
  if (targets.size() == 1 && targets[0].starts_with(kRegex)) {
    lora.target_pattern = targets[0].substr(kRegex.size());
  } else if (targets.size() == 1 && targets[0] == "all-linear") {
    lora.target_pattern = targets[0];
  } else {
    lora.target_modules = targets;
  }
  lora.target_parameters = section.target_parameters;
  lora.modules_to_save = section.modules_to_save;
  lora.layers_to_transform = section.layers;
  for (const auto& [pattern, text] : section.rank_pattern) {
    const double rank = pattern_value(where, "rank_pattern", pattern, text);
    if (rank != std::floor(rank) || rank > kMaxRank) {
      fail(where, "adapter.rank_pattern has {} for {}; expected an integer", text, quote(pattern));
    }
    lora.rank_pattern.emplace_back(pattern, static_cast<int64_t>(rank));
  }
  for (const auto& [pattern, text] : section.alpha_pattern) {
    lora.alpha_pattern.emplace_back(pattern, pattern_value(where, "alpha_pattern", pattern, text));
  }
  return lora;
}

/// The adapter that is trained.
void derive_adapter(Run& run) {
  const AdapterSection& section = run.config.adapter;
  // By value: the configuration of a program names every key.
  const auto expect_default = [&](const std::string& why) {
    RunConfig defaults;
    const nlohmann::json otherwise = parse_config(defaults, "{}", "defaults").to_json();
    const nlohmann::json now = run.resolved.to_json();
    for (const auto& [key, value] : now.at("adapter").items()) {
      if (key == "type" || key == "path" || value == otherwise.at("adapter").at(key)) continue;
      fail(run.name, "adapter.{} is {}, and {}; try without", key, value.dump(), why);
    }
  };
  if (!section.on()) {
    if (!section.path.empty()) {
      fail(run.name, "adapter.path is given, and adapter.type is none; try adapter.type: lora");
    }
    return expect_default("adapter.type is none");
  }
  if (!run.adapter.empty()) {
    fail(run.name,
         "model.path is an adapter's folder, and adapter.type {}; expected the base's; try "
         "adapter.path: {}, to go on with that adapter",
         section.type, run.adapter);
  }
  if (section.path.empty()) {
    run.lora = lora_of(section, run.name);
  } else {
    expect_default("adapter.path has a configuration of its own");
    run.adapter = checkpoint::with_adapter({}, section.path).adapter;
    run.lora = checkpoint::read_adapter_config(run.adapter).lora;
  }
  run.lora->dropout_seed = run.config.train.seed;
  const bool is_described = section.path.empty();
  const std::string& where = is_described ? run.name : run.adapter;
  const models::LoraKeys keys = is_described ? models::LoraKeys::run : models::LoraKeys::peft;
  models::expect_whole_modules(
      models::match_lora(run.model, *run.lora, where, models::ExpertLayout::usual, keys), where,
      keys);
}

/// Throws Error for an update split less than the gradients or parameters, which would hold states
/// for elements that the rank neither has nor reduces; and for parameters that are freed but
/// needed.
void expect_sharding(const parallel::Sharding& shard, const std::string& name) {
  if (shard.reshard_after_forward && !shard.reshard_after_backward) {
    fail(name,
         "plan.shard.reshard_after_backward is false, but "
         "plan.shard.reshard_after_forward is true; expected false for both: parameters "
         "freed after the forward pass of a micro-batch are absent after its backward pass");
  }
  const parallel::Shard least = shard.update();
  if (!shard.optimizer || *shard.optimizer == least) return;
  const bool params = shard.params == least;
  fail(name,
       "plan.shard.optimizer is {}, but plan.shard.{} is {}; expected {}: a rank "
       "updates its parts of parameters and gradients, and states of more would take "
       "memory and save nothing; try to leave plan.shard.optimizer out",
       to_string(*shard.optimizer), params ? "params" : "grads", to_string(least),
       least == parallel::Shard::all ? "all" : "group or all");
}

/// Returns the kind of ranks, from plan.ranks or from the launcher.
Ranks ranks_of(const PlanSection& plan) {
  if (plan.ranks == "gloo") return Ranks::gloo;
  if (plan.ranks == "nccl") return Ranks::nccl;
  const comm::LaunchInfo& launch = comm::launch_info();
  if (plan.ranks == "local" || launch.size == 1) return Ranks::local;
  return comm::gpus().count >= launch.local_size ? Ranks::nccl : Ranks::gloo;
}

/// Distributes the global batch over micro-batches and data-parallel ranks.
void derive_samples(Run& run) {
  // As given, or micro_batch for each; if that does not divide the batch, the resulting number of
  // micro-batches, distributed as evenly as possible.
  parallel::Plan& plan = run.plan;
  const int64_t batch = run.config.train.global_batch;
  const bool given = !plan.dp_samples.empty();
  plan.validate_tokens();
  const int64_t most = plan.sequences();
  plan.num_micro_batches = ceil_div(batch, most);
  const int64_t sequences = batch / plan.num_micro_batches;
  if (given && batch % most != 0) {
    fail(run.name,
         "train.global_batch is {}; expected a multiple of the {} sequences of plan.dp_samples "
         "[{}]",
         batch, most, fmt::join(plan.dp_samples, ", "));
  }
  if (given || sequences == most) return;
  if (sequences * plan.num_micro_batches != batch || sequences < plan.dp) {
    fail(run.name,
         "train.global_batch is {}; expected a multiple of plan.dp x plan.micro_batch = "
         "{}, or {} micro-batches with a share for every rank; try train.global_batch: "
         "{}, or plan.dp_samples",
         batch, most, plan.num_micro_batches, round_up(batch, most));
  }
  for (int64_t rank = 0; rank < plan.dp; ++rank) {
    plan.dp_samples.push_back(graph::share(sequences, plan.dp, rank).length);
  }
}

/// Throws Error if a part of a data-parallel rank's `tokens` is empty for some rank. Also throws if
/// parts differ between data-parallel ranks where nothing passes their sizes on.
void expect_shares_for_all(const Run& run, const std::string& shared, int64_t tokens) {
  const parallel::Plan& plan = run.plan;
  if (plan.cp_shares.empty()) return;
  const std::vector<int64_t> parts = parallel::shares_of(tokens, plan.cp_shares);
  const int64_t ranks = plan.sequence_parallel ? plan.tp : 1;
  if (*std::min_element(parts.begin(), parts.end()) < ranks) {
    fail(run.name,
         "plan.cp_shares [{}] are [{}] of {}; expected at least {} on each{}; try other shares",
         fmt::join(plan.cp_shares, ", "), fmt::join(parts, ", "), shared, counted(ranks, "token"),
         ranks > 1 ? fmt::format(", for plan.tp {} with plan.sequence_parallel", plan.tp) : "");
  }
  if (!plan.dp_samples.empty() && plan.cp > 1 && !plan.ring) {
    fail(run.name,
         "plan.cp_shares is [{}], plan.dp_samples [{}], plan.cp_comm_type {}; expected "
         "p2p, where ranks pass on their parts, or equally many sequences on each "
         "data-parallel rank",
         fmt::join(plan.cp_shares, ", "), fmt::join(plan.dp_samples, ", "),
         run.config.plan.pass_options.text("cp_comm_type"));
  }
}

/// Throws Error if a data-parallel rank has fewer tokens than ranks that share them, or in zigzag
/// order fewer than two per rank of cp. Throws it also for zigzag with dp_samples or cp_shares, and
/// as expect_shares_for_all() does.
void expect_tokens_for_all(const Run& run) {
  const parallel::Plan& plan = run.plan;
  const int64_t ranks = plan.cp * (plan.sequence_parallel ? plan.tp : 1);
  const bool zigzag = plan.ring && plan.zigzag;
  std::vector<int64_t> samples = plan.dp_samples;
  if (samples.empty()) {
    samples.push_back(plan.micro_batch);
  } else if (zigzag) {
    fail(run.name,
         "plan.cp_order is zigzag, and data-parallel ranks have [{}] sequences; expected "
         "equally many; try plan.cp_order: contiguous",
         fmt::join(plan.dp_samples, ", "));
  }
  if (zigzag && !plan.cp_shares.empty()) {
    fail(run.name,
         "plan.cp_order is zigzag, and plan.cp_shares is [{}]; expected equally many "
         "tokens on each rank of plan.cp; try plan.cp_order: contiguous",
         fmt::join(plan.cp_shares, ", "));
  }
  for (int64_t sequences : samples) {
    const int64_t tokens = sequences * run.config.train.seq_len;
    const std::string shared = fmt::format(
        "the {} tokens that a data-parallel rank has of a micro-batch ({} sequences of "
        "train.seq_len {})",
        tokens, sequences, run.config.train.seq_len);
    if (tokens < ranks) {
      const std::string over_tp =
          fmt::format(" and plan.tp {}, with plan.sequence_parallel: {} ranks", plan.tp, ranks);
      fail(run.name, "plan.cp is {}{}; expected at most {}", plan.cp,
           plan.sequence_parallel ? over_tp : "", shared);
    }
    if (zigzag && tokens < 2 * plan.cp) {
      fail(run.name,
           "plan.cp_order is zigzag, plan.cp is {}: two parts on each rank; expected at most half "
           "of {}; try plan.cp_order: contiguous",
           plan.cp, shared);
    }
    expect_shares_for_all(run, shared, tokens);
  }
}

/// Splits attention over tp and cp.
void derive_heads(Run& run) {
  parallel::Plan& plan = run.plan;
  const int64_t heads = run.model.num_heads;
  // Query heads over all of tp, key heads over gcd(tp, key heads) ranks.
  const bool shared = heads >= plan.tp;
  const int64_t apart = std::gcd(plan.tp, shared ? run.model.num_kv_heads : heads);
  plan.heads_apart = apart < plan.tp ? apart : 0;
  const passes::PassOptions& options = run.config.plan.pass_options;
  const std::string keys = options.text("cp_comm_type");
  plan.ring = keys == "p2p" && plan.cp > 1;
  plan.zigzag = options.text("cp_order") == "zigzag";
  plan.shard.even_over_sequences = plan.ring && plan.zigzag;
  plan.exchange_heads = keys == "a2a" && plan.cp > 1;
  const int64_t ranks = shared ? plan.tp : apart;
  if (plan.exchange_heads && heads % (ranks * plan.cp) != 0) {
    fail(run.name,
         "plan.cp_comm_type is a2a, and plan.cp is {}; expected a divisor of the {} heads that its "
         "ranks have (the model's {}, plan.tp {}); try plan.cp_comm_type: all_gather",
         plan.cp, heads % ranks == 0 ? fmt::format("{}", heads / ranks) : "different numbers of",
         heads, plan.tp);
  }
}

/// Throws Error for groups of parameters that contradict themselves.
void expect_groups(const RunConfig& config, const std::string& name) {
  for (size_t i = 0; i < config.optimizer.groups.size(); ++i) {
    const OptimizerGroup& group = config.optimizer.groups[i];
    const std::string key = fmt::format("optimizer.groups.{}", i);
    if (group.match.empty()) fail(name, "{}.match is empty; expected globs of names", key);
    if (group.lr && group.lr_scale) {
      fail(name, "{0}.lr is {1}, and {0}.lr_scale {2}; expected one of them", key, *group.lr,
           *group.lr_scale);
    }
    if (group.lr && config.train.lr == 0) {
      fail(name,
           "{}.lr is {}, and train.lr 0, whose schedule it follows; expected train.lr above 0", key,
           *group.lr);
    }
    if (group.optimizer && config.optimizer.name != "muon") {
      fail(name, "{}.optimizer is {}, and optimizer.name {}; expected optimizer.name: muon", key,
           *group.optimizer, config.optimizer.name);
    }
  }
}

/// Throws Error for weights of examples that are held out, which take no part in a mixture.
void expect_weights(const RunConfig& config, const std::string& name) {
  const auto refuse = [&](const std::string& key, const data::SourceOptions& source) {
    fail(name,
         "{}: {} has weight {}, and is held out: weights mix what is trained on; expected no "
         "weight",
         key, source.path, *source.weight);
  };
  for (const data::SourceOptions& source : config.data.sources) {
    if (source.weight && source.split == "valid") {
      refuse("data.sources", source);
    }
  }
  for (const EvaluationSection& set : config.data.evaluation) {
    for (const data::SourceOptions& source : set.sources) {
      if (source.weight) {
        refuse("data.evaluation: " + set.name, source);
      }
    }
  }
}

/// Throws Error for evaluation sets without data, or with malformed or equal names.
void expect_evaluation(const RunConfig& config, const std::string& name) {
  std::vector<std::string> names;
  for (const EvaluationSection& set : config.data.evaluation) {
    const auto allowed = [](unsigned char c) {
      return std::isalnum(c) != 0 || std::string_view("._-").find(static_cast<char>(c)) < 3;
    };
    const bool reserved = set.name == "train" || set.name == "valid";
    if (set.name.empty() || reserved || !std::all_of(set.name.begin(), set.name.end(), allowed)) {
      fail(name, "data.evaluation has the name {}; expected letters, digits, '.', '_' and '-'{}",
           quote(set.name), reserved ? ", and not train or valid" : "");
    }
    if (std::find(names.begin(), names.end(), set.name) != names.end()) {
      fail(name, "data.evaluation has {} twice; expected a name for each set", quote(set.name));
    }
    names.push_back(set.name);
    if (set.path.empty() == set.sources.empty()) {
      fail(name, "data.evaluation: {} has {}; expected path or sources", set.name,
           set.path.empty() ? "neither path nor sources" : "path and sources");
    }
    if (config.objective == Objective::pretrain && !set.sources.empty()) {
      fail(name,
           "data.evaluation: {} has sources, and objective is pretrain; expected path: a folder "
           "that `hocket data prepare` wrote",
           set.name);
    }
  }
  const std::string& best_by = config.train.best_by;
  if (!best_by.empty() && std::find(names.begin(), names.end(), best_by) == names.end()) {
    fail(name, "train.best_by is {}; expected {}", quote(best_by),
         names.empty() ? "a set of data.evaluation, which is empty" : join(names, ", "));
  }
}

/// Throws Error for two lengths of one training, or decisions without evaluations.
void expect_course(const RunConfig& config, const std::string& name) {
  const TrainSection& train = config.train;
  std::vector<std::string> lengths;
  const auto add = [&](bool given, const std::string& key) {
    if (given) {
      lengths.push_back("train." + key);
    }
  };
  add(train.steps && train.minutes == 0, "steps");
  add(train.epochs > 0, "epochs");
  add(train.tokens > 0, "tokens");
  add(train.minutes > 0, "minutes");
  if (lengths.size() > 1) {
    fail(name, "{} are both given; expected one length of the training", join(lengths, " and "));
  }
  if (train.compares() && train.eval_every == 0) {
    fail(name, "train.{} needs evaluations, and train.eval_every is 0; expected it above 0",
         train.keep_best ? "keep_best" : "early_stopping");
  }
}

/// Throws Error for settings of preference tuning that contradict each other.
void expect_preference(const RunConfig& config, const std::string& name) {
  const PreferenceSection& preference = config.preference;
  const std::vector<std::string>& losses = preference.loss_type;
  const std::string text = join(losses, ", ");
  const auto has_smoothing = [](const std::string& loss) { return loss.starts_with("sigmoid"); };
  if (preference.label_smoothing > 0 && std::none_of(losses.begin(), losses.end(), has_smoothing)) {
    fail(name,
         "preference.label_smoothing is {}, and preference.loss_type {}; expected sigmoid or "
         "sigmoid_norm, which it is of",
         preference.label_smoothing, text);
  }
  if (losses.empty() ||
      std::set<std::string>(losses.begin(), losses.end()).size() < losses.size()) {
    fail(name, "preference.loss_type is [{}]; expected one loss or several different ones", text);
  }
  const std::vector<double>& weights = preference.loss_weights;
  if (!weights.empty() && weights.size() != losses.size()) {
    fail(name, "preference.loss_weights has {}, and loss_type {}; expected one of each",
         counted(std::ssize(weights), "number"), losses.size());
  }
  if (std::any_of(weights.begin(), weights.end(), [](double weight) { return !(weight > 0); })) {
    fail(name, "preference.loss_weights is [{}]; expected numbers above 0",
         fmt::join(weights, ", "));
  }
  const std::vector<data::SourceOptions>& sources = config.data.sources;
  const bool weighted = std::any_of(sources.begin(), sources.end(),
                                    [](const auto& source) { return source.weight.has_value(); });
  if (preference.precompute_ref_log_probs && config.train.minutes > 0 && weighted) {
    fail(name,
         "preference.precompute_ref_log_probs is true, data.sources have weights, and the number "
         "of steps is not known; expected train.steps, epochs or tokens in place of minutes");
  }
}

}  // namespace

void derive(Run& run) {
  // The model, then ranks and their transport, then the plan key by key; heads and samples follow
  // the mesh, and constraints on the whole plan are checked at the end.
  const RunConfig& config = run.config;
  derive_model(run);
  derive_adapter(run);
  if (config.model.float8 && config.model.dtype != "bf16") {
    fail(run.name, "model.float8 is true, and model.dtype {}; expected bf16", config.model.dtype);
  }
  if (config.output.dir.empty()) {
    fail(run.name, "output.dir is empty; expected a folder; try output.dir: runs/default");
  }
  expect_groups(config, run.name);
  expect_course(config, run.name);
  expect_weights(config, run.name);
  expect_evaluation(config, run.name);
  expect_preference(config, run.name);
  if (config.objective == Objective::rl) {
    expect_rl(run);
    // Samples decide how many micro-batches an update has: a multiple of the pipeline's need.
    const int64_t ways = config.plan.pp_schedule.starts_with("dualpipe") ? 2 : 1;
    run.config.train.global_batch =
        config.plan.sequences() * (config.plan.pp > 1 ? config.plan.pp * ways : 1);
  }
  run.ranks = ranks_of(config.plan);
  run.c10d = config.plan.collectives == "c10d" ||
             (config.plan.collectives == "auto" && run.ranks == Ranks::nccl);
  run.plan = config.plan;
  run.plan.sequence_parallel = run.plan.sequence_parallel && run.plan.tp > 1;
  expect_sharding(run.plan.shard, run.name);
  derive_heads(run);
  derive_samples(run);
  expect_tokens_for_all(run);
  const EmulateSection& emulate = config.emulate;
  if (!emulate.on() && (!emulate.profile.empty() || !emulate.set.empty())) {
    fail(run.name,
         "emulate.{} is given without emulate.cluster; expected the file of the emulated "
         "cluster",
         emulate.profile.empty() ? "set" : "profile");
  }
  if (emulate.on() && run.c10d) {
    fail(run.name,
         "plan.collectives is c10d on an emulated device (emulate.cluster); expected own: only "
         "our own messages are padded to the emulated bytes");
  }
  run.plan.validate(run.model.num_layers, run.model.num_experts);
  if (config.objective == Objective::rl) {
    expect_strict(run);
  }
  warn_of_ineffective_keys(run);
}

namespace {

/// Returns the keys implied by plan.pp_schedule, if not given: the stages per rank, and for a file
/// the ranks, too.
std::vector<std::string> schedule_says(const PlanSection& plan, const ResolvedConfig& resolved) {
  std::vector<std::string> assignments;
  int64_t chunks = 1;
  if (parallel::is_schedule_file(plan.pp_schedule)) {
    // A missing file is reported when it is used.
    if (!file_exists(plan.pp_schedule)) return {};
    const parallel::Extent extent =
        parallel::extent_of(parallel::parse_csv(read_file(plan.pp_schedule), plan.pp_schedule));
    int64_t ranks = plan.pp;
    if (resolved.is_default("plan.pp") && extent.ranks > 1) {
      ranks = extent.ranks;
      assignments.push_back(fmt::format("plan.pp={}", ranks));
    }
    chunks = extent.stages % ranks == 0 ? extent.stages / ranks : 1;
  } else {
    for (const parallel::BuiltIn& built_in : parallel::built_in_schedules()) {
      if (plan.pp_schedule == built_in.name) {
        chunks = built_in.chunks;
      }
    }
  }
  if (resolved.is_default("plan.pp_chunks") && chunks > 1) {
    assignments.push_back(fmt::format("plan.pp_chunks={}", chunks));
  }
  return assignments;
}

/// Returns the keys implied by the number of launched processes, if not given. Throws Error if no
/// plan.dp gives that number of ranks.
std::vector<std::string> launcher_says(const PlanSection& plan, const ResolvedConfig& resolved,
                                       const std::string& name) {
  const comm::LaunchInfo& launch = comm::launch_info();
  std::vector<std::string> assignments;
  if (ranks_of(plan) == Ranks::local || launch.size == 1) return assignments;
  if (resolved.is_default("plan.dp")) {
    const int64_t others = plan.pp * plan.cp * plan.tp;
    const int64_t ranks = launch.size - plan.expert_ranks;
    if (ranks < others || ranks % others != 0) {
      comm::mark_common_error();
      fail(name,
           "{} processes were started; plan.pp x plan.cp x plan.tp is {}, which plan.dp "
           "must fill up to that number; try another plan",
           launch.size, others);
    }
    assignments.push_back(fmt::format("plan.dp={}", ranks / others));
  }
  // Without a number all ranks are on one node, however they were launched.
  if (plan.ranks_per_node == 0 && launch.local_size < launch.size) {
    assignments.push_back(fmt::format("plan.ranks_per_node={}", launch.local_size));
  }
  return assignments;
}

}  // namespace

Run resolve_text(const std::string& text, const std::string& name,
                 const std::vector<std::string>& overrides) {
  Run run;
  run.name = name;
  run.resolved = hocket::parse_config(run.config, text, name, overrides);
  Filled filled;
  const auto fill = [&](const char* by, const std::vector<std::string>& said) {
    if (said.empty()) return;
    filled.by += (filled.by.empty() ? "" : ", ") + std::string(by);
    filled.assignments.insert(filled.assignments.end(), said.begin(), said.end());
    run.config = RunConfig();
    run.resolved = hocket::parse_config(run.config, text, name, overrides, filled);
  };
  fill("plan.pp_schedule", schedule_says(run.config.plan, run.resolved));
  fill("launcher", launcher_says(run.config.plan, run.resolved, name));
  return run;
}

namespace {

/// Returns whether a text is the config.json of a model.
bool is_model_config(const std::string& text) {
  if (!trim(text).starts_with("{")) return false;
  const auto json = nlohmann::json::parse(text, nullptr, false);
  return json.is_object() && json.contains("model_type") && !json.contains("model");
}

/// Returns whether an override is of a key that no task depends on: files, and the loop around the
/// program.
bool outside_program(std::string_view override) {
  for (std::string_view section : {"output.", "data.", "cluster.", "emulate.", "timed."}) {
    if (override.starts_with(section)) return true;
  }
  const std::string_view key = override.substr(0, override.find('='));
  if (key == "model.init") return true;
  if (key.starts_with("train.early_stopping.")) return true;
  for (std::string_view loop : {"steps",
                                "epochs",
                                "tokens",
                                "minutes",
                                "lr",
                                "min_lr",
                                "schedule",
                                "warmup_steps",
                                "warmup_share",
                                "decay_share",
                                "decay",
                                "eval_every",
                                "eval_sequences",
                                "final_eval_sequences",
                                "save_every",
                                "save_minutes",
                                "keep_last",
                                "keep_best",
                                "best_by",
                                "resume",
                                "on_nonfinite"}) {
    if (key.starts_with("train.") && key.substr(6) == loop) return true;
  }
  return false;
}

}  // namespace

Run resolve_run(const std::string& path, const std::vector<std::string>& overrides,
                std::optional<program::Program>* parsed_program) {
  std::string text = read_file(path);
  if (text.rfind("hocket-graph", 0) == 0) {
    fail(path,
         "is the text of a graph; expected a run.yaml or a program: hocket graph RUN --stage "
         "program");
  }
  if (is_model_config(text)) {
    fail(
        path,
        "is the configuration of a model; expected a run.yaml, which names it: model: {{path: {}}}",
        path);
  }
  if (text.rfind("hocket-program", 0) != 0)
    return resolve_text(read_config_text(path), path, overrides);
  for (const std::string& text : overrides) {
    if (!outside_program(text)) {
      fail(path, "--set {} would change the program; try it on the run.yaml that it was made from",
           text);
    }
  }
  program::Program program = program::parse_program(text, path);
  if (program.config.empty()) {
    fail(path, "the program has no configuration line; expected `config {{…}}`");
  }
  // JSON is YAML, but not every YAML is JSON.
  const std::string config = parse_json(program.config, path + ": config").dump();
  if (parsed_program) {
    *parsed_program = std::move(program);
  }
  // The text is a program after its passes; reading it must not execute commands.
  Run run = resolve_text(config, path, overrides);
  std::erase_if(run.config.plan.passes,
                [](const std::string& name) { return name.starts_with(passes::kCommand); });
  return run;
}

Run parse_run(const std::string& text, const std::string& name,
              const std::vector<std::string>& overrides) {
  Run run = resolve_text(text, name, overrides);
  derive(run);
  return run;
}

Run read_run(const std::string& path, const std::vector<std::string>& overrides,
             std::optional<program::Program>* parsed_program) {
  Run run = resolve_run(path, overrides, parsed_program);
  derive(run);
  return run;
}

}  // namespace hocket::engine
