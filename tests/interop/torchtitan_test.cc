// SPDX-License-Identifier: Apache-2.0
// Job files of torchtitan with the keys of earlier releases: read with their meaning, or refused by
// name, since an ignored degree would give another plan.
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "base/error.h"
#include "interop/foreign.h"

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

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// torchtitan's own train_configs of 2024.
const char* const kOf2024 =
    "[optimizer]\nname = \"AdamW\"\nlr = 1.5e-4\n"
    "[training]\nbatch_size = 8\nseq_len = 8192\nwarmup_steps = 300\nmax_norm = 1.0\nsteps = 1000\n"
    "data_parallel_replicate_degree = 1\ndata_parallel_shard_degree = -1\n"
    "tensor_parallel_degree = 8\ncompile = true\n"
    "[experimental]\ncontext_parallel_degree = 2\npipeline_parallel_degree = 2\n"
    "pipeline_parallel_schedule = \"1f1b\"\n"
    "[checkpoint]\nenable_checkpoint = true\ninterval_type = \"steps\"\ninterval = 250\n"
    "[activation_checkpoint]\nmode = 'full'\n"
    "[float8]\nenable_float8_linear = true\n";

TEST(Torchtitan, KeysOf2024) {
  const Imported found = import_job(kOf2024);
  const Keys expected = {{"plan.tp", "8"},
                         {"plan.pp", "2"},
                         {"plan.cp", "2"},
                         {"plan.dp", "2"},
                         {"plan.pp_schedule", "1f1b"},
                         {"plan.recompute", "full"},
                         {"plan.micro_batch", "4"},  // one pass per stage
                         {"train.global_batch", "16"},
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
    EXPECT_FALSE(has(line, "degree") || has(line, "warmup") || has(line, "float8")) << line;
  }
}

/// Every key that held a degree, a batch, a length, a schedule or float8 under another name.
TEST(Torchtitan, EachFormerName) {
  const struct {
    const char* section;
    const char* line;
    const char* key;
    const char* value;
  } kRows[] = {{"training", "tensor_parallel_degree = 4", "plan.tp", "4"},
               {"training", "sequence_parallel_degree = 4", "plan.tp", "4"},
               {"training", "pipeline_parallel_degree = 4", "plan.pp", "4"},
               {"experimental", "pipeline_parallel_degree = 8", "plan.pp", "8"},
               {"experimental", "context_parallel_degree = 4", "plan.cp", "4"},
               {"experimental", "expert_parallel_degree = 4", "plan.ep", "4"},
               {"training", "data_parallel_degree = 64", "plan.shard.params", "all"},
               {"training", "data_parallel_shard_degree = 64", "plan.shard.params", "all"},
               {"training", "data_parallel_replicate_degree = 4", "plan.shard.params", "group"},
               {"training", "batch_size = 3", "plan.micro_batch", "3"},
               {"training", "warmup_steps = 7", "train.warmup_steps", "7"},
               {"training", "enable_fp8_linear = true", "model.float8", "true"},
               {"training", "fp8_linear = \"dynamic\"", "model.float8", "true"},
               {"training", "seed = 3", "train.seed", "3"},
               {"lr_scheduler", "lr_min = 1.0", "train.min_lr", "0.0008"}};
  for (const auto& row : kRows) {
    const Imported found = import_job(std::string("[") + row.section + "]\n" + row.line + "\n");
    const auto at = found.keys.find(row.key);
    EXPECT_EQ(at == found.keys.end() ? "" : at->second, row.value) << row.line;
    EXPECT_TRUE(found.ignored.empty()) << row.line;
  }
}

