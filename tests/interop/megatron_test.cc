// SPDX-License-Identifier: Apache-2.0
// Models of Megatron-LM's scripts: equal numbers of parameters on both sides, or refused by name.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "interop/foreign.h"
#include "tests/interop/importers_util.h"

namespace hocket::interop {
namespace {

Imported import(const std::string& more) {
  return import_megatron(
      "torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 4 --hidden-size 96 "
      "--num-attention-heads 4 --vocab-size 512 " +
          more + "\n",
      "args.sh", {});
}

TEST(Megatron, ExpertsWithoutAGateAreRefused) {
  const std::string experts = "--num-experts 4 --moe-ffn-hidden-size 192";
  try {
    import(experts);
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), 2);
    EXPECT_NE(std::string(error.what()).find("--num-experts is 4 without --swiglu"),
              std::string::npos);
  }
  for (const char* gate : {" --swiglu", " --quick-geglu"}) {
    const auto model = nlohmann::json::parse(import(experts + gate).config_json);
    EXPECT_EQ(model.at("moe_intermediate_size"), 192) << gate;
  }
}

TEST(Megatron, GradReduceInBf16DecidesTheTypeOfGradients) {
  EXPECT_EQ(import("--bf16").keys.count("train.grad_dtype"), 0u);
  EXPECT_EQ(import("--grad-reduce-in-bf16").keys.count("train.grad_dtype"), 0u);
  EXPECT_EQ(import("--bf16 --grad-reduce-in-bf16").keys.at("train.grad_dtype"), "model");
}

/// A gate by another function has three products, too; only --swiglu makes them narrower by
/// default.
TEST(Megatron, OnlySwigluNarrowsTheMlpByDefault) {
  const struct {
    const char* flags;
    int64_t width;
  } kRows[] = {{"--swiglu", 256},
               {"--quick-geglu", 384},
               {"--disable-bias-linear", 256},
               {"--quick-geglu --ffn-hidden-size 128", 128},
               {"--disable-bias-linear --ffn-hidden-size 192", 128}};
  for (const auto& row : kRows) {
    const auto model = nlohmann::json::parse(import(row.flags).config_json);
    EXPECT_EQ(model.at("intermediate_size"), row.width) << row.flags;
  }
}

/// Sizes of a GPT, a GPT-NeoX and the families of Llama, as the flags say.
TEST(Megatron, FlagsDecideTheFamilyOfTheModel) {
  const struct {
    const char* flags;
    const char* type;
  } kRows[] = {
      {"", "gpt2"},
      {"--position-embedding-type rope --rotary-percent 0.5", "gpt_neox"},
      {"--position-embedding-type rope --swiglu --normalization RMSNorm", "llama"},
      {"--position-embedding-type rope --swiglu --window-size 15,0", "mistral"},
      {"--position-embedding-type rope --swiglu --disable-bias-linear --add-qkv-bias", "qwen2"},
      {"--position-embedding-type rope --swiglu --qk-layernorm", "qwen3"},
      {"--position-embedding-type rope --swiglu --num-experts 4", "qwen3_moe"}};
  for (const auto& row : kRows) {
    const auto model = nlohmann::json::parse(import(row.flags).config_json);
    EXPECT_EQ(model.at("model_type"), row.type) << row.flags;
  }
  const auto gpt2 = nlohmann::json::parse(import("--seq-length 64").config_json);
  EXPECT_EQ(gpt2.at("n_inner"), 384);
  EXPECT_EQ(gpt2.at("n_positions"), 64);
  EXPECT_TRUE(import("").notes.empty() || !says(import("").notes[0], "norms are RMSNorm"));
  const auto scaled = nlohmann::json::parse(
      import("--swiglu --position-embedding-type rope --use-rope-scaling").config_json);
  EXPECT_EQ(scaled.at("rope_scaling").at("factor"), 8);
}

