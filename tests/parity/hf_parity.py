#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares `hocket eval` with Hugging Face transformers: logits and every parameter's gradient.
make_models.py builds parallel blocks, which no Llama of transformers has, from its parts.

Random models of odd sizes (make_models.py) in a temporary folder, with the config.json of transformers 5 on one rank, in fp32
and fp64, and under all plans in fp32, or with --some under some of them that change from model to model; and with that of
transformers 4 on one rank. The reference is transformers in fp64. Exit code 1 if anything differs by more than the tolerance
of its type, of the largest and in the L2 norm; the last line is `N passed, N failed`. `--self-test` compares transformers in
fp32 with the reference instead, then injects faults that must be found.
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
HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
import torch  # noqa: E402
from safetensors.torch import load_file  # noqa: E402

TOLERANCES = {"f32": 1e-5, "f64": 1e-10}
SHARDED = ("plan.shard.params=all", "plan.shard.grads=all")
# The last rows split few heads over more ranks, and cut between a layer with a window, or rope, and one without.
EVERY = (("plan.dp=2",), ("plan.pp=2",), ("plan.tp=2",), ("plan.tp=2", "plan.sequence_parallel=true"), ("plan.cp=2",),
         ("plan.cp=2", "plan.cp_comm_type=p2p"), ("plan.dp=2", *SHARDED), ("plan.pp=2", "plan.pp_schedule=zb-h1"),
         ("plan.pp=2", "plan.pp_chunks=2", "plan.pp_schedule=interleaved"),
         ("plan.pp=2", "plan.pp_chunks=2", "plan.pp_schedule=zb-v"), ("plan.dp=2", "plan.pp=2"),
         ("plan.tp=3",), ("plan.tp=4",), ("plan.tp=4", "plan.sequence_parallel=true"), ("plan.tp=3", "plan.cp=2"),
         ("plan.cp=2", "plan.cp_comm_type=p2p", "plan.cp_order=zigzag"), ("plan.cp=2", "plan.cp_comm_type=a2a"),
         ("plan.dp=2", "plan.tp=2", *SHARDED), ("plan.pp=2", "plan.pp_layers=[1,%(rest)d]"),
         ("plan.pp=2", "plan.pp_layers=[1,%(rest)d]", "plan.tp=2", "plan.cp=2"))
FAULTS = ("", "scaled gradient", "absent gradient", "one logit", "mean per sequence", "NaN")
PLANS = {"dense": EVERY, "moe": (*EVERY, ("plan.dp=2", "plan.ep=2"), ("plan.dp=2", "plan.ep=2", "plan.pp=2"))}


def layers(config):
    return config.get("num_hidden_layers", config.get("n_layer"))


def runs_under(plan, config):
    """Returns whether a model fits a plan; some have an odd number of experts or heads, or fewer layers than stages."""
    experts = config.get("num_experts", config.get("num_local_experts", 0))
    heads = config.get("num_attention_heads", config.get("n_head"))
    return (("plan.ep=2" not in plan or experts % 2 == 0) and ("plan.cp_comm_type=a2a" not in plan or heads % 2 == 0)
            and ("plan.pp=2" not in plan or layers(config) >= (4 if "plan.pp_chunks=2" in plan else 2)))


def relative(got, want):
    """Returns (relative L2, largest difference over largest value), in fp64."""
    got, want = got.double(), want.double()
    d = got - want
    scale, top = want.norm().item(), want.abs().max().item()
    if scale == 0.0:
        return (0.0, 0.0) if d.abs().max().item() == 0.0 else (float("inf"), float("inf"))
    return d.norm().item() / scale, d.abs().max().item() / top


def compare_logits(got, want, tol):
    """Returns the largest relative errors over all sequences, and the problems. Logits are fp32 in every run."""
    problems, worst = [], (0.0, 0.0)
    if got.keys() != want.keys():
        problems.append(f"logits: got {sorted(got)}; expected {sorted(want)}")
    for name in sorted(got.keys() & want.keys()):
        if got[name].shape != want[name].shape or got[name].dtype != torch.float32:
            problems.append(f"{name}: got {got[name].dtype} {list(got[name].shape)}; expected fp32 {list(want[name].shape)}")
            continue
        e = relative(got[name], want[name])
        worst = max(worst[0], e[0]), max(worst[1], e[1])
        if not max(e) <= max(tol, 2e-7):  # also catches NaN
            problems.append(f"{name}: relative L2 {e[0]:.2e}, max {e[1]:.2e}")
    return worst, problems


def compare_grads(got, want, tol):
    """Returns (largest relative error, its name) over all parameters, and the problems."""
    problems, worst = [], (0.0, "-")
    for name in sorted(want.keys() - got.keys()):
        problems.append(f"gradient of {name} is absent")
    for name in sorted(got.keys() - want.keys()):
        problems.append(f"gradient of {name} is not a parameter of the model's safetensors")
    for name in sorted(got.keys() & want.keys()):
        if got[name].shape != want[name].shape:
            problems.append(f"{name}: got shape {list(got[name].shape)}; expected {list(want[name].shape)}")
            continue
        e = relative(got[name], want[name])
        if max(e) > worst[0] or e != e:
            worst = max(e), name
        if not max(e) <= tol:
            problems.append(f"gradient of {name}: relative L2 {e[0]:.2e}, max {e[1]:.2e}")
    return worst, problems