TEST(Torchtitan, PassesThroughThePipelineThatWereCounted) {
  const std::string job =
      "[training]\nbatch_size = 8\n[experimental]\npipeline_parallel_degree = 2\n";
  EXPECT_EQ(import_job(job + "pipeline_parallel_microbatches = 8\n").keys["plan.micro_batch"], "1");
  EXPECT_EQ(import_job(job).keys["plan.micro_batch"], "4");
  EXPECT_EQ(import_job(job + "pipeline_parallel_schedule = \"interleaved_1f1b\"\n")
                .keys["plan.micro_batch"],
            "2");
  EXPECT_TRUE(has(refusal_of_job(job + "pipeline_parallel_microbatches = 3\n"),
                  "training.batch_size is 8; expected a multiple of the 3 passes"));
  // The present release has a size, 1 by default.
  EXPECT_EQ(import_job("[parallelism]\npipeline_parallel_degree = 2\n").keys["plan.micro_batch"],
            "1");
}

TEST(Torchtitan, TypeOfGradients) {
  const std::string reduce = "[training]\nmixed_precision_reduce = ";
  EXPECT_EQ(import_job(reduce + "\"float32\"\n").keys.count("train.grad_dtype"), 0u);
  EXPECT_EQ(import_job(reduce + "\"bfloat16\"\n").keys.at("train.grad_dtype"), "model");
  const std::string wide = "mixed_precision_param = \"float32\"\n";
  EXPECT_EQ(import_job(reduce + "\"bfloat16\"\n" + wide).keys.count("train.grad_dtype"), 0u);
}

TEST(Torchtitan, ReplicasByTheirFormerType) {
  const Imported found =
      import_job("[training]\ndata_parallel_degree = 64\ndata_parallel_type = \"ddp\"\n");
  EXPECT_EQ(found.keys.count("plan.shard.params"), 0u);
  EXPECT_EQ(found.keys.at("plan.dp"), "64");
}

TEST(Torchtitan, WhatWouldBeAnotherPlanIsRefusedByName) {
  for (const char* job :
       {"[training]\nnum_tokens_per_train_step = 4096\n",
        "[training]\nnum_tokens_per_microbatch_per_dp_rank = 4096\n",
        "[parallelism]\nspmd_degree = 2\n", "[fault_tolerance]\nsome_degree = 2\n",
        "[training]\nmax_seq_len = 4096\n", "[training.batch]\nlocal_batch_size = 4\n",
        "[quantize]\nenable_float8_linear = true\n"}) {
    EXPECT_TRUE(has(refusal_of_job(job), "is not read and would be another plan")) << job;
  }
  EXPECT_TRUE(has(refusal_of_job("[training]\nnum_tokens_per_train_step = 4096\n"),
                  "line 2: training.num_tokens_per_train_step is 4096"));
  // Unknown keys without effect are accepted.
  for (const char* job :
       {"[parallelism]\nspmd_degree = 1\n", "[validation]\nlocal_batch_size = 4\n",
        "[quantize]\nenable_float8_linear = false\n"}) {
    EXPECT_EQ(refusal_of_job(job), "") << job;
  }
  EXPECT_TRUE(has(refusal_of_job("[experimental]\npipeline_parallel_degree = 2\n"
                                 "pipeline_parallel_split_points = [\"layers.4\"]\n"),
                  "experimental.pipeline_parallel_split_points is [layers.4]"));
  EXPECT_TRUE(has(refusal_of_job("[training]\nfp8_linear = \"delayed\"\n"), "expected dynamic"));
}

TEST(Torchtitan, TwoNamesThatSayTwoThings) {
  const std::string former = "[training]\ntensor_parallel_degree = 8\n[parallelism]\n";
  EXPECT_TRUE(has(refusal_of_job(former + "tensor_parallel_degree = 4\n"),
                  "parallelism.tensor_parallel_degree is 4 and training.tensor_parallel_degree"));
  EXPECT_EQ(import_job(former + "tensor_parallel_degree = 8\n").keys.at("plan.tp"), "8");
}

TEST(Torchtitan, CheckpointsByTime) {
  const Imported found = import_job(
      "[checkpoint]\nenable_checkpoint = true\ninterval_type = \"seconds\"\ninterval = 3600\n");
  EXPECT_EQ(found.keys.count("train.save_every"), 0u);
  ASSERT_EQ(found.ignored.size(), 1u);
  EXPECT_TRUE(has(found.ignored[0], "checkpoint.interval = 3600: it is in seconds"));
}

}  // namespace
}  // namespace hocket::interop