/// Flags that no release has, or that would make another model or plan, are refused by name.
TEST(Megatron, RefusesUnknownFlagsAndThoseOfOtherModelsOrPlans) {
  const struct {
    const char* flags;
    const char* part;
  } kRows[] = {
      {"--swigl",
       "--swigl is no argument of Megatron-LM; expected one of megatron/training; try "
       "--swiglu"},
      {"--tensor_model_parallel_size 2",
       "has underscores; expected dashes, as Megatron-LM does; "
       "try --tensor-model-parallel-size"},
      {"--multi-latent-attention", "would make another model: latent attention"},
      {"--mtp-num-layers 1", "would make another model: models here predict one token"},
      {"--num-experts 4 --swiglu --moe-shared-expert-intermediate-size 64", "shared experts"},
      {"--model-parallel-size 2", "its present name is --tensor-model-parallel-size"},
      {"--use-tp-pp-dp-mapping", "would make another plan"},
      {"--cpu-offloading-num-layers 2", "nothing is offloaded here"},
      {"--expert-model-parallel-size 2", "the model has no experts"},
      {"--decoder-last-pipeline-num-layers 1", "is 1 without a pipeline"},
      {"--num-layers-per-virtual-pipeline-stage 2", "is 2 without a pipeline"},
      {"--num-virtual-stages-per-pipeline-rank 2", "is 2 without a pipeline"},
      {"--recompute-granularity selective --recompute-modules moe", "try --set plan.recompute"},
      {"--recompute-granularity full --recompute-method block --recompute-num-layers 1",
       "all 4 layers of a stage are computed again here"},
      {"--exp-avg-dtype bf16", "moments and master weights are f32 here"},
      {"--rotary-percent 0.5 --swiglu", "--rotary-percent is 0.5; expected 1"},
      {"--optimizer lion", "--optimizer is 'lion'; expected adam, sgd or muon"},
      {"--fp8-format hybrid", "without --bf16"},
      {"--position-embedding-type none", "expected learned_absolute or rope"}};
  for (const auto& row : kRows) {
    const std::string text = refusal_of([&] { import(row.flags); });
    EXPECT_TRUE(says(text, row.part)) << row.flags << ": " << text;
  }
  for (const char* flags : {"--mtp-num-layers 0", "--cpu-offloading-num-layers 0",
                            "--exp-avg-dtype fp32", "--no-manual-gc-eval",
                            "--recompute-granularity full --recompute-method block "
                            "--recompute-num-layers 4"}) {
    EXPECT_EQ(refusal_of([&] { import(flags); }), "") << flags;
  }
}

TEST(Megatron, SettingsOfTheRunReplaceThoseOfTheScript) {
  const std::string script =
      "torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 4 --hidden-size 96 "
      "--num-attention-heads 4 --vocab-size 512 ";
  // A model that the run names, a key of --set and a search replace the script's.
  EXPECT_NO_THROW(
      import_megatron(script + "--multi-latent-attention", "args.sh", {}, beside({"model.path"})));
  const std::string recomputes = script + "--recompute-activations --recompute-modules moe";
  EXPECT_NO_THROW(import_megatron(recomputes, "args.sh", {}, beside({"plan.recompute"})));
  EXPECT_NO_THROW(import_megatron(recomputes, "args.sh", {}, beside({}, false)));
  EXPECT_THROW(import_megatron(recomputes, "args.sh", {}, beside({"plan.tp"})), Error);
}

TEST(Megatron, ReadsFloat8OptimizersTilesAndWsdDecay) {
  const Imported muon =
      import("--bf16 --fp8-format e4m3 --optimizer dist_muon --muon-momentum .95");
  EXPECT_EQ(muon.keys.at("model.float8"), "true");
  EXPECT_EQ(muon.keys.at("optimizer.name"), "muon");
  EXPECT_EQ(muon.keys.at("optimizer.momentum"), "0.95");
  EXPECT_EQ(import("--optimizer sgd").keys.at("optimizer.name"), "sgd");
  const Imported tiles = import(
      "--tensor-model-parallel-size 2 --sequence-parallel "
      "--tp-comm-overlap");
  EXPECT_EQ(tiles.keys.at("plan.comm_tiles"), "4");
  const Imported wsd = import(
      "--train-iters 100 --lr-decay-style WSD --lr-wsd-decay-style "
      "minus_sqrt --lr-wsd-decay-iters 20");
  EXPECT_EQ(wsd.keys.at("train.schedule"), "wsd");
  EXPECT_EQ(wsd.keys.at("train.decay"), "1-sqrt");
  EXPECT_EQ(wsd.keys.at("train.decay_share"), "0.2");
}

