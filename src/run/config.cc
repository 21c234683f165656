// SPDX-License-Identifier: Apache-2.0
#include "run/config.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/math.h"
#include "base/text.h"
#include "checkpoint/resolve.h"
#include "comm/c10d.h"
#include "comm/launch.h"
#include "passes/pass.h"
#include "run/idle_keys.h"

namespace hocket::engine {

namespace {

// Bounds of sizes: far beyond what anybody runs, and their products stay below 2^62.
constexpr double kMaxRanks = 1 << 16;
constexpr double kMaxKib = 1 << 30;
constexpr double kMaxTokens = 1 << 27;     // of a micro-batch (models/builder.cc)
constexpr double kMaxSequences = 1 << 16;  // of a rank and micro-batch
constexpr double kMaxThreads = 1024;
constexpr double kMaxDropout = 0.999;  // what is kept is divided by 1 - dropout
// AdamW divides by 1 - beta^t.
constexpr double kMaxBeta = 0.999999;

}  // namespace

ModelSection::ModelSection() : config(std::make_shared<nlohmann::json>()) {}

void ModelSection::fields(Fields& fields) {
  fields("path", path,
         "MODEL: a Hugging Face folder, a config.json, one of our checkpoints, a hub id");
  fields("config", *config, "instead of path: the keys of a Hugging Face config.json");
  fields("dtype", dtype,
         "type of parameters and activations; with bf16 and f16, sums, gradients of parameters, "
         "moments and master weights are f32; 8-bit products are float8")
      .one_of({"f32", "f64", "bf16", "f16"});
  fields("float8", float8,
         "with dtype bf16: linear layers of the blocks, but for routers and experts, multiply in "
         "f8_e4m3; their operands are cast by tasks of their own, without scales");
  fields("init", init,
         "what a new training starts from: weights (the safetensors of path), random, or auto: "
         "the weights if path is a folder or hub id that has them, else random")
      .one_of({"auto", "random", "weights"});
}

void DataSection::fields(Fields& fields) {
  fields("name", name, "what the text is called in reports");
  fields("files", files, "text files or globs (** recurses) that `hocket data prepare` reads");
  fields("dir", dir, "where the prepared tokens lie");
  fields("tokenizer", tokenizer,
         "tokenizer.json that `hocket data prepare` uses; training takes the one in data.dir");
  fields("vocab_size", vocab_size, "of the tokenizer that `hocket data train-tokenizer` makes")
      .min(0);
  fields("valid_fraction", valid_fraction, "share of the files that is held out").min(0).max(0.9);
}

void TrainSection::fields(Fields& fields) {
  // One line per key: name, where it goes, what docs/config.md says of it, its bounds.
  fields("steps", steps, "optimizer steps").min(1);
  fields("minutes", minutes,
         "if above 0: as many steps as fit into this time, by the predicted step time, replace "
         "`steps`")
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
  fields("weight_decay", weight_decay, "of matrices; vectors are not decayed").min(0);
  fields("beta1", beta1, "AdamW").min(0).max(kMaxBeta);
  fields("beta2", beta2, "AdamW").min(0).max(kMaxBeta);
  fields("eps", eps, "AdamW").min(0);
  fields("max_grad_norm", max_grad_norm, "global gradient norm is clipped to it; 0: never").min(0);
  fields("balance_coef", balance_coef,
         "of the load-balancing loss; default: the model's "
         "router_aux_loss_coef")
      .min(0);
  fields("dropout", dropout,
         "share of what attention and MLP add to the residual stream that is left out, at random "
         "(hidden_dropout); 0: none")
      .min(0)
      .max(kMaxDropout);
  fields("seed", seed, "of initialisation, data order and dropout").min(0);
  fields("eval_every", eval_every, "steps between validations; 0: only at the end").min(0);
  fields("eval_sequences", eval_sequences,
         "held-out sequences per validation while training, spread evenly")
      .min(1);
  fields("final_eval_sequences", final_eval_sequences,
         "held-out sequences of the validation at the end; 0: all of them")
      .min(0);
  fields("save_every", save_every, "steps between checkpoints; 0: only at the end").min(0);
  fields("keep_last", keep_last, "checkpoints that are kept; 0: all").min(0);
  fields("resume", resume,
         "continue from the newest checkpoint of output.dir, if there is one; false: "
         "start anew, in a folder without checkpoints");
}

void ShardSection::fields(Fields& fields) {
  const std::vector<std::string> among{"none", "group", "all"};
  fields("params", params,
         "parameters, gathered before each use and freed after it: over all ranks (ZeRO-3, FSDP), "
         "or inside each group (MiCS, HSDP); generation holds them whole")
      .one_of(among);
  fields("grads", grads,
         "gradients, scattered after every micro-batch (ZeRO-2); none: whole sums over "
         "micro-batches, scattered once")
      .one_of(among);
  fields("optimizer", optimizer,
         "the optimizer's states, and what it updates with them (ZeRO-1); at least as far as "
         "parameters and gradients, which is the default")
      .one_of(among);
  fields("group", group,
         "ranks of a group, the nearest ones: a divisor of dp x cp; 0: there are no groups")
      .min(0)
      .max(kMaxRanks * kMaxRanks);
  fields("least_kib", least_kib,
         "parameters of less, KiB, stay whole with their gradients and states, where messages cost "
         "more than what they would save")
      .min(0)
      .max(kMaxKib);
  fields("reshard_after_forward", reshard_after_forward,
         "free gathered parameters after the forward pass of a layer and gather them again for its "
         "backward pass; false: they stay between the two, for memory instead of messages");
  fields("reshard_after_backward", reshard_after_backward,
         "free gathered parameters after the backward pass of a micro-batch; false, with "
         "reshard_after_forward false: they are gathered once, when a step begins, in the order in "
         "which its stages need them, and stay until its end");
}

void PlanSection::fields(Fields& fields) {
  fields("ranks", ranks,
         "what ranks are: local, threads of this process; gloo, processes, each started by a "
         "launcher "
         "(hocket launch, torchrun, mpirun, srun); nccl, the same with a GPU each, through which "
         "collectives go; auto: if a launcher started several, nccl where PyTorch has CUDA and "
         "there are GPUs for all, else gloo; else local")
      .one_of({"auto", "local", "gloo", "nccl"});
  fields(
      "collectives", collectives,
      "with ranks as processes, those collectives that all_reduce, reduce_scatter and "
      "all_gather do not write as messages: own, which has the bits of local ranks; c10d, by its "
      "groups, in their order of sums; auto: c10d with plan.ranks nccl, else own")
      .one_of({"auto", "own", "c10d"});
  fields("pp", pp, "pipeline ranks, each with pp_chunks stages").min(1).max(kMaxRanks);
  fields("pp_chunks", pp_chunks,
         "stages per pipeline rank: model chunks, for interleaved, zb-h1, zb-v and dualpipev (both "
         "2) or a CSV")
      .min(1)
      .max(kMaxRanks);
  fields(
      "dp", dp,
      "data-parallel ranks; with ranks as processes, by default as many as there are for the other "
      "axes")
      .min(1)
      .max(kMaxRanks);
  fields(
      "ep", ep,
      "expert-parallel ranks, among those there are: first ranks of tp (with sequence_parallel), "
      "then of cp, then of dp")
      .min(1);
  fields("etp", etp, "ranks of tp over which the width of every expert is split").min(1);
  fields("ep_inner", ep_inner,
         "ranks of ep that lie together, as on a node: rows go to the node of their expert first, "
         "then to its rank, and back likewise (two-level all-to-all); 1: in one step")
      .min(1);
  fields("expert_ranks", expert_ranks,
         "ranks beside these, which have all experts; 0: none. Forward only: eval, graph --for "
         "evaluate")
      .min(0)
      .max(kMaxRanks);
  fields("cp", cp, "context-parallel ranks: they share the tokens of a data-parallel rank")
      .min(1)
      .max(kMaxRanks);
  fields("tp", tp,
         "tensor-parallel ranks: they have the same tokens, and parts of the vocabulary, heads and "
         "MLPs")
      .min(1)
      .max(kMaxRanks);
  fields("sequence_parallel", sequence_parallel,
         "between their products, the ranks of tp split the tokens among them: norms and residuals "
         "are not repeated, and take a part of the memory");
  fields("micro_batch", micro_batch, "sequences per data-parallel rank and micro-batch")
      .min(1)
      .max(kMaxSequences);
  fields("dp_samples", dp_samples,
         "sequences of a micro-batch for each data-parallel rank, in place of micro_batch, e.g. "
         "[3, 2, 2, 1] for ranks of unlike speed; default: micro_batch each, or as even as "
         "global_batch divides");
  fields("cp_shares", cp_shares,
         "what each rank of cp has of the tokens of a data-parallel rank, relative to each other, "
         "e.g. [3, 2, 2, 1] for ranks of unlike speed; default: as many each");
  fields("shard", shard,
         "what data-parallel ranks split among them, so that none has all of it: none, in a group "
         "of near ranks, or among all (docs/axes.md)");
  fields("pp_layers", pp_layers,
         "layers per stage, e.g. [3, 5]; 0 for a stage of the embedding or the head alone, the "
         "first or the last; default: as even as possible");
  fields("pp_schedule", pp_schedule,
         "1f1b, gpipe, interleaved, interleaved-overlap, zb-h1, zb-v, dualpipev, dualpipe, or a "
         "schedule CSV, as "
         "`hocket graph --stage schedule` prints it (docs/schedules.md)");
  fields("layouts", layouts,
         "how tensors lie, \"PATTERN LAYOUT\" each, e.g. [lm_head.weight tp:S0]: those whose names "
         "match (* and ?) are split along dim 0 over tp; B: whole on every rank; the last match "
         "counts; gradients and optimizer states lie as their parameter is updated (docs/axes.md)");
  fields("passes", passes, "passes that run, in this order (`hocket graph --list-passes`)");
  pass_options.fields(fields);
  fields("threads_per_rank", threads_per_rank, "compute threads; 0: the cores divided by the ranks")
      .min(0)
      .max(kMaxThreads);
  fields(
      "ranks_per_node", ranks_per_node,
      "decides which links are inside a node; 0: all ranks on one, or with ranks as processes as "
      "many as the launcher starts on each host")
      .min(0)
      .max(kMaxRanks);
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
      .max(kMostMemory);
}

void TimedSection::fields(Fields& fields) {
  fields("cluster", cluster,
         "a cluster file: every task of a training step holds its lane for as long as it would "
         "take on "
         "a device of it (docs/cluster.md)");
  fields("profile", profile,
         "timings of that device, written by `hocket profile`; default: the constants of the file");
  fields("set", set,
         "what is played is this run with these keys, \"KEY=VALUE\" each, e.g. "
         "[train.seq_len=4096]: its "
         "durations, and its bytes in every message between processes");
}

void OutputSection::fields(Fields& fields) {
  fields("dir", dir, "checkpoints, metrics, traces and the report go here");
  fields("trace", trace, "write the trace of one step");
  fields("report", report, "write report.html at the end");
  fields(
      "baselines", baselines,
      "what the held-out loss is compared with, computed once per data: all (xz -9e, a second per "
      "MB, and a "
      "trigram model), trigram, or none; auto: all if there is a report, else none")
      .one_of({"auto", "all", "trigram", "none"});
  fields("sample_prompt", sample_prompt,
         "what the sample at the end goes on from; default: the first lines of a held-out file");
  fields("sample_tokens", sample_tokens, "most tokens of that sample; 0: there is none")
      .min(0)
      .max(kMaxTokens);
}

void RunConfig::fields(Fields& fields) {
  fields("model", model, "what is trained");
  fields("data", data, "on what");
  fields("train", train, "how");
  fields("plan", plan, "how it is spread over ranks");
  fields("cluster", cluster, "what it runs on");
  fields("timed", timed, "a device that is played, for more ranks than cores");
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
  run.model = models::read_config(at.config_file);
  // Who names a config.json means the configuration alone.
  const bool config_only = at.config_file == model.path;
  if (required || (model.init == "auto" && at.has_weights && !config_only)) {
    run.weights = at.folder;
  }
}

parallel::Shard shard_of(const std::string& ranks) {
  if (ranks == "group") return parallel::Shard::group;
  return ranks == "all" ? parallel::Shard::all : parallel::Shard::none;
}

/// Throws Error: an update of less than what is split, which would hold states for what the rank
/// neither has nor sums.
parallel::Sharding sharding_of(const ShardSection& section, const std::string& name) {
  parallel::Sharding sharding;
  sharding.params = shard_of(section.params);
  sharding.grads = shard_of(section.grads);
  sharding.group = section.group;
  sharding.least_bytes = static_cast<int64_t>(section.least_kib * 1024);
  sharding.reshard_after_forward = section.reshard_after_forward;
  sharding.reshard_after_backward = section.reshard_after_backward;
  if (sharding.reshard_after_forward && !sharding.reshard_after_backward) {
    fail(name,
         "plan.shard.reshard_after_backward is false, but plan.shard.reshard_after_forward is "
         "true; expected false for both: what is freed after the forward pass of a micro-batch is "
         "not there after its backward pass");
  }
  sharding.optimizer = sharding.update();
  if (!section.optimizer) return sharding;
  const parallel::Shard least = std::exchange(sharding.optimizer, shard_of(*section.optimizer));
  if (sharding.optimizer < least) {
    const bool params = sharding.params == least;
    fail(name,
         "plan.shard.optimizer is {}, but plan.shard.{} is {}; expected {}: a rank updates what it "
         "has of parameters and gradients, and states of more would take memory and save nothing; "
         "try to leave plan.shard.optimizer out",
         *section.optimizer, params ? "params" : "grads", params ? section.params : section.grads,
         least == parallel::Shard::all ? "all" : "group or all");
  }
  return sharding;
}

/// What plan.ranks says, or follows from who started this process.
Ranks ranks_of(const PlanSection& plan) {
  if (plan.ranks == "gloo") return Ranks::gloo;
  if (plan.ranks == "nccl") return Ranks::nccl;
  const comm::Place& place = comm::launched();
  if (plan.ranks == "local" || place.size == 1) return Ranks::local;
  return comm::gpus().count >= place.local_size ? Ranks::nccl : Ranks::gloo;
}

/// How the global batch is dealt out to micro-batches and data-parallel ranks.
void derive_samples(Run& run) {
  // As told, or micro_batch for each; if that does not divide the batch, as many micro-batches as
  // it then takes, dealt out as evenly as may be.
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
         "train.global_batch is {}; expected a multiple of plan.dp x plan.micro_batch = {}, or {} "
         "micro-batches of which every rank has a share; try train.global_batch: {}, or "
         "plan.dp_samples",
         batch, most, plan.num_micro_batches, round_up(batch, most));
  }
  for (int64_t rank = 0; rank < plan.dp; ++rank) {
    plan.dp_samples.push_back(graph::share(sequences, plan.dp, rank).length);
  }
}

