// SPDX-License-Identifier: Apache-2.0
// Job files of torchtitan with the keys of earlier releases: read with their meaning, or refused by
// name, since an ignored degree would give another plan.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "base/error.h"
#include "interop/foreign.h"
#include "tests/interop/importers_util.h"

namespace hocket::interop {
namespace {

using Keys = std::map<std::string, std::string>;

Imported import_job(const std::string& text) {
  return import_torchtitan(text, "job.toml", {64, 0});
}

std::string refusal_of_job(const std::string& text) {
  try {
    import_job(text);
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), 2);
    return error.what();
  }
  return "";
}

// torchtitan's own train_configs of 2024.
const char* const kOf2024 =
    "[optimizer]\nname = \"AdamW\"\nlr = 1.5e-4\n"
    "[training]\nbatch_size = 2\nseq_len = 8192\nwarmup_steps = 300\nmax_norm = 1.0\nsteps = 1000\n"
    "data_parallel_replicate_degree = 1\ndata_parallel_shard_degree = -1\n"
    "tensor_parallel_degree = 8\ncompile = true\n"
    "[experimental]\ncontext_parallel_degree = 2\npipeline_parallel_degree = 2\n"
    "pipeline_parallel_schedule = \"1f1b\"\n"
    "[checkpoint]\nenable_checkpoint = true\ninterval_type = \"steps\"\ninterval = 250\n"
    "[activation_checkpoint]\nmode = 'full'\n"
    "[float8]\nenable_float8_linear = true\n";

TEST(Torchtitan, ReadsTheKeysOf2024) {
  const Imported found = import_job(kOf2024);
  const Keys expected = {{"plan.tp", "8"},
                         {"plan.pp", "2"},
                         {"plan.cp", "2"},
                         {"plan.dp", "2"},
                         {"plan.pp_schedule", "1f1b"},
                         {"plan.recompute", "full"},
                         {"plan.micro_batch", "1"},  // one pass per stage
                         {"train.global_batch", "4"},
                         {"train.seq_len", "8192"},
                         {"train.warmup_steps", "300"},
                         {"train.save_every", "250"},
                         {"model.float8", "true"},
                         {"model.dtype", "bf16"}};
  for (const auto& [key, value] : expected) {
    const auto at = found.keys.find(key);
    EXPECT_EQ(at == found.keys.end() ? "" : at->second, value) << key;
  }
  for (const std::string& line : found.ignored) {
    EXPECT_FALSE(says(line, "degree") || says(line, "warmup") || says(line, "float8")) << line;
  }
}

/// Every key that held a degree, a batch, a length, a schedule or float8 under another name.
TEST(Torchtitan, ReadsEveryFormerNameOfAKey) {
  const struct {
    const char* section;
    const char* line;
    const char* key;
    const char* value;
  } kRows[] = {
      {"training", "tensor_parallel_degree = 4", "plan.tp", "4"},
      {"training", "sequence_parallel_degree = 4", "plan.tp", "4"},
      {"training", "pipeline_parallel_degree = 4", "plan.pp", "4"},
      {"experimental", "pipeline_parallel_degree = 8", "plan.pp", "8"},
      {"experimental", "context_parallel_degree = 4\n[training]\nbatch_size = 1", "plan.cp", "4"},
      {"experimental", "expert_parallel_degree = 4", "plan.ep", "4"},
      {"training", "data_parallel_degree = 64", "plan.shard.params", "all"},
      {"training", "data_parallel_shard_degree = 64", "plan.shard.params", "all"},
      {"training", "data_parallel_replicate_degree = 4", "plan.shard.params", "group"},
      {"training", "batch_size = 3", "plan.micro_batch", "3"},
      {"training", "warmup_steps = 7", "train.warmup_steps", "7"},
      {"training", "enable_fp8_linear = true", "model.float8", "true"},
      {"training", "fp8_linear = \"dynamic\"", "model.float8", "true"},
      {"training", "seed = 3", "train.seed", "3"},
      {"activation_checkpoint", "selective_ac_option = \"op\"", "plan.recompute_products", "2"},
      {"lr_scheduler", "lr_min = 1.0", "train.min_lr", "0.0008"}};
  for (const auto& row : kRows) {
    const Imported found = import_job(std::string("[") + row.section + "]\n" + row.line + "\n");
    const auto at = found.keys.find(row.key);
    EXPECT_EQ(at == found.keys.end() ? "" : at->second, row.value) << row.line;
    EXPECT_TRUE(found.ignored.empty()) << row.line;
  }
}

