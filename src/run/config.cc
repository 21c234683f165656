// SPDX-License-Identifier: Apache-2.0
#include "run/config.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>
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
#include "run/idle_keys.h"

namespace hocket::engine {

namespace {

// Bounds of sizes: far beyond any practical run, with products below 2^62.
constexpr double kMaxTokens = 1 << 27;  // of a micro-batch (models/builder.cc)
constexpr double kMaxDropout = 0.999;   // kept elements are divided by 1 - dropout
constexpr double kMaxRank = 1 << 20;    // far above any layer's width
// AdamW divides by 1 - beta^t.
constexpr double kMaxBeta = 0.999999;
// AdamW divides by the root of a moment, which can be 0, and this; far less is 0 in f32.
constexpr double kLeastEps = 1e-30;

}  // namespace

ModelSection::ModelSection() : config(std::make_shared<nlohmann::json>()) {}

void ModelSection::fields(Fields& fields) {
  fields("path", path,
         "MODEL: a Hugging Face folder, a GGUF file, a config.json, one of our checkpoints, a hub "
         "id");
  fields("config", *config, "instead of path: the keys of a Hugging Face config.json");
  fields("dtype", dtype,
         "type of parameters and activations; with bf16 and f16, sums, gradients of parameters "
         "(but for train.grad_dtype), moments and master weights are f32; 8-bit products are "
         "float8")
      .one_of({"f32", "f64", "bf16", "f16"});
  fields("float8", float8,
         "with dtype bf16: linear layers of the blocks, but for routers and experts, multiply in "
         "f8_e4m3; their operands are cast by tasks of their own, without scales");
  fields("init", init,
         "initial parameters of a new training: weights (those of path), "
         "random, or auto: the weights if path is a folder, file or hub id that has them, else "
         "random")
      .one_of({"auto", "random", "weights"});
}

void DataSection::fields(Fields& fields) {
  fields("name", name, "name of the text in reports");
  fields("files", files, "text files or globs (** recurses) that `hocket data prepare` reads");
  fields("dir", dir, "where the prepared tokens lie");
  fields("tokenizer", tokenizer,
         "tokenizer.json that `hocket data prepare` uses; training takes the one in data.dir");
  fields("vocab_size", vocab_size, "of the tokenizer that `hocket data train-tokenizer` makes")
      .min(0);
  fields("valid_fraction", valid_fraction,
         "share of the files that is held out, at least one file; of a single file, its end")
      .min(0)
      .max(0.9);
  fields("valid_files", valid_files,
         "files or globs that are held out, in place of a share of `files` (docs/data.md)");
  fields("split_special_tokens", split_special_tokens,
         "special tokens that stand in the files, such as <s>, are text like any other; "
         "false: they are the tokens, as in a prompt (docs/tokenizers.md)");
}

void AdapterSection::fields(Fields& fields) {
  fields(
      "type", type,
      "none: every parameter is trained; lora: the model is frozen, and low-rank products beside "
      "its linear layers are trained (docs/adapters.md)")
      .one_of({"none", "lora"});
  fields("path", path,
         "an adapter's folder (PEFT's) to start from; its configuration replaces the keys below");
  fields("r", r, "rank of the products").min(1).max(kMaxRank);
  fields("alpha", alpha, "products are scaled by alpha / r").min(0);
  fields("dropout", dropout, "probability of dropping an element of the products' inputs; 0: none")
      .min(0)
      .max(kMaxDropout);
  fields(
      "targets", targets,
      "modules with a product: endings of their names ([q_proj, v_proj]), one regular expression "
      "for whole names (regex:PATTERN), or all-linear: every linear layer but head, router and "
      "experts");
  fields(
      "target_parameters", target_parameters,
      "experts with products: endings of parameters' names, such as mlp.experts.gate_up_proj and "
      "mlp.experts.down_proj");
  fields("rank_pattern", rank_pattern,
         "other ranks, by the ending of a module's name or a regular expression for it");
  fields("alpha_pattern", alpha_pattern, "the same for alpha");
  fields("modules_to_save", modules_to_save,
         "modules that are trained in full, and saved with the adapter: endings of their names");
  fields("use_rslora", use_rslora, "scale by alpha / sqrt(r) (arXiv 2312.03732)");
  fields("layers", layers, "layers with products, from 0; default: all");
}

void TrainSection::fields(Fields& fields) {
  // One line per key: name, member, meaning for docs/config.md, bounds.
  fields("steps", steps, "optimizer steps").min(1);
  fields("minutes", minutes,
         "if above 0: the steps that fit into this time replace `steps`, at first by the "
         "predicted step time, then by measured ones; the learning rate follows")
      .min(0)
      .max(1e6);
  fields("global_batch", global_batch, "sequences per step, over all ranks and micro-batches")
      .min(1);
  fields("seq_len", seq_len, "tokens per sequence").min(1).max(kMaxTokens);
  fields("lr", lr, "peak learning rate").min(0);
  fields("min_lr", min_lr,
         "learning rate at the end of the cosine; default: a tenth of lr; one above lr "
         "counts as lr")
      .min(0);
  fields("warmup_steps", warmup_steps, "steps of linear warm-up").min(0);
  fields("optimizer", optimizer, "how parameters are updated by their gradients")
      .one_of(autodiff::optimizers());
  fields("weight_decay", weight_decay, "of matrices; vectors are not decayed").min(0);
  fields("beta1", beta1, "adamw; of sgd the momentum").min(0).max(kMaxBeta);
  fields("beta2", beta2, "adamw").min(0).max(kMaxBeta);
  fields("eps", eps, "adamw").min(kLeastEps);
  fields("max_grad_norm", max_grad_norm, "global gradient norm is clipped to it; 0: never").min(0);
  fields(
      "skip_grad_norm", skip_grad_norm,
      "a step whose global gradient norm is above it is skipped: parameters and optimizer states "
      "stay as they are, on all ranks; 0: none is")
      .min(0);
  fields("on_nonfinite", on_nonfinite,
         "a step whose gradient norm is not finite: stop ends the run; skip leaves the "
         "step out, up to nine in a row")
      .one_of({"stop", "skip"});
  fields("grad_dtype", grad_dtype,
         "with dtype bf16 or f16: type of parameters' gradients and of their sums over "
         "micro-batches and ranks: f32, or model, the parameters' type, to which every "
         "sum is rounded; moments and master weights are f32 either way")
      .one_of({"f32", "model"});
  fields("balance_coef", balance_coef,
         "of the load-balancing loss; default: the model's "
         "router_aux_loss_coef")
      .min(0);
  fields("dropout", dropout,
         "probability of dropping an element of the attention and MLP outputs "
         "(hidden_dropout); 0: none")
      .min(0)
      .max(kMaxDropout);
  fields("freeze", freeze,
         "globs of parameters' names (`hocket graph` lists them) that are not trained, such as "
         "[model.embed_tokens.*, \"*norm*\"]");
  fields("seed", seed, "of initialisation, data order and dropout").min(0);
  fields("eval_every", eval_every, "steps between validations; 0: only at the end").min(0);
  fields("eval_sequences", eval_sequences,
         "held-out sequences per validation while training, spread evenly")
      .min(1);
  fields("final_eval_sequences", final_eval_sequences,
         "held-out sequences of the validation at the end; 0: all of them")
      .min(0);
  fields("save_every", save_every, "steps between checkpoints; 0: by time alone, and at the end")
      .min(0);
  fields("save_minutes", save_minutes,
         "most minutes between checkpoints, saved after a step; 0: by steps alone")
      .min(0)
      .max(1e6);
  fields("keep_last", keep_last, "checkpoints that are kept; 0: all").min(0);
  fields("resume", resume,
         "continue from the newest checkpoint of output.dir, if there is one; false: "
         "start anew, in a folder without checkpoints");
}

void PlanSection::fields(Fields& fields) {
  fields("ranks", ranks,
         "form of ranks: local, threads of this process; gloo, processes, each started by "
         "a launcher (hocket launch, torchrun, mpirun, srun); nccl, the same with a GPU "
         "each, through which collectives go; auto: if a launcher started several, nccl "
         "where PyTorch has CUDA and there are GPUs for all, else gloo; else local")
      .one_of({"auto", "local", "gloo", "nccl"});
  fields(
      "collectives", collectives,
      "with ranks as processes, those collectives that all_reduce, reduce_scatter and "
      "all_gather do not write as messages: own, which has the bits of local ranks; c10d, by its "
      "groups, in their order of sums; auto: c10d with plan.ranks nccl, else own")
      .one_of({"auto", "own", "c10d"});
  Plan::fields(fields);
  fields("passes", passes, "passes that run, in this order (`hocket graph --list-passes`)");
  pass_options.fields(fields);
  fields("timeout_s", timeout_s, "of every wait for another rank or lane").min(0.1).max(1e6);
}

void ClusterSection::fields(Fields& fields) {
  fields("file", file,
         "cluster file for simulate, and for check, which takes the memory of its devices; "
         "default: this machine");
  fields("profile", profile,
         "timings written by `hocket profile`, which are only read; without, or where they do not "
         "have "
         "every "
         "task, `train` times them itself, for output.dir/profile.json");
  fields(
      "memory_budget", memory_budget,
      "memory per rank that check, simulate and plan compare with; where tasks execute, default: "
      "this machine's free memory, shared")
      .unit(Unit::bytes)
      .min(1)
      .max(kMaxMemory);
}

void EmulateSection::fields(Fields& fields) {
  fields("cluster", cluster,
         "a cluster file: every task of a training step takes its time on a device of "
         "that cluster (docs/cluster-in-a-box.md)");
  fields("profile", profile,
         "timings of that device, written by `hocket profile`; default: the constants of the file");
  fields("set", set,
         "changes of keys, \"KEY=VALUE\", e.g. [train.seq_len=4096], that make the emulated run of "
         "this one: its durations, and its bytes in every message between processes");
}

void OutputSection::fields(Fields& fields) {
  fields("dir", dir, "checkpoints, metrics, traces and the report go here");
  fields("trace", trace, "write the trace of one step");
  fields("report", report, "write report.html at the end");
  fields("baselines", baselines,
         "references for the held-out loss, computed once per data: all (xz -9e, a second "
         "per MB, and a trigram model), trigram, or none; auto: all if there is a report, "
         "else none")
      .one_of({"auto", "all", "trigram", "none"});
  fields("sample_prompt", sample_prompt,
         "prompt of the sample at the end; default: the first lines of a held-out file");
  fields("sample_tokens", sample_tokens, "most tokens of that sample; 0: there is none")
      .min(0)
      .max(kMaxTokens);
}

void RunConfig::fields(Fields& fields) {
  fields("model", model, "the model to train");
  fields("data", data, "on what");
  fields("adapter", adapter, "a small addition that is trained in place of the model");
  fields("train", train, "how");
  fields("plan", plan, "parallelism over ranks");
  fields("cluster", cluster, "hardware of the run");
  fields("emulate", emulate, "an emulated device, for more ranks than cores").formerly("timed");
  fields("output", output, "where results go");
}

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
    run.lora = checkpoint::read_adapter_config(section.path).lora;
    run.adapter = section.path;
  }
  run.lora->dropout_seed = run.config.train.seed;
  models::match_lora(run.model, *run.lora, run.name);
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