/// With and without the flag Megatron-LM keeps parameters and gradients whole.
TEST(Megatron, OverlapParamGatherIsAboutTimeAlone) {
  const std::string flags = "--bf16 --use-distributed-optimizer --overlap-grad-reduce";
  const Imported without = import(flags), with = import(flags + " --overlap-param-gather");
  EXPECT_EQ(without.keys, with.keys);
  EXPECT_EQ(with.keys.at("plan.shard.optimizer"), "all");
  EXPECT_EQ(with.keys.count("plan.shard.params"), 0u);
  EXPECT_TRUE(says(with.notes.back(), "--overlap-param-gather hides that"));
  EXPECT_FALSE(!without.notes.empty() && says(without.notes.back(), "--overlap-param-gather"));
}

engine::Run run_with(const std::string& plan, const std::string& dtype = "bf16") {
  return engine::parse_run(
      "{model: {dtype: " + dtype +
          ", config: {model_type: qwen3_moe, vocab_size: 64, hidden_size: 32, "
          "num_hidden_layers: 2, num_attention_heads: 4, num_key_value_heads: 2, head_dim: 8, "
          "intermediate_size: 64, moe_intermediate_size: 16, num_experts: 4, num_experts_per_tok: "
          "2, max_position_embeddings: 512, rms_norm_eps: 1.0e-6, norm_topk_prob: true, "
          "tie_word_embeddings: false}}, train: {global_batch: 8, seq_len: 64}, plan: {" +
          plan + "}}",
      "test", {});
}

/// Megatron-LM checks these when it starts (megatron/training/arguments.py).
TEST(Megatron, WrittenScriptsStart) {
  const auto text = [](const std::string& plan) { return emit_megatron(run_with(plan)).text; };
  const std::string one = "\nexport CUDA_DEVICE_MAX_CONNECTIONS=1\n", fsdp = "fsdp_dtensor\n";
  const std::string tp = "dp: 2, tp: 2, sequence_parallel: true";
  const std::string cp = "dp: 2, cp: 2, cp_comm_type: a2a, micro_batch: 1";
  const std::string split = ", shard: {params: all, grads: all}";
  EXPECT_FALSE(says(text("dp: 2"), one));
  for (const std::string& plan : {tp, cp}) {
    EXPECT_TRUE(says(text(plan), one)) << plan;
    EXPECT_FALSE(says(text(plan), fsdp)) << plan;
    EXPECT_FALSE(says(text(plan + split), one)) << plan;
    EXPECT_TRUE(says(text(plan + split), "--ckpt-format " + fsdp)) << plan;
  }
  EXPECT_TRUE(says(text("dp: 4, ranks_per_node: 2"),
                   "torchrun --nnodes 2 --nproc-per-node 2 --rdzv-backend c10d --rdzv-endpoint "
                   "\"${MASTER_ADDR:-localhost}:29500\" pretrain_gpt.py"));
  EXPECT_TRUE(says(text("dp: 4"), "torchrun --nnodes 1 --nproc-per-node 4 pretrain_gpt.py"));
  EXPECT_TRUE(says(refusal_of([&] { text("dp: 2, overlap_grad_reduce: false" + split); }),
                   "plan.overlap_grad_reduce is false"));
  EXPECT_TRUE(says(refusal_of([&] { text("cp: 2, cp_comm_type: a2a, micro_batch: 2"); }),
                   "plan.micro_batch is 2 with plan.cp 2"));
}

/// Products of all experts in one kernel, which are priced, are written too; it needs bf16 there.
TEST(Megatron, ExpertsHaveGroupedProducts) {
  EXPECT_TRUE(says(emit_megatron(run_with("dp: 2")).text, "--moe-grouped-gemm\n"));
  const Emitted wide = emit_megatron(run_with("dp: 2", "f32"));
  EXPECT_FALSE(says(wide.text, "--moe-grouped-gemm"));
  EXPECT_TRUE(says(wide.notes.at(0), "--moe-grouped-gemm with bf16 alone"));
  EXPECT_EQ(keys_for_megatron(run_with("dp: 2")),
            std::vector<std::string>{"plan.recompute_ops=[rms_norm, swiglu]"});
  EXPECT_EQ(keys_for_megatron(run_with("dp: 2", "f32")),
            std::vector<std::string>{"plan.recompute_ops=[rms_norm]"});
  EXPECT_TRUE(keys_for_megatron(run_with("dp: 2, recompute_ops: [rope]")).empty());
}