TEST(Torchtitan, MicroBatchFollowsFromTheNumberOfPipelineMicroBatches) {
  const std::string job =
      "[training]\nbatch_size = 8\n[experimental]\npipeline_parallel_degree = 2\n";
  EXPECT_EQ(import_job(job + "pipeline_parallel_microbatches = 8\n").keys["plan.micro_batch"], "1");
  EXPECT_EQ(import_job(job).keys["plan.micro_batch"], "4");
  EXPECT_EQ(import_job(job + "pipeline_parallel_schedule = \"interleaved_1f1b\"\n")
                .keys["plan.micro_batch"],
            "2");
  EXPECT_TRUE(says(refusal_of_job(job + "pipeline_parallel_microbatches = 3\n"),
                   "training.batch_size is 8; expected a multiple of the 3 passes"));
  // The present release has a size, 1 by default.
  EXPECT_EQ(import_job("[parallelism]\npipeline_parallel_degree = 2\n").keys["plan.micro_batch"],
            "1");
}

TEST(Torchtitan, MixedPrecisionReduceDecidesTheTypeOfGradients) {
  const std::string reduce = "[training]\nmixed_precision_reduce = ";
  EXPECT_EQ(import_job(reduce + "\"float32\"\n").keys.count("train.grad_dtype"), 0u);
  EXPECT_EQ(import_job(reduce + "\"bfloat16\"\n").keys.at("train.grad_dtype"), "model");
  const std::string wide = "mixed_precision_param = \"float32\"\n";
  EXPECT_EQ(import_job(reduce + "\"bfloat16\"\n" + wide).keys.count("train.grad_dtype"), 0u);
}

TEST(Torchtitan, DataParallelTypeDdpShardsNothing) {
  const Imported found =
      import_job("[training]\ndata_parallel_degree = 64\ndata_parallel_type = \"ddp\"\n");
  EXPECT_EQ(found.keys.count("plan.shard.params"), 0u);
  EXPECT_EQ(found.keys.at("plan.dp"), "64");
}

/// PyTorch's pipelining reduces gradients, and frees parameters, after a stage's last backward
/// pass.
TEST(Torchtitan, APipelineKeepsWholeGradients) {
  const std::string job = "[parallelism]\npipeline_parallel_degree = 2\n";
  const Keys kept = import_job(job).keys;
  EXPECT_EQ(kept.at("plan.shard.params"), "all");
  EXPECT_EQ(kept.at("plan.shard.grads"), "none");
  EXPECT_EQ(kept.at("plan.shard.reshard_after_forward"), "false");
  EXPECT_EQ(kept.at("plan.shard.reshard_after_backward"), "false");
  const Keys freed = import_job(job + "fsdp_reshard_after_forward = \"always\"\n").keys;
  EXPECT_EQ(freed.at("plan.shard.grads"), "none");
  EXPECT_EQ(freed.count("plan.shard.reshard_after_backward"), 0u);
  const Keys flat = import_job("[parallelism]\nfsdp_reshard_after_forward = \"never\"\n").keys;
  EXPECT_EQ(flat.at("plan.shard.grads"), "all");
  EXPECT_EQ(flat.count("plan.shard.reshard_after_backward"), 0u);
}