/// Throws Error if a part of a data-parallel rank's `tokens` is empty for some rank, or if parts
/// differ between data-parallel ranks where nothing passes their sizes on.
void expect_shares_for_all(const Run& run, const std::string& shared, int64_t tokens) {
  const parallel::Plan& plan = run.plan;
  if (plan.cp_shares.empty()) return;
  const std::vector<int64_t> parts = parallel::dealt_out(tokens, plan.cp_shares);
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

/// Throws Error: fewer tokens of a data-parallel rank than there are ranks to share them, or parts
/// that these take in zigzag order; shares of them that are not for all.
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
  warn_of_idle_keys(run);
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

/// Returns whether an override is of a key that no task depends on: files, and the loop around the
/// program.
bool outside_program(std::string_view override) {
  for (std::string_view section : {"output.", "data.", "cluster.", "emulate.", "timed."}) {
    if (override.starts_with(section)) return true;
  }
  const std::string_view key = override.substr(0, override.find('='));
  if (key == "model.init") return true;
  for (std::string_view loop : {"steps", "minutes", "lr", "min_lr", "warmup_steps", "eval_every",
                                "eval_sequences", "final_eval_sequences", "save_every",
                                "save_minutes", "keep_last", "resume", "on_nonfinite"}) {
    if (key.starts_with("train.") && key.substr(6) == loop) return true;
  }
  return false;
}

}  // namespace

Run resolve_run(const std::string& path, const std::vector<std::string>& overrides,
                std::optional<program::Program>* given) {
  std::string text = read_file(path);
  if (text.rfind("hocket-graph", 0) == 0) {
    fail(path,
         "is the text of a graph; expected a run.yaml or a program: hocket graph RUN --stage "
         "program");
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
  if (given) {
    *given = std::move(program);
  }
  // The text is a program whose passes have run; reading it must not execute commands.
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
             std::optional<program::Program>* given) {
  Run run = resolve_run(path, overrides, given);
  derive(run);
  return run;
}

}  // namespace hocket::engine