def run_hocket(args, model, sets, dtype, out):
    """Runs `hocket eval` once; returns (logits, grads) or raises RuntimeError with its output."""
    logits, grads = os.path.join(out, "logits.safetensors"), os.path.join(out, "grads.safetensors")
    for f in (logits, grads):
        if os.path.exists(f):
            os.remove(f)
    command = [args.hocket, "eval", model, "--ids", os.path.join(model, "ids.json"),
               "--save-logits", logits, "--save-grads", grads, "--dtype", dtype]
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
        extra = make_models.extra_arguments(json.load(f)["model_type"])
    m = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, **extra).eval()
    with open(os.path.join(model, "ids.json")) as f:
        ids = json.load(f)
    logits, _ = make_models.run(m, ids)
    with tempfile.TemporaryDirectory() as tmp:
        grads = make_models.gradients_by_saved_name(m, os.path.join(tmp, "g"))
    logits = {f"logits.{i}": x.float() for i, x in enumerate(logits)}
    name = sorted(grads)[len(grads) // 2]
    if fault == "scaled gradient":
        grads[name] = grads[name] * 1.00005
    elif fault == "absent gradient":
        del grads[name]
    elif fault == "one logit":
        logits["logits.1"][2, 3] += 1e-4 * logits["logits.1"].abs().max()
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
    ap.add_argument("--random", type=int, default=0, metavar="N", help="N drawn models (draw_models.py) instead")
    ap.add_argument("--seed", type=int, default=1, help="of drawn models")
    ap.add_argument("--timeout", type=float, default=120.0, help="seconds per `hocket eval`")
    ap.add_argument("--self-test", action="store_true")
    ap.add_argument("--some", action="store_true", help="three plans a model; together the models have all of them")
    args = ap.parse_args()
    sys.path.insert(0, HERE)
    passed = failed = 0
    with tempfile.TemporaryDirectory(prefix="hf_parity.") as tmp:
        models = args.models or os.path.join(tmp, "models")
        if not args.models:
            drawn = ["--random", str(args.random), "--seed", str(args.seed)] if args.random else []
            subprocess.run([sys.executable, os.path.join(HERE, "make_models.py"), models, *drawn], check=True,
                           stdout=subprocess.DEVNULL)
        print(f"{'model':22} {'plan':52} {'logits L2':>10} {'max':>9} {'gradient':>9}  the worst gradient's")
        used = collections.Counter()  # models that ran under a (kind, plan)
        for model in sorted(glob.glob(os.path.join(models, "*", ""))):
            model = model.rstrip("/")
            name = os.path.basename(model)
            if args.only not in name or not os.path.exists(os.path.join(model, "ids.json")):
                continue
            kind = "moe" if name.startswith("moe") else "dense"
            with open(os.path.join(model, "config.json")) as f:
                config = json.load(f)
            plans = [r for r in PLANS[kind] if runs_under(r, config)]
            if args.some:
                used.update({(kind, plan): 0 for plan in plans})
                plans = sorted(plans, key=lambda plan: used[kind, plan])[:3]
            if name.endswith("-v4"):
                runs = [("f32", ())]
            elif args.self_test:
                runs = [("f32", fault) for fault in FAULTS]
            else:
                runs = [("f32", ()), ("f64", ()), *(("f32", plan) for plan in plans)]
                used.update((kind, plan) for plan in plans)
            for dtype, run in runs:
                sets = [] if args.self_test else [s % {"rest": layers(config) - 1} for s in run]
                label = (run or "transformers fp32") if args.self_test else " ".join((dtype, *sets))
                try:
                    got = run_transformers(model, run) if args.self_test else run_hocket(args, model, sets, dtype, tmp)
                    e_logits, e_grads, problems = check(model, got, TOLERANCES[dtype])
                    line = f"{e_logits[0]:10.1e} {e_logits[1]:9.1e} {e_grads[0]:9.1e}  {e_grads[1]}"
                except RuntimeError as e:
                    line, problems = "", [str(e)]
                good = bool(problems) if args.self_test and run else not problems
                passed, failed = passed + good, failed + (not good)
                print(f"{name:22} {label.replace('plan.', ''):52} {line}{'' if good else '  FAILED'}", flush=True)
                if not good:
                    for p in problems[:5]:
                        print(f"    {p}")
                    if len(problems) > 5:
                        print(f"    and {len(problems) - 5} more")
        for (kind, run), times in used.items():
            if not times and not args.random:
                failed += 1
                print(f"no {kind} model ran under {' '.join(run)}")
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
