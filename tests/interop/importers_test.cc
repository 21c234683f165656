// SPDX-License-Identifier: Apache-2.0
// Files of DeepSpeed and Axolotl as runs, and for all trainers: keys misspelt at random are
// refused with the nearest name, and any key may be missing.
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/rng.h"
#include "base/text.h"
#include "interop/foreign.h"
#include "tests/interop/importers_util.h"

namespace hocket::interop {
namespace {

const char* const kDeepspeed =
    "{\"train_batch_size\": 64,\n\"train_micro_batch_size_per_gpu\": 2,\n"
    "\"gradient_accumulation_steps\": 4,\n\"gradient_clipping\": 1.0,\n\"steps_per_print\": 10,\n"
    "\"bf16\": {\"enabled\": true},\n\"zero_optimization\": {\"stage\": 3,\n\"overlap_comm\": "
    "true,\n"
    "\"reduce_bucket_size\": 1048576,\n\"contiguous_gradients\": true,\n"
    "\"stage3_param_persistence_threshold\": 10240},\n"
    "\"optimizer\": {\"type\": \"AdamW\",\n\"params\": {\"lr\": 3e-5,\n\"betas\": [0.9, 0.95],\n"
    "\"weight_decay\": 0.1}},\n\"scheduler\": {\"type\": \"WarmupDecayLR\",\n\"params\": "
    "{\"warmup_num_steps\": 100,\n\"total_num_steps\": 1000}},\n\"wall_clock_breakdown\": false}\n";

TEST(Deepspeed, ReadsPlanAndTraining) {
  expect_keys(import_deepspeed(kDeepspeed, "ds.json", {}), {{"plan.dp", "8"},
                                                            {"plan.micro_batch", "2"},
                                                            {"train.global_batch", "64"},
                                                            {"plan.shard.params", "all"},
                                                            {"plan.shard.grads", "all"},
                                                            {"plan.shard.least_kib", "20"},
                                                            {"plan.overlap_grad_reduce", "true"},
                                                            {"plan.bucket_mib", "2"},
                                                            {"model.dtype", "bf16"},
                                                            {"train.grad_dtype", "model"},
                                                            {"train.steps", "1000"},
                                                            {"train.warmup_steps", "100"},
                                                            {"train.schedule", "linear"},
                                                            {"optimizer.beta2", "0.95"},
                                                            {"train.lr", "3e-05"}});
}

TEST(Deepspeed, ZeroStageAndSizesDecideThePlan) {
  const auto with = [](const std::string& old, const std::string& by) {
    return import_deepspeed(replaced(kDeepspeed, old, by), "ds.json", {}).keys;
  };
  EXPECT_EQ(with("\"stage\": 3", "\"stage\": 1").at("plan.shard.optimizer"), "all");
  EXPECT_EQ(with("\"stage\": 3", "\"stage\": 1").count("train.grad_dtype"), 0u);
  EXPECT_EQ(with("\"stage\": 3", "\"stage\": 2").count("plan.shard.params"), 0u);
  EXPECT_EQ(with("\"stage\": 3", "\"stage\": 3, \"mics_shard_size\": 4").at("plan.shard.group"),
            "4");
  EXPECT_EQ(with("\"bf16\": {\"enabled\": true}",
                 "\"bf16\": {\"enabled\": true}, \"tensor_parallel\": {\"autotp_size\": 2}")
                .at("plan.tp"),
            "2");
  // Two of the three sizes, and the ranks.
  const std::string open = replaced(kDeepspeed, "\"gradient_accumulation_steps\": 4,\n", "");
  EXPECT_EQ(import_deepspeed(open, "ds.json", {16, 0}).keys.at("plan.dp"), "16");
  const std::string batch = replaced(open, "\"train_micro_batch_size_per_gpu\": 2,\n", "");
  EXPECT_EQ(import_deepspeed(batch, "ds.json", {16, 0}).keys.at("plan.micro_batch"), "4");
}

TEST(Deepspeed, RefusesWhatARunCannotExpress) {
  const struct {
    const char* old;
    const char* by;
    const char* part;
  } kRows[] = {
      {"\"overlap_comm\": true", "\"offload_optimizer\": {\"device\": \"cpu\"}",
       "zero_optimization.offload_optimizer.device is 'cpu'; expected none"},
      {"\"overlap_comm\": true", "\"offload_param\": {\"device\": \"nvme\"}",
       "nothing is offloaded"},
      {"\"overlap_comm\": true", "\"cpu_offload\": true", "nothing is offloaded"},
      {"\"overlap_comm\": true", "\"zero_quantized_gradients\": true", "the values' own type"},
      {"\"overlap_comm\": true", "\"zero_hpz_partition_size\": 8", "would make another plan"},
      {"\"stage\": 3", "\"stage\": 4", "expected 0 to 3"},
      {"\"train_batch_size\": 64", "\"train_batch_size\": 63", "expected a multiple of 8"},
      {"\"AdamW\"", "\"OneBitAdam\"", "expected Adam, AdamW, SGD or Muon"},
      {"\"WarmupDecayLR\"", "\"OneCycle\"", "expected one of WarmupLR"},
      {"\"wall_clock_breakdown\": false", "\"sparse_attention\": {\"mode\": \"fixed\"}",
       "would make another model"},
      {"\"wall_clock_breakdown\": false", "\"curriculum_learning\": {\"enabled\": true}",
       "every step has the same sequences"},
      {"\"train_micro_batch_size_per_gpu\": 2", "\"train_micro_batch_size_per_gpu\": \"auto\"",
       "try --set plan.micro_batch"},
      {"\"stage\": 3", "\"stages\": 3", "try zero_optimization.stage"}};
  for (const auto& row : kRows) {
    const std::string text =
        refusal_of([&] { import_deepspeed(replaced(kDeepspeed, row.old, row.by), "ds.json", {}); });
    EXPECT_TRUE(says(text, row.part)) << row.by << ": " << text;
  }
  EXPECT_TRUE(says(refusal_of([&] {
                     import_deepspeed(kDeepspeed, "ds.json", {16, 0});
                   }),
                   "--ranks is 16; expected the 8 of the file"));
}

const char* const kAxolotl =
    "base_model: some/model\ndatasets:\n  - path: a.jsonl\n    type: chat_template\n"
    "    field_messages: conversations\n    message_property_mappings:\n      role: from\n"
    "      content: value\n  - path: b.jsonl\n    type: alpaca\nval_set_size: 0.1\n"
    "adapter: lora\nlora_r: 16\nlora_alpha: 32\nlora_dropout: 0.05\nlora_target_linear: true\n"
    "sequence_len: 256\nsample_packing: true\npad_to_sequence_len: true\nmicro_batch_size: 2\n"
    "gradient_accumulation_steps: 4\nnum_epochs: 3\noptimizer: adamw_torch\n"
    "lr_scheduler: cosine\nlearning_rate: 2e-4\nbf16: auto\ngradient_checkpointing: true\n"
    "flash_attention: true\nwarmup_ratio: 0.1\nweight_decay: 0.01\nlogging_steps: 1\n"
    "deepspeed: deepspeed_configs/zero2.json\n";

TEST(Axolotl, ReadsALoraTraining) {
  const Imported found = import_axolotl(kAxolotl, "a.yml", {4, 0});
  EXPECT_EQ(found.model_path, "some/model");
  expect_keys(
      found,
      {{"objective", "sft"},
       {"data.sources",
        "[{path: \"a.jsonl\", format: chat, columns: {messages: \"conversations\"}, tags: "
        "{role_tag: \"from\", content_tag: \"value\"}}, {path: \"b.jsonl\", format: alpaca}]"},
       {"data.packing", "true"},
       {"data.valid_fraction", "0.1"},
       {"data.train_on", "assistant"},
       {"adapter.r", "16"},
       {"adapter.targets", "[all-linear]"},
       {"train.seq_len", "256"},
       {"train.global_batch", "32"},
       {"plan.micro_batch", "2"},
       {"plan.dp", "4"},
       {"plan.shard.grads", "all"},
       {"plan.recompute", "full"},
       {"train.warmup_share", "0.1"},
       {"model.dtype", "bf16"}});
}

TEST(Axolotl, KeysOfOtherServicesStayUnsaid) {
  const Imported found =
      import_axolotl(std::string(kAxolotl) + "swanlab_api_key: abc123\n", "a.yml", {4, 0});
  EXPECT_TRUE(std::ranges::count(found.ignored, "swanlab_api_key = (not shown)"));
  for (const std::string& line : found.ignored) {
    EXPECT_FALSE(says(line, "abc123")) << line;
  }
}

/// Others spread every sequence over ranks of cp; here these share out a micro-batch's tokens.
TEST(Importers, RefuseSeveralSequencesOverRanksOfCp) {
  const std::string each = "micro_batch_size: 2\n";
  const struct {
    Importer read;
    std::string text, ranks, batch;  // a text with @ sequences in a micro-batch
  } rows[] = {
      {import_megatron,
       "torchrun --nproc-per-node 4 pretrain_gpt.py --num-layers 4 --hidden-size 96 "
       "--num-attention-heads 4 --vocab-size 512 --context-parallel-size 2 --micro-batch-size @\n",
       "--context-parallel-size", "--micro-batch-size"},
      {import_torchtitan,
       "[parallelism]\ncontext_parallel_degree = 2\n[training]\nlocal_batch_size = @\n",
       "parallelism.context_parallel_degree", "training.local_batch_size"},
      {import_deepspeed, "{\"sequence_parallel_size\": 2, \"train_micro_batch_size_per_gpu\": @}",
       "sequence_parallel_size", "train_micro_batch_size_per_gpu"},
      {import_verl,
       replaced(kVerl, "ppo_micro_batch_size_per_gpu=4",
                "ppo_micro_batch_size_per_gpu=@ "
                "actor_rollout_ref.actor.ulysses_sequence_parallel_size=2"),
       "ulysses_sequence_parallel_size", "ppo_micro_batch_size_per_gpu"},
      {import_axolotl, replaced(kAxolotl, each, "micro_batch_size: @\ncontext_parallel_size: 2\n"),
       "context_parallel_size", "micro_batch_size"}};
  for (const auto& row : rows) {
    const auto import = [&](const char* sequences, const Beside& beside) {
      return row.read(replaced(row.text, "@", sequences), "file", {0, 8}, beside);
    };
    EXPECT_EQ(import("1", {}).keys["plan.cp"], "2") << row.ranks;
    const std::string text = refusal_of([&] { import("4", {}); });
    EXPECT_TRUE(says(text, row.ranks + " is 2 with 4 sequences in a micro-batch (")) << text;
    EXPECT_TRUE(says(text, row.batch + "): ")) << text;
    EXPECT_TRUE(says(text, "try --set plan.micro_batch=1")) << text;
    EXPECT_NO_THROW(import("4", beside({"plan.micro_batch"}))) << row.ranks;
    EXPECT_NO_THROW(import("4", beside({}, false))) << row.ranks;
  }
}

TEST(Axolotl, ReadsMeshAndSharding) {
  const std::string base = replaced(kAxolotl, "deepspeed: deepspeed_configs/zero2.json\n", "");
  expect_keys(import_axolotl(replaced(base, "micro_batch_size: 2", "micro_batch_size: 1") +
                                 "dp_shard_size: 2\ndp_replicate_size: 2\n"
                                 "tensor_parallel_size: 2\ncontext_parallel_size: 2\n",
                             "a.yml", {}),
              {{"plan.dp", "4"},
               {"plan.tp", "2"},
               {"plan.cp", "2"},
               {"plan.cp_comm_type", "all_gather"},
               {"plan.shard.params", "group"},
               {"plan.shard.group", "4"}});
  expect_keys(import_axolotl(base + "fsdp:\n  - full_shard\n  - auto_wrap\nfsdp_config:\n"
                                    "  fsdp_sharding_strategy: SHARD_GRAD_OP\n",
                             "a.yml", {4, 0}),
              {{"plan.shard.params", "all"}, {"plan.shard.reshard_after_forward", "false"}});
  expect_keys(import_axolotl(
                  replaced(base, "type: alpaca", "type: passthrough") + "rl: ipo\nrl_beta: 0.2\n",
                  "a.yml", {4, 0}),
              {{"objective", "dpo"},
               {"preference.loss_type", "[ipo]"},
               {"preference.beta", "0.2"},
               {"train.seq_len", "512"}});
}

TEST(Axolotl, FormatOfDataFollowsFromMethodAndType) {
  const auto sources = [](const std::string& method, const std::string& type) {
    const std::string text = "base_model: m\nrl: " + method + "\ndatasets:\n  - path: a.jsonl\n" +
                             type + "micro_batch_size: 1\n";
    return import_axolotl(text, "a.yml", {1, 0}).keys.at("data.sources");
  };
  EXPECT_EQ(sources("dpo", ""), "[{path: \"a.jsonl\", format: preference}]");
  EXPECT_EQ(sources("dpo",
                    "    type: chat_template.default\n    field_messages: talk\n"
                    "    field_chosen: good\n"),
            "[{path: \"a.jsonl\", format: chat, columns: {messages: \"talk\", chosen: "
            "\"good\"}}]");
  EXPECT_EQ(sources("dpo", "    type: chat_template.argilla_chat\n"),
            "[{path: \"a.jsonl\", format: preference}]");
  EXPECT_EQ(sources("dpo", "    type:\n      field_prompt: q\n      field_rejected: bad\n"),
            "[{path: \"a.jsonl\", format: preference, columns: {prompt: \"q\", rejected: "
            "\"bad\"}}]");
  EXPECT_EQ(sources("kto",
                    "    type:\n      field_prompt: q\n      field_label: good\n"
                    "      prompt_format: \"{prompt}\"\n"),
            "[{path: \"a.jsonl\", format: unpaired, columns: {prompt: \"q\", label: \"good\"}}]");
  const auto refused = [&](const std::string& method, const std::string& type,
                           const std::string& part) {
    const std::string text = refusal_of([&] { sources(method, type); });
    EXPECT_TRUE(says(text, part)) << type << ": " << text;
  };
  // Their prompt is another column, in the text of a template.
  refused("dpo", "    type: chatml.intel\n", "expected chat_template, passthrough, or names");
  refused("kto", "    type: llama3.ultra\n", "expected names of columns (field_prompt");
  refused("dpo", "    type:\n      prompt_format: \"[INST] {prompt}\"\n",
          "answers are read as they are");
}

/// Texts that are longer than a row are cut into parts there, not dropped as other examples are.
TEST(Axolotl, CutsLongTextsIntoPartsAndDropsOtherExamples) {
  const std::string texts = "base_model: m\ndatasets:\n  - path: a.jsonl\n    type: completion\n";
  const std::string chats = "  - path: b.jsonl\n    type: chat_template\n";
  expect_keys(import_axolotl(texts, "a.yml", {1, 0}), {{"data.truncate", "keep_start"}});
  const Imported both = import_axolotl(texts + chats, "a.yml", {1, 0});
  expect_keys(both, {{"data.truncate", "drop"}});
  ASSERT_FALSE(both.notes.empty());
  EXPECT_TRUE(says(both.notes.front(), "do not become parts"));
}

TEST(Axolotl, NotesWhereTextsAreRenderedOtherwise) {
  const auto noted = [](const std::string& text, const std::string& part) {
    const std::vector<std::string> notes = import_axolotl(text, "a.yml", {4, 0}).notes;
    return std::any_of(notes.begin(), notes.end(),
                       [&](const std::string& line) { return says(line, part); });
  };
  const std::string chat = replaced(kAxolotl, "type: alpaca", "type: chat_template");
  EXPECT_TRUE(noted(kAxolotl, "datasets.1.type: instructions become turns"));
  EXPECT_FALSE(noted(chat, "instructions become turns"));
  EXPECT_FALSE(noted(chat + "chat_template: tokenizer_default\n", "data.chat_template"));
  EXPECT_TRUE(noted(chat + "chat_template: llama3\n", "set data.chat_template"));
}

TEST(Axolotl, RefusesWhatARunCannotExpress) {
  const struct {
    const char* old;
    const char* by;
    const char* part;
  } kRows[] = {
      {"adapter: lora", "adapter: qlora", "QLoRA is not supported, weights are not quantised here"},
      {"bf16: auto", "gptq: true", "would make another model"},
      {"adamw_torch", "adamw_bnb_8bit", "try --set optimizer.name"},
      {"zero2.json", "zero3_bf16_cpuoffload_all.json", "nothing is offloaded here"},
      {"zero2.json", "mine.json", "try --set plan.shard.params"},
      {"type: alpaca", "type: gpteacher", "expected completion, chat_template"},
      {"type: alpaca", "type: alpaca\n    roles_to_train: [user]", "expected [assistant], or"},
      {"lr_scheduler: cosine", "lr_scheduler: rex", "expected one of cosine"},
      {"gradient_checkpointing: true", "gradient_checkpointing: offload", "nothing is offloaded"},
      {"bf16: auto", "rl: orpo", "expected dpo, ipo or kto"},
      {"micro_batch_size: 2", "micro_batchsize: 2", "line 20: micro_batchsize is 2"},
      {"micro_batch_size: 2", "micro_batchsize: 2", "try micro_batch_size"}};
  for (const auto& row : kRows) {
    const std::string text = refusal_of([&] {
      import_axolotl(replaced(kAxolotl, row.old, row.by), "a.yml", {4, 0});
    });
    EXPECT_TRUE(says(text, row.part)) << row.by << ": " << text;
  }
}

/// Neither another model nor a search replaces what changes the training.
TEST(Axolotl, RefusesWhatWouldTrainOtherwise) {
  const struct {
    const char* setting;
    const char* part;
  } kRows[] = {
      {"peft_use_dora: true", "another training: DoRA is not supported, but plain LoRA is"},
      {"load_in_4bit: true", "another training: QLoRA is not supported"},
      {"load_in_8bit: true", "another training: QLoRA is not supported"},
      {"peft: {loftq_config: {loftq_bits: 4}}", "adapters are plain LoRA here"},
      {"peft_init_lora_weights: pissa", "expected true or gaussian"},
      {"peft_trainable_token_indices: [3]", "would make another training"},
      {"unfrozen_parameters: [lm_head]", "those of train.freeze"},
      {"lr_groups: [{name: a, modules: [b], lr: 1e-3}]", "those of optimizer.groups"},
      {"neftune_noise_alpha: 5", "samples have no noise"},
      {"kd_trainer: true", "the loss is cross entropy"},
      {"liger_use_token_scaling: true", "the loss is cross entropy"},
      {"rpo_alpha: 1.0", "those of preference.loss_type"},
      {"dpo_use_weighting: true", "those of preference.loss_type"},
      {"jagged_restart_steps: 10", "learning rates follow train.schedule"},
      {"cosine_constant_lr_ratio: 0.8", "learning rates follow train.schedule"},
      {"loraplus_lr_ratio: 16", "those of optimizer.groups"},
      {"lr_scheduler_kwargs: {min_lr: 1e-5}", "none with lr_scheduler cosine; try cosine_with_min"},
      {"lr_scheduler_kwargs: {num_cycles: 3}", "learning rates follow train.schedule"},
      {"optim_args: {eps: 1e-6}", "the keys of optimizer"},
      {"reinit_weights: true", "begins with the weights of the model"},
      {"trainer_cls: mine.Trainer", "the trainer is Hocket's own"},
      {"plugins: [axolotl.integrations.grokfast.GrokfastPlugin]", "make another training"},
      {"load_best_model_at_end: true\nmetric_for_best_model: eval_bleu", "one of loss, eval_loss"}};
  for (const auto& row : kRows) {
    const std::string file = std::string(kAxolotl) + row.setting + "\n";
    for (const Beside& with : {Beside{}, beside({"model.path"}, false)}) {
      const std::string text = refusal_of([&] { import_axolotl(file, "a.yml", {4, 0}, with); });
      EXPECT_TRUE(says(text, row.part)) << row.setting << ": " << text;
    }
  }
  // Without effect.
  import_axolotl(std::string(kAxolotl) +
                     "load_in_4bit: false\nrpo_alpha: null\noptim_args: {}\n"
                     "peft_init_lora_weights: true\nlr_scheduler_kwargs: {}\n"
                     "plugins: [axolotl.integrations.liger.LigerPlugin]\n"
                     "tokenizer_config: some/model\ncosine_constant_lr_ratio: 0\n",
                 "a.yml", {4, 0});
}

TEST(Axolotl, TokenizerIsThatOfTheModel) {
  const std::string file = std::string(kAxolotl) + "tokenizer_config: other/model\n";
  EXPECT_TRUE(says(refusal_of([&] {
                     import_axolotl(file, "a.yml", {4, 0});
                   }),
                   "expected base_model, some/model"));
  const std::vector<std::string> ignored =
      import_axolotl(file, "a.yml", {4, 0}, beside({"model.path"}, true)).ignored;
  EXPECT_EQ(std::count(ignored.begin(), ignored.end(),
                       "tokenizer_config = other/model: the tokenizer is that of the model in "
                       "--set"),
            1);
}

TEST(Axolotl, ListsSettingsOfLogs) {
  const std::vector<std::string> ignored =
      import_axolotl(std::string(kAxolotl) +
                         "plugins: [axolotl.integrations.swanlab.SwanLabPlugin]\n"
                         "use_swanlab: true\nswanlab_project: mine\nswanlab_mode: local\n",
                     "a.yml", {4, 0})
          .ignored;
  for (const char* const line :
       {"use_swanlab = true", "swanlab_project = mine", "swanlab_mode = local"}) {
    EXPECT_EQ(std::count(ignored.begin(), ignored.end(), line), 1) << line;
  }
}

TEST(Axolotl, CosineWithMinLrHasOneOfTwoRates) {
  const auto with = [](const std::string& arguments) {
    return replaced(kAxolotl, "lr_scheduler: cosine",
                    "lr_scheduler: cosine_with_min_lr\nlr_scheduler_kwargs: {" + arguments + "}");
  };
  for (const char* const arguments : {"min_lr: 3e-5", "min_lr_rate: 0.15"}) {
    expect_keys(import_axolotl(with(arguments), "a.yml", {4, 0}),
                {{"train.schedule", "cosine"}, {"train.min_lr", "3e-05"}});
  }
  for (const char* const arguments : {"", "min_lr: 3e-5, min_lr_rate: 0.15"}) {
    EXPECT_TRUE(says(refusal_of([&] {
                       import_axolotl(with(arguments), "a.yml", {4, 0});
                     }),
                     "expected either min_lr or min_lr_rate in lr_scheduler_kwargs"))
        << arguments;
  }
}

TEST(Axolotl, AMinLrRatioIsThatOfCosineAlone) {
  const auto with = [](const std::string& schedule, const std::string& ratio) {
    return import_axolotl(replaced(kAxolotl, "lr_scheduler: cosine",
                                   "lr_scheduler: " + schedule + "\ncosine_min_lr_ratio: " + ratio),
                          "a.yml", {4, 0});
  };
  const std::string left = "cosine_min_lr_ratio = 0.1: Axolotl reads it with lr_scheduler cosine";
  for (const auto& [schedule, min_lr] :
       {std::pair{"cosine", "2e-05"},
        {"linear", "0"},
        {"constant", "0.0002"},
        {"cosine_with_min_lr\nlr_scheduler_kwargs: {min_lr: 3e-5}", "3e-05"}}) {
    const Imported found = with(schedule, "0.1");
    expect_keys(found, {{"train.min_lr", min_lr}});
    const bool is_left = std::ranges::any_of(
        found.ignored, [&](const std::string& line) { return line.starts_with(left); });
    EXPECT_EQ(is_left, schedule != std::string("cosine")) << schedule;
  }
  EXPECT_TRUE(says(refusal_of([&] { with("cosine", "1.5"); }), "expected 0 to 1"));
}

TEST(Axolotl, ReadsLossesPerTokenBestCheckpointsAndEvents) {
  const std::string pairs = "base_model: m\ndatasets:\n  - path: a.jsonl\nmicro_batch_size: 1\n";
  const auto losses = [&](const std::string& text) {
    return import_axolotl(pairs + text, "a.yml", {1, 0}).keys.at("preference.loss_type");
  };
  EXPECT_EQ(losses("rl: dpo\ndpo_norm_loss: true\n"), "[sigmoid_norm]");
  EXPECT_EQ(losses("rl: dpo\ndpo_norm_loss: false\ndpo_loss_type: [hinge]\n"), "[hinge]");
  EXPECT_EQ(losses("rl: ipo\ndpo_norm_loss: true\n"), "[ipo]");
  EXPECT_TRUE(
      says(refusal_of([&] { losses("rl: dpo\ndpo_norm_loss: true\ndpo_loss_type: [hinge]\n"); }),
           "false beside dpo_loss_type hinge"));
  const Imported found =
      import_axolotl(std::string(kAxolotl) +
                         "load_best_model_at_end: true\neval_steps: 5\nuse_tensorboard: true\n",
                     "a.yml", {4, 0});
  expect_keys(
      found,
      {{"train.keep_best", "true"}, {"train.eval_every", "5"}, {"output.tensorboard", "true"}});
}

TEST(Axolotl, NotesWhatTrainsOnOtherTokens) {
  for (const char* const setting :
       {"chat_template_kwargs: {enable_thinking: false}", "eot_tokens: [x]", "train_on_eos: all",
        "dataset_exact_deduplication: true", "min_sample_len: 3", "shuffle_merged_datasets: false",
        "peft_init_lora_weights: gaussian", "fp8_config: {recipe: rowwise}"}) {
    const Imported found = import_axolotl(std::string(kAxolotl) + setting + "\n", "a.yml", {4, 0});
    const std::string key = std::string(setting).substr(0, std::string(setting).find(':'));
    EXPECT_TRUE(std::any_of(found.notes.begin(), found.notes.end(), [&](const std::string& line) {
      return says(line, key);
    })) << setting;
  }
  const Imported found = import_axolotl(
      replaced(kAxolotl, "type: alpaca",
               "type: chat_template\n    train_on_eos: last\n    field_tools: functions"),
      "a.yml", {4, 0});
  EXPECT_TRUE(says(found.keys.at("data.sources"), "columns: {tools: \"functions\"}"));
  EXPECT_TRUE(std::any_of(found.notes.begin(), found.notes.end(), [](const std::string& line) {
    return says(line, "datasets.1.train_on_eos = last: trained tokens are those of data.train_on");
  }));
}

struct File {
  const char* tool;
  std::string text;
  const char* before;  ///< text before a key of the file, and behind it
  const char* behind;
};

std::vector<File> files() {
  return {{"megatron",
           "torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 4 --hidden-size 64 "
           "--num-attention-heads 4 --vocab-size 512 --swiglu --tensor-model-parallel-size 2 "
           "--seq-length 64 --micro-batch-size 1 --global-batch-size 8 --bf16 --log-interval 1 "
           "--lr-decay-style cosine --use-distributed-optimizer --split 9,1 --train-iters 10 \n",
           "--", " "},
          {"torchtitan",
           "[training]\nlocal_batch_size = 2\nseq_len = 64\nsteps = 10\n[parallelism]\n"
           "tensor_parallel_degree = 2\ndata_parallel_shard_degree = 4\n[metrics]\nlog_freq = 5\n"
           "[optimizer]\nlr = 1e-3\n[lr_scheduler]\nwarmup_steps = 5\n",
           "\n", " ="},
          {"deepspeed", kDeepspeed, "\"", "\":"},
          {"verl", kVerl, ".", "="},
          {"axolotl", kAxolotl, "\n", ":"}};
}

/// Words of a file between `before` and `behind`: its keys.
std::vector<std::pair<size_t, std::string>> keys_in(const File& file) {
  std::vector<std::pair<size_t, std::string>> keys;
  const auto is_word = [](char letter) {
    return letter == '_' || letter == '-' || std::isalnum(static_cast<unsigned char>(letter)) != 0;
  };
  for (size_t at = 0; at < file.text.size(); ++at) {
    if (at == 0 || !is_word(file.text[at]) || is_word(file.text[at - 1])) {
      const bool dashes = std::string_view(file.before) == "--" && at > 1 &&
                          file.text.substr(at - 2, 2) == "--" && is_word(file.text[at]);
      if (!dashes) continue;
    }
    size_t end = at;
    while (end < file.text.size() && is_word(file.text[end])) {
      ++end;
    }
    const std::string before = file.before;
    if (at < before.size() || file.text.compare(at - before.size(), before.size(), before) != 0 ||
        file.text.compare(end, std::string_view(file.behind).size(), file.behind) != 0) {
      continue;
    }
    keys.push_back({at, file.text.substr(at, end - at)});
  }
  return keys;
}

/// Swaps, drops, doubles or replaces a letter.
std::string misspelt(const std::string& word, Rng& rng) {
  std::string text = word;
  const auto at = static_cast<size_t>(rng.below(static_cast<uint64_t>(text.size())));
  switch (rng.below(4)) {
    case 0:
      if (at + 1 < text.size()) {
        std::swap(text[at], text[at + 1]);
      }
      break;
    case 1:
      text.erase(at, 1);
      break;
    case 2:
      text.insert(at, 1, text[at]);
      break;
    default:
      text[at] = static_cast<char>('a' + rng.below(26));
  }
  return text;
}

TEST(Importers, MisspeltKeysAreRefusedWithTheNearest) {
  Rng rng(7);
  for (const File& file : files()) {
    const Importer importer = importer_of(file.tool);
    ASSERT_NE(importer, nullptr) << file.tool;
    EXPECT_NO_THROW(importer(file.text, "file", {.asked = 0, .otherwise = 8}, {})) << file.tool;
    const auto keys = keys_in(file);
    ASSERT_GE(keys.size(), 7u) << file.tool;
    for (const auto& [at, key] : keys) {
      for (int round = 0; round < 8; ++round) {
        const std::string wrong = misspelt(key, rng);
        if (wrong.size() < 2 || wrong == key) continue;
        std::string text = file.text;
        text.replace(at, key.size(), wrong);
        const std::string refused =
            refusal_of([&] { importer(text, "file", {.asked = 0, .otherwise = 8}, {}); });
        const bool unknown = says(refused, "no release of") || says(refused, "is no argument of") ||
                             says(refused, "has underscores");
        // Another key may be spelt so, such as pp for tp: then it is read, or refused for itself.
        if (!unknown) continue;
        const size_t hint = refused.find("; try ");
        ASSERT_NE(hint, refused.npos)
            << file.tool << ' ' << wrong << " for " << key << ": " << refused;
        std::string name = refused.substr(hint + 6);
        name = name.substr(name.starts_with("--") ? 2 : 0);
        // A section that is misspelt is named with a key of it.
        int distance = edit_distance(wrong, name);
        for (const std::string& part : split(name, '.')) {
          distance = std::min(distance, edit_distance(wrong, part));
        }
        EXPECT_LE(distance, edit_distance(wrong, key))
            << file.tool << ' ' << wrong << " for " << key << ": " << refused;
      }
    }
  }
}

/// Most misspellings are no key: a file that would take them is read otherwise than it was meant.
TEST(Importers, MisspeltKeysAreSeldomOtherKeys) {
  Rng rng(11);
  for (const File& file : files()) {
    const auto keys = keys_in(file);
    int64_t tried = 0, refused = 0;
    for (const auto& [at, key] : keys) {
      if (key.size() < 4) continue;
      for (int round = 0; round < 4; ++round) {
        const std::string wrong = misspelt(key, rng);
        if (wrong == key) continue;
        std::string text = file.text;
        text.replace(at, key.size(), wrong);
        ++tried;
        refused += refusal_of([&] {
                     importer_of(file.tool)(text, "file", {.asked = 0, .otherwise = 8}, {});
                   }).empty()
                       ? 0
                       : 1;
      }
    }
    EXPECT_GE(static_cast<double>(refused), 0.97 * static_cast<double>(tried)) << file.tool;
  }
}

/// Without any line a file is read with defaults, or refused as bad input.
TEST(Importers, AnyKeyMayBeMissing) {
  for (const File& file : files()) {
    const auto keys = keys_in(file);
    for (const auto& [at, key] : keys) {
      std::string text = file.text;
      const size_t begin = at - std::string_view(file.before).size();
      const size_t end = std::min(
          text.find_first_of(file.tool == std::string("megatron") ? "-" : "\n", at + key.size()),
          text.size() - 1);
      text.erase(begin + 1, end - begin - 1);
      refusal_of([&] { importer_of(file.tool)(text, "file", {.asked = 0, .otherwise = 8}, {}); });
    }
  }
}

TEST(Importers, RefuseTextsThatAreNoConfiguration) {
  for (const std::string& tool : import_formats()) {
    for (const char* text : {"", "[]", "{", "]", "a", "{\"a\": ", "\xff\xfe", "- 1\n- 2\n", "x: [",
                             "#!/bin/bash\npython3 -m verl.trainer.main_ppo a.b=c d.e=\n"}) {
      EXPECT_NE(refusal_of([&] {
                  importer_of(tool)(text, "file", {8, 0}, {});
                }),
                "")
          << tool << ": " << text;
    }
  }
}

}  // namespace
}  // namespace hocket::interop
