// SPDX-License-Identifier: Apache-2.0
// Scripts and YAML of verl as runs.
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "base/text.h"
#include "interop/foreign.h"
#include "tests/interop/importers_util.h"

namespace hocket::interop {
namespace {

TEST(Verl, ReadsAScriptWithOverrides) {
  const Imported found = import_verl(kVerl, "run.sh", {});
  EXPECT_EQ(found.model_path, "some/model");
  expect_keys(found, {{"objective", "rl"},
                      {"rl.advantage", "grpo"},
                      {"rl.prompts_per_step", "64"},
                      {"rl.prompts_per_update", "32"},
                      {"rl.samples_per_prompt", "5"},
                      {"rl.max_new_tokens", "256"},
                      {"rl.kl_coef", "0.001"},
                      {"rl.kl_estimator", "k3"},
                      {"rl.kl_in", "loss"},
                      {"rl.dual_clip", "3"},
                      {"train.seq_len", "384"},
                      {"train.lr", "2e-06"},
                      {"train.epochs", "15"},
                      {"plan.dp", "16"},
                      {"plan.ranks_per_node", "8"},
                      {"plan.micro_batch", "4"},
                      {"plan.shard.params", "all"},
                      {"plan.recompute", "full"}});
}

/// The same as YAML, under Megatron, with tokens for micro-batches and DAPO's settings.
TEST(Verl, ReadsYamlForMegatron) {
  const std::string yaml =
      "actor_rollout_ref:\n  model: {path: m, lora_rank: 8, lora_alpha: 16}\n  actor:\n"
      "    strategy: megatron\n    use_dynamic_bsz: true\n    ppo_max_token_len_per_gpu: 4096\n"
      "    clip_ratio_high: 0.28\n    loss_agg_mode: token-mean\n    policy_loss: {loss_mode: "
      "gspo}\n"
      "    megatron: {tensor_model_parallel_size: 2, pipeline_model_parallel_size: 2,\n"
      "      virtual_pipeline_model_parallel_size: 2, context_parallel_size: 2}\n"
      "algorithm: {adv_estimator: gae, lam: 0.95, filter_groups: {enable: true}}\n"
      "reward_model: {overlong_buffer: {enable: true, len: 64, penalty_factor: 0.5}}\n"
      "critic: {optim: {lr: 1e-5, lr_scheduler_type: cosine, min_lr_ratio: 0.5, lr_warmup_steps: "
      "7}}\ntrainer: {nnodes: 1, n_gpus_per_node: 16}\n";
  expect_keys(import_verl(yaml, "ppo.yaml", {}), {{"plan.tp", "2"},
                                                  {"plan.pp", "2"},
                                                  {"plan.cp", "2"},
                                                  {"plan.dp", "2"},
                                                  {"plan.pp_chunks", "2"},
                                                  {"plan.sequence_parallel", "true"},
                                                  {"plan.shard.optimizer", "all"},
                                                  {"train.seq_len", "8192"},
                                                  {"rl.loss", "gspo"},
                                                  {"rl.clip_high", "0.28"},
                                                  {"rl.advantage", "gae"},
                                                  {"rl.lambda", "0.95"},
                                                  {"rl.critic.lr", "1e-05"},
                                                  {"rl.critic.schedule", "cosine"},
                                                  {"rl.critic.min_lr", "5e-06"},
                                                  {"rl.critic.lr_warmup_steps", "28"},
                                                  {"train.schedule", "constant"},
                                                  {"rl.dynamic_sampling.on", "true"},
                                                  {"rl.overlong.buffer", "64"},
                                                  {"adapter.r", "8"}});
}

/// verl counts steps, each with an update per mini-batch and epoch.
TEST(Verl, CountsUpdatesWhereVerlCountsSteps) {
  const std::string yaml =
      "actor_rollout_ref:\n  actor: {ppo_mini_batch_size: 16, ppo_epochs: 3, optim: "
      "{lr_warmup_steps: 5}}\n"
      "data: {train_batch_size: 64}\n"
      "trainer: {n_gpus_per_node: 1, total_training_steps: 10, save_freq: 2, test_freq: 1, "
      "max_actor_ckpt_to_keep: 4}\n";
  expect_keys(import_verl(yaml, "ppo.yaml", {}), {{"train.steps", "120"},
                                                  {"train.save_every", "24"},
                                                  {"train.eval_every", "12"},
                                                  {"train.warmup_steps", "60"},
                                                  {"train.keep_last", "4"}});
}

/// Weights of samples of another policy, held-out prompts, and keys of columns.
TEST(Verl, ReadsCorrectionsHeldOutPromptsAndColumns) {
  const std::string yaml =
      "actor_rollout_ref:\n  actor: {loss_agg_mode: seq-mean-token-sum-norm, loss_scale_factor: "
      "300,\n"
      "    router_replay: {mode: R3}}\n"
      "  rollout: {val_kwargs: {do_sample: true, temperature: 0.6, n: 4}}\n"
      "algorithm:\n  rollout_correction: {rollout_is: sequence, rollout_is_threshold: 5.0, "
      "bypass_mode: false}\n"
      "data: {train_files: a.jsonl, prompt_key: question, val_max_samples: 100}\n"
      "reward_model:\n  reward_kwargs: {max_resp_len: 512, overlong_buffer_cfg: {enable: true, "
      "len: 64, penalty_factor: 0.5}}\n"
      "trainer: {n_gpus_per_node: 1, rollout_data_dir: out}\n";
  const Imported found = import_verl(yaml, "ppo.yaml", {});
  expect_keys(found, {{"rl.horizon", "300"},
                      {"rl.routing_replay", "true"},
                      {"rl.eval_temperature", "0.6"},
                      {"rl.eval_samples", "4"},
                      {"rl.eval_prompts", "100"},
                      {"rl.old_logprobs", "trainer"},
                      {"rl.correction.type", "tis"},
                      {"rl.correction.level", "sequence"},
                      {"rl.correction.high", "5"},
                      {"rl.overlong.buffer", "64"},
                      {"rl.overlong.penalty", "0.5"},
                      {"rl.trajectories", "true"},
                      {"data.sources",
                       "[{path: \"a.jsonl\", split: train, columns: {prompt: \"question\"}}]"}});
  const std::string of_megatron =
      replaced(yaml, "router_replay: {mode: R3}", "megatron: {router_replay: {mode: R3}}");
  expect_keys(import_verl(of_megatron, "ppo.yaml", {}), {{"rl.routing_replay", "true"}});
  const Imported bypass =
      import_verl(replaced(replaced(yaml, "bypass_mode: false", "bypass_mode: true"),
                           "do_sample: true", "do_sample: false"),
                  "ppo.yaml", {});
  expect_keys(bypass, {{"rl.old_logprobs", "rollout"}, {"rl.eval_prompts", "100"}});
  EXPECT_EQ(bypass.keys.count("rl.correction.type") + bypass.keys.count("rl.eval_samples"), 0u);
  std::string notes;
  for (const std::string& line : bypass.notes) {
    notes += line + "\n";
  }
  EXPECT_TRUE(says(notes, "rollout_is = sequence: samples are not weighed in bypass mode"))
      << notes;
}

/// verl's names with k1 limit mu / pi_old, and older ones pi_old / mu as here.
TEST(Verl, ReadsWhatIsLeftOutByItsRatio) {
  const auto with = [](const std::string& settings, const Beside& beside = {}) {
    return import_verl(
        "trainer: {n_gpus_per_node: 1}\nalgorithm: {rollout_correction: {" + settings + "}}\n",
        "grpo.yaml", {}, beside);
  };
  expect_keys(with("rollout_rs: token_k1, rollout_rs_threshold: 0.25_2"),
              {{"rl.correction.type", "mis"},
               {"rl.correction.level", "token"},
               {"rl.correction.low", "0.5"},
               {"rl.correction.high", "4"}});
  expect_keys(with("rollout_rs: seq_mean_k1, rollout_rs_threshold: 4"),
              {{"rl.correction.level", "geometric"},
               {"rl.correction.low", "0.25"},
               {"rl.correction.high", "4"}});
  expect_keys(
      with("rollout_rs: sequence, rollout_rs_threshold: 2, rollout_rs_threshold_lower: 0.1"),
      {{"rl.correction.level", "sequence"},
       {"rl.correction.low", "0.1"},
       {"rl.correction.high", "2"}});
  for (const char* refused : {"rollout_rs: token_k3, rollout_rs_threshold: 2",
                              "rollout_rs: token_k1, rollout_rs_threshold: 2, bypass_mode: true",
                              "rollout_rs: token_k1, rollout_rs_threshold: 2, rollout_is: token"}) {
    EXPECT_TRUE(says(refusal_of([&] { with(refused); }), "try --set rl.correction.type=mis"))
        << refused;
  }
  EXPECT_TRUE(says(refusal_of([&] { with("rollout_rs: token_k1"); }), "a number above 0"));
  Beside beside;
  beside.keys = {"rl.correction.type"};
  EXPECT_EQ(with("rollout_rs: token_k3", beside).keys.count("rl.correction.type"), 0u);
}

/// A reward function in a file is run by the shim, and a critic needs f32.
TEST(Verl, ReadsRewardFunctionsAndCritics) {
  const auto with = [](const std::string& settings, const Beside& beside = {}) {
    return import_verl(replaced(kVerl, " $@", " " + settings + " $@"), "run.sh", {}, beside);
  };
  const Imported own = with("custom_reward_function.path=rw/my.py data.seed=7");
  expect_keys(own,
              {{"rl.rewards",
                "[{type: exec, command: \"python3 tools/reward_shim.py rw/my.py --style verl\"}]"},
               {"train.seed", "7"},
               {"model.dtype", "bf16"}});
  EXPECT_TRUE(says(join(own.notes, "\n"), "rl.rewards runs rw/my.py")) << join(own.notes, "\n");
  expect_keys(
      with("reward.custom_reward_function.path=rw/my.py reward.custom_reward_function.name=f"),
      {{"rl.rewards",
        "[{type: exec, command: \"python3 tools/reward_shim.py rw/my.py:f --style verl\"}]"}});
  expect_keys(
      with("custom_reward_function.path=pkg://my.mod custom_reward_function.name=f"),
      {{"rl.rewards",
        "[{type: exec, command: \"python3 tools/reward_shim.py my.mod:f --style verl\"}]"}});
  const Imported gae = with("algorithm.adv_estimator=gae");
  expect_keys(gae, {{"model.dtype", "f32"}});
  EXPECT_TRUE(says(join(gae.notes, "\n"), "model.dtype is f32")) << join(gae.notes, "\n");
  Beside beside;
  beside.keys = {"rl.rewards"};
  EXPECT_EQ(with("reward_model.enable=True", beside).keys.count("rl.rewards"), 0u);
  const std::string notes = join(with("data.shuffle=False actor_rollout_ref.actor.shuffle=True "
                                      "actor_rollout_ref.rollout.val_kwargs.do_sample=True "
                                      "actor_rollout_ref.rollout.val_kwargs.temperature=1 "
                                      "actor_rollout_ref.rollout.val_kwargs.top_p=0.7")
                                     .notes,
                                 "\n");
  for (const char* part : {"data.shuffle = false", "actor.shuffle", "val_kwargs.top_p"}) {
    EXPECT_TRUE(says(notes, part)) << notes;
  }
}

/// References of OmegaConf and classes of Hydra, as a generated configuration has them.
TEST(Verl, ResolvesReferencesOfOmegaConf) {
  const std::string yaml =
      "actor_rollout_ref:\n  actor:\n    _target_: verl.workers.config.FSDPActorConfig\n"
      "    ppo_epochs: 3\n    use_dynamic_bsz: ${oc.select:trainer.any,false}\n"
      "  rollout: {n: '${trainer.n_gpus_per_node}'}\n"
      "critic: {ppo_epochs: '${oc.select:actor_rollout_ref.actor.ppo_epochs,1}'}\n"
      "trainer: {n_gpus_per_node: 4}\n";
  expect_keys(import_verl(yaml, "ppo.yaml", {}),
              {{"rl.critic.epochs", "3"}, {"rl.samples_per_prompt", "4"}, {"plan.dp", "4"}});
}

TEST(Verl, RefusesWhatARunCannotExpress) {
  const struct {
    const char* setting;
    const char* part;
  } kRows[] = {
      {"actor_rollout_ref.actor.fsdp_config.param_offload=True", "nothing is offloaded here"},
      {"+actor_rollout_ref.actor.megatron.override_transformer_config."
       "num_layers_in_first_pipeline_stage=3",
       "plan.pp_layers"},
      {"+actor_rollout_ref.actor.optim.override_optimizer_config.optimizer_cpu_offload=True",
       "nothing is offloaded here"},
      {"algorithm.adv_estimator=remax", "expected one of gae, grpo"},
      {"actor_rollout_ref.actor.policy_loss.loss_mode=clip_cov", "expected vanilla, gspo or cispo"},
      {"actor_rollout_ref.actor.kl_loss_type=abs", "expected kl, mse or low_var_kl"},
      {"algorithm.use_kl_in_reward=True", "expected false beside use_kl_loss"},
      {"trainer.v1.trainer_mode=separate_async", "would make another plan"},
      {"actor_rollout_ref.rollout.multi_turn.enable=True", "an answer is of one turn here"},
      {"trainer.val_only=True", "would make another training"},
      {"reward_model.enable=True", "no reward model runs here; try --set 'rl.rewards="},
      {"custom_reward_function.path=a.py reward_model.reward_manager=batch",
       "scores one answer at a time"},
      {"+custom_reward_function.reward_kwargs.a=1", "no further arguments"},
      {"algorithm.filter_groups.enable=True algorithm.filter_groups.metric=seq_reward "
       "reward_model.overlong_buffer.enable=True reward_model.overlong_buffer.len=8",
       "expected acc, score"},
      {"algorithm.filter_groups.enable=True algorithm.filter_groups.metric=length",
       "expected acc, score"},
      {"+data.apply_chat_template_kwargs.enable_thinking=False",
       "in a column chat_template_kwargs"},
      {"data.train_max_samples=100", "every prompt of the files is read here"},
      {"algorithm.rollout_correction.rollout_is=geometric", "expected token or sequence"},
      {"actor_rollout_ref.actor.ppo_minibatch_size=8",
       "try actor_rollout_ref.actor.ppo_mini_batch_size"},
      {"actor_rollout_ref.actor.megatron.tensor_parallel_size=2", "and no release of verl has"},
      {"+data.trian_files=b", "try data.train_files"}};
  for (const auto& row : kRows) {
    const std::string script = replaced(kVerl, " $@", std::string(" ") + row.setting + " $@");
    const std::string text = refusal_of([&] { import_verl(script, "run.sh", {}); });
    EXPECT_TRUE(says(text, row.part)) << row.setting << ": " << text;
  }
}

}  // namespace
}  // namespace hocket::interop
