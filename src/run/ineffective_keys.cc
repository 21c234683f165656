// SPDX-License-Identifier: Apache-2.0
#include "run/ineffective_keys.h"

#include <algorithm>
#include <array>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/log.h"
#include "comm/launch.h"

namespace hocket::engine {

namespace {

/// Returns whether a key of a pass has another value than by default.
bool is_set(const Run& run, const char* key) {
  return run.config.plan.pass_options.text(key) != passes::PassOptions().text(key);
}

bool is_dense(const Run& run) { return run.model.num_experts == 0; }
bool is_alone(const Run& run) { return run.plan.world() == 1; }
bool has_nodes(const parallel::Plan& plan) {
  return plan.ranks_per_node > 1 && plan.ranks_per_node < plan.world();
}
bool is_split(const parallel::Sharding& shard, parallel::Shard among) {
  return shard.params == among || shard.grads == among || shard.update() == among;
}
/// Returns whether a key names an algorithm for nodes, where there are none.
bool is_for_nodes(const Run& run, const char* key) {
  const std::string algorithm = run.config.plan.pass_options.text(key);
  const bool of_nodes = algorithm == "hierarchical" || algorithm == "ho_ring";
  return of_nodes && !is_alone(run) && !has_nodes(run.plan);
}

struct Row {
  const char* key;
  const char* why;
  bool (*ineffective)(const Run& run);
};

constexpr const char* kAlone = "has no effect: there is one rank";
constexpr const char* kDense = "has no effect: the model has no experts";
constexpr const char* kNoNodes =
    "goes around rings: the plan has no nodes of several ranks (plan.ranks_per_node)";

const Row kRows[] = {
    {"shard.group",
     "has no effect: plan.shard splits nothing in groups; try plan.shard.params, grads or "
     "optimizer: group",
     [](const Run& run) {
       return run.plan.shard.group > 0 && !is_split(run.plan.shard, parallel::Shard::group);
     }},
    {"shard", "has no effect: there is one data-parallel rank (plan.dp x plan.cp)",
     [](const Run& run) { return run.plan.shard.any() && run.plan.dp * run.plan.cp == 1; }},
    {"shard.reshard_after_forward", "has no effect: plan.shard.params is none",
     [](const Run& run) {
       return !run.plan.shard.reshard_after_forward &&
              run.plan.shard.params == parallel::Shard::none;
     }},
    {"shard.reshard_after_backward", "has no effect: plan.shard.params is none",
     [](const Run& run) {
       return !run.plan.shard.reshard_after_backward &&
              run.plan.shard.params == parallel::Shard::none;
     }},
    {"sequence_parallel", "has no effect: plan.tp is 1",
     [](const Run& run) { return run.config.plan.sequence_parallel && run.plan.tp == 1; }},
    {"cp_comm_type", "has no effect: plan.cp is 1",
     [](const Run& run) { return run.plan.cp == 1 && is_set(run, "cp_comm_type"); }},
    {"cp_order", "has no effect: it is of keys that go around a ring (plan.cp_comm_type: p2p)",
     [](const Run& run) { return !run.plan.ring && is_set(run, "cp_order"); }},
    {"moe_chunks", kDense,
     [](const Run& run) { return is_dense(run) && is_set(run, "moe_chunks"); }},
    {"moe_chunks_backward", kDense,
     [](const Run& run) { return is_dense(run) && is_set(run, "moe_chunks_backward"); }},
    {"comm_tiles", kAlone,
     [](const Run& run) { return is_alone(run) && is_set(run, "comm_tiles"); }},
    {"all_reduce", kAlone,
     [](const Run& run) { return is_alone(run) && is_set(run, "all_reduce"); }},
    {"reduce_scatter", kAlone,
     [](const Run& run) { return is_alone(run) && is_set(run, "reduce_scatter"); }},
    {"all_gather", kAlone,
     [](const Run& run) { return is_alone(run) && is_set(run, "all_gather"); }},
    {"all_reduce", kNoNodes, [](const Run& run) { return is_for_nodes(run, "all_reduce"); }},
    {"reduce_scatter", kNoNodes,
     [](const Run& run) { return is_for_nodes(run, "reduce_scatter"); }},
    {"all_gather", kNoNodes, [](const Run& run) { return is_for_nodes(run, "all_gather"); }},
};

/// A key of section rl, and its condition to have an effect.
struct RlRow {
  const char* key;
  const char* why;
  bool (*works)(const Run& run);
};

bool has_critic(const Run& run) { return run.config.rl.advantage == "gae"; }
bool has_reference(const Run& run) { return run.config.rl.kl_coef > 0; }
bool clips(const Run& run) { return run.config.rl.loss != "reinforce"; }
bool corrects(const Run& run) { return run.config.rl.correction.type != "none"; }

constexpr const char* kNoCritic = "has no effect: rl.advantage is not gae";
constexpr const char* kNoReference = "has no effect: rl.kl_coef is 0";
constexpr const char* kNoClip = "has no effect: rl.loss is reinforce";

const RlRow kRlRows[] = {
    {"lambda", kNoCritic, has_critic},
    {"lambda_length", kNoCritic, has_critic},
    {"critic.path", kNoCritic, has_critic},
    {"critic.lr", kNoCritic, has_critic},
    {"critic.schedule", kNoCritic, has_critic},
    {"critic.min_lr", kNoCritic, has_critic},
    {"critic.lr_warmup_steps", kNoCritic, has_critic},
    {"critic.lr_warmup_share", kNoCritic, has_critic},
    {"critic.clip", kNoCritic, has_critic},
    {"critic.warmup_steps", kNoCritic, has_critic},
    {"critic.epochs", kNoCritic, has_critic},
    {"gamma", "has no effect: rl.advantage is neither gae nor reinforce_plus_plus",
     [](const Run& run) {
       return has_critic(run) || run.config.rl.advantage == "reinforce_plus_plus";
     }},
    {"kl_estimator", kNoReference, has_reference},
    {"kl_in", kNoReference, has_reference},
    {"reference", kNoReference, has_reference},
    {"clip_low", kNoClip, clips},
    {"clip_high", kNoClip, clips},
    {"dual_clip", "has no effect: rl.loss is not ppo",
     [](const Run& run) { return run.config.rl.loss == "ppo"; }},
    {"horizon", "has no effect: rl.aggregation is not seq-mean-token-sum-norm",
     [](const Run& run) { return run.config.rl.aggregation == "seq-mean-token-sum-norm"; }},
    {"correction.type",
     "has no effect: samples are drawn from all tokens, and with rl.strict the ratio is 1",
     [](const Run& run) {
       const RlSection& rl = run.config.rl;
       return rl.correction.type == "none" || !rl.strict || rl.top_k > 0 || rl.top_p < 1 ||
              rl.min_p > 0;
     }},
    {"correction.level", "has no effect: rl.correction.type is none", corrects},
    {"correction.high", "has no effect: rl.correction.type is none", corrects},
    {"correction.low", "has no effect: rl.correction.type is not mis",
     [](const Run& run) { return run.config.rl.correction.type == "mis"; }},
    {"dynamic_sampling.max_rounds", "has no effect: rl.dynamic_sampling.on is false",
     [](const Run& run) { return run.config.rl.dynamic_sampling.on; }},
    {"overlong.penalty", "has no effect: rl.overlong.buffer is 0",
     [](const Run& run) { return run.config.rl.overlong.buffer > 0; }},
    {"routing_replay", "has no effect: the model has no experts",
     [](const Run& run) { return !is_dense(run); }},
};

/// A key that another one makes idle, and its condition to have an effect. Objective rl has rows of
/// its own.
struct KeyRow {
  const char* key;
  const char* why;
  bool (*works)(const Run& run);
};

bool is_of(const Run& run, Objective objective) { return run.config.objective == objective; }
bool on_examples(const Run& run) { return is_of(run, Objective::sft) || run.config.prefers(); }
bool not_on_examples(const Run& run) { return !on_examples(run); }
bool not_on_texts(const Run& run) { return !is_of(run, Objective::pretrain); }
bool not_of_dpo(const Run& run) { return !is_of(run, Objective::dpo); }
bool not_of_kto(const Run& run) { return !is_of(run, Objective::kto); }
/// Returns whether all data-parallel ranks have plan.micro_batch sequences, unless the batch does
/// not divide.
bool has_equal_samples(const Run& run) { return run.config.plan.dp_samples.empty(); }
bool is_wsd(const Run& run) { return run.config.train.schedule == "wsd"; }
bool has_momentum(const Run& run) { return run.config.optimizer.name != "adamw"; }
bool is_muon(const Run& run) { return run.config.optimizer.name == "muon"; }

constexpr const char* kOfExamples = "it is of examples, and objective is pretrain";
constexpr const char* kOfTexts = "it is of texts, and the objective reads data.sources";

const KeyRow kKeyRows[] = {
    {"data.files", kOfTexts, not_on_examples},
    {"data.valid_files", "the objective reads data.sources; try one with split: valid",
     not_on_examples},
    {"data.train_on", kOfExamples, not_on_texts},
    {"data.packing", kOfExamples, not_on_texts},
    {"data.truncate", kOfExamples, not_on_texts},
    {"data.split_texts", kOfExamples, not_on_texts},
    {"data.chat_template", kOfExamples, not_on_texts},
    {"preference.loss_type", "objective is kto", not_of_kto},
    {"preference.loss_weights", "objective is kto", not_of_kto},
    {"preference.label_smoothing", "objective is kto", not_of_kto},
    {"preference.desirable_weight", "objective is dpo", not_of_dpo},
    {"preference.undesirable_weight", "objective is dpo", not_of_dpo},
    {"plan.micro_batch", "plan.dp_samples is given", has_equal_samples},
    {"train.warmup_steps", "train.warmup_share is given",
     [](const Run& run) { return !run.config.train.warmup_share; }},
    {"train.decay_share", "train.schedule is not wsd", is_wsd},
    {"train.decay", "train.schedule is not wsd", is_wsd},
    {"optimizer.momentum", "optimizer.name is adamw", has_momentum},
    {"optimizer.nesterov", "optimizer.name is adamw", has_momentum},
    {"optimizer.ns_steps", "optimizer.name is not muon", is_muon},
    {"optimizer.adjust_lr", "optimizer.name is not muon", is_muon},
};

/// Keys of other sections that objective rl does not read.
constexpr std::array kNotOfRl = {
    "train.global_batch", "train.eval_sequences", "train.final_eval_sequences",
    "data.dir",           "data.files",           "data.valid_files",
    "data.train_on",      "data.packing",         "data.truncate",
    "data.split_texts",   "output.sample_prompt"};

}  // namespace

namespace {

/// Returns whether a key has another value than by default: the configuration of a program gives
/// every key.
bool is_changed(const Run& run, const std::string& key) {
  if (run.resolved.is_default(key)) return false;
  static const ResolvedConfig otherwise = [] {
    RunConfig defaults;
    return parse_config(defaults, "{}", "defaults");
  }();
  const auto value_of = [&](const ResolvedConfig& resolved) {
    for (const ResolvedConfig::Entry& entry : resolved.entries()) {
      if (entry.path == key) return entry.value;
    }
    return std::string();
  };
  return value_of(run.resolved) != value_of(otherwise);
}

/// Adds the keys of a section, with its dot, that the objective does not read.
void add_keys_of(std::string_view section, const Run& run, std::vector<std::string>* lines) {
  const std::string objective = names_of(Objective())[static_cast<size_t>(run.config.objective)];
  for (const ResolvedConfig::Entry& entry : run.resolved.entries()) {
    if (entry.path.starts_with(section) && is_changed(run, entry.path)) {
      lines->push_back(fmt::format("{} has no effect: objective is {}", entry.path, objective));
    }
  }
}

}  // namespace

std::vector<std::string> ineffective_keys(const Run& run) {
  std::vector<std::string> lines;
  if (run.config.objective != Objective::rl) {
    add_keys_of("rl.", run, &lines);
  }
  if (!run.config.prefers()) {
    add_keys_of("preference.", run, &lines);
  }
  if (run.config.objective == Objective::rl) {
    for (const char* key : kNotOfRl) {
      if (is_changed(run, key)) {
        lines.push_back(fmt::format("{} has no effect: objective is rl", key));
      }
    }
    for (const RlRow& row : kRlRows) {
      if (!row.works(run) && is_changed(run, fmt::format("rl.{}", row.key))) {
        lines.push_back(fmt::format("rl.{} {}", row.key, row.why));
      }
    }
  }
  for (const KeyRow& row : kKeyRows) {
    if (!row.works(run) && is_changed(run, row.key)) {
      lines.push_back(fmt::format("{} has no effect: {}", row.key, row.why));
    }
  }
  for (const Row& row : kRows) {
    if (row.ineffective(run)) {
      lines.push_back(fmt::format("plan.{} {}", row.key, row.why));
    }
  }
  return lines;
}

void warn_of_ineffective_keys(const Run& run) {
  if (comm::launch_info().rank != 0) return;  // one warning for all ranks
  static std::mutex mutex;
  static std::set<std::string> warned;
  for (const std::string& line : ineffective_keys(run)) {
    std::lock_guard lock(mutex);
    if (warned.insert(line).second) {
      log_warning("{}", line);
    }
  }
}

}  // namespace hocket::engine
