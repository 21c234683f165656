#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Asks a version of the program what earlier ones answered wrongly, and prints both answers as a Markdown table.

    bench/former_errors.py [--only WORDS ...] [--searches] [--hocket build/hocket] [--table FILE]

The rows without --searches take seconds. With --searches only the searches of `hocket plan` run; they need the machine
for themselves. Each has 50 s and two threads, and its plan is compared with plans by hand, all simulated in full.

ratio       step of the planner's choice over that of the best plan by hand: at most 1.00 is right
clock       seconds of the search: at most 60 are right; beside it its processor time, all threads together

The exit code is 1 if an answer is wrong."""
import argparse
import json
import os
import re
import sys
import time
from dataclasses import dataclass
from typing import Callable

import planner_experts
import published_rows
import published_tables

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path[1:1] = [os.path.join(ROOT, "tests", folder) for folder in ("cli", "whatif")]
import chakra_util  # noqa: E402
import cli_util  # noqa: E402
import importers_test  # noqa: E402
import kineto_util  # noqa: E402
import megatron_script  # noqa: E402
import nccl_log  # noqa: E402
import plan_box  # noqa: E402
import yaml  # noqa: E402

GIB = 2**30
LIMIT_S, CLOCK_S = 50, 60
MEMORY_OFF = 0.15  # of a published peak that the predicted one may miss


@dataclass
class Question:
    name: str
    what: str
    before: str
    ask: Callable  # of a box; returns the answer, or raises AssertionError
    is_search: bool


QUESTIONS = []


def question(name, what, before, is_search=False):
    def keep(ask):
        QUESTIONS.append(Question(name, what, before, ask, is_search))
        return ask
    return keep


def expect(condition, said):
    if not condition:
        raise AssertionError(said)


def per_second(constants):
    """Returns a fitted bandwidth in words."""
    return f"{float(constants['bandwidth'].removesuffix('GB/s')):.1f} GB/s"


class Box(plan_box.PlanBox):
    """A folder for the files of one question, with the assertions of the tests."""

    def runTest(self):
        """Is asked for by unittest.TestCase."""

    def path(self, name):
        return os.path.join(self.folder, name)

    def put_bytes(self, name, data):
        with open(self.path(name), "wb") as f:
            f.write(data)
        return name

    def json(self, *words):
        return json.loads(self.good(*words, "--json"))

    def convert(self, tool, text, *more):
        """Reads a file of another trainer. Returns what was said, and the keys of plan and training."""
        self.put("file", text)
        told = self.good("plan", "convert", "file", "--from", tool, "--out", "run.yaml", *more)
        return told, *self.keys("run.yaml")

    def says(self, part, tool, text, *more):
        """Asserts that a file is refused with these words; returns them."""
        self.put("file", text)
        self.refused(part, "plan", "convert", "file", "--from", tool, "--out", "run.yaml", *more)
        return f"refused: \"{part}\""


# ---- profiles ----
@question("host ahead", "PyTorch profile of 5 steps of 10 kernels of 100 us, launches of 10 us, nothing waits; the same with 0.5 ms of "
          "the host before each step", "2.81 ms a step; pauses, 2.79 times as fast without")
def host_ahead(box):
    steps = []
    for gap_us in (0, 500):
        box.put("profile.json", json.dumps(kineto_util.running_ahead(gap_us=gap_us)))
        found = box.json("whatif", "profile.json")
        for key in ("T_measured", "T"):
            box.assertAlmostEqual(found[key], 1e-3, delta=1e-5, msg=key)
        box.assertIsNone(found["cause"])
        steps.append(f"{1e3 * found['T_measured']:.3f} ms")
    return f"{' and '.join(steps)} a step, no cause"


@question("control circles", "Chakra: nodes that are their own control parent, parents that wait for what they call",
          "refused, with advice about messages")
def control_circles(box):
    nodes = [chakra_util.node(1, "root", "COMP_NODE", [], 10, control=[1]),
             chakra_util.node(2, "call", "COMP_NODE", [1], 20, control=[3]),
             chakra_util.node(3, "mm", "COMP_NODE", [2], 30, control=[2])]
    found = box.json("whatif", box.put_bytes("0.et", chakra_util.trace(nodes)))
    box.assertAlmostEqual(found["T"], 60e-6, places=12)
    return f"read, issued by data: {1e6 * found['T']:.0f} us of 10 + 20 + 30"


# ---- files of other trainers ----
TITAN_2024 = """[training]
batch_size = 2
seq_len = 64
steps = 10
warmup_steps = 3
data_parallel_shard_degree = 4
tensor_parallel_degree = 8
[experimental]
pipeline_parallel_degree = 2
[float8]
enable_float8_linear = true
"""


@question("torchtitan of 2024", "degrees under `training` and `experimental`, `training.warmup_steps`, `float8.enable_float8_linear`; 64 "
          "ranks", "degrees ignored, tp 8 became dp 64, exit code 0")
def titan_of_2024(box):
    box.model(num_attention_heads=8, num_key_value_heads=8, hidden_size=64)
    told, plan, train = box.convert("torchtitan", TITAN_2024, "--set", "model.path=model")
    box.assertEqual((plan["pp"], plan["dp"], plan["tp"], plan["shard"]["params"], train["warmup_steps"]), (2, 4, 8, "all", 3))
    box.assertIn("float8: true", box.read("run.yaml"))
    for key in ("degree", "warmup", "enable_float8"):
        box.assertNotRegex(told, f"ignored +[a-z.0-9_]*{key}")
    return f"pp {plan['pp']}, dp {plan['dp']}, tp {plan['tp']}, FSDP, {train['warmup_steps']} steps of warm-up, float8"


@question("torchtitan of 2025", "`training.num_tokens_per_microbatch_per_dp_rank`, `num_tokens_per_train_step`", "ignored, exit code 0")
def titan_of_2025(box):
    _, plan, train = box.convert("torchtitan", importers_test.torchtitan(num_tokens_per_train_step=1024))
    box.assertEqual((plan["micro_batch"], train["global_batch"], train["seq_len"]), (2, 16, 64))
    misspelt = box.says("try training.num_tokens_per_train_step", "torchtitan", importers_test.torchtitan(num_tokens_per_train_stp=1024))
    return f"micro-batch of {plan['micro_batch']}, batch of {train['global_batch']} sequences; misspelt: {misspelt}"


@question("experts without a gate", "Megatron-LM's experts without `--swiglu`", "gated at full width, 1.5 times the parameters")
def experts_without_gate(box):
    return box.says("--num-experts is 64 without --swiglu", "megatron", megatron_script.EXPERTS.replace("--swiglu ", ""),
                    "--model-out", "model")


ECHO_AND_TEST = """PRETRAIN="pretrain_gpt.py"
if [ ! -f "$PRETRAIN" ]; then
    echo "Error: pretrain_gpt.py not found at $PRETRAIN --num-layers 1"
    exit 1