/// Throws Error: a part of a data-parallel rank's `tokens` that is nothing for some rank; parts
/// that differ from one data-parallel rank to another, of what is not passed on from rank to rank.
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
         "plan.cp_shares is [{}], plan.dp_samples [{}], plan.cp_comm_type {}; expected p2p, where "
         "ranks pass on what each has, or as many sequences on each data-parallel rank",
         fmt::join(plan.cp_shares, ", "), fmt::join(plan.dp_samples, ", "),
         run.config.plan.pass_options.text("cp_comm_type"));
  }
}

/// Throws Error: fewer tokens of a data-parallel rank than there are ranks to share them, or parts
/// that these take in zigzag order; shares of them that are not for all.
void expect_tokens_for_all(const Run& run) {
  const parallel::Plan& plan = run.plan;
  const int64_t ranks = plan.cp * (plan.sequence_parallel ? plan.tp : 1);
  const bool zigzag = plan.ring && run.config.plan.pass_options.text("cp_order") == "zigzag";
  std::vector<int64_t> samples = plan.dp_samples;
  if (samples.empty()) {
    samples.push_back(plan.micro_batch);
  } else if (zigzag) {
    fail(run.name,
         "plan.cp_order is zigzag, and data-parallel ranks have [{}] sequences; expected as many "
         "each; try plan.cp_order: contiguous",
         fmt::join(plan.dp_samples, ", "));
  }
  if (zigzag && !plan.cp_shares.empty()) {
    fail(run.name,
         "plan.cp_order is zigzag, and plan.cp_shares is [{}]; expected as many tokens on each "
         "rank of plan.cp; try plan.cp_order: contiguous",
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

/// How attention is split over tp and cp.
void derive_heads(Run& run) {
  parallel::Plan& plan = run.plan;
  const int64_t heads = run.model.num_heads;
  // Query heads over all of tp, key heads over as many ranks as divide them.
  const bool shared = heads >= plan.tp;
  const int64_t apart = std::gcd(plan.tp, shared ? run.model.num_kv_heads : heads);
  plan.heads_apart = apart < plan.tp ? apart : 0;
  const std::string keys = run.config.plan.pass_options.text("cp_comm_type");
  plan.ring = keys == "p2p" && plan.cp > 1;
  plan.unlike_parts = plan.ring && run.config.plan.pass_options.text("cp_order") == "zigzag" &&
                      run.config.train.seq_len % (2 * plan.cp) != 0;
  plan.shard.even_over_sequences =
      plan.ring && run.config.plan.pass_options.text("cp_order") == "zigzag";
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
  // The model, then ranks and how they talk, then the plan key by key; heads and samples are dealt
  // once the mesh is known, and what only a whole plan can break is checked at the end.
  const RunConfig& config = run.config;
  derive_model(run);
  if (config.model.float8 && config.model.dtype != "bf16") {
    fail(run.name, "model.float8 is true, and model.dtype {}; expected bf16", config.model.dtype);
  }
  if (config.output.dir.empty()) {
    fail(run.name, "output.dir is empty; expected a folder; try output.dir: runs/default");
  }
  parallel::Plan& p = run.plan;
  p.pp = config.plan.pp;
  p.pp_chunks = config.plan.pp_chunks;
  run.ranks = ranks_of(config.plan);
  run.c10d = config.plan.collectives == "c10d" ||
             (config.plan.collectives == "auto" && run.ranks == Ranks::nccl);
  p.dp = config.plan.dp;
  p.ep = config.plan.ep;
  p.etp = config.plan.etp;
  p.ep_inner = config.plan.ep_inner;
  p.expert_ranks = config.plan.expert_ranks;
  p.cp = config.plan.cp;
  p.tp = config.plan.tp;
  p.sequence_parallel = config.plan.sequence_parallel && p.tp > 1;
  p.micro_batch = config.plan.micro_batch;
  p.shard = sharding_of(config.plan.shard, run.name);
  p.pp_layers = config.plan.pp_layers;
  p.pp_schedule = config.plan.pp_schedule;
  p.layouts = config.plan.layouts;
  p.threads_per_rank = config.plan.threads_per_rank;
  p.ranks_per_node = config.plan.ranks_per_node;
  p.dp_samples = config.plan.dp_samples;
  p.cp_shares = config.plan.cp_shares;
  derive_heads(run);
  derive_samples(run);
  expect_tokens_for_all(run);
  const TimedSection& timed = config.timed;
  if (!timed.on() && (!timed.profile.empty() || !timed.set.empty())) {
    fail(run.name,
         "timed.{} is given without timed.cluster; expected the file of the cluster whose "
         "durations are played",
         timed.profile.empty() ? "set" : "profile");
  }
  if (timed.on() && run.c10d) {
    fail(run.name,
         "plan.collectives is c10d on a device that is played (timed.cluster); expected own: only "
         "messages of our own are filled up to what is played");
  }
  p.validate(run.model.num_layers, run.model.num_experts);
  warn_of_idle_keys(run);
}

namespace {

/// Where ranks are processes that a launcher started: what their number says of keys that are not
/// given. Error: no plan.dp makes the plan's ranks as many as they are.
std::vector<std::string> launcher_says(const PlanSection& plan, const ResolvedConfig& resolved,
                                       const std::string& name) {
  const comm::Place& place = comm::launched();
  std::vector<std::string> assignments;
  if (ranks_of(plan) == Ranks::local || place.size == 1) return assignments;
  if (resolved.is_default("plan.dp")) {
    const int64_t others = plan.pp * plan.cp * plan.tp;
    const int64_t ranks = place.size - plan.expert_ranks;
    if (ranks < others || ranks % others != 0) {
      fail(name,
           "{} processes were started; plan.pp x plan.cp x plan.tp is {}, which plan.dp must fill "
           "up to as many; try another plan",
           place.size, others);
    }
    assignments.push_back(fmt::format("plan.dp={}", ranks / others));
  }
  // All ranks on one node is what programs say without a number, however they were started.
  if (plan.ranks_per_node == 0 && place.local_size < place.size) {
    assignments.push_back(fmt::format("plan.ranks_per_node={}", place.local_size));
  }
  return assignments;
}

}  // namespace

Run resolve_text(const std::string& text, const std::string& name,
                 const std::vector<std::string>& overrides) {
  Run run;
  run.name = name;
  run.resolved = hocket::parse_config(run.config, text, name, overrides);
  const Filled filled{"launcher", launcher_says(run.config.plan, run.resolved, name)};
  if (!filled.assignments.empty()) {
    run.config = RunConfig();
    run.resolved = hocket::parse_config(run.config, text, name, overrides, filled);
  }
  return run;
}

namespace {

/// True for an override of a key that no task depends on: files, and what the loop around the
/// program does.
bool outside_program(std::string_view override) {
  for (std::string_view section : {"output.", "data.", "cluster.", "timed."}) {
    if (override.starts_with(section)) return true;
  }
  const std::string_view key = override.substr(0, override.find('='));
  if (key == "model.init") return true;
  for (std::string_view loop :
       {"steps", "minutes", "lr", "min_lr", "warmup_steps", "eval_every", "eval_sequences",
        "final_eval_sequences", "save_every", "keep_last", "resume"}) {
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
  // A text is a program: its passes have run, and nobody expects commands to be run by reading it.
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
