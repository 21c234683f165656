// SPDX-License-Identifier: Apache-2.0
// Implements: fields() of section rl (rl_section.h).
#include "run/rl_section.h"

namespace hocket::engine {

namespace {

constexpr double kMaxCount = 1 << 24;  // of prompts, samples, tokens: far beyond any practical run

}  // namespace

void RewardSection::fields(Fields& fields) {
  fields("type", type,
         "kind of reward: exact, regex, gsm8k, countdown, digits, length, json_schema are rules; "
         "exec, a command that reads and writes lines of JSON; http, a judge behind an OpenAI "
         "server (docs/rewards.md)")
      .required()
      .one_of({"exact", "regex", "gsm8k", "countdown", "digits", "length", "json_schema", "exec",
               "http"});
  fields("name", name, "name in metrics and trajectories; default: the type");
  fields("weight", weight, "factor of this reward in the sum");
  fields(
      "extract", extract,
      "part of the answer that rules compare: auto (all; of gsm8k and countdown their own), all, "
      "last_line, answer (the last <answer>...</answer>), after:TEXT (behind its last "
      "occurrence)");
  fields("pattern", pattern,
         "for regex: pattern (PCRE2) whose match is worth 1; with a group, if that equals the "
         "ground truth");
  fields("schema", schema,
         "for json_schema: file with the schema; empty: the sample's column json_schema");
  fields("form", form,
         "for json_schema: value, JSON whose value the schema allows; strict, the texts that "
         "structured output writes")
      .one_of({"value", "strict"});
  fields("target_length", target_length,
         "for length: tokens of the answer for a reward of 1; farther ones fall to 0 at none and "
         "at twice as many")
      .min(0);
  fields("format_score", format_score,
         "for gsm8k and countdown: reward of a wrong answer in the right form");
  fields("command", command,
         "for exec: command that gets a line {data_source, solution_str, ground_truth, extra_info} "
         "a sample, and answers each with a line, a number or {score, ...}");
  fields("processes", processes, "for exec: processes of the command at a time").min(1).max(1024);
  fields("url", url, "for http: address of the server, up to and without /v1");
  fields("judge_model", judge_model, "for http: name of the model");
  fields("judge_prompt", judge_prompt,
         "for http: message to the judge, with {prompt}, {answer} and {ground_truth} in it");
  fields("judge_pattern", judge_pattern,
         "for http: pattern whose last match in the judge's answer holds the reward, in its group; "
         "default: the last number, which may not be a fraction or have a comma");
  fields("api_key_env", api_key_env, "for http: environment variable with the key");
  fields("timeout_s", timeout_s, "for exec and http: seconds for one sample").min(0.01).max(1e6);
  fields("start_timeout_s", start_timeout_s,
         "for exec: seconds for the start of a process that says when it is ready, as "
         "tools/reward_shim.py does after its imports")
      .min(0.01)
      .max(1e6);
  fields("busy_timeout_s", busy_timeout_s,
         "for http: seconds that a sample waits in all for a judge that answers 429 or 503 (too "
         "many requests), before its reward fails")
      .min(0)
      .max(1e6);
  fields("retries", retries, "for exec and http: further tries after a failure").min(0).max(100);
  fields(
      "failed_score", failed_score,
      "score in place of a reward that failed at every try; such samples are counted and marked, "
      "and by default not trained (rl.failed_samples)");
}

void CorrectionSection::fields(Fields& fields) {
  fields("type", type,
         "weight of a token or sample, pi_old / mu by the rollout's log-probabilities, with "
         "old_logprobs trainer: none; tis, cut off at `high`; mis, left out outside of [low, high]")
      .one_of({"none", "tis", "mis"});
  fields("level", level,
         "unit of the weight: token, the ratio of every token; sequence, of the whole sample "
         "(their product); geometric, their geometric mean")
      .one_of({"token", "sequence", "geometric"});
  fields("low", low, "lowest ratio that counts, for mis").min(0);
  fields("high", high, "highest weight, for tis; highest ratio that counts, for mis").min(0);
}

void DynamicSamplingSection::fields(Fields& fields) {
  fields("on", on,
         "leave out groups whose samples all have the same reward, and sample further prompts "
         "until the step is full");
  fields("max_rounds", max_rounds,
         "rounds of generation in a step, after which the run ends; 0: no limit")
      .min(0)
      .max(1e6);
}

void OverlongSection::fields(Fields& fields) {
  fields("filter", filter, "leave samples that max_new_tokens cuts off out of the loss");
  fields(
      "buffer", buffer,
      "tokens before max_new_tokens in which the reward falls linearly, by `penalty` at the end; "
      "0: none")
      .min(0)
      .max(kMaxCount);
  fields("penalty", penalty, "largest penalty of a long sample").min(0);
}

void CriticSection::fields(Fields& fields) {
  fields("path", path, "MODEL that the critic begins with; default: the policy's weights");
  fields("lr", lr, "peak learning rate of the critic; 0: train.lr").min(0);
  fields("schedule", schedule,
         "schedule of the critic's learning rate over its own updates (with wsd by "
         "train.decay_share and decay); default: train.schedule")
      .one_of({"constant", "linear", "cosine", "wsd"});
  fields("min_lr", min_lr,
         "learning rate at the end; default: the same share of lr as the policy's has of train.lr")
      .min(0);
  fields("lr_warmup_steps", lr_warmup_steps,
         "updates of the critic with a linear warm-up; default: train.warmup_steps")
      .min(0);
  fields("lr_warmup_share", lr_warmup_share,
         "warm-up as a share of the critic's updates, rounded up; default: train.warmup_share")
      .min(0)
      .max(1);
  fields("clip", clip,
         "distance from the old values beyond which values do not lower the loss; 0: all do")
      .min(0);
  fields("warmup_steps", warmup_steps, "steps in which the critic alone is trained").min(0);
  fields("epochs", epochs, "times that a step's samples train the critic").min(1).max(1000);
}

namespace {

/// Declares the keys of prompts and their samples.
void add_sample_keys(RlSection& rl, Fields& fields) {
  fields("prompts_per_step", rl.prompts_per_step, "prompts to sample at a time")
      .min(1)
      .max(kMaxCount);
  fields("samples_per_prompt", rl.samples_per_prompt, "samples of a prompt: a group")
      .min(1)
      .max(kMaxCount);
  fields("prompts_per_update", rl.prompts_per_update,
         "prompts whose samples make an optimizer step; 0: all of the step")
      .min(0)
      .max(kMaxCount);
  fields("epochs", rl.epochs, "times that a step's samples are trained on").min(1).max(1000);
  fields("max_prompt_tokens", rl.max_prompt_tokens,
         "tokens above which prompts are left out, and counted; 0: only prompts that leave no room "
         "for an answer are left out")
      .min(0)
      .max(kMaxCount);
  fields("max_new_tokens", rl.max_new_tokens, "most tokens of a sample").min(1).max(kMaxCount);
  fields("temperature", rl.temperature,
         "temperature of sampling, at which log-probabilities are taken, too")
      .min(1e-3)
      .max(1e3);
  fields("top_p", rl.top_p, "sample from the most likely tokens up to this share").min(1e-6).max(1);
  fields("top_k", rl.top_k, "sample from the k most likely tokens; 0: from all").min(0);
  fields("min_p", rl.min_p, "sample no token below this share of the most likely one's probability")
      .min(0)
      .max(1);
  fields("stop", rl.stop, "strings that end a sample");
}

/// Declares the keys of advantages and losses.
void add_loss_keys(RlSection& rl, Fields& fields) {
  fields("advantage", rl.advantage,
         "estimate of the advantage: grpo, (reward - mean) / deviation of the group; dr_grpo, "
         "without the deviation; rloo, against the mean of the others; reinforce, the reward; "
         "reinforce_plus_plus and reinforce_plus_plus_baseline, whitened over the batch; gae, by a "
         "critic (docs/rl.md)")
      .one_of({"grpo", "dr_grpo", "rloo", "reinforce", "reinforce_plus_plus",
               "reinforce_plus_plus_baseline", "gae"});
  fields("gamma", rl.gamma, "discount, for gae and reinforce_plus_plus").min(0).max(1);
  fields("lambda", rl.lambda, "exponential weight of generalized advantage estimation, for gae")
      .min(0)
      .max(1);
  fields("lambda_length", rl.lambda_length,
         "factor of a lambda by length, for gae: if above 0, lambda of a sample of n tokens is 1 - "
         "1 / (lambda_length n), or 0 if that is below, in place of `lambda` (arXiv 2504.05118)")
      .min(0);
  fields("loss", rl.loss,
         "loss of the policy: ppo, clipped ratio of a token; gspo, of a sample (arXiv 2507.18071); "
         "cispo, clipped weight (arXiv 2506.13585); reinforce, the log-probability times the "
         "advantage")
      .one_of({"ppo", "gspo", "cispo", "reinforce"});
  fields("clip_low", rl.clip_low, "distance of the lower clip: ratios are clipped at 1 - clip_low")
      .min(0);
  fields("clip_high", rl.clip_high,
         "distance of the upper clip: ratios are clipped at 1 + clip_high")
      .min(0);
  fields("dual_clip", rl.dual_clip,
         "limit of ppo's negative advantages: if above 1, one counts at most so many times (arXiv "
         "1912.09729)")
      .min(0);
  fields(
      "aggregation", rl.aggregation,
      "mean of an update's losses: token-mean, over all tokens; token-sum; seq-mean-token-sum, "
      "over samples; seq-mean-token-sum-norm, also divided by `horizon`; seq-mean-token-mean, of "
      "every sample's mean")
      .one_of({"token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-sum-norm",
               "seq-mean-token-mean"});
  fields("tokens_in_mean", rl.tokens_in_mean,
         "tokens that token-mean divides by: update, those of the update, as in verl; step, the "
         "update's share of the step's, as in TRL. Tokens left out of the loss do not count")
      .one_of({"update", "step"});
  fields("samples_in_mean", rl.samples_in_mean,
         "samples that seq-mean-... divide by: all of the update, as verl's trainer and TRL; "
         "trained, those with a token that is in the loss")
      .one_of({"all", "trained"});
  fields("horizon", rl.horizon, "divisor of seq-mean-token-sum-norm; 0: max_new_tokens").min(0);
  fields("kl_coef", rl.kl_coef, "weight of the divergence from the reference; 0: there is none")
      .min(0);
  fields("kl_estimator", rl.kl_estimator,
         "estimate of the divergence, by d = log pi - log reference: k1, d; k2, d^2 / 2; k3, "
         "exp(-d) - 1 + d")
      .one_of({"k1", "k2", "k3"});
  fields("kl_in", rl.kl_in,
         "place of the divergence: added to the loss, or subtracted from every token's reward")
      .one_of({"loss", "reward"});
  fields("reference", rl.reference,
         "MODEL of the frozen reference, of the model's configuration; default: the weights that "
         "the training begins with, or under an adapter the model without it");
  fields("entropy_coef", rl.entropy_coef, "weight of the entropy that is added to the objective");
}

/// Declares the keys of the ratio's anchor, and the sections.
void add_section_keys(RlSection& rl, Fields& fields) {
  fields("old_logprobs", rl.old_logprobs,
         "anchor of the ratio: rollout, the log-probabilities of sampling; trainer, computed again "
         "before the first update of a step")
      .one_of({"rollout", "trainer"});
  fields("routing_replay", rl.routing_replay,
         "send every token to the experts that it had when it was sampled (arXiv 2510.11370), also "
         "after the first update of a step");
  fields("correction", rl.correction,
         "correction of samples of another policy than the ratio's anchor");
  fields("dynamic_sampling", rl.dynamic_sampling,
         "sampling of groups with different rewards only, as in DAPO");
  fields("overlong", rl.overlong, "treatment of samples that are too long, as in DAPO");
  fields("critic", rl.critic, "value model, for advantage gae");
}

/// Declares the keys of rewards, evaluations, and the engine that samples.
void add_run_keys(RlSection& rl, Fields& fields) {
  fields("rewards", rl.rewards, "rewards of a sample; their weighted sum is its reward");
  fields("reward_workers", rl.reward_workers, "threads that score samples, beside generation")
      .min(1)
      .max(1024);
  fields("max_failed_rewards", rl.max_failed_rewards,
         "share of a step's samples whose reward may fail; above it the run ends with an error")
      .min(0)
      .max(1);
  fields("failed_samples", rl.failed_samples,
         "treatment of samples with a failed reward: leave_out, of means, deviations and loss; "
         "score, trained with the reward's failed_score. Trajectories have them in any case")
      .one_of({"leave_out", "score"});
  fields("strict", rl.strict,
         "end the run at a difference between the log-probabilities of sampling and of training, "
         "and refuse plans that have one");
  fields("eval_prompts", rl.eval_prompts, "held-out prompts of an evaluation; 0: all").min(0);
  fields("eval_samples", rl.eval_samples, "samples of a held-out prompt: pass@k up to this k")
      .min(1);
  fields("eval_temperature", rl.eval_temperature,
         "temperature of evaluations; 0: the most likely tokens (with eval_samples above 1: "
         "`temperature`)")
      .min(0);
  fields("right_from", rl.right_from,
         "lowest score of the first reward that is a right answer, for pass@k");
  fields("trajectories", rl.trajectories, "write every sample to output.dir/trajectories");
  fields("max_num_seqs", rl.max_num_seqs,
         "most samples that are drawn at a time, on a data-parallel rank")
      .min(1)
      .max(kMaxCount);
  fields("max_num_batched_tokens", rl.max_num_batched_tokens,
         "most new tokens of a step of generation, on a data-parallel rank")
      .min(1)
      .max(kMaxCount);
  fields("prefix_caching", rl.prefix_caching,
         "share the keys and values of a prompt between its samples");
  fields("kv_cache_memory", rl.kv_cache_memory,
         "memory of a data-parallel rank's KV cache; default: room for max_num_seqs samples")
      .unit(Unit::bytes)
      .min(1);
}

}  // namespace

void RlSection::fields(Fields& fields) {
  add_sample_keys(*this, fields);
  add_loss_keys(*this, fields);
  add_section_keys(*this, fields);
  add_run_keys(*this, fields);
}

}  // namespace hocket::engine