fi
DATA_ARGS=(
    "--mock-data"
    "--vocab-size 128256"
)
"""


@question("scripts of Megatron-LM", "`echo` and `[ -f ]` with the name of the program, `\"--vocab-size 128256\"` as one element of an "
          "array, expanded unquoted", "refused")
def scripts_of_megatron(box):
    text = megatron_script.EXPERTS.replace("    --vocab-size 50257\n", "")
    text = text.replace("torchrun ", ECHO_AND_TEST + "torchrun ").replace("pretrain_gpt.py \\\n", '"$PRETRAIN" ${DATA_ARGS[@]} \\\n')
    _, plan, _ = box.convert("megatron", text, "--model-out", "model")
    model = json.loads(box.read("model/config.json"))
    box.assertEqual((model["vocab_size"], model["num_hidden_layers"]), (128512, 16))  # up to a multiple of 128 x 4
    box.assertEqual((plan["pp"], plan["dp"], plan["tp"]), (2, 4, 4))
    return f"read: {model['num_hidden_layers']} layers, vocabulary of 128,256, padded to {model['vocab_size']:,}"


@question("misspelt flags", "Megatron-LM: `--swigl`, `--num_layers`", "ignored, exit code 0; \"has no --num-layers\"")
def misspelt_flags(box):
    said = [box.says(f"try {right}", "megatron", megatron_script.DENSE.replace(right, wrong))
            for right, wrong in (("--swiglu", "--swigl"), ("--num-layers", "--num_layers"))]
    return "; ".join(said)


@question("last stage without a pipeline", "Megatron-LM: `--decoder-last-pipeline-num-layers 1`, pp 1", "without effect, exit code 0")
def last_stage_without_pipeline(box):
    return box.says("without a pipeline", "megatron",
                    megatron_script.DENSE.replace("--num-layers 4", "--num-layers 4 --decoder-last-pipeline-num-layers 1"))


@question("whole gradients", "`plan.shard.params: all` alone, several micro-batches", "whole f32 gradients, called FSDP")
def whole_gradients(box):
    box.model()
    box.put("run.yaml", "{model: {path: model}, train: {global_batch: 8, seq_len: 64}, plan: {dp: 2, shard: {params: all}}}")
    convert = ("plan", "convert", "run.yaml", "--out", "again.yaml")
    note = "plan.shard.grads is none: gradients stay whole over the 4 micro-batches of a step"
    box.assertIn("note     " + note, box.good(*convert))
    box.assertNotIn("note ", box.good(*convert, "--set", "plan.shard.grads=all"))
    return f"note: \"{note}\"; none with `plan.shard.grads: all`"


# ---- logs of links ----
def fitted(box, name, text):
    """Imports a log. Returns the constants of the network, and the report."""
    told = box.json("profile", "--import", box.put(name, text), "--out", "cluster.yaml")
    inter = yaml.safe_load(box.read("cluster.yaml"))["links"]["inter"]
    return {key: inter[key]["value"] for key in ("latency", "bandwidth", "start")}, told


@question("tag in a host's name", "nccl-tests under mpirun, 128 ranks of 16 nodes, one `node-[1,0]<stdout>:9`",
          "17 nodes, the network eight times as fast, no warning")
def tag_in_host_name(box):
    whole = nccl_log.log(128, 16, prefix="[1,0]<stdout>:")
    cut = whole.replace(" on node-9 ", " on node-[1,0]<stdout>:9 ", 1)
    box.assertNotEqual(whole, cut)
    constants, told = fitted(box, "all_reduce.log", cut)
    box.assertEqual((told["held_out"][0]["nodes"], told["dropped"]), (16, []))
    box.assertEqual(constants, fitted(box, "all_reduce.log", whole)[0])
    return f"{told['held_out'][0]['nodes']} nodes, network {per_second(constants)} as without the tag"


@question("columns of rccl-tests", "rows with `algo proto nchannels`, before the times and behind them", "all rows dropped")
def columns_of_rccl(box):
    plain = nccl_log.log(4)
    before = plain.replace("   redop", "   redop root algo proto nchannels").replace("  sum ", "  sum -1 RING SIMPLE 28 ")
    behind = re.sub(r"^(#       size .*)$", r"\1 algo proto nchannels", plain, flags=re.M)
    behind = re.sub(r"^( +\d+ .*)$", r"\1 TREE LL128 28", behind, flags=re.M)
    constants = [yaml_of_intra(box, text) for text in (plain, before, behind)]
    box.assertEqual(constants[0], constants[1])
    box.assertEqual(constants[0], constants[2])
    return f"21 of 21 rows, both ways; {per_second(constants[0])} as without them"


def yaml_of_intra(box, text):
    told = box.json("profile", "--import", box.put("all_reduce.log", text), "--out", "cluster.yaml")
    box.assertEqual((told["times"], told["dropped"]), (21, []))
    intra = yaml.safe_load(box.read("cluster.yaml"))["links"]["intra"]
    return {key: intra[key]["value"] for key in ("latency", "bandwidth")}


# ---- memory ----
@question("79 of 80 GiB", "8 layers of Llama 2 7B on one H100, as long a sequence as plans 79 GiB", "\"fits\": no reserve")
def nearly_full(box):
    box.put("model/config.json", json.dumps({**published_tables.LLAMA2_7B, "num_hidden_layers": 8}))

    planned, tokens, size = 0.0, 0, 8192
    while size:  # the longest sequence of at most 79 GiB, to 256 tokens
        said = box.json("simulate", "model", "--cluster", "configs/clusters/h100-64x8.yaml", "--set", "train.global_batch=1", "--set",
                        f"train.seq_len={tokens + size}", "--set", "model.dtype=bf16")
        taken = said["memory"][0]["planned"] / GIB
        if taken <= 79:
            planned, tokens, fits, reserve = taken, tokens + size, said["fits"], said["memory_reserve_bytes"] / GIB
        else:
            size = size // 2 if size > 256 else 0
    expect(planned > 78.5, f"no sequence plans 79 GiB: {planned:.1f} of {tokens:,} tokens")
    expect(not fits, f"{planned:.1f} GiB fit")
    return f"{planned:.1f} GiB of {tokens:,} tokens do not fit, beside {reserve:.1f} GiB of reserve and logits"


PEAKS = [("Llama 3.1 8B, 8 GPUs, compile", 17), ("Llama 3.1 8B, 128 GPUs, compile", 17), ("Llama 3.1 70B, 256 GPUs, tp 8, float8", 31)]


def peak(box, what):
    """Returns planned memory, that of the allocator, all with the reserve, and the allocator's published peak, in GiB."""
    row = next(row for row in published_tables.all_rows() if (row.machine, row.what) == ("torchtitan-h100", what))
    box.put("run.yaml", json.dumps(published_rows.run_of(row)))
    cluster = published_rows.enlarged(os.path.join(published_rows.CLUSTERS, "grand-teton-h100.yaml"), row, box.folder)
    said = box.json("simulate", "run.yaml", "--cluster", cluster)
    return *published_rows.peak_of(said, cluster), row.memory_gib


