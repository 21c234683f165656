// SPDX-License-Identifier: Apache-2.0
// Implements: import_verl (foreign.h). Names and defaults are those of verl/trainer/config.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/product.h"
#include "base/text.h"
#include "interop/foreign.h"
#include "interop/import_base.h"
#include "interop/shell/shell.h"
#include "interop/tables.h"

namespace hocket::interop {

namespace {

/// Returns whether a word is an override: "a.b=c", "+a.b=c" or "++a.b=c".
bool is_override(const std::string& word) {
  const size_t equal = word.find('=');
  if (equal == word.npos || word.starts_with("--") || word.find('.') > equal) return false;
  const std::string key = word.substr(0, equal);
  return key.find_first_not_of(
             "+abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.") == key.npos;
}

/// Value at a path of maps; null: there is none.
const ConfigNode* at(const ConfigNode& root, const std::string& path) {
  const ConfigNode* node = &root;
  for (const std::string& part : split(path, '.')) {
    node = node->kind == ConfigNode::Kind::map ? node->find(part) : nullptr;
    if (node == nullptr) return nullptr;
  }
  return node;
}

/// Follows ${PATH} and ${oc.select:PATH,DEFAULT} where they are a whole value, and drops the names
/// of classes, as OmegaConf and Hydra do.
void resolve(const ConfigNode& root, int depth, ConfigNode* node) {
  constexpr int kMaxDepth = 64;
  for (size_t i = node->keys.size(); i-- > 0;) {
    if (node->keys[i] == "_target_") {
      node->keys.erase(node->keys.begin() + static_cast<std::ptrdiff_t>(i));
      node->items.erase(node->items.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }
  for (ConfigNode& item : node->items) {
    resolve(root, depth, &item);
  }
  const std::string text = node->text;
  if (node->kind != ConfigNode::Kind::scalar || !text.starts_with("${") || !text.ends_with("}") ||
      depth > kMaxDepth) {
    return;
  }
  std::string inside = text.substr(2, text.size() - 3);
  constexpr std::string_view kSelect = "oc.select:";
  const bool selects = inside.starts_with(kSelect);
  inside.erase(0, selects ? kSelect.size() : 0);
  const size_t comma = inside.find(',');
  const std::string path(trim(inside.substr(0, comma)));
  if (path.find_first_of(":$") != path.npos) return;
  const ConfigNode* found = at(root, path);
  if (found != nullptr && found->kind != ConfigNode::Kind::null) {
    const std::string where = node->where;
    ConfigNode copy = *found;
    copy.where = where;
    resolve(root, depth + 1, &copy);
    *node = std::move(copy);
  } else if (selects) {
    node->text = comma == inside.npos ? "" : std::string(trim(inside.substr(comma + 1)));
    node->kind = node->text.empty() || node->text == "null" ? ConfigNode::Kind::null
                                                            : ConfigNode::Kind::scalar;
  }
}

/// Returns whether a text is YAML with sections of verl.
bool is_yaml(const std::string& text, const std::string& name) {
  try {
    const ConfigNode root = parse_config_tree(text, name);
    if (root.kind != ConfigNode::Kind::map) return false;
    constexpr const char* kSections[] = {"actor_rollout_ref", "data", "trainer", "algorithm",
                                         "critic"};
    return std::any_of(std::begin(kSections), std::end(kSections),
                       [&](const char* section) { return root.find(section) != nullptr; });
  } catch (const Error&) {
    // A script, or YAML that does not parse: reading it as a script then reports the error.
    return false;
  }
}

/// The overrides of a script's command, or the YAML itself.
ConfigNode tree_of(const std::string& text, const std::string& name) {
  if (!text.starts_with("#!") && is_yaml(text, name)) {
    ConfigNode root = parse_config_tree(text, name);
    resolve(root, 0, &root);
    return root;
  }
  const ShellScript script = read_shell(text, name);
  ConfigNode root;
  root.kind = ConfigNode::Kind::map;
  root.where = name;
  const std::vector<ShellWord>* found = nullptr;
  for (const std::vector<ShellWord>& command : script.commands) {
    if (std::none_of(command.begin(), command.end(),
                     [](const ShellWord& word) { return is_override(word.text); })) {
      continue;
    }
    if (found != nullptr) {
      fail(name, "line {}: a second command with settings of verl; expected one",
           command.front().line);
    }
    found = &command;
  }
  if (found == nullptr) {
    fail(name,
         "has no settings of verl; expected YAML, or a command with verl.trainer.main_ppo and "
         "settings such as data.train_batch_size=1024 behind it");
  }
  for (const ShellWord& word : *found) {
    if (word.text.starts_with("--config-name=") && word.text.find("megatron") != word.text.npos) {
      apply_override(&root, "actor_rollout_ref.actor.strategy=megatron", name);
    }
    if (word.text == "model_engine=megatron") {
      apply_override(&root, "actor_rollout_ref.actor.strategy=megatron", name);
    }
  }
  for (const ShellWord& word : *found) {
    if (!is_override(word.text)) continue;
    const size_t begin = word.text.find_first_not_of('+');
    apply_override(&root, word.text.substr(begin), fmt::format("{}:{}", name, word.line));
  }
  return root;
}

class VerlImport : public TreeImport {
 public:
  VerlImport(const std::string& text, const std::string& name, const RanksOfFile& ranks,
             const Beside& beside)
      : TreeImport(Settings(tree_of(text, name), name, "verl", verl_keys()), name, ranks, beside) {}

  Imported run() {
    set("objective", std::string("rl"));
    imported_.model_path = file_.text(kModel + "path", "");
    set("model.dtype", std::string("bf16"));
    is_megatron_ =
        file_.one_of(kActor + "strategy", "fsdp", {"fsdp", "fsdp2", "megatron"}) == "megatron";
    read_mesh();
    if (is_megatron_) {
      read_megatron();
    } else {
      read_fsdp();
    }
    read_samples();
    read_algorithm();
    read_loss();
    read_correction();
    read_divergence();
    read_optimizer();
    read_adapter();
    read_trainer();
    read_evaluation();
    read_data();
    read_rewards();
    return finish();
  }

 private:
  const std::string kActor = "actor_rollout_ref.actor.", kModel = "actor_rollout_ref.model.",
                    kRollout = "actor_rollout_ref.rollout.",
                    kMegatron = "actor_rollout_ref.actor.megatron.",
                    kFsdp = "actor_rollout_ref.actor.fsdp_config.";

  void read_mesh() {
    const int64_t nodes = file_.at_least(1, "trainer.nnodes", 1);
    const int64_t per_node = file_.at_least(1, "trainer.n_gpus_per_node", 8);
    if (is_megatron_) {
      tp_ = file_.at_least(1, kMegatron + "tensor_model_parallel_size", 1);
      pp_ = file_.at_least(1, kMegatron + "pipeline_model_parallel_size", 1);
      cp_ = file_.at_least(1, kMegatron + "context_parallel_size", 1);
    } else {
      cp_ = file_.at_least(1, kActor + "ulysses_sequence_parallel_size",
                           file_.at_least(1, kFsdp + "ulysses_sequence_parallel_size", 1));
    }
    set_mesh(product_at_most({nodes, per_node}));
    if (nodes > 1) {
      set("plan.ranks_per_node", per_node);
    }
    if (cp_ > 1) {
      set("plan.cp_comm_type", std::string(is_megatron_ ? "p2p" : "a2a"));
      if (is_megatron_) {
        set("plan.cp_order", std::string("zigzag"));
      }
    }
  }

  void expect_no_offload(const std::string& section) {
    for (const char* key : {"param_offload", "optimizer_offload", "grad_offload"}) {
      const std::string path = section + key;
      if (file_.truth(path, false)) {
        file_.need_key(path, "plan.shard.params", "nothing is offloaded here", beside_);
      }
    }
  }

  void read_fsdp() {
    expect_no_offload(kFsdp);
    const int64_t ranks = product_at_most({dp_, cp_});
    const int64_t group = file_.integer(kFsdp + "fsdp_size", -1);
    if (ranks > 1 && group != 1) {
      const bool grouped = group > 0 && group < ranks;
      const std::string among = grouped ? "group" : "all";
      set("plan.shard.params", among);
      set("plan.shard.grads", among);
      if (grouped) {
        set("plan.shard.group", group);
      }
      if (!file_.truth(kFsdp + "reshard_after_forward", true)) {
        set("plan.shard.reshard_after_forward", false);
      }
    }
    if (file_.truth(kModel + "enable_gradient_checkpointing", true)) {
      set("plan.recompute", std::string("full"));
    }
  }

  void read_megatron() {
    expect_no_offload(kMegatron);
    if (tp_ > 1) {
      set("plan.sequence_parallel", file_.truth(kMegatron + "sequence_parallel", true));
    }
    for (const auto& [theirs, ours, otherwise] :
         {std::tuple{"expert_model_parallel_size", "plan.ep", int64_t{1}},
          {"expert_tensor_parallel_size", "plan.etp", int64_t{1}},
          {"virtual_pipeline_model_parallel_size", "plan.pp_chunks", int64_t{1}}}) {
      if (const int64_t value = file_.at_least(1, kMegatron + theirs, otherwise); value > 1) {
        set(ours, value);
      }
    }
    if (imported_.keys.count("plan.pp_chunks") > 0) {
      set("plan.pp_schedule", std::string("interleaved"));
    }
    if (product_at_most({dp_, cp_}) > 1 &&
        file_.truth(kMegatron + "use_distributed_optimizer", true)) {
      set("plan.shard.optimizer", std::string("all"));
    }
    const std::string in = kMegatron + "override_transformer_config.";
    const std::string granularity = file_.text(in + "recompute_granularity", "");
    if (granularity == "full") {
      set("plan.recompute", granularity);
      const int64_t layers = file_.integer(in + "recompute_num_layers", 1);
      if (file_.text(in + "recompute_method", "uniform") == "block" || layers != 1) {
        file_.need_key(in + "recompute_num_layers", "plan.recompute",
                       "every layer keeps its input here", beside_);
      }
    } else if (!granularity.empty()) {
      file_.need_key(in + "recompute_granularity", "plan.recompute",
                     "attention keeps no scores here, and modules are ops", beside_);
    }
  }

  void read_samples() {
    const int64_t prompts = file_.at_least(1, "data.train_batch_size", 1024);
    const int64_t mini = file_.at_least(1, kActor + "ppo_mini_batch_size", 256);
    const int64_t prompt = file_.at_least(1, "data.max_prompt_length", 512);
    const int64_t answer = file_.at_least(1, "data.max_response_length", 512);
    set("rl.prompts_per_step", prompts);
    set("rl.prompts_per_update", mini == prompts ? int64_t{0} : mini);
    set("rl.samples_per_prompt", file_.at_least(1, kRollout + "n", 1));
    const int64_t epochs = file_.at_least(1, kActor + "ppo_epochs", 1);
    set("rl.epochs", epochs);
    mini_batches_ = std::max<int64_t>(prompts / mini, 1);
    updates_ = product_at_most({mini_batches_, epochs});
    set("rl.max_prompt_tokens", prompt);
    set("rl.max_new_tokens", answer);
    set("rl.temperature", file_.number(kRollout + "temperature", 1));
    set("rl.top_p", file_.number(kRollout + "top_p", 1));
    set("rl.top_k", std::max<int64_t>(0, file_.integer(kRollout + "top_k", -1)));
    for (const auto& [theirs, ours] : {std::pair{"max_num_seqs", "rl.max_num_seqs"},
                                       {"max_num_batched_tokens", "rl.max_num_batched_tokens"}}) {
      if (file_.has(kRollout + theirs)) {
        set(ours, file_.at_least(1, kRollout + theirs, 1));
      }
    }
    read_rows(prompt + answer);
  }

  /// Reads the rows of training, which hold whole samples; a micro-batch is a number of rows, or of
  /// tokens.
  void read_rows(int64_t sample) {
    const std::string tokens = kActor + "ppo_max_token_len_per_gpu";
    const std::string each = kActor + "ppo_micro_batch_size_per_gpu";
    if (file_.truth(kActor + "use_dynamic_bsz", false)) {
      const int64_t most = product_at_most({file_.at_least(1, tokens, 16384), cp_});
      if (most < sample) {
        file_.refuse(tokens, fmt::format("at least {}, a sample", sample / cp_));
      }
      set("train.seq_len", most);
      set("plan.micro_batch", int64_t{1});
      file_.leave(each, "use_dynamic_bsz counts tokens");
      return;
    }
    set("train.seq_len", sample);
    file_.leave(tokens, "use_dynamic_bsz is false");
    if (file_.has(kActor + "ppo_micro_batch_size") && !file_.has(each)) {
      const int64_t all = file_.at_least(1, kActor + "ppo_micro_batch_size", 1);
      if (all % dp_ != 0) {
        file_.refuse(kActor + "ppo_micro_batch_size",
                     fmt::format("a multiple of the {} data-parallel ranks", dp_));
      }
      set("plan.micro_batch", all / dp_);
    } else {
      set("plan.micro_batch", file_.at_least(1, each, 1));
    }
    expect_one_sequence(is_megatron_ ? kMegatron + "context_parallel_size"
                                     : kActor + "ulysses_sequence_parallel_size",
                        each);
  }

  void read_algorithm() {
    const std::string given = file_.one_of(
        "algorithm.adv_estimator", "gae",
        {"gae", "grpo", "rloo", "reinforce_plus_plus", "reinforce_plus_plus_baseline"});
    const bool scales = file_.truth("algorithm.norm_adv_by_std_in_grpo", true);
    set("rl.advantage", given == "grpo" && !scales ? std::string("dr_grpo") : given);
    if (given == "gae") {
      set("model.dtype", std::string("f32"));
      note(
          "model.dtype is f32, which a critic needs here: verl computes in bf16, with parameters "
          "in "
          "f32");
    }
    if (given == "gae" || given == "reinforce_plus_plus") {
      set("rl.gamma", file_.number("algorithm.gamma", 1));
    }
    if (given == "gae") {
      set("rl.lambda", file_.number("algorithm.lam", 1));
    }
    for (const char* section :
         {"reward_model.overlong_buffer.", "reward_model.reward_kwargs.overlong_buffer_cfg.",
          "reward.reward_kwargs.overlong_buffer_cfg."}) {
      const std::string in = section;
      if (!file_.truth(in + "enable", false)) continue;
      set("rl.overlong.buffer", file_.at_least(0, in + "len", 0));
      set("rl.overlong.penalty", file_.number(in + "penalty_factor", 1));
    }
    read_filter();
    if (given == "gae") {
      read_critic();
    }
  }

  /// Reads which groups are left out: here those of equal rewards before any penalty of length.
  void read_filter() {
    const std::string in = "algorithm.filter_groups.";
    if (!file_.truth(in + "enable", false)) return;
    set("rl.dynamic_sampling.on", true);
    if (const int64_t rounds = file_.integer(in + "max_num_gen_batches", 0); rounds > 0) {
      set("rl.dynamic_sampling.max_rounds", rounds);
    }
    const std::string metric = file_.text(in + "metric", "acc");
    const bool is_shaped = imported_.keys.count("rl.overlong.buffer") > 0;
    const bool has_kl = file_.truth("algorithm.use_kl_in_reward", false);
    if (metric == "acc" || metric == "score" || (metric == "seq_reward" && !is_shaped) ||
        (metric == "seq_final_reward" && !is_shaped && !has_kl)) {
      return;
    }
    file_.refuse(in + "metric",
                 "acc, score, or seq_reward without an overlong buffer: groups are left out here "
                 "by their rewards before penalties");
  }

  void read_critic() {
    set("rl.critic.path", file_.text("critic.model.path", ""));
    if (beside_.has_model() || imported_.keys["rl.critic.path"] == imported_.model_path) {
      imported_.keys.erase("rl.critic.path");
    }
    const double lr = file_.number("critic.optim.lr", 1e-5);
    set("rl.critic.lr", lr);
    const int64_t epochs = file_.at_least(1, "critic.ppo_epochs", 1);
    read_schedule("critic.optim.", lr, "rl.critic.", "rl.critic.lr_warmup",
                  product_at_most({mini_batches_, epochs}));
    set("rl.critic.clip", file_.number("critic.cliprange_value", 0.5));
    set("rl.critic.epochs", epochs);
    set("rl.critic.warmup_steps", file_.at_least(0, "trainer.critic_warmup", 0));
  }

  void read_loss() {
    const std::map<std::string, std::string> kLosses = {
        {"vanilla", "ppo"}, {"gspo", "gspo"}, {"cispo", "cispo"}};
    const std::string path = kActor + "policy_loss.loss_mode";
    const auto found = kLosses.find(file_.text(path, "vanilla"));
    if (found == kLosses.end()) {
      file_.refuse(path, "vanilla, gspo or cispo");
    }
    set("rl.loss", found->second);
    const double clip = file_.number(kActor + "clip_ratio", 0.2);
    set("rl.clip_low", file_.number(kActor + "clip_ratio_low", clip));
    set("rl.clip_high", file_.number(kActor + "clip_ratio_high", clip));
    if (found->second == "ppo") {
      set("rl.dual_clip", file_.number(kActor + "clip_ratio_c", 3));
    }
    const std::string mode = file_.one_of(kActor + "loss_agg_mode", "token-mean",
                                          {"token-mean", "token-sum", "seq-mean-token-sum",
                                           "seq-mean-token-mean", "seq-mean-token-sum-norm"});
    set("rl.aggregation", mode);
    if (mode == "seq-mean-token-sum-norm" && file_.has(kActor + "loss_scale_factor")) {
      set("rl.horizon", file_.at_least(1, kActor + "loss_scale_factor", 1));
    }
    set("rl.entropy_coef", file_.number(kActor + "entropy_coeff", 0));
    for (const char* engine : {"", "megatron.", "veomni."}) {
      const std::string path = kActor + engine + "router_replay.mode";
      const std::string mode = file_.text(path, "");
      if (mode == "R3") {
        set("rl.routing_replay", true);
      } else if (mode == "R2") {
        note(fmt::format("{} = R2: experts are chosen anew in updates", path));
      }
    }
    // Log-probabilities of sampling and training differ in bf16, as they do between its engines.
    set("rl.strict", false);
  }

  /// Reads what ratios are anchored at, and what is done about samples of another policy.
  void read_correction() {
    const std::string in = "algorithm.rollout_correction.";
    const bool bypasses = file_.truth(in + "bypass_mode", false);
    set("rl.old_logprobs", std::string(bypasses ? "rollout" : "trainer"));
    if (bypasses && file_.text(in + "loss_type", "") == "reinforce") {
      file_.refuse(in + "loss_type", "ppo_clip");
    }
    const std::string weighs = file_.text(in + "rollout_is", "");
    if (!weighs.empty() && weighs != "token" && weighs != "sequence") {
      file_.refuse(in + "rollout_is", "token or sequence");
    }
    if (!bypasses && (weighs == "token" || weighs == "sequence")) {
      set("rl.correction.type", std::string("tis"));
      set("rl.correction.level", weighs);
      set("rl.correction.high", file_.number(in + "rollout_is_threshold", 2));
    } else if (!weighs.empty()) {
      note(fmt::format("{}rollout_is = {}: samples are not weighed{}", in, weighs,
                       bypasses ? " in bypass mode, whose ratio is that of the samples" : ""));
    }
    if (!file_.text(in + "rollout_rs", "").empty()) {
      read_rejection(in, bypasses, !weighs.empty());
    }
  }

  /// Reads which tokens or samples are left out by their ratio. The names with k1, of releases
  /// since 0.7, limit mu / pi_old; those before limit pi_old / mu, as rl.correction.
  void read_rejection(const std::string& in, bool bypasses, bool weighs) {
    const std::string path = in + "rollout_rs", limit = in + "rollout_rs_threshold";
    const std::map<std::string, std::string> kLevels = {
        {"token_k1", "token"}, {"seq_sum_k1", "sequence"}, {"seq_mean_k1", "geometric"},
        {"token", "token"},    {"sequence", "sequence"},   {"geometric", "geometric"}};
    const std::string name = file_.text(path, "");
    const auto level = kLevels.find(name);
    if (beside_.has("rl.correction.type")) {
      file_.leave(path, "--set gives rl.correction.type");
      return;
    }
    if (level == kLevels.end() || bypasses || weighs) {
      file_.refuse(path,
                   "token_k1, seq_sum_k1 or seq_mean_k1, alone, without bypass_mode and "
                   "rollout_is; or try --set rl.correction.type=mis with its level and limits");
    }
    const bool is_inverse = name.ends_with("k1");
    const std::vector<std::string> parts = split(
        file_.text(limit, is_inverse ? "" : file_.text(in + "rollout_is_threshold", "2")), '_');
    double low = 0, high = 0;
    bool reads = parts.size() <= 2 && parse_double(parts.back(), &high) && high > 0;
    low = reads ? 1 / high : 0;
    if (parts.size() == 2) {
      reads = reads && parse_double(parts.front(), &low) && low > 0;
    }
    if (!reads) {
      file_.refuse(limit, "a number above 0, or two such as 0.5_2");
    }
    low = is_inverse ? low : file_.number(in + "rollout_rs_threshold_lower", low);
    set("rl.correction.type", std::string("mis"));
    set("rl.correction.level", level->second);
    set("rl.correction.low", is_inverse ? 1 / high : low);
    set("rl.correction.high", is_inverse ? 1 / low : high);
  }

  /// Reads how held-out prompts are answered, and how many of them.
  void read_evaluation() {
    const std::string in = kRollout + "val_kwargs.";
    set("rl.eval_prompts", std::max<int64_t>(0, file_.integer("data.val_max_samples", -1)));
    const bool samples = file_.truth(in + "do_sample", false);
    if (const double temperature = samples ? file_.number(in + "temperature", 0) : 0;
        temperature > 0) {
      set("rl.eval_temperature", temperature);
      set("rl.eval_samples", file_.at_least(1, in + "n", 1));
      const double top_p = file_.number(in + "top_p", 1);
      const int64_t top_k = std::max<int64_t>(0, file_.integer(in + "top_k", -1));
      if (top_p != file_.number(kRollout + "top_p", 1) ||
          top_k != std::max<int64_t>(0, file_.integer(kRollout + "top_k", -1))) {
        note(fmt::format("{}top_p, top_k = {}, {}: evaluations have rl.top_p and rl.top_k here", in,
                         top_p, top_k));
      }
    }
  }

  void read_divergence() {
    const bool in_loss = file_.truth(kActor + "use_kl_loss", false);
    const bool in_reward = file_.truth("algorithm.use_kl_in_reward", false);
    if (in_loss && in_reward) {
      file_.refuse("algorithm.use_kl_in_reward", "false beside use_kl_loss");
    }
    if (!in_loss && !in_reward) return;
    const std::map<std::string, std::string> kEstimators = {{"kl", "k1"},         {"k1", "k1"},
                                                            {"mse", "k2"},        {"k2", "k2"},
                                                            {"low_var_kl", "k3"}, {"k3", "k3"}};
    const std::string path = in_loss ? kActor + "kl_loss_type" : "algorithm.kl_penalty";
    const auto found = kEstimators.find(file_.text(path, in_loss ? "low_var_kl" : "kl"));
    if (found == kEstimators.end()) {
      file_.refuse(path, "kl, mse or low_var_kl");
    }
    set("rl.kl_estimator", found->second);
    set("rl.kl_in", std::string(in_loss ? "loss" : "reward"));
    set("rl.kl_coef",
        file_.number(in_loss ? kActor + "kl_loss_coef" : "algorithm.kl_ctrl.kl_coef", 0.001));
    if (in_reward) {
      file_.one_of("algorithm.kl_ctrl.type", "fixed", {"fixed"});
    }
  }

  void read_optimizer() {
    const std::string in = kActor + "optim.";
    const double lr = file_.number(in + "lr", 1e-6);
    set("train.lr", lr);
    set("optimizer.weight_decay", file_.number(in + "weight_decay", 0.01));
    double beta1 = 0.9, beta2 = 0.999;
    if (file_.has(in + "betas")) {
      const std::vector<std::string> betas = file_.texts(in + "betas");
      if (betas.size() != 2 || !parse_double(betas[0], &beta1) || !parse_double(betas[1], &beta2)) {
        file_.refuse(in + "betas", "two numbers");
      }
    }
    set("optimizer.beta1", beta1);
    set("optimizer.beta2", beta2);
    const std::string type = lower_of(file_.text(in + "optimizer", "adamw"));
    if (type != "adamw" && type != "adam") {
      file_.refuse(in + "optimizer", "AdamW");
    }
    set("train.max_grad_norm",
        file_.number(in + "clip_grad", file_.number(kActor + "grad_clip", 1)));
    read_schedule(in, lr, "train.", "train.warmup", updates_);
  }

  /// Reads the course of a learning rate from a section `optim`, into keys that begin with `to`.
  /// verl counts steps, of `updates` each.
  void read_schedule(const std::string& in, double lr, const std::string& to,
                     const std::string& to_warmup, int64_t updates) {
    const std::string style = file_.has(in + "warmup_style")     ? in + "warmup_style"
                              : file_.has(in + "lr_decay_style") ? in + "lr_decay_style"
                                                                 : in + "lr_scheduler_type";
    const std::string schedule = file_.one_of(style, "constant", {"constant", "cosine", "linear"});
    set(to + "schedule", schedule);
    set(to + "min_lr", file_.has(in + "min_lr") ? file_.number(in + "min_lr", 0)
                                                : lr * file_.number(in + "min_lr_ratio", 0));
    const int64_t warmup = file_.integer(in + "lr_warmup_steps", -1);
    if (warmup >= 0) {
      set(to_warmup + "_steps", product_at_most({warmup, updates}));
    } else {
      set(to_warmup + "_share", file_.number(in + "lr_warmup_steps_ratio", 0));
    }
  }

  void read_adapter() {
    const bool nested = file_.integer(kModel + "lora.rank", 0) > 0;
    const int64_t rank = nested ? file_.integer(kModel + "lora.rank", 0)
                                : file_.at_least(0, kModel + "lora_rank", 0);
    if (rank == 0) {
      file_.leave(kModel + "lora_alpha", "lora_rank is 0");
      file_.leave(kModel + "target_modules", "lora_rank is 0");
      return;
    }
    set("adapter.type", std::string("lora"));
    set("adapter.r", rank);
    set("adapter.alpha",
        nested ? file_.number(kModel + "lora.alpha", 32) : file_.number(kModel + "lora_alpha", 16));
    const std::vector<std::string> targets = file_.texts(kModel + "target_modules");
    set("adapter.targets", targets.empty() || nested ? std::string("[all-linear]")
                                                     : fmt::format("[{}]", join(targets, ", ")));
  }

  void read_trainer() {
    if (file_.has("trainer.total_training_steps")) {
      set("train.steps",
          product_at_most({file_.at_least(1, "trainer.total_training_steps", 1), updates_}));
      file_.leave("trainer.total_epochs", "total_training_steps says how many steps there are");
    } else {
      set("train.epochs", file_.number("trainer.total_epochs", 30));
    }
    // verl counts steps, and these keys count updates.
    for (const auto& [theirs, ours, times] :
         {std::tuple{"trainer.save_freq", "train.save_every", updates_},
          {"trainer.test_freq", "train.eval_every", updates_},
          {"trainer.max_actor_ckpt_to_keep", "train.keep_last", int64_t{1}}}) {
      if (const int64_t every = file_.integer(theirs, -1); every >= 0) {
        set(ours, product_at_most({every, times}));
      }
    }
    if (!file_.text("trainer.rollout_data_dir", "").empty()) {
      set("rl.trajectories", true);
    }
    const std::string folder = file_.text("trainer.default_local_dir", "");
    if (!folder.empty() && folder.find("${") == folder.npos) {
      set("output.dir", folder);
    }
  }

  void read_data() {
    std::string sources, columns;
    if (const std::string key = file_.text("data.prompt_key", "prompt"); key != "prompt") {
      columns = fmt::format(", columns: {{prompt: {}}}", nlohmann::json(key).dump());
    }
    for (const auto& [path, part] :
         {std::pair{"data.train_files", "train"}, {"data.val_files", "valid"}}) {
      for (const std::string& file : file_.texts(path)) {
        sources += fmt::format("{}{{path: \"{}\", split: {}{}}}", sources.empty() ? "" : ", ", file,
                               part, columns);
      }
    }
    if (!sources.empty()) {
      set("data.sources", "[" + sources + "]");
    }
    if (file_.has("data.seed")) {
      set("train.seed", file_.at_least(0, "data.seed", 0));
    }
    if (!file_.truth("data.shuffle", true)) {
      note("data.shuffle = false: prompts are in an order by train.seed here");
    }
  }

  void read_rewards() {
    if (beside_.has("rl.rewards")) {
      file_.use_all("custom_reward_function.reward_kwargs");
      file_.use_all("reward.custom_reward_function.reward_kwargs");
      return;
    }
    for (const char* path : {"reward_model.enable", "reward.reward_model.enable"}) {
      if (!file_.truth(path, false)) continue;
      file_.refuse(path,
                   "false: no reward model runs here; try --set 'rl.rewards=[{type: http, ...}]', "
                   "a judge, or a command (docs/rewards.md)");
    }
    for (const std::string in : {"custom_reward_function.", "reward.custom_reward_function."}) {
      std::string file = file_.text(in + "path", "");
      if (file.empty()) continue;
      if (constexpr std::string_view kModule = "pkg://"; file.starts_with(kModule)) {
        file = file.substr(kModule.size());
        std::replace(file.begin(), file.end(), '/', '.');
      }
      for (const char* manager : {"reward_model.reward_manager", "reward.reward_manager.name"}) {
        if (file_.text(manager, "") != "batch") continue;
        file_.refuse(manager,
                     "a manager that scores one answer at a time, for functions that may compare "
                     "answers; try --set rl.rewards=VALUE");
      }
      const std::string function = file_.text(in + "name", "");
      const std::string command = "python3 tools/reward_shim.py " +
                                  shell_quoted(file + (function.empty() ? "" : ":" + function)) +
                                  " --style verl";
      set("rl.rewards",
          fmt::format("[{{type: exec, command: {}}}]", nlohmann::json(command).dump()));
      note(
          fmt::format("rl.rewards runs {} by tools/reward_shim.py of Hocket's sources: a path from "
                      "the folder that the run starts in (docs/rewards.md)",
                      file));
      return;
    }
    set("rl.rewards", std::string("[{type: exact}]"));
    note(
        "rl.rewards is exact, equality with the ground truth: verl chooses a reward by the data; "
        "try --set 'rl.rewards=[{type: gsm8k}]'");
  }

  bool is_megatron_ = false;
  int64_t mini_batches_ = 1, updates_ = 1;  ///< of a step: parts of its samples, all updates
};

}  // namespace

Imported import_verl(const std::string& text, const std::string& name, const RanksOfFile& ranks,
                     const Beside& beside) {
  return VerlImport(text, name, ranks, beside).run();
}

}  // namespace hocket::interop