TEST(Torchtitan, UnknownKeysAreRefusedWithTheNearest) {
  const struct {
    const char* job;
    const char* part;
  } kRows[] = {
      {"[parallelism]\nspmd_degree = 2\n", "line 2: parallelism.spmd_degree is 2, and no release"},
      {"[training]\nmax_seq_len = 4096\n", "training.max_seq_len"},
      {"[trainig]\nlocal_batch_size = 4\n", "try training.local_batch_size"},
      {"[quantize]\nenable_float8_linear = true\n", "try float8.enable_float8_linear"},
      {"[training]\nlocal_batchsize = 4\n", "try training.local_batch_size"},
      {"[metrics]\nlog_frek = 4\n", "try metrics.log_freq"},
      {"[paralelism]\ntensor_parallel_degree = 2\n", "try parallelism.tensor_parallel_degree"},
      {"[training]\nenable_cpu_offload = true\n", "nothing is offloaded here"},
      {"[optimizer]\nearly_step_in_backward = true\n", "would make another plan"},
      {"[optimizer]\nname = \"Muon\"\n", "expected AdamW"}};
  for (const auto& row : kRows) {
    const std::string text = refusal_of_job(row.job);
    EXPECT_TRUE(says(text, row.part)) << row.job << text;
  }
  for (const char* job :
       {"[validation]\nlocal_batch_size = 4\n", "[training]\nenable_cpu_offload = false\n",
        "[optimizer]\nimplementation = \"foreach\"\n"}) {
    EXPECT_EQ(refusal_of_job(job), "") << job;
  }
  EXPECT_TRUE(says(refusal_of_job("[experimental]\npipeline_parallel_degree = 2\n"
                                  "pipeline_parallel_split_points = [\"layers.4\"]\n"),
                   "experimental.pipeline_parallel_split_points is [layers.4]"));
  EXPECT_TRUE(says(refusal_of_job("[training]\nfp8_linear = \"delayed\"\n"), "expected dynamic"));
}

/// A configuration as debug.save_config_file writes it: the model's sizes, batches in tokens.
std::string of_2026(const std::string& training, const std::string& parallelism,
                    const std::string& checkpointing, const std::string& more = "") {
  const std::string layer =
      "{\"attention\": {\"n_heads\": 8, \"n_kv_heads\": 2, \"head_dim\": null, \"wo\": "
      "{\"in_features\": 64, \"out_features\": 64, \"bias\": false}, \"qk_norm\": null, \"rope\": "
      "{\"dim\": 8, \"max_seq_len\": 4096, \"theta\": 500000.0, \"scaling\": \"llama\", "
      "\"scaling_factor\": 8.0}}, \"feed_forward\": {\"w1\": {\"in_features\": 64, "
      "\"out_features\": 192, \"bias\": false}}, \"moe\": null}";
  return "{\"model_spec\": {\"name\": \"llama3\", \"flavor\": \"tiny\", \"model\": {\"dim\": 64, "
         "\"vocab_size\": 512, \"layers\": [" +
         layer + ", " + layer +
         "]}}, \"dump_folder\": \"out\", \"dataloader\": {\"dataset\": {\"any\": 1}}, "
         "\"optimizer\": "
         "{\"param_groups\": [{\"pattern\": \".*\", \"optimizer_name\": \"AdamW\", "
         "\"optimizer_kwargs\": {\"lr\": 0.0003, \"betas\": [0.9, 0.98], \"eps\": 1e-8, "
         "\"weight_decay\": 0.1}}], \"implementation\": \"fused\"}, \"lr_scheduler\": "
         "{\"warmup_steps\": 5, \"total_steps\": null, \"decay_ratio\": 0.2, \"decay_type\": "
         "\"sqrt\", \"min_lr_factor\": 0.1}, \"training\": {" +
         training + "}, \"parallelism\": {" + parallelism +
         "}, \"activation_checkpoint\": " + checkpointing + more + "}";
}