for peak_row, percent_below in PEAKS:
    @question(f"peak of memory: {peak_row}",
              f"predicted beside torchtitan's published peak of the allocator; at most {100 * MEMORY_OFF:.0f} % off",
              f"{percent_below} % below, no reserve")
    def peak_of_memory(box, what=peak_row):
        planned, allocated, reserved, published = peak(box, what)
        said = (f"planned {planned:.1f} GiB, of the allocator {allocated:.1f} ({100 * (allocated / published - 1):+.0f} %), with all of "
                f"the reserve {reserved:.1f}; published {published:.1f}")
        expect(abs(allocated / published - 1) <= MEMORY_OFF, said)
        return said


# ---- published steps ----
STEPS = [("mosaic-h100", "MPT 7b, 2048 tokens, 8 GPUs", ["mosaic-h100", "h100-64x8"], "35 % too fast by the datasheet"),
         ("torchtitan-h100", "Llama 3.1 8B, 8 GPUs, compile", ["grand-teton-h100", "h100-64x8"], "66 % too fast by the datasheet, 18 % by "
          "the machine's file"),
         ("selene", "SC21 18.4B, 256 GPUs", ["selene-a100", "a100-16x8"], "+6 % of the time by the machine's file, -19 % by the datasheet")]


def is_fitted(cluster, what):
    with open(cluster, encoding="utf-8") as f:
        return what in yaml.safe_load(f)["accuracy"].get("fitted", [])


