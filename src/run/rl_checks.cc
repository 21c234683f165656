// SPDX-License-Identifier: Apache-2.0
#include "run/rl_checks.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "base/error.h"
#include "parallel/schedules/schedule.h"

namespace hocket::engine {

namespace {

/// Throws Error if no step can be made: by its numbers of prompts, its schedule or its samples.
void expect_steps(const Run& run) {
  const RlSection& rl = run.config.rl;
  const std::string& name = run.name;
  if (rl.prompts_per_step % rl.update_prompts() != 0) {
    fail(name, "rl.prompts_per_update is {}; expected a divisor of rl.prompts_per_step {}",
         rl.update_prompts(), rl.prompts_per_step);
  }
  if (parallel::is_schedule_file(run.config.plan.pp_schedule)) {
    fail(name,
         "plan.pp_schedule is the file {}, which is of one number of micro-batches, and updates "
         "have as many as their samples need; expected the name of a schedule",
         run.config.plan.pp_schedule);
  }
  if (rl.rewards.empty()) {
    fail(name, "rl.rewards is empty; expected at least one, such as {{type: exact}}");
  }
  if (std::find(rl.stop.begin(), rl.stop.end(), "") != rl.stop.end()) {
    fail(name, "rl.stop has an empty string; expected some text");
  }
}

void expect_advantages(const Run& run) {
  const RlSection& rl = run.config.rl;
  const std::string& name = run.name;
  if (rl.advantage == "rloo" && rl.samples_per_prompt < 2) {
    fail(name, "rl.advantage is rloo, and rl.samples_per_prompt 1; expected 2 or more");
  }
  if (rl.whitens() && rl.prompts_per_step * rl.samples_per_prompt * rl.max_new_tokens == 1) {
    fail(name,
         "rl.advantage is {}, which divides by the deviation over the tokens of a step, and a step "
         "has one: rl.prompts_per_step, samples_per_prompt and max_new_tokens are 1; expected one "
         "of them to be 2 or more",
         rl.advantage);
  }
  const bool discounts = rl.advantage == "reinforce_plus_plus";
  const bool per_token = rl.advantage == "gae" || (discounts && rl.gamma < 1) ||
                         (discounts && rl.kl_coef > 0 && rl.kl_in == "reward") ||
                         (rl.correction.type == "tis" && rl.correction.level == "token");
  if (rl.loss == "gspo" && per_token) {
    fail(name,
         "rl.loss is gspo, whose ratio is of whole samples, and advantages differ from token to "
         "token (rl.advantage {}, kl_in {}, gamma {}, correction {} of a {}); try rl.loss: ppo",
         rl.advantage, rl.kl_in, rl.gamma, rl.correction.type, rl.correction.level);
  }
}

}  // namespace

void expect_rl(const Run& run) {
  const RlSection& rl = run.config.rl;
  const std::string& name = run.name;
  expect_steps(run);
  expect_advantages(run);
  if (rl.dual_clip > 0 && !(rl.dual_clip > 1)) {
    fail(name, "rl.dual_clip is {}; expected a number above 1, or 0 for none", rl.dual_clip);
  }
  if (rl.dynamic_sampling.on && rl.samples_per_prompt < 2) {
    fail(name,
         "rl.dynamic_sampling.on is true, and rl.samples_per_prompt 1: no group has different "
         "rewards; expected 2 or more");
  }
  if (rl.overlong.buffer > rl.max_new_tokens) {
    fail(name, "rl.overlong.buffer is {}; expected at most rl.max_new_tokens {}",
         rl.overlong.buffer, rl.max_new_tokens);
  }
  if (rl.correction.type == "mis" && rl.correction.low > rl.correction.high) {
    fail(name, "rl.correction.low is {}; expected at most rl.correction.high {}", rl.correction.low,
         rl.correction.high);
  }
  const std::string& type = run.config.model.dtype;
  if (rl.advantage == "gae" && (type == "bf16" || type == "f16")) {
    fail(name, "rl.advantage is gae, and model.dtype {}; expected f32 or f64", type);
  }
  if (run.config.train.compares()) {
    fail(
        name,
        "train.{} goes by held-out loss, and objective is rl; expected it left out; try eval_every "
        "and save_every",
        run.config.train.keep_best ? "keep_best" : "early_stopping");
  }
  const bool again = rl.old_logprobs == "trainer";
  if (rl.correction.type != "none" && !again) {
    fail(name,
         "rl.correction.type is {}, and rl.old_logprobs rollout: the ratio is anchored at the "
         "samples' own policy, and there is nothing to correct; try rl.old_logprobs: trainer",
         rl.correction.type);
  }
}

void expect_strict(const Run& run) {
  const RlSection& rl = run.config.rl;
  if (!rl.strict) return;
  const passes::PassOptions& options = run.config.plan.pass_options;
  const auto refuse = [&](const std::string& what) {
    fail(run.name,
         "{}, so that log-probabilities of sampling and training differ; try rl.strict: false, "
         "which measures the difference in every step",
         what);
  };
  if (run.plan.cp > 1) {
    refuse(fmt::format("plan.cp is {}: keys are added in the order of ranks", run.plan.cp));
  }
  const int64_t key_heads = run.model.num_kv_heads;
  if (key_heads != run.model.num_heads && key_heads % run.plan.tp != 0) {
    refuse(
        fmt::format("plan.tp is {}, which does not divide the {} key heads: sampling attends "
                    "with all heads on every rank",
                    run.plan.tp, key_heads));
  }
  if (run.c10d && run.plan.tp > 1) {
    refuse("plan.collectives is c10d: sums have an order of its own");
  }
  for (const char* key : {"comm_tiles", "all_reduce", "reduce_scatter", "all_gather"}) {
    if (run.plan.world() > 1 && options.text(key) != passes::PassOptions().text(key)) {
      refuse(fmt::format("plan.{} is {}: sums have another order", key, options.text(key)));
    }
  }
  if (const std::string& type = run.config.model.dtype; type == "bf16" || type == "f16") {
    refuse(fmt::format("model.dtype is {}: sampling rounds logits to it", type));
  }
  if (run.config.train.dropout > 0) {
    refuse(fmt::format("train.dropout is {}", run.config.train.dropout));
  }
  if (run.lora && run.config.adapter.dropout > 0) {
    refuse(fmt::format("adapter.dropout is {}", run.config.adapter.dropout));
  }
}

}  // namespace hocket::engine
