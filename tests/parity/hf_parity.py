#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares `hocket eval` with Hugging Face transformers: logits and every parameter's gradient.
make_models.py builds parallel blocks, which no Llama of transformers has, from its parts.

Random models of odd sizes (make_models.py) in a temporary folder, each with the config.json of transformers 5
and 4, each on one rank and under all plans, or with --some under two of them that change from model to model. Exit code 1 if anything differs by more than the tolerance; the last line is
`N passed, N failed`. `--self-test` compares transformers in fp32 with the reference instead, then injects
faults that must be found.
"""
import argparse
import collections
import glob
import json
import os
import subprocess
import sys
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"
import torch  # noqa: E402
from safetensors.torch import load_file  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
EVERY = ((), ("plan.dp=2",), ("plan.pp=2",), ("plan.tp=2",), ("plan.tp=2", "plan.sequence_parallel=true"), ("plan.cp=2",),
         ("plan.cp=2", "plan.cp_comm_type=p2p"), ("plan.dp=2", "plan.shard.params=all", "plan.shard.grads=all"),
         ("plan.pp=2", "plan.pp_schedule=zb-h1"),
         ("plan.pp=2", "plan.pp_chunks=2", "plan.pp_schedule=interleaved"),
         ("plan.pp=2", "plan.pp_chunks=2", "plan.pp_schedule=zb-v"))
PLANS = {"llama": (*EVERY, ("plan.dp=2", "plan.pp=2")),
         "moe": (*EVERY, ("plan.dp=2", "plan.ep=2"), ("plan.dp=2", "plan.ep=2", "plan.pp=2"))}


def runs_under(plan, config):
    """Returns whether a model fits a plan; some models have an odd vocabulary, or fewer layers than stages."""
    experts = config.get("num_experts", config.get("num_local_experts", 0))
    return (("plan.ep=2" not in plan or experts % 2 == 0) and ("plan.tp=2" not in plan or config["vocab_size"] % 2 == 0)
            and ("plan.pp_chunks=2" not in plan or config.get("num_hidden_layers", config.get("n_layer")) >= 4))


def relative(got, want):
    """Returns (relative L2, largest difference over largest value), in fp64."""
    got, want = got.double(), want.double()
    d = got - want
    scale, top = want.norm().item(), want.abs().max().item()
    if scale == 0.0:
        return (0.0, 0.0) if d.abs().max().item() == 0.0 else (float("inf"), float("inf"))
    return d.norm().item() / scale, d.abs().max().item() / top


def compare_logits(got, want, tol):
    """Returns the largest relative errors over all sequences, and the problems."""
    problems, worst = [], (0.0, 0.0)
    if got.keys() != want.keys():
        problems.append(f"logits: got {sorted(got)}; expected {sorted(want)}")
    for name in sorted(got.keys() & want.keys()):
        if got[name].shape != want[name].shape or got[name].dtype != torch.float32:
            problems.append(f"{name}: got {got[name].dtype} {list(got[name].shape)}; expected fp32 {list(want[name].shape)}")
            continue
        e = relative(got[name], want[name])
        worst = max(worst[0], e[0]), max(worst[1], e[1])
        if not max(e) <= tol:  # also catches NaN
            problems.append(f"{name}: relative L2 {e[0]:.2e}, max {e[1]:.2e}")
    return worst, problems


def compare_grads(got, want, tol):
    """Returns (largest relative L2, its name) over all parameters, and the problems."""
    problems, worst = [], (0.0, "-")
    for name in sorted(want.keys() - got.keys()):
        problems.append(f"gradient of {name} is absent")
    for name in sorted(got.keys() - want.keys()):
        problems.append(f"gradient of {name} is not a parameter of the model's safetensors")
    for name in sorted(got.keys() & want.keys()):
        if got[name].shape != want[name].shape:
            problems.append(f"{name}: got shape {list(got[name].shape)}; expected {list(want[name].shape)}")
            continue
        e = relative(got[name], want[name])[0]
        if e > worst[0] or e != e:
            worst = e, name
        if not e <= tol:
            problems.append(f"gradient of {name}: relative L2 {e:.2e}")
    return worst, problems


def run_hocket(args, model, sets, out):
    """Runs `hocket eval` once; returns (logits, grads) or raises RuntimeError with its output."""
    logits, grads = os.path.join(out, "logits.safetensors"), os.path.join(out, "grads.safetensors")
    for f in (logits, grads):
        if os.path.exists(f):
            os.remove(f)
    command = [args.hocket, "eval", model, "--ids", os.path.join(model, "ids.json"),
               "--save-logits", logits, "--save-grads", grads]
    for s in sets:
        command += ["--set", s]
    try:
        r = subprocess.run(command, capture_output=True, text=True, timeout=args.timeout)
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"no end after {args.timeout} s: {' '.join(command)}")
    except OSError as e:
        raise RuntimeError(f"{command[0]}: {e.strerror}")
    if r.returncode != 0:
        raise RuntimeError(f"exit code {r.returncode}: {' '.join(command)}\n{(r.stdout + r.stderr).strip()[-2000:]}")
    return load_file(logits), load_file(grads)


def run_transformers(model, fault):
    """Runs transformers in fp32 in place of hocket, and injects a fault into its results."""
    from transformers import AutoModelForCausalLM

    import make_models

    with open(os.path.join(model, "config.json")) as f:
        family = json.load(f)["model_type"]
    extra = make_models.extra_arguments(family)
    m = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, **extra).eval()
    with open(os.path.join(model, "ids.json")) as f:
        ids = json.load(f)
    logits, _ = make_models.run(m, ids)
    with tempfile.TemporaryDirectory() as tmp:
        grads = make_models.gradients_by_saved_name(m, os.path.join(tmp, "g"))
    logits = {f"logits.{i}": x.float() for i, x in enumerate(logits)}
    name = sorted(grads)[len(grads) // 2]
    if fault == "scaled gradient":
        grads[name] = grads[name] * 1.0005
    elif fault == "absent gradient":
        del grads[name]
    elif fault == "one logit":
        logits["logits.1"][2, 3] += 1e-3 * logits["logits.1"].abs().max()
    elif fault == "mean per sequence":
        grads = {k: v * 1.05 for k, v in grads.items()}
    elif fault == "NaN":
        grads[name].view(-1)[0] = float("nan")
    return logits, grads


def check(model, got, tol):
    """Prints nothing; returns (logit errors, gradient error and name, problems)."""
    want_logits = load_file(os.path.join(model, "reference", "logits.safetensors"))
    want_grads = load_file(os.path.join(model, "reference", "grads.safetensors"))
    e_logits, p1 = compare_logits(got[0], want_logits, tol)
    e_grads, p2 = compare_grads(got[1], want_grads, tol)
    return e_logits, e_grads, p1 + p2


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--hocket", default=os.path.join(ROOT, "build", "hocket"))
    ap.add_argument("--models", help="folder made by make_models.py (default: made now, in a temporary folder)")
    ap.add_argument("--only", default="", help="only models whose name contains this")
    ap.add_argument("--tolerance", type=float, default=1e-4)
    ap.add_argument("--timeout", type=float, default=120.0, help="seconds per `hocket eval`")
    ap.add_argument("--self-test", action="store_true")
    ap.add_argument("--some", action="store_true", help="two plans a model; together the models have all of them")
    args = ap.parse_args()
    sys.path.insert(0, HERE)
    passed = failed = 0
    with tempfile.TemporaryDirectory(prefix="hf_parity.") as tmp:
        models = args.models or os.path.join(tmp, "models")
        if not args.models:
            subprocess.run([sys.executable, os.path.join(HERE, "make_models.py"), models], check=True,
                           stdout=subprocess.DEVNULL)
        print(f"{'model':22} {'plan':40} {'logits L2':>10} {'max':>9} {'grad L2':>9}  worst gradient")
        used = collections.Counter()  # models that ran under a (kind, plan)
        for model in sorted(glob.glob(os.path.join(models, "*", ""))):
            model = model.rstrip("/")
            name = os.path.basename(model)
            if args.only not in name or not os.path.exists(os.path.join(model, "ids.json")):
                continue
            kind = "moe" if name.startswith("moe") else "llama"
            runs = PLANS[kind]
            with open(os.path.join(model, "config.json")) as f:
                config = json.load(f)
            runs = [r for r in runs if runs_under(r, config)]
            if args.some:
                used.update({(kind, run): 0 for run in runs})
                runs = [(), *sorted(runs[1:], key=lambda run: used[kind, run])[:2]]
                used.update((kind, run) for run in runs)
            if args.self_test:
                runs = ("", "scaled gradient", "absent gradient", "one logit", "mean per sequence", "NaN")
            for run in runs:
                label = (run or "transformers fp32") if args.self_test else " ".join(run) or "one rank"
                try:
                    got = run_transformers(model, run) if args.self_test else run_hocket(args, model, run, tmp)
                    e_logits, e_grads, problems = check(model, got, args.tolerance)
                    line = f"{e_logits[0]:10.1e} {e_logits[1]:9.1e} {e_grads[0]:9.1e}  {e_grads[1]}"
                except RuntimeError as e:
                    line, problems = "", [str(e)]
                good = bool(problems) if args.self_test and run else not problems
                passed, failed = passed + good, failed + (not good)
                print(f"{name:22} {label.replace('plan.', ''):40} {line}{'' if good else '  FAILED'}", flush=True)
                if not good:
                    for p in problems[:5]:
                        print(f"    {p}")
                    if len(problems) > 5:
                        print(f"    and {len(problems) - 5} more")
        for (kind, run), times in used.items():
            if not times:
                failed += 1
                print(f"no {kind} model ran under {' '.join(run)}")
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