for step_machine, step_row, step_clusters, step_before in STEPS:
    @question(f"published step: {step_row}", f"the published step inside of the interval of {' and '.join(step_clusters)}",
              step_before + ", no interval")
    def published_step(box, machine=step_machine, what=step_row, clusters=step_clusters):
        row = next(row for row in published_tables.all_rows() if (row.machine, row.what) == (machine, what))
        said, outside = [], []
        for name in clusters:
            cluster = os.path.join(published_rows.CLUSTERS, name + ".yaml")
            line = published_rows.predict(cli_util.HOCKET, row, cluster, box.folder)
            expect("refused" not in line, line.get("refused"))
            low, high = line["interval"]
            known = " (fitted to it)" if is_fitted(cluster, what) else ""
            said.append(f"{name}{known} {100 * line['error']:+.1f} %, {low:.3g} to {high:.3g} s")
            if not line["inside"]:
                outside.append(name)
        told = f"{'; '.join(said)}; published {line['published_step_s']:.3g} s"
        expect(not outside, f"{told}; outside of {', '.join(outside)}")
        return told


# ---- searches ----
class FileCase(planner_experts.Case):
    """A set-up whose model and cluster are files."""

    def __init__(self, model, cluster, batch, seq_len, per_node):
        self.hocket, self.model, self.cluster = cli_util.HOCKET, model, cluster
        with open(os.path.join(model, "config.json"), encoding="utf-8") as f:
            config = json.load(f)
        self.setup = {"global_batch": batch, "seq_len": seq_len, "model": config, "cluster": {"per_node": per_node}}


def plan_file(name):
    return os.path.join(ROOT, "bench", "plans", name)