TEST(Torchtitan, ReadsTheJsonOf2026) {
  const char* const kSelective =
      "{\"preserve_rng_state\": true, \"force_recompute_mm_shapes_by_fqns\": "
      "[\"moe.router.gate\"]}";
  const std::string tokens =
      "\"num_tokens_per_microbatch_per_dp_rank\": 8192, \"num_tokens_per_train_step\": 524288, "
      "\"max_context_length\": 4096, \"steps\": 100";
  Imported found =
      import_torchtitan(of_2026(tokens,
                                "\"data_parallel_shard_degree\": 8, \"tensor_parallel_degree\": 2, "
                                "\"pipeline_parallel_degree\": 2, \"num_pp_microbatches\": 4",
                                kSelective),
                        "config.json", {});
  const Keys expected = {{"train.seq_len", "4096"},
                         {"plan.micro_batch", "2"},
                         {"train.global_batch", "128"},
                         {"plan.tp", "2"},
                         {"plan.pp", "2"},
                         {"plan.dp", "8"},
                         {"plan.recompute", "selective"},
                         {"plan.recompute_products", "2"},
                         {"train.lr", "0.0003"},
                         {"optimizer.beta2", "0.98"},
                         {"train.schedule", "wsd"},
                         {"train.decay", "1-sqrt"},
                         {"train.decay_share", "0.2"},
                         {"plan.shard.params", "all"}};
  for (const auto& [key, value] : expected) {
    EXPECT_EQ(found.keys[key], value) << key;
  }
  EXPECT_EQ(found.model_name, "");
  for (const char* part : {"\"model_type\": \"llama\"", "\"intermediate_size\": 192",
                           "\"num_key_value_heads\": 2", "\"llama3\"", "\"head_dim\": 8"}) {
    EXPECT_TRUE(says(found.config_json, part)) << part << found.config_json;
  }
  // By sequences, as 0.3.0 counts; null is no checkpointing, a class without fields of its own
  // full.
  const std::string sequences = "\"local_batch_size\": 2, \"seq_len\": 2048, \"steps\": 10";
  const std::string ranks = "\"data_parallel_shard_degree\": 4";
  found = import_torchtitan(of_2026(sequences, ranks, "null"), "config.json", {});
  EXPECT_EQ(found.keys["train.global_batch"], "8");
  EXPECT_EQ(found.keys["plan.recompute"], "none");
  found = import_torchtitan(of_2026(sequences, ranks, "{\"preserve_rng_state\": true}"),
                            "config.json", {});
  EXPECT_EQ(found.keys["plan.recompute"], "full");
}

TEST(Torchtitan, RefusesJsonThatARunCannotExpress) {
  const auto refused = [](const std::string& training, const std::string& parallelism,
                          const std::string& checkpointing = "null", const std::string& more = "") {
    return refusal_of([&] {
      import_torchtitan(of_2026(training, parallelism, checkpointing, more), "config.json", {8, 0});
    });
  };
  const std::string length = "\"max_context_length\": 4096, ";
  EXPECT_TRUE(says(refused(length + "\"num_tokens_per_microbatch_per_dp_rank\": 6000", ""),
                   "expected a multiple of training.max_context_length 4096"));
  EXPECT_TRUE(says(refused(length + "\"num_tokens_per_microbatch_per_dp_rank\": 4096, "
                                    "\"num_tokens_per_train_step\": 50000",
                           ""),
                   "expected a multiple of 32768"));
  EXPECT_TRUE(says(refused(length + "\"num_token_per_train_step\": 4096", ""),
                   "try training.num_tokens_per_train_step"));
  EXPECT_TRUE(says(refused(length + "\"steps\": 1", "\"tensor_paralel_degree\": 2"),
                   "try parallelism.tensor_parallel_degree"));
  EXPECT_TRUE(says(refused(length + "\"steps\": 1", "", "{\"memory_budget\": 0.5}"),
                   "try --set plan.recompute"));
  EXPECT_TRUE(says(refused(length + "\"steps\": 1", "", "null", ", \"traning\": {\"steps\": 2}"),
                   "try training.steps"));
}

TEST(Torchtitan, RefusesTwoNamesOfAKeyWithDifferentValues) {
  const std::string former = "[training]\ntensor_parallel_degree = 8\n[parallelism]\n";
  EXPECT_TRUE(says(refusal_of_job(former + "tensor_parallel_degree = 4\n"),
                   "parallelism.tensor_parallel_degree is 4 and training.tensor_parallel_degree"));
  EXPECT_EQ(import_job(former + "tensor_parallel_degree = 8\n").keys.at("plan.tp"), "8");
}

TEST(Torchtitan, NotesThatItsFirstAndLastStagesHaveFewerLayers) {
  const auto says_so = [](const std::string& more) {
    const Imported found = import_job("[parallelism]\npipeline_parallel_degree = 2\n" + more);
    return std::any_of(found.notes.begin(), found.notes.end(), [](const std::string& note) {
      return says(note, "torchtitan gives the first");
    });
  };
  EXPECT_TRUE(says_so(""));
  EXPECT_TRUE(says_so("pipeline_parallel_first_stage_less_layers = 2\n"));
  EXPECT_FALSE(
      says_so("pipeline_parallel_first_stage_less_layers = 0\n"
              "pipeline_parallel_last_stage_less_layers = 0\n"));
  EXPECT_FALSE(
      says_so("module_fqns_per_model_part = [[\"layers.0\"], [\"layers.1\", \"output\"]]\n"));
}

