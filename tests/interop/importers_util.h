// SPDX-License-Identifier: Apache-2.0
// Helpers of tests of importers.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "base/error.h"
#include "interop/foreign.h"

namespace hocket::interop {

inline bool says(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

/// Text of the error of bad input that `act` throws; empty: none.
inline std::string refusal_of(const std::function<void()>& act) {
  try {
    act();
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), 2);
    return error.what();
  }
  return "";
}

inline Beside beside(std::set<std::string> keys, bool keeps_plan = true) {
  Beside all;
  all.keys = std::move(keys);
  all.keeps_plan = keeps_plan;
  return all;
}

using Expected = std::map<std::string, std::string>;

inline void expect_keys(const Imported& found, const Expected& expected) {
  for (const auto& [key, value] : expected) {
    const auto at = found.keys.find(key);
    EXPECT_EQ(at == found.keys.end() ? "(absent)" : at->second, value) << key;
  }
}

inline std::string replaced(std::string text, const std::string& old, const std::string& by) {
  const size_t at = text.find(old);
  EXPECT_NE(at, text.npos) << old;
  return at == text.npos ? text : text.replace(at, old.size(), by);
}

/// A script of verl's GRPO.
inline constexpr const char* kVerl =
    "#!/bin/bash\nset -x\nMODEL=${MODEL:-some/model}\npython3 -m verl.trainer.main_ppo \\\n"
    " algorithm.adv_estimator=grpo \\\n data.train_files=a.parquet \\\n data.train_batch_size=64 "
    "\\\n"
    " data.max_prompt_length=128 \\\n data.max_response_length=256 \\\n"
    " actor_rollout_ref.model.path=$MODEL \\\n actor_rollout_ref.actor.optim.lr=2e-6 \\\n"
    " actor_rollout_ref.actor.ppo_mini_batch_size=32 \\\n"
    " actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 \\\n"
    " actor_rollout_ref.actor.use_kl_loss=True \\\n"
    " actor_rollout_ref.actor.kl_loss_type=low_var_kl \\\n"
    " actor_rollout_ref.rollout.n=5 \\\n actor_rollout_ref.rollout.name=vllm \\\n"
    " trainer.logger='[\"console\",\"wandb\"]' \\\n trainer.n_gpus_per_node=8 \\\n"
    " trainer.nnodes=2 \\\n trainer.total_epochs=15 $@\n";

}  // namespace hocket::interop
