#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=600
# ctest: slow, without sanitizers
"""hocket plan convert, and searches with --from and --emit: plans of Megatron-LM and torchtitan are imported and
exported. Keys that either side cannot express are refused by name, or reported."""
import json
import os
import subprocess
import unittest

from megatron_script import DENSE as DENSE_SCRIPT, EXPERTS
from plan_box import PlanBox, TORCHTITAN


class TrainersTest(PlanBox):
    def test_megatron(self):
        self.put("args.sh", EXPERTS)
        told = self.good("plan", "convert", "--from", "megatron", "args.sh", "--out", "run.yaml", "--model-out", "model")
        for line in ("ignored  --moe-grouped-gemm", "ignored  --save /checkpoints/$USER", "ignored  --log-interval 1"):
            self.assertIn(line, told)
        self.assertNotIn("--hidden-size", told)
        model = json.loads(self.read("model/config.json"))
        self.assertEqual((model["model_type"], model["num_hidden_layers"], model["num_key_value_heads"],
                          model["mlp_only_layers"], model["num_experts"], model["vocab_size"]),
                         ("qwen3_moe", 16, 4, [0, 1], 64, 50688))  # 50,257 up to a multiple of 128 x 4
        plan, train = self.keys("run.yaml")
        self.assertEqual({k: plan[k] for k in ("pp", "pp_chunks", "pp_schedule", "dp", "tp", "ep", "etp",
                                               "sequence_parallel", "micro_batch", "recompute", "ranks_per_node")},
                         {"pp": 2, "pp_chunks": 2, "pp_schedule": "interleaved", "dp": 4, "tp": 4, "ep": 8, "etp": 1,
                          "sequence_parallel": True, "micro_batch": 2, "recompute": "full", "ranks_per_node": 8})
        self.assertEqual(plan["shard"]["optimizer"], "all")
        self.assertEqual((train["global_batch"], train["seq_len"], train["steps"], train["lr"]),
                         (256, 4096, 1000, 3e-4))
        self.assertIn('"beta2":0.999', self.good("graph", "run.yaml", "--stage", "program"))

    def test_megatron_and_back(self):
        self.put("args.sh", EXPERTS)
        self.good("plan", "convert", "--from", "megatron", "args.sh", "--out", "run.yaml", "--model-out", "model")
        self.good("plan", "convert", "run.yaml", "--emit", "megatron", "--out", "again.sh")
        told = self.good("plan", "convert", "--from", "megatron", "again.sh", "--out", "again.yaml", "--model-out", "model2")
        self.assertEqual(self.keys("run.yaml"), self.keys("again.yaml"))
        first, second = json.loads(self.read("model/config.json")), json.loads(self.read("model2/config.json"))
        self.assertEqual(first, second)
        self.assertNotIn("note", told)
        self.assertNotIn("$@", told)  # the script's own arguments: it has none
        subprocess.run(["bash", "-n", os.path.join(self.folder, "again.sh")], check=True)

    def test_defaults_of_megatron(self):
        """Missing options of a script have Megatron-LM's defaults, not ours."""
        script = ("torchrun --nproc-per-node 2 pretrain_gpt.py --num-layers 2 --hidden-size 64 --num-attention-heads 4 "
                  "--vocab-size 512 --swiglu --lr 1e-3\n")
        self.put("args.sh", script)
        told = self.good("plan", "convert", "--from", "megatron", "args.sh", "--out", "run.yaml", "--model-out", "model")
        # Two thirds of 4 x 64, rounded down to a multiple of 64.
        self.assertEqual(json.loads(self.read("model/config.json"))["intermediate_size"], 128)
        self.assertEqual(self.keys("run.yaml")[1]["min_lr"], 0)
        self.assertEqual(self.keys("run.yaml")[1]["schedule"], "linear")
        self.put("args.sh", script.replace("--swiglu", "--disable-bias-linear --lr-decay-style cosine --min-lr 2e-5"))
        told = self.good("plan", "convert", "--from", "megatron", "args.sh", "--out", "run.yaml", "--model-out", "model")
        self.assertIn("two thirds of their width here: 170 for 256", told)
        self.assertNotIn("--lr-decay-style", told)
        self.assertEqual(self.keys("run.yaml")[1]["min_lr"], 2e-5)
        # The export of a run without the key has the value that it implies here.
        self.good("plan", "convert", "run.yaml", "--set", "train.min_lr=null", "--emit", "megatron", "--out", "again.sh")
        self.assertIn("--min-lr 0.0001\n", self.read("again.sh"))

    def test_megatron_window(self):
        for script, family in ((DENSE_SCRIPT, "mistral"), (EXPERTS, "qwen3_moe")):
            self.put("args.sh", script.replace("--swiglu", "--swiglu --window-size '(15, 0)'"))
            self.good("plan", "convert", "--from", "megatron", "args.sh", "--out", "run.yaml", "--model-out", "model")
            model = json.loads(self.read("model/config.json"))
            self.assertEqual((model["model_type"], model["sliding_window"]), (family, 16))
            self.good("plan", "convert", "run.yaml", "--emit", "megatron", "--out", "again.sh")
            self.assertIn("--window-size 15,0", self.read("again.sh"))
            self.put("args.sh", script.replace("--swiglu", "--swiglu --window-size 15,1"))
            self.refused("--window-size is '15,1'", "plan", "convert", "--from", "megatron", "args.sh", "--out", "run.yaml",
                         "--model-out", "model")

    def test_megatron_says_it_in_another_way(self):
        """Options with an equivalent here are converted, exported again, and not listed as ignored."""
        self.put("args.sh", EXPERTS.replace("--train-iters 1000", "--train-samples 25600")
                 .replace("--overlap-grad-reduce --bf16", "--overlap-grad-reduce --overlap-param-gather --fp16")
                 .replace("--lr-warmup-iters 100", "--lr-warmup-samples 2560")
                 .replace("granularity full --recompute-method uniform --recompute-num-layers 1",
                          "granularity selective --recompute-modules moe_act layernorm core_attn"))
        told = self.good("plan", "convert", "--from", "megatron", "args.sh", "--out", "run.yaml", "--model-out", "model")
        for line in ("note     train.steps is 100: --train-samples 25600 in steps of 256 sequences",
                     "note     model.dtype is bf16, for --fp16", "note     core_attn need not be computed again"):
            self.assertIn(line, told)
        for flag in ("--overlap-param-gather", "--fp16", "--train-samples"):
            self.assertNotIn("ignored  " + flag, told)
        plan, train = self.keys("run.yaml")
        self.assertEqual((train["steps"], train["warmup_steps"]), (100, 10))
        self.assertEqual((plan["recompute"], plan["recompute_ops"]), ("selective", ["rms_norm", "swiglu"]))
        # Parameters and gradients stay whole, whatever the flag.
        self.assertIn("note     updated parameters are gathered at the end of a step here, where --overlap-param-gather", told)
        self.assertEqual((plan["shard"].get("params", "none"), plan["shard"].get("grads", "none"), plan["shard"]["optimizer"]),
                         ("none", "none", "all"))
        self.good("plan", "convert", "run.yaml", "--emit", "megatron", "--out", "again.sh")
        self.assertIn("--recompute-modules layernorm moe_act\n", self.read("again.sh"))
        self.good("plan", "convert", "--from", "megatron", "again.sh", "--out", "again.yaml", "--model-out", "model2")
        self.assertEqual(self.keys("run.yaml"), self.keys("again.yaml"))
        # Attention keeps no scores; there are no replicas to gather from.
        self.put("alone.sh", "torchrun --nproc-per-node 2 pretrain_gpt.py --num-layers 2 --hidden-size 64 --vocab-size 512 "
                 "--num-attention-heads 4 --tensor-model-parallel-size 2 --overlap-param-gather --recompute-activations\n")
        told = self.good("plan", "convert", "--from", "megatron", "alone.sh", "--out", "alone.yaml")
        self.assertIn("ignored  --overlap-param-gather: no ranks split parameters or the optimizer", told)
        self.assertEqual(self.keys("alone.yaml")[0]["recompute"], "none")

    def test_megatron_errors(self):
        self.put("none.sh", "echo hello\n")
        self.refused("has no arguments of Megatron-LM", "plan", "convert", "--from", "megatron", "none.sh")
        self.put("unset.sh", "torchrun pretrain_gpt.py --num-layers $LAYERS --hidden-size 8\n")
        self.refused("--num-layers is '$LAYERS'; expected an integer", "plan", "convert", "--from", "megatron", "unset.sh")
        self.put("open.sh", "A=(\n --num-layers 2\n")
        self.refused("line 1: the array A does not end", "plan", "convert", "--from", "megatron", "open.sh")
        for letter in ";|&(":
            self.put("letter.sh", f"A=( --num-layers 2\n {letter} --swiglu )\n")
            self.refused(f"line 2: the array A has an unquoted {letter}; expected words up to )", "plan", "convert", "--from",
                         "megatron", "letter.sh")
        # These products overflow 64 bits.
        sized = ("torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 4 --hidden-size 64 --num-attention-heads 4 "
                 "--vocab-size 512 ")
        many = 2 ** 62
        for more, part in (
                ("--tensor-model-parallel-size 4294967296 --pipeline-model-parallel-size 4294967296",
                 "expected a multiple of tp 4294967296 x pp 4294967296 x cp 1"),
                (f"--pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage {many}",
                 f"--num-layers-per-virtual-pipeline-stage is {many}"),
                (f"--pipeline-model-parallel-layout '(tttt)*{many}'", "--pipeline-model-parallel-layout is"),
                (f"--num-experts 4 --moe-layer-freq '([0,1,0,1])*{many}'", "--moe-layer-freq is")):
            self.put("many.sh", sized + more + "\n")
            self.refused(part, "plan", "convert", "--from", "megatron", "many.sh")
        self.put("ranks.sh", EXPERTS.replace("NNODES=${SLURM_NNODES:-4}", "NNODES=3")
                 .replace("GPUS_PER_NODE=8", "GPUS_PER_NODE=5"))
        self.refused("expected a multiple of tp 4 x pp 2 x cp 1", "plan", "convert", "--from", "megatron", "ranks.sh")
        # Values that Megatron-LM refuses, too, and derived values that fit no key.
        for more, part in (
                ("--recompute-granularity fully", "--recompute-granularity is 'fully'; expected one of full, selective"),
                ("--recompute-granularity full --recompute-method all", "--recompute-method is 'all'"),
                ("--lr-decay-style cosin", "--lr-decay-style is 'cosin'"),
                ("--pipeline-model-parallel-size 8", "--num-layers is 4; expected a multiple of the 8 stages"),
                ("--pipeline-model-parallel-size 2 --num-virtual-stages-per-pipeline-rank 4",
                 "--num-layers is 4; expected a multiple of the 8 stages"),
                ("--pipeline-model-parallel-size 2 --account-for-loss-in-pipeline-split",
                 "--num-layers is 4, 5 with the ends; expected a multiple of the 2 stages"),
                ("--seq-length -1", "--seq-length is -1; expected at least 1"),
                ("--micro-batch-size 0", "--micro-batch-size is 0; expected at least 1"),
                ("--train-iters 0", "--train-iters is 0; expected at least 1"),
                ("--save-interval -1", "--save-interval is -1; expected at least 0"),
                ("--lr fast", "--lr is 'fast'; expected a number"),
                ("--train-iters 10 --lr-warmup-fraction 2", "--lr-warmup-fraction is 2; expected 0 to 1"),
                ("--train-iters 10 --lr-warmup-iters 2 --lr-warmup-fraction 0.1", "beside 2 steps of warm-up"),
                (f"--num-layers {many} --num-experts 4 --moe-layer-freq 2", f"--num-layers is {many}; expected at most"),
                (f"--pipeline-model-parallel-size {many} --decoder-first-pipeline-num-layers 4",
                 "expected a multiple of tp 1")):
            self.put("wrong.sh", sized + more + "\n")
            self.refused(part, "plan", "convert", "--from", "megatron", "wrong.sh")
        self.put("wide.sh", "pretrain_gpt.py --num-layers 4 --hidden-size 64 --num-attention-heads 4 --vocab-size 512 "
                 f"--pipeline-model-parallel-size {many} --decoder-first-pipeline-num-layers 4\n")
        self.refused("--decoder-first-pipeline-num-layers 4", "plan", "convert", "--from", "megatron", "wide.sh")

    def test_quotes_in_the_defaults_of_a_script(self):
        sizes = "--num-layers 4 --hidden-size 64 --num-attention-heads 4 --vocab-size 512 --bf16"
        script = ('TP=${TP:-"2"}\n: "${STEPS:=\'7\'}"\nEMPTY=\nMORE=${MORE:-"--swiglu --lr 1e-4"}\n'
                  'torchrun --nproc_per_node ${GPUS:-\'2\'} --nnodes=%s pretrain_gpt.py ' + sizes +
                  ' --tensor-model-parallel-size "${TP:-"4"}" --train-iters ${STEPS} --seq-length ${EMPTY:-"64"} '
                  '--seed ${SEED:-${TP:-"9"}} ${MORE}\n')
        convert = ("plan", "convert", "--from", "megatron", "args.sh", "--out", "run.yaml")
        # Quotes inside quotes that close nothing stay characters, as in a shell.
        self.put("args.sh", (script % '${NNODES:-"8"}').replace("'7'", "7"))
        self.good(*convert)
        plan, train = self.keys("run.yaml")
        self.assertEqual((plan["tp"], plan["dp"], train["steps"], train["seq_len"], train["seed"], train["lr"]),
                         (2, 8, 7, 64, 2, 1e-4))
        self.put("args.sh", script % "8")
        self.refused("--train-iters is ''7''; expected an integer", *convert)
        # Values that only the caller's environment has are reported; unreadable ones are refused.
        script = script.replace("'7'", "7")
        for nodes in ("$NNODES", "auto"):
            self.put("args.sh", script % nodes)
            told = self.good(*convert)
            self.assertIn("--nnodes of the launcher is ", told)
            self.assertIn("which this file does not say", told)
            self.assertIn("does not say how many ranks there are", told)
            self.good(*convert, "--ranks", "16")
            self.assertEqual(self.keys("run.yaml")[0]["dp"], 8)
        for nodes in ("1:4", "0", "many"):
            self.put("args.sh", script % nodes)
            self.refused(f"--nnodes of the launcher is '{nodes}'; expected an integer", *convert)

    def test_the_vocabulary_of_gpt2(self):
        script = ("torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 4 --hidden-size 64 --num-attention-heads 8 "
                  "--tensor-model-parallel-size 8 ")
        convert = ("plan", "convert", "--from", "megatron", "args.sh", "--out", "run.yaml", "--model-out", "model")
        for more in ("--vocab-file $VOCAB --merge-file $MERGES", "--tokenizer-type GPT2BPETokenizer"):
            self.put("args.sh", script + more + "\n")
            told = self.good(*convert)
            self.assertIn("note     the vocabulary is that of GPT-2's tokenizer, 50257 tokens, padded to 51200", told)
            self.assertEqual(json.loads(self.read("model/config.json"))["vocab_size"], 51200)
            self.assertNotIn("ignored  --merge-file", told)
        for more in ("", "--tokenizer-type Llama2Tokenizer --vocab-file $VOCAB"):
            self.put("args.sh", script + more + "\n")
            self.refused("has no --vocab-size; expected it, or --set model.path=MODEL in its place", *convert)
            # --set model.path works, as the error suggests.
            self.model(num_attention_heads=8, num_key_value_heads=8)
            told = self.good(*convert[:7], "--set", "model.path=model")
            self.assertIn("note     the model is the one that --set names", told)
            self.assertIn("ignored  --hidden-size 64", told)
        # A script without any size.
        self.put("args.sh", "torchrun --nproc-per-node 8 pretrain_gpt.py --pipeline-model-parallel-size 2 "
                 "--num-layers-per-virtual-pipeline-stage 2 --account-for-loss-in-pipeline-split\n")
        told = self.good(*convert[:7], "--set", "model.path=model")
        self.assertIn("ignored  --num-layers-per-virtual-pipeline-stage 2: set plan.pp_chunks to", told)
        self.assertIn("ignored  --account-for-loss-in-pipeline-split: the script has no --num-layers", told)

    def test_ends_that_count_as_layers(self):
        self.put("args.sh", "torchrun --nproc-per-node 4 pretrain_gpt.py --num-layers 6 --hidden-size 64 "
                 "--num-attention-heads 8 --vocab-size 512 --pipeline-model-parallel-size 4 "
                 "--account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split\n")
        told = self.good("plan", "convert", "--from", "megatron", "args.sh", "--out", "run.yaml")
        self.assertEqual(self.keys("run.yaml")[0]["pp_layers"], [1, 2, 2, 1])
        self.assertNotIn("ignored", told)

    def test_warmup_as_a_share(self):
        script = DENSE_SCRIPT.replace("--train-iters 10 ", "--train-iters 1000 --lr-decay-style cosine "
                                      "--lr-warmup-fraction .01 %s ")
        for more, steps, ignored in (("", 10, False), ("--lr-decay-iters 1000", 10, False),
                                     ("--lr-decay-iters 800", 8, True)):
            self.put("args.sh", script % more)
            told = self.good("plan", "convert", "--from", "megatron", "args.sh", "--out", "run.yaml")
            self.assertEqual(self.keys("run.yaml")[1]["warmup_steps"], steps)
            self.assertIn(f"note     train.warmup_steps is {steps}: --lr-warmup-fraction 0.01 of ", told)
            self.assertEqual("ignored  --lr-decay-iters 800: the learning rate falls up to the last step" in told, ignored)
            self.assertEqual("ignored  --lr" in told, ignored)

    def test_another_model_is_refused(self):
        """A part of the model that does not exist here is refused; beside a model of the run it does not matter."""
        self.model(num_attention_heads=16, num_key_value_heads=16, num_hidden_layers=16, hidden_size=1024, head_dim=64)
        for more, why in (("--multi-latent-attention --kv-lora-rank 512", "latent attention"),
                          ("--moe-shared-expert-intermediate-size 2048", "shared experts"),
                          ("--mtp-num-layers 1", "predict one token")):
            self.put("args.sh", EXPERTS.replace("--swiglu", "--swiglu " + more))
            self.refused(why, "plan", "convert", "--from", "megatron", "args.sh", "--out", "run.yaml")
            told = self.good("plan", "convert", "--from", "megatron", "args.sh", "--out", "run.yaml", "--set",
                             "model.path=model", "--set", "plan.ep=1", "--set", "plan.etp=1")
            self.assertIn("ignored  " + more.split(" ", maxsplit=1)[0], told)

    def test_what_a_script_says_of_intervals_comes_back(self):
        self.put("args.sh", DENSE_SCRIPT.replace("--train-iters 10", "--train-iters 10 --save-interval 5 --eval-interval 2 "
                                                 "--distributed-timeout-minutes 20"))
        self.good("plan", "convert", "--from", "megatron", "args.sh", "--out", "run.yaml", "--model-out", "model")
        for trainer, of_model in (("megatron", ()), ("torchtitan", ("--set", "model.path=model"))):
            self.good("plan", "convert", "run.yaml", "--emit", trainer, "--out", "again")
            self.good("plan", "convert", "--from", trainer, "again", "--out", "again.yaml", *of_model)
            plan, train = self.keys("again.yaml")
            self.assertEqual((plan["timeout_s"], train["save_every"], train["eval_every"], train["keep_last"]),
                             (1200, 5, 2, 2))
        # Keys without an equivalent are reported.
        self.put("run.yaml", "{model: {path: model}, train: {global_batch: 8, seq_len: 64, minutes: 3, keep_last: 1, "
                 "save_every: 5, dropout: 0.1}, plan: {dp: 2, timeout_s: 90.5}}")
        for trainer, notes in (("megatron", ("train.minutes 3 is", "train.keep_last 1 is", "whole minutes: 2")),
                               ("torchtitan", ("train.minutes 3 is", "train.keep_last 1 is", "train.dropout 0.1 is",
                                               "whole seconds: 91"))):
            r = self.hocket("plan", "convert", "run.yaml", "--emit", trainer)
            self.assertEqual(r.returncode, 0, r.stderr)
            for note in notes:
                self.assertIn(note, r.stderr)
            self.assertEqual(r.stderr.count("note"), len(notes), r.stderr)

    def test_torchtitan(self):
        self.model()
        self.put("job.toml", TORCHTITAN)
        told = self.good("plan", "convert", "--from", "torchtitan", "job.toml", "--set", "model.path=model", "--out", "run.yaml")
        for line in ("ignored  job.description", "ignored  training.compile = true"):
            self.assertIn(line, told)
        plan, train = self.keys("run.yaml")
        self.assertEqual({k: plan[k] for k in ("pp", "pp_chunks", "pp_schedule", "dp", "tp", "sequence_parallel",
                                               "micro_batch", "recompute")},
                         {"pp": 2, "pp_chunks": 2, "pp_schedule": "interleaved", "dp": 4, "tp": 2,
                          "sequence_parallel": True, "micro_batch": 1, "recompute": "full"})
        # Values that the file leaves open, and differences in order.
        self.assertEqual(plan["ranks_per_node"], 8)
        self.assertIn("note     plan.ranks_per_node is 8, as run_train.sh starts them", told)
        self.assertIn("torchtitan accumulates 2 of training.local_batch_size 4", told)
        # Four layers, and the embedding and the head as one each, over four stages.
        self.assertEqual(plan["pp_layers"], [1, 2, 1, 0])
        self.assertNotIn("torchtitan gives the first", told)
        self.assertIn("ignored  quantize.linear.float8.filter_fqns = [output]\n", told)
        self.assertEqual(train["schedule"], "linear")
        self.assertRegex(told, "note     the file names the model 'llama3 debugmodel'; the one of this run has [0-9.]+ k "
                         r"parameters \(llama: 4 layers")
        self.assertEqual({k: plan["shard"][k] for k in ("params", "grads", "group", "reshard_after_forward", "reshard_after_backward")},
                         {"params": "group", "grads": "none", "group": 2, "reshard_after_forward": False,
                          "reshard_after_backward": False})
        self.assertEqual((train["global_batch"], train["seq_len"], train["warmup_steps"]), (32, 2048, 20))
        self.assertAlmostEqual(train["min_lr"], 8e-5)

    def test_torchtitan_precision(self):
        self.model()
        of_model = ["--set", "model.path=model", "--out", "run.yaml"]
        plain = TORCHTITAN.replace("data_parallel_shard_degree = 2", "data_parallel_shard_degree = 1")
        float8 = TORCHTITAN.replace('flavor = "debugmodel"', 'converters = ["float8"]')
        for text, dtype, note in (
                (TORCHTITAN, {"dtype": "bf16"}, ""),
                (TORCHTITAN.replace("[training]", '[training]\nmixed_precision_param = "float32"'), {}, ""),
                (plain, {}, "only beside FSDP or cp"),
                (plain.replace("[training]", '[training]\ndtype = "bfloat16"'), {"dtype": "bf16"}, "of f32 here"),
                (float8, {"dtype": "bf16", "float8": True}, ""),
                (TORCHTITAN.replace('flavor = "debugmodel"', 'converters = ["mx"]'), {"dtype": "bf16"}, "'mx'")):
            self.put("job.toml", text)
            told = self.good("plan", "convert", "--from", "torchtitan", "job.toml", *of_model)
            usual = ("run_train.sh", "accumulates", "names the model", "stage_less_layers")
            notes = [line for line in told.split("\n") if line.startswith("note") and
                     not any(words in line for words in usual)]
            self.assertEqual(len(notes), 1 if note else 0, told)
            self.assertIn(note, told)
            run = self.read("run.yaml")
            self.assertEqual({"dtype": "bf16"} if "dtype: bf16" in run else {}, {k: v for k, v in dtype.items()
                                                                                if k == "dtype"})
            self.assertEqual("float8: true" in run, "float8" in dtype)
        self.put("job.toml", TORCHTITAN.replace("[training]", '[training]\nmixed_precision_param = "float16"'))
        self.refused("expected bfloat16 or float32", "plan", "convert", "--from", "torchtitan", "job.toml", *of_model)
        # The way back: torchtitan's keys are written.
        self.put("job.toml", float8)
        self.good("plan", "convert", "--from", "torchtitan", "job.toml", *of_model)
        written = self.good("plan", "convert", "run.yaml", "--emit", "torchtitan")
        self.assertIn('converters = ["float8"]', written)
        self.assertIn('mixed_precision_param = "bfloat16"', written)
        self.refused("model.float8 is true", "plan", "convert", "run.yaml", "--set", "plan.shard.params=none", "--set",
                     "plan.shard.grads=none", "--emit", "megatron")
        self.refused("model.dtype is bf16", "plan", "convert", "run.yaml", "--set", "plan.shard.params=none", "--set",
                     "plan.shard.grads=none", "--emit", "torchtitan")

    def test_sections_of_torchtitan_that_are_off(self):
        self.model()
        more = ('[checkpoint]\n%sinterval = 500\nkeep_latest_k = 3\n[validation]\n%sfreq = 50\n')
        for on, saves, looks in (("", 0, 0), ("enable = false\n", 0, 0), ("enable = true\n", 500, 50)):
            text = TORCHTITAN.replace("[lr_scheduler]", '[lr_scheduler]\ndecay_type = "cosine"')
            self.put("job.toml", text + more % (on, on))
            told = self.good("plan", "convert", "--from", "torchtitan", "job.toml", "--set", "model.path=model", "--out", "run.yaml")
            _, train = self.keys("run.yaml")
            self.assertEqual((train["save_every"], train["eval_every"]), (saves, looks))
            self.assertEqual("ignored  checkpoint.interval = 500: checkpoint.enable is false" in told, saves == 0)
            self.assertEqual("ignored  validation.freq = 50: validation.enable is false" in told, looks == 0)
            self.assertNotIn("decay_type", told)

    def test_ranks_of_a_file_and_of_set(self):
        self.model()
        self.put("job.toml", TORCHTITAN)
        of_model = ["--set", "model.path=model", "--out", "run.yaml"]
        self.good("plan", "convert", "--from", "torchtitan", "job.toml", "--ranks", "16", *of_model)
        self.refused("expected the 16 of the file", "plan", "convert", "--from", "torchtitan", "job.toml", "--ranks", "64", *of_model)
        self.put("open.toml", TORCHTITAN.replace("shard_degree = 2", "shard_degree = -1"))
        self.refused("--ranks is 16; expected 8", "plan", "convert", "--from", "torchtitan", "open.toml", "--ranks", "16", *of_model,
                     "--set", "plan.tp=1", "--set", "plan.sequence_parallel=false")

    def test_a_search_for_the_model_of_another_trainer(self):
        """The search covers --ranks, or all devices. The file's own ranks only give its batch, and need not agree."""
        self.model()
        search = ["--cluster", "configs/clusters/h100-64x8.yaml", "--set", "plan.micro_batch=1", "--set",
                  "plan.recompute=none", "--set", "plan.pp=2", "--set", "plan.tp=2", "--time-limit", "0.01"]
        of_job = ["--from", "torchtitan", *search, "--set", "model.path=model", "--out", "run.yaml"]
        own_batch = TORCHTITAN.replace("global_batch_size = 32\n", "")
        open_own_batch = own_batch.replace("shard_degree = 2", "shard_degree = -1")
        for text, ranks, batch in (
                (TORCHTITAN, ["--ranks", "16"], 32), (TORCHTITAN, ["--ranks", "32"], 32),
                (own_batch, ["--ranks", "32"], 16),  # 4 for each of the job's own 4 replicas
                (open_own_batch, ["--ranks", "32"], 32),  # 4 for each of the 8 replicas that the ranks give
                (open_own_batch, [], 512)):
            self.put("job.toml", text)
            self.good("plan", "job.toml", *ranks, *of_job)
            plan, train = self.keys("run.yaml")
            world = plan["pp"] * plan["tp"] * plan.get("dp", 1) * plan.get("cp", 1)
            self.assertEqual((world, train["global_batch"]), (int(ranks[1]) if ranks else 512, batch))
        self.put("job.toml", open_own_batch)
        self.refused("expected a multiple of 8: tp 2 x pp 2 x cp 1 x replicas 2; try another --ranks", "plan", "job.toml",
                     "--ranks", "12", *of_job)
        # The script's launcher gives 32 ranks.
        self.put("args.sh", EXPERTS)
        self.good("plan", "args.sh", "--from", "megatron", "--ranks", "12", "--out", "run.yaml", *search, "--set",
                  "plan.ep=1", "--set", "train.global_batch=12")
        plan, _ = self.keys("run.yaml")
        self.assertEqual(plan["pp"] * plan["tp"] * plan.get("dp", 1) * plan.get("cp", 1), 12)

    def test_what_follows_from_a_plan_is_left_aside_with_it(self):
        """1F1B of Megatron-LM overlaps no messages. This applies to the script's own plan, not to one that a search
        finds."""
        self.put("args.sh", DENSE_SCRIPT.replace("--tensor-model-parallel-size 2 --sequence-parallel",
                                                 "--pipeline-model-parallel-size 2"))
        self.good("plan", "convert", "args.sh", "--from", "megatron", "--out", "own.yaml")
        self.assertFalse(self.keys("own.yaml")[0]["overlap_p2p_comm"])
        search = ["plan", "args.sh", "--from", "megatron", "--cluster", "configs/clusters/h100-64x8.yaml", "--ranks", "16",
                  "--time-limit", "0.01", "--out", "found.yaml"]
        self.good(*search)
        self.assertTrue(self.keys("found.yaml")[0]["overlap_p2p_comm"])
        self.good(*search, "--set", "plan.overlap_p2p_comm=false")
        self.assertFalse(self.keys("found.yaml")[0]["overlap_p2p_comm"])

    def test_a_search_predicts_what_is_written(self):
        """1F1B of Megatron-LM waits for its messages, and its selective recomputation covers norms alone."""
        self.model()
        told = self.hocket("plan", "model", "--cluster", "configs/clusters/h100-64x8.yaml", "--ranks", "4", "--global-batch", "8",
                           "--seq-len", "64", "--set", "plan.pp=2", "--set", "plan.pp_schedule=1f1b", "--set",
                           "plan.recompute=selective", "--time-limit", "0.01", "--emit", "megatron", "--out", "found.sh", "--json")
        self.assertEqual(told.returncode, 0, told.stderr)
        self.assertIn("plan.overlap_p2p_comm", told.stdout)
        self.assertNotIn("note", told.stderr)
        self.assertIn("--recompute-modules layernorm\n", self.read("found.sh"))

    def test_conversions_go_without_a_search(self):
        self.model()
        self.put("run.yaml", "{model: {path: model}, train: {global_batch: 16, seq_len: 64}, plan: {dp: 2, pp: 2}}")
        for option in (["--json"], ["--top", "3"], ["--threads", "1"], ["--time-limit", "5"], ["--ranks", "4"]):
            self.refused("--ranks goes with --from" if option[0] == "--ranks" else f"unknown option '{option[0]}'", "plan",
                         "convert", "run.yaml", "--emit", "megatron", *option)
        self.refused("hocket plan convert to keep the plan", "plan", "run.yaml", "--emit", "megatron")
        self.refused("--model-out goes with --from megatron", "plan", "convert", "run.yaml", "--model-out", "model2")
        r = self.hocket("plan", "convert", "run.yaml", "--emit", "megatron")
        self.assertIn("note     plan.overlap_p2p_comm is true by default", r.stderr)
        self.assertNotIn("note", r.stdout)

    def test_torchtitan_and_back(self):
        self.model()
        self.put("job.toml", TORCHTITAN)
        of_model = ["--set", "model.path=model"]
        self.good("plan", "convert", "--from", "torchtitan", "job.toml", *of_model, "--out", "run.yaml")
        self.good("plan", "convert", "run.yaml", "--emit", "torchtitan", "--out", "again.toml")
        self.good("plan", "convert", "--from", "torchtitan", "again.toml", *of_model, "--out", "again.yaml")
        (plan, train), (again, train_again) = self.keys("run.yaml"), self.keys("again.yaml")
        # The export names the stages one by one.
        self.assertEqual(again["pp_layers"], [1, 2, 1, 0])
        train.pop("seed"), train_again.pop("seed")
        self.assertEqual((plan, train), (again, train_again))

    def test_torchtitan_errors(self):
        self.model()
        self.put("bad.toml", "[training]\nseq_len = 1\nseq_len = 2\n")
        self.refused("line 3", "plan", "convert", "--from", "torchtitan", "bad.toml", "--set", "model.path=model")
        self.put("job.toml", TORCHTITAN.replace("shard_degree = 2", "shard_degree = -1"))
        self.refused("expected --ranks N", "plan", "convert", "--from", "torchtitan", "job.toml", "--set", "model.path=model")
        self.put("many.toml", TORCHTITAN.replace("tensor_parallel_degree = 2", "tensor_parallel_degree = 4294967296")
                 .replace("pipeline_parallel_degree = 2", "pipeline_parallel_degree = 4294967296")
                 .replace("shard_degree = 2", "shard_degree = -1"))
        self.refused("tp 4294967296 x pp 4294967296 x cp 1 x replicas 2", "plan", "convert", "--from", "torchtitan", "many.toml",
                     "--set", "model.path=model", "--ranks", "8")
        self.put("text.toml", TORCHTITAN.replace("seq_len = 2048", 'seq_len = "long"'))
        self.refused("training.seq_len is 'long'; expected an integer", "plan", "convert", "--from", "torchtitan", "text.toml",
                     "--set", "model.path=model")
        for key, value, wrong in (("seq_len", "2048", "-1"), ("local_batch_size", "4", "0"), ("steps", "100", "0"),
                                  ("global_batch_size", "32", "0")):
            self.put("low.toml", TORCHTITAN.replace(f"\n{key} = {value}\n", f"\n{key} = {wrong}\n"))
            self.refused(f": training.{key} is {wrong}; expected at least 1", "plan", "convert", "--from", "torchtitan", "low.toml",
                         "--set", "model.path=model")
        self.put("named.toml", TORCHTITAN)
        self.refused("names the model", "plan", "convert", "--from", "torchtitan", "named.toml")

    def test_what_others_cannot_express(self):
        self.model()
        run = "{model: {path: model}, train: {global_batch: 16, seq_len: 64}, plan: {dp: 2, %s}}"
        for trainer, keys, key in (
                ("megatron", "all_reduce: ring", "plan.all_reduce is ring"),
                ("megatron", "pp: 2, pp_schedule: zb-h1", "plan.pp_schedule is zb-h1"),
                ("megatron", "grad_codec: int8", "plan.grad_codec is int8"),
                ("torchtitan", "tp: 2", "plan.sequence_parallel is false"),
                ("torchtitan", "shard: {optimizer: all}", "plan.shard"),
                ("torchtitan", "pp: 2, pp_schedule: dualpipe", "plan.pp_schedule is dualpipe"),
                ("torchtitan", "overlap_grad_reduce: false", "plan.overlap_grad_reduce is false")):
            self.put("run.yaml", run % keys)
            self.refused(key, "plan", "convert", "run.yaml", "--emit", trainer)


if __name__ == "__main__":
    unittest.main()
