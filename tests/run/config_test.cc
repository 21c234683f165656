// SPDX-License-Identifier: Apache-2.0
// Values derived from given keys, and values that no training can work with.
#include "run/config.h"

#include <gtest/gtest.h>

#include "base/file.h"

#include "autodiff/autodiff.h"
#include "run/compile.h"
#include "tests/data/data_util.h"

namespace hocket::engine {
namespace {

Run run_of(const std::vector<std::string>& overrides) {
  return parse_run(
      "model: {config: {model_type: llama, vocab_size: 32, hidden_size: 8, num_hidden_layers: 8, "
      "num_attention_heads: 2, num_key_value_heads: 1, head_dim: 4, intermediate_size: 8}}\n"
      "train: {global_batch: 8, seq_len: 8}\n"
      "plan: {micro_batch: 1}\n",
      "test", overrides);
}

TEST(RunConfig, StagesFollowFromTheSchedule) {
  for (const char* schedule : {"zb-v", "dualpipev"}) {
    const engine::Run run = run_of({"plan.pp=2", fmt::format("plan.pp_schedule={}", schedule)});
    EXPECT_EQ(run.plan.pp_chunks, 2) << schedule;
    EXPECT_EQ(run.resolved.origin("plan.pp_chunks"), "plan.pp_schedule");
    // The stored configuration is a whole plan of its own.
    const engine::Run stored = parse_run(run.resolved.to_json_text(), "stored", {});
    EXPECT_EQ(stored.plan.pp_chunks, 2);
    // Given keys take precedence, and conflicts are reported.
    EXPECT_EQ(
        run_of({"plan.pp=2", "plan.pp_schedule=interleaved", "plan.pp_chunks=4"}).plan.pp_chunks,
        4);
  }
  EXPECT_EQ(run_of({"plan.pp=2"}).plan.pp_chunks, 1);
  EXPECT_TRUE(run_of({"plan.pp=2"}).resolved.is_default("plan.pp_chunks"));
}

TEST(RunConfig, RanksAndStagesFollowFromAScheduleFile) {
  const data::TempFolder folder;
  const std::string key =
      "plan.pp_schedule=" + folder.add("two.csv", "0F0,2F0,2B0,0B0\n1F0,3F0,3B0,1B0\n");
  const engine::Run run = run_of({key});
  EXPECT_EQ(run.plan.pp, 2);
  EXPECT_EQ(run.plan.pp_chunks, 2);
  EXPECT_EQ(run_of({key, "plan.pp=4"}).plan.pp_chunks, 1);
  EXPECT_EQ(run_of({key, "plan.pp=2", "plan.pp_chunks=1"}).plan.pp_chunks, 1);
}

TEST(RunConfig, EvaluationSetsAreEvaluated) {
  EXPECT_FALSE(evaluates(run_of({"objective=sft", "data.valid_fraction=0"})));
  for (const char* objective : {"sft", "pretrain"}) {
    EXPECT_TRUE(evaluates(run_of({fmt::format("objective={}", objective), "data.valid_fraction=0",
                                  "data.evaluation=[{name: a, path: b}]"})));
  }
}

TEST(RunConfig, RefusesAWeightForAHeldOutSource) {
  EXPECT_NO_THROW(
      run_of({"objective=sft", "data.sources=[{path: a, weight: 2}, {path: b, split: valid}]",
              "data.evaluation=[{name: c, sources: [{path: c}]}]"}));
  for (const char* weight : {"0", "2"}) {
    EXPECT_ERROR(
        run_of({"objective=sft", fmt::format("data.sources=[{{path: a, weight: 2}}, {{path: b, "
                                             "split: valid, weight: {}}}]",
                                             weight)}),
        fmt::format("data.sources: b has weight {}, and is held out", weight));
  }
  EXPECT_ERROR(
      run_of({"objective=sft", "data.evaluation=[{name: c, sources: [{path: d, weight: 1}]}]"}),
      "data.evaluation: c: d has weight 1, and is held out");
}

TEST(RunConfig, RefusesAnEpsThatDividesByZero) {
  for (const char* eps : {"0", "1e-46", "-1"}) {
    EXPECT_ERROR(run_of({fmt::format("optimizer.eps={}", eps)}), "optimizer.eps");
  }
  EXPECT_EQ(run_of({"optimizer.eps=1e-20"}).config.optimizer.eps, 1e-20);
}

TEST(RunConfig, KeysOfTheOptimizerMayBeAtTheirFormerPlace) {
  const engine::Run run =
      run_of({"train.optimizer=sgd", "train.beta1=0.5", "train.weight_decay=0"});
  EXPECT_EQ(run.config.optimizer.name, "sgd");
  EXPECT_EQ(run.config.optimizer.weight_decay, 0);
  EXPECT_EQ(optimizer_of(run.config.optimizer, run.config.train).momentum, 0.5);
  const engine::Run other = run_of({"train.optimizer=sgd", "optimizer.momentum=0.25"});
  EXPECT_EQ(optimizer_of(other.config.optimizer, other.config.train).momentum, 0.25);
}

TEST(RunConfig, MuonHasDefaultsOfItsOwn) {
  const engine::Run run = run_of({"optimizer.name=muon"});
  const autodiff::OptimizerConfig config = optimizer_of(run.config.optimizer, run.config.train);
  EXPECT_EQ(config.momentum, 0.95);
  EXPECT_TRUE(config.nesterov);
  EXPECT_FALSE(optimizer_of(run_of({}).config.optimizer, run.config.train).nesterov);
}

TEST(RunConfig, GroupsSayTheirLearningRateOnce) {
  const std::string groups = "optimizer.groups=[{match: [\"*norm*\"], ";
  const engine::Run run = run_of({"train.lr=0.5", groups + "lr: 0.1}]"});
  const auto config = optimizer_of(run.config.optimizer, run.config.train);
  ASSERT_EQ(config.groups.size(), 1u);
  EXPECT_DOUBLE_EQ(config.groups[0].lr_scale, 0.2);
  EXPECT_ERROR(run_of({groups + "lr: 0.1, lr_scale: 2}]"}), "expected one of them");
  EXPECT_ERROR(run_of({"train.lr=0", groups + "lr: 0.1}]"}), "expected train.lr above 0");
  EXPECT_ERROR(run_of({groups + "optimizer: adamw}]"}), "expected optimizer.name: muon");
  EXPECT_ERROR(run_of({"optimizer.groups=[{match: []}]"}), "match is empty");
}

TEST(RunConfig, RefusesTwoLengthsOfATraining) {
  EXPECT_EQ(run_of({}).config.train.num_steps(), 1000);
  EXPECT_EQ(run_of({"train.steps=7"}).config.train.num_steps(), 7);
  EXPECT_EQ(run_of({"train.tokens=640"}).config.train.num_steps(), 10);
  EXPECT_EQ(run_of({"train.tokens=641"}).config.train.num_steps(), 11);
  EXPECT_EQ(run_of({"train.epochs=2"}).config.train.num_steps(), 0);
  EXPECT_EQ(run_of({"train.minutes=2", "train.steps=9"}).config.train.num_steps(), 0);
  EXPECT_ERROR(run_of({"train.steps=7", "train.tokens=640"}), "train.steps and train.tokens");
  EXPECT_ERROR(run_of({"train.epochs=1", "train.minutes=1"}), "train.epochs and train.minutes");
  // The text that a checkpoint stores reads back.
  const engine::Run run = run_of({"train.tokens=641"});
  EXPECT_EQ(parse_run(run.resolved.to_json_text(), "stored", {}).config.train.num_steps(), 11);
}

TEST(RunConfig, NamesAModelsConfigurationInPlaceOfARun) {
  const std::string path = testing::TempDir() + "config.json";
  write_file_atomic(path, R"({"model_type": "llama", "hidden_size": 8})");
  EXPECT_ERROR(resolve_run(path, {}), "is the configuration of a model; expected a run.yaml");
}

TEST(RunConfig, LabelSmoothingNeedsASigmoidLoss) {
  EXPECT_ERROR(run_of({"preference.label_smoothing=0.1", "preference.loss_type=ipo"}),
               "expected sigmoid or sigmoid_norm");
  run_of({"preference.label_smoothing=0.1", "preference.loss_type=sigmoid_norm"});
}

TEST(RunConfig, NamesTheAdaptersThatAreNotSupported) {
  for (const char* const setting : {"adapter.use_dora=true", "adapter.type=dora", "adapter=dora"}) {
    EXPECT_ERROR(run_of({setting}), ": DoRA is not supported; expected plain LoRA");
  }
  for (const char* const setting :
       {"adapter.type=qlora", "adapter.load_in_4bit=true", "adapter.load_in_8bit=true",
        "model.load_in_4bit=true", "load_in_4bit=true", "adapter=qlora"}) {
    EXPECT_ERROR(run_of({setting}), ": QLoRA is not supported");
  }
  run_of({"adapter.use_dora=false", "adapter.load_in_4bit=false", "model.load_in_8bit=null"});
  EXPECT_ERROR(run_of({"adapter.type=qalora"}), ": QALoRA is not supported");
  EXPECT_ERROR(run_of({"adapter.type=ia3"}), "expected one of none, lora");
}

TEST(RunConfig, LossesOfPreferencesAddUp) {
  EXPECT_ERROR(run_of({"preference.loss_type=apo_zero"}),
               "expected one of sigmoid, sigmoid_norm, ipo, hinge, or a list of these");

  const PreferenceSection one = run_of({"preference.loss_type=hinge"}).config.preference;
  EXPECT_EQ(one.loss_type, (std::vector<std::string>{"hinge"}));
  const std::string two = "preference.loss_type=[sigmoid, ipo]";
  run_of({two, "preference.loss_weights=[0.8, 0.2]", "preference.label_smoothing=0.1"});
  EXPECT_ERROR(run_of({two, "preference.loss_weights=[0.8]"}), "has 1 number, and loss_type 2");
  EXPECT_ERROR(run_of({two, "preference.loss_weights=[1, 0]"}), "expected numbers above 0");
  EXPECT_ERROR(run_of({"preference.loss_type=[ipo, ipo]"}), "several different ones");
  EXPECT_ERROR(run_of({"preference.loss_type=[sigmoid, sft]"}), "loss_type");
}

TEST(RunConfig, AReferenceComputedBeforehandNeedsKnownRows) {
  const std::vector<std::string> keys = {"preference.precompute_ref_log_probs=true",
                                         "train.minutes=1",
                                         "data.sources=[{path: a.jsonl, weight: 1}]"};
  EXPECT_ERROR(run_of(keys), "in place of minutes");
  run_of({keys[0], keys[2]});
  run_of({keys[0], keys[1]});
}

TEST(RunConfig, RefusesSettingsThatWouldSilentlyChangeRewards) {
  const auto rl = [](std::vector<std::string> keys) {
    keys.insert(keys.end(), {"objective=rl", "rl.rewards=[{type: exact}]"});
    return run_of(keys);
  };
  EXPECT_EQ(rl({}).config.rl.rewards.size(), 1u);
  EXPECT_ERROR(rl({"rl.dynamic_sampling.on=true", "rl.samples_per_prompt=1"}), "different rewards");
  EXPECT_ERROR(rl({"rl.overlong.buffer=65", "rl.max_new_tokens=64"}), "rl.overlong.buffer is 65");
  const std::vector<std::string> mis = {"rl.old_logprobs=trainer", "rl.correction.type=mis",
                                        "rl.correction.low=3"};
  EXPECT_ERROR(rl(mis), "rl.correction.low is 3");
  EXPECT_ERROR(rl({"train.keep_best=true", "train.eval_every=5"}), "objective is rl");
  EXPECT_ERROR(rl({"rl.advantage=gae", "model.dtype=bf16"}), "expected f32 or f64");
  // The micro-batches of an update are a multiple of the pipeline's need.
  EXPECT_EQ(rl({"plan.pp=2"}).plan.num_micro_batches, 2);
  EXPECT_EQ(rl({"plan.pp=2", "plan.pp_schedule=dualpipev"}).plan.num_micro_batches, 4);
  EXPECT_EQ(rl({"plan.dp=2", "plan.dp_samples=[3, 1]"}).plan.num_micro_batches, 1);
  // Sums of tp in an order of c10d's own.
  const std::vector<std::string> c10d = {"plan.tp=2", "plan.ranks=gloo", "plan.collectives=c10d"};
  EXPECT_ERROR(rl(c10d), "rl.strict");
  rl({"rl.strict=false", c10d[0], c10d[1], c10d[2]});
}

TEST(RunConfig, KeysOfAnAdapterAreNamedAsInTheFile) {
  const auto lora = [](const std::string& key) {
    return run_of({"adapter.type=lora", "adapter.targets=[q_proj]", key});
  };
  EXPECT_ERROR(lora("adapter.layers=[9]"), "adapter.layers has 9; expected 0 to 7");
  EXPECT_ERROR(lora("adapter.targets=[all-linear, q_proj]"), "expected [all-linear] alone");
  EXPECT_ERROR(lora("adapter.targets=['regex:.*q_proj', k_proj]"), "one regular expression alone");
  EXPECT_ERROR(lora("adapter.targets=['regex:q_proj']"), "try regex:.*q_proj");
}

TEST(RunConfig, DecisionsNeedEvaluations) {
  EXPECT_ERROR(run_of({"train.keep_best=true"}), "train.eval_every");
  EXPECT_ERROR(run_of({"train.early_stopping.patience=2"}), "train.eval_every");
  EXPECT_TRUE(run_of({"train.keep_best=true", "train.eval_every=5"}).config.train.compares());
  EXPECT_ERROR(run_of({"train.best_by=code"}), "data.evaluation");
}

}  // namespace
}  // namespace hocket::engine