TEST(Megatron, IgnoresRedirectionsOfTheCommand) {
  const std::string command =
      "torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 4 --hidden-size 96 "
      "--num-attention-heads 4 --vocab-size 512";
  for (const char* more : {" 2>&1 | tee log", " > log 2>&1", " &> log", " >> log &", " 2>/dev/null",
                           " < /dev/null", " 2>&1"}) {
    const Imported found = import_megatron(command + more + "\n", "args.sh", {});
    EXPECT_TRUE(says(found.config_json, "\"vocab_size\": 512")) << more;
  }
}

TEST(Megatron, RefusesFlagsGivenToAShellFunction) {
  const std::string script =
      "run() {\n  torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 4 --hidden-size 96 "
      "--num-attention-heads 4 --vocab-size 512 \"$@\" 2>&1 | tee log\n}\n";
  EXPECT_NO_THROW(import_megatron(script + "run first\n", "args.sh", {}));
  EXPECT_TRUE(says(refusal_of([&] {
                     import_megatron(script + "run second --tensor-model-parallel-size 2\n",
                                     "args.sh", {});
                   }),
                   "--tensor-model-parallel-size is given to the function run"));
  EXPECT_TRUE(says(refusal_of([&] {
                     import_megatron("torchrun --nproc-per-nod 8 pretrain_gpt.py --num-layers 4\n",
                                     "args.sh", {});
                   }),
                   "is no argument of torchrun; try --nproc-per-node"));
}

/// Scripts as people write them: tests of files, messages that name the program, array elements of
/// several words, conditions, texts for other programs.
TEST(Megatron, FindsTheCommandInALargerScript) {
  const std::string head =
      "PROGRAM=tools/pretrain_gpt.py\nKIND=${3:-\"MOCK\"}\nTP=2\n"
      "if [ ! -f \"$PROGRAM\" ]; then\n  echo \"no pretrain_gpt.py at $PROGRAM\"\n  exit 1\nfi\n"
      "cat <<'END'\nit's: python pretrain_gpt.py --num-layers 9\nEND\n"
      "python tools/preprocess_data.py --input a.json --workers 4\n"
      "DATA=()\n";
  const std::string tail =
      "torchrun --nproc_per_node 8 \"$PROGRAM\" ${SIZES[@]} ${DATA[@]} "
      "--tensor-model-parallel-size $TP\n";
  const std::string sizes =
      "SIZES=(\"--num-layers 4\" --hidden-size 96 \"--num-attention-heads 4\")\n";
  const auto vocabulary = [&](const std::string& choice) {
    const Imported found = import_megatron(head + sizes + choice + tail, "args.sh", {});
    EXPECT_EQ(found.keys.at("plan.tp"), "2");
    EXPECT_EQ(found.keys.at("plan.dp"), "4");
    return nlohmann::json::parse(found.config_json).at("vocab_size").get<int64_t>();
  };
  const std::string both =
      " then\n  DATA+=(\"--vocab-size 1024\")\nelse\n  DATA+=(\"--vocab-size 2048\")\nfi\n";
  EXPECT_EQ(vocabulary("if [[ \"$KIND\" == \"MOCK\" ]] || [[ -z \"$KIND\" ]];" + both), 1024);
  EXPECT_EQ(vocabulary("if [ $KIND != MOCK ];" + both), 2048);
  EXPECT_EQ(vocabulary("if [ \"$TP\" -gt 2 ];" + both), 2048);
  EXPECT_EQ(vocabulary("if (( TP >= 2 ));" + both), 1024);
  EXPECT_EQ(vocabulary("if [[ -n \"\" && $TP == 2 ]];" + both), 2048);
  EXPECT_EQ(vocabulary("case \"$KIND\" in\n  REAL|x)\n    DATA+=(--vocab-size 4096)\n    ;;\n"
                       "  MOCK)\n    DATA+=(--vocab-size 1024)\n    ;;\n  *)\n    exit 1\n    ;;\n"
                       "esac\n"),
            1024);
  EXPECT_EQ(vocabulary("if [ -f x ]; then\n  TP=2\nelif [ $TP = 2 ]; then\n"
                       "  DATA+=(--vocab-size 1024)\nelse\n  DATA+=(--vocab-size 2048)\nfi\n"),
            1024);
}

}  // namespace
}  // namespace hocket::interop