def compare(case, experts, more=()):
    """Asserts that the planner's choice is as fast as the best of the plans by hand, and found in time. Returns the
    report, the step in seconds, and the answer."""
    report, clock, processor = case.search(LIMIT_S, more)
    expect("error" not in report, report.get("error"))
    batch, best, by_hand = case.setup["global_batch"], report["best"][0], []
    for plan in experts:
        found = case.expert(plan)
        if found and found["fits"]:
            by_hand.append((case.simulate(found["keys"], batch)["step_s"], f"{found['plan']}, recompute {found['recompute']}"))
    expect(by_hand, "no plan by hand fits")
    expert_s, expert = min(by_hand)
    begun = time.time()
    full = case.simulate(best["set"], batch)
    simulated_s = time.time() - begun
    ratio, counts = full["step_s"] / expert_s, report["counts"]
    said = (f"{full['step_s']:.4g} s: {best['plan']}; by hand {expert_s:.4g} s: {expert}; ratio {ratio:.3f}; clock {clock:.1f} s, "
            f"processor {processor:.1f} s; {counts['simulated']} simulated, {counts['over_memory']} too large"
            f"{', the search ended' if report['complete'] else ''}; the choice in full took {simulated_s:.1f} s")
    expect(full["fits"], f"does not fit: {said}")
    expect(ratio <= 1 + 1e-6, f"slower than by hand: {said}")
    expect(clock <= CLOCK_S, f"too long: {said}")
    return report, full["step_s"], said


def four_slow_links(cluster):
    return FileCase(plan_file("tied-1.2b"), cluster, 64, 2048, 1)


def by_hand_on_four(*layers):
    return [{"pp": 4, "dp": 1, "micro_batch": 1, "zero": 0, "layers": stages} for stages in layers]


@question("four slow links", "tied 1.2 B on 4 devices of 8 GiB, 600 Mbit/s, 64 x 2,048, bf16", "20 min 50 s a step (45 s of search); by "
          "hand 72.7 s", is_search=True)
def slow_links(_):
    return compare(four_slow_links(plan_file("four-slow-links.yaml")), by_hand_on_four([3, 5, 5, 3], [4, 4, 4, 4]))[2]


@question("four slow links, `plan.pp=4`", "the same with one key given", "\"no plan fits … nothing is left\"", is_search=True)
def slow_links_with_pp(_):
    return compare(four_slow_links(plan_file("four-slow-links.yaml")), by_hand_on_four([3, 5, 5, 3], [4, 4, 4, 4]),
                   ["--set", "plan.pp=4"])[2]


@question("four slow links, the fourth device slow", "the same, the fourth at 0.25 of the speed: as fast as by hand, and not faster than "
          "four whole ones", "a faster plan than with four whole devices", is_search=True)
def slow_links_and_device(box):
    with open(plan_file("four-slow-links.yaml"), encoding="utf-8") as f:
        text = f.read()
    box.put("slow.yaml", text + 'heterogeneous_nodes:\n  - {first: 3, count: 1, speed: 0.25, source: "assumed"}\n')
    case = four_slow_links(box.path("slow.yaml"))
    _, step_s, said = compare(case, by_hand_on_four([3, 5, 5, 3], [4, 5, 5, 2], [4, 6, 6, 0], [5, 5, 6, 0], [2, 7, 7, 0]))
    whole, _, _ = four_slow_links(plan_file("four-slow-links.yaml")).search(LIMIT_S)
    whole_s = whole["best"][0]["step_s"]
    expect(step_s >= whole_s, f"faster than {whole_s:.4g} s of four whole devices: {said}")
    return f"{said}; with four whole devices {whole_s:.4g} s"


@question("one adapter a node", "Qwen3-30B-A3B on 16 x 8 A100, 25 Gbit/s a node, `plan.pp=16`, 512 x 4,096, bf16", "13.1 s, longer stages "
          "first; by hand 11.4 s", is_search=True)
def one_adapter(_):
    case = FileCase(os.path.join(ROOT, "configs", "models", "qwen3-30b-a3b"), plan_file("a100-one-adapter.yaml"), 512, 4096, 8)
    mesh = {"pp": 16, "dp": 8, "ep": 8, "micro_batch": 1, "zero": 1}
    experts = [mesh, {**mesh, "layers": [3] * 13 + [4, 4, 1]}, {**mesh, "dp": 4, "tp": 2, "ep": 4}]
    return compare(case, experts, ["--set", "plan.pp=16"])[2]