// The embedding and the head count as layers, one each by default; the first stages have the rest
// of the division.
TEST(Torchtitan, StagesHaveTheLayersOfTheirRule) {
  const auto found = [](const std::string& more, int64_t layers, std::set<std::string> keys = {}) {
    keys.insert("model.path");
    return import_torchtitan("[parallelism]\npipeline_parallel_degree = 2\n" + more, "job.toml",
                             {64, 0}, {.keys = std::move(keys), .layers = layers});
  };
  const auto layers_of = [&](const std::string& more, int64_t layers) {
    Imported imported = found(more, layers);
    EXPECT_FALSE(std::any_of(imported.notes.begin(), imported.notes.end(), [](const auto& note) {
      return says(note, "torchtitan gives the first");
    }));
    return imported.keys["plan.pp_layers"];
  };
  const std::string looped = "pipeline_parallel_schedule = \"Interleaved1F1B\"\n";
  const std::string first = "pipeline_parallel_first_stage_less_layers = ";
  const std::string last = "pipeline_parallel_last_stage_less_layers = ";
  const std::string per_stage = "pipeline_parallel_layers_per_stage = ";
  EXPECT_EQ(layers_of("", 5), "[3, 2]");
  EXPECT_EQ(layers_of(looped, 4), "[1, 2, 1, 0]");
  EXPECT_EQ(layers_of(looped, 30), "[7, 8, 8, 7]");
  EXPECT_EQ(layers_of(first + "3\n" + last + "0\n", 9), "[3, 6]");
  EXPECT_EQ(layers_of(first + "0\n" + last + "0\n", 9), "");
  // Stages of at most four layers.
  Imported imported = found(looped + per_stage + "4\n", 20);
  EXPECT_EQ(imported.keys["plan.pp_chunks"], "3");
  EXPECT_EQ(imported.keys["plan.pp_layers"], "[3, 4, 4, 4, 3, 2]");
  EXPECT_TRUE(imported.ignored.empty());
  EXPECT_TRUE(says(refusal_of([&] { found(looped + per_stage + "5\n", 20); }),
                   "a multiple of 2 stages, not 5"));
  EXPECT_TRUE(says(refusal_of([&] { found(first + "5\n", 3); }), "expected room for these"));
  // Other stages than those of the file.
  for (const char* key : {"plan.pp", "plan.pp_chunks", "plan.pp_layers", "plan.pp_schedule"}) {
    EXPECT_EQ(found("", 5, {key}).keys.count("plan.pp_layers"), 0u) << key;
  }
  // Sizes in the file.
  const std::string file = of_2026("\"max_context_length\": 4096, \"steps\": 1",
                                   "\"pipeline_parallel_degree\": 2", "null");
  EXPECT_EQ(import_torchtitan(file, "config.json", {2, 0}).keys["plan.pp_layers"], "[1, 1]");
}

TEST(Torchtitan, ReportsThatACheckpointIntervalInSecondsIsIgnored) {
  const Imported found = import_job(
      "[checkpoint]\nenable_checkpoint = true\ninterval_type = \"seconds\"\ninterval = 3600\n");
  EXPECT_EQ(found.keys.count("train.save_every"), 0u);
  ASSERT_EQ(found.ignored.size(), 1u);
  EXPECT_TRUE(says(found.ignored[0], "checkpoint.interval = 3600: it is in seconds"));
}