@question("vocabulary at the last stage", "24 layers of 1,024, vocabulary of 151,936, 8 H100, `plan.pp=8`, 64 x 4,096, bf16", "the search "
          "ends with 219 ms; by hand 191.5 ms", is_search=True)
def wide_vocabulary(_):
    case = FileCase(plan_file("wide-vocabulary"), os.path.join(published_rows.CLUSTERS, "h100-64x8.yaml"), 64, 4096, 8)
    experts = [{"pp": 8, "dp": 1, "micro_batch": micro, "zero": 0, "layers": [4, 4, 4, 3, 3, 3, 3, 0]} for micro in (1, 2, 4)]
    report, _, said = compare(case, experts, ["--ranks", "8", "--set", "plan.pp=8"])
    expect(report["complete"], f"the search did not end: {said}")
    return said


def llama_70b(box, more=()):
    box.put("model/config.json", json.dumps(published_tables.LLAMA3_70B))
    case = FileCase(box.path("model"), os.path.join(published_rows.CLUSTERS, "h100-64x8.yaml"), 1024, 8192, 8)
    by_hand = {"pp": 4, "dp": 2, "cp": 2, "tp": 4, "micro_batch": 1, "zero": 1, "recompute": "selective"}
    report, _, said = compare(case, [by_hand], ["--ranks", "64", *more])
    families = {one["family"]: f"{one['step_s']:.4g} s" if "step_s" in one else one["cause"] for one in report["families"]}
    said += "; the best of every family: " + ", ".join(f"{name} {step}" for name, step in families.items())
    expect({"FSDP", "pp x tp"} <= families.keys(), f"no such table: {said}")
    return said


@question("70B on 64 H100", "Llama-3-70B, 1,024 x 8,192, bf16; FSDP, or tensor and pipeline parallel, in one table",
          "108 s after 120 s, by hand 105.6 s; a limit of 300 s took 373 s; no such table", is_search=True)
def llama_70b_on_64(box):
    return llama_70b(box)


@question("70B on 64 H100 for Megatron-LM", "the same with `--emit megatron`", "one plan: FSDP, 119 s", is_search=True)
def llama_70b_for_megatron(box):
    said = llama_70b(box, ["--emit", "megatron", "--out", box.path("found.sh")])
    box.assertIn("--tensor-model-parallel-size", box.read("found.sh"))
    return said


# ---- the table ----
def cell(text):
    return " ".join(text.split()).replace("|", "\\|")


def answer(one):
    """Returns the answer to a question and whether it is right."""
    box = Box()
    box.setUp()
    try:
        return one.ask(box), True
    except AssertionError as error:
        return f"WRONG: {str(error)[-900:]}", False
    except Exception as error:  # pylint: disable=broad-except  # an answer of another form is wrong, too
        return f"WRONG: {type(error).__name__} {str(error)[-600:]}", False
    finally:
        box.doCleanups()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hocket", default=cli_util.HOCKET)
    parser.add_argument("--only", nargs="*", default=[], metavar="WORDS", help="rows whose names contain one of these")
    parser.add_argument("--searches", action="store_true", help="only the rows that search")
    parser.add_argument("--table", metavar="FILE", help="write the table here as well")
    args = parser.parse_args()
    cli_util.HOCKET = os.path.abspath(args.hocket)
    chosen = [one for one in QUESTIONS if one.is_search == args.searches and
              (not args.only or any(words in one.name for words in args.only))]
    lines, right = ["| row | what | before | now |", "|---|---|---|---|"], 0
    print("\n".join(lines), flush=True)
    for one in chosen:
        now, is_right = answer(one)
        right += is_right
        lines.append(f"| {cell(one.name)} | {cell(one.what)} | {cell(one.before)} | {cell(now)} |")
        print(lines[-1], flush=True)
    lines += ["", f"{right} of {len(chosen)} right."]
    print("\n".join(lines[-2:]))
    if args.table:
        with open(args.table, "w", encoding="utf-8") as f:
            f.write("\n".join(lines) + "\n")
    return 0 if right == len(chosen) else 1


if __name__ == "__main__":
    sys.exit(main())