/// torchtitan's experts lie over all of cp, all of tp unless it splits each, and ranks of FSDP.
/// Megatron-LM's need sequence_parallel beside tp.
TEST(Torchtitan, ExpertsLieWhereItsMeshHasThem) {
  const auto run_with = [](const std::string& plan) {
    return engine::parse_run(
        "{model: {config: {model_type: qwen3_moe, vocab_size: 64, hidden_size: 32, "
        "num_hidden_layers: 2, num_attention_heads: 4, num_key_value_heads: 2, head_dim: 8, "
        "intermediate_size: 64, moe_intermediate_size: 16, num_experts: 4, num_experts_per_tok: 2, "
        "max_position_embeddings: 512, rms_norm_eps: 1.0e-6, norm_topk_prob: true, "
        "tie_word_embeddings: false}}, train: {global_batch: 8, seq_len: 64}, plan: {" +
            plan + "}}",
        "test", {});
  };
  const auto titan = expressed_by_torchtitan(run_with("dp: 8"));
  const auto megatron = expressed_by_megatron(run_with("dp: 8"));
  planner::PlanCandidate plan{.dp = 8, .ep = 4};
  EXPECT_FALSE(titan(plan));
  EXPECT_TRUE(megatron(plan));
  plan.shard = planner::kZero3;
  EXPECT_TRUE(titan(plan));
  plan.ep = 8;  // of four experts
  EXPECT_FALSE(titan(plan));
  EXPECT_FALSE(megatron(plan));
  plan.dp = plan.ep = plan.tp = 2;
  plan.sequence_parallel = true;
  EXPECT_TRUE(titan(plan));
  EXPECT_TRUE(megatron(plan));
  plan.sequence_parallel = false;
  EXPECT_FALSE(megatron(plan));
  plan.sequence_parallel = true;
  plan.ep = plan.dp = 1;
  plan.tp = 4;  // of two heads of keys
  EXPECT_FALSE(titan(plan));

  plan = {.cp = 2, .cp_comm_type = planner::CpCommType::p2p, .shard = planner::kZero3};
  EXPECT_TRUE(titan(plan));
  EXPECT_TRUE(megatron(plan));
  plan.micro_batch = 2;  // every sequence is cut there
  EXPECT_FALSE(titan(plan));
  EXPECT_FALSE(megatron(plan));
  plan = {.pp = 2, .dp = 4, .shard = planner::kZero3};  // whose gradients are split
  EXPECT_FALSE(titan(plan));
  plan.shard = planner::kGatheredOnce;
  EXPECT_TRUE(titan(plan));
  EXPECT_TRUE(megatron(plan));
  EXPECT_FALSE(expressed_by_megatron(run_with("dp: 8, overlap_param_gather: false"))(plan));
  plan.pp = 1;  // where torchtitan frees them after each micro-batch
  EXPECT_FALSE(titan(plan));
  const std::string piped = "pp: 2, dp: 4, shard: {params: all, ";
  EXPECT_TRUE(says(refusal_of([&] { emit_torchtitan(run_with(piped + "grads: all}")); }),
                   "plan.shard.grads is split, which torchtitan cannot express; expected none"));
  const std::string kept = "grads: none, reshard_after_forward: false";
  EXPECT_TRUE(says(refusal_of([&] { emit_torchtitan(run_with(piped + kept + "}")); }),
                   "plan.shard.reshard_after_backward is true"));
  EXPECT_TRUE(
      says(emit_torchtitan(run_with(piped + kept + ", reshard_after_backward: false}")).text,
           "fsdp_reshard_after_forward = \"never\""));

  EXPECT_TRUE(says(refusal_of([&] { emit_torchtitan(run_with("dp: 8, ep: 4")); }), "plan.ep is 4"));
  EXPECT_TRUE(says(refusal_of([&] { emit_torchtitan(run_with("tp: 4, sequence_parallel: true")); }),
                   "plan.tp is 4"));
  EXPECT_TRUE(says(refusal_of([&] { emit_megatron(run_with("dp: 2, tp: 2, ep: 2")); }),
                   "plan.sequence_parallel is false"));

  // Selective by op repeats every second product there.
  const std::string selective =
      "dp: 8, shard: {params: all, grads: all, optimizer: all}, recompute: selective";
  const auto has_note = [&](const std::string& plan) {
    const std::vector<std::string> notes = emit_torchtitan(run_with(plan)).notes;
    return std::ranges::any_of(
        notes, [](const std::string& note) { return says(note, "plan.recompute_products is 0"); });
  };
  EXPECT_TRUE(has_note(selective));
  EXPECT_FALSE(has_note(selective + ", recompute_products: 2"));
  EXPECT_TRUE(says(refusal_of([&] { emit_megatron(run_with("recompute_products: 2")); }),
                   "plan.recompute_products"));
}

}  // namespace
}  // namespace hocket::interop
