#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Losses, gradients, advantages and corrections of verl and TRL on random batches, for tests/rl/losses_test.cc.

All of it is made by their own functions, in fp64 and in fp32, and gradients by autograd. Batches are drawn from printed
seeds: different lengths, groups of one, masks with holes and of whole samples, zeros, ratios beyond every limit. Inputs are
exact in fp32. verl is installed without its dependencies, which the requirements replace."""
import collections
import json
import os
import pathlib
import subprocess
import sys
import types

VERL = "0.9.1"
try:
    import verl  # noqa: F401
except ImportError:
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--no-deps", f"verl=={VERL}"], check=True)

import numpy as np
import torch
import trl
import verl
from trl.trainer.grpo_trainer import GRPOTrainer
from verl.trainer.ppo import core_algos
from verl.trainer.ppo.rollout_corr_helper import (compute_offpolicy_metrics, compute_rollout_correction_weights,
                                                  compute_rollout_rejection_mask)
from verl.workers.config import ActorConfig

HERE = pathlib.Path(__file__).resolve().parent
MODES = ["token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-sum-norm", "seq-mean-token-mean"]
HORIZON = 16
DTYPES = {"f64": torch.float64, "f32": torch.float32}
# name: (seed, sizes of groups, longest sample, step of log-probabilities from the old ones, far ratios, holes in masks)
BATCHES = {"mixed": (11, [4, 1, 3], 6, 0.4, False, False), "holes": (12, [3, 1, 3], 6, 0.3, True, True),
           "ones": (18, [1, 1], 2, 0.3, False, False), "masked": (13, [3, 1, 3], 6, 0.3, False, True)}
VERL_BATCHES, TRL_BATCHES = ("mixed", "holes", "ones"), ("mixed", "ones", "masked")  # TRL does not limit far ratios


def batch(name):
    """Tensors [samples, longest] of fp32 numbers, and per sample its group, reward and advantage."""
    seed, groups, longest, step, far, holes = BATCHES[name]
    rng = np.random.default_rng(seed)
    count = sum(groups)
    lengths = rng.integers(1, longest + 1, count)
    lengths[0] = longest
    mask = (np.arange(longest) < lengths[:, None]).astype(float)
    out = {"group": np.repeat(np.arange(len(groups)), groups), "length": lengths}
    out["reward"] = np.round(rng.normal(size=count), 2)
    out["reward"][:2] = [0, 1]
    if groups[-1] > 1:
        out["reward"][-groups[-1]:] = 0.5  # a group without spread
    draw = lambda scale=1.0, shift=0.0: rng.normal(size=mask.shape) * scale + shift  # noqa: E731
    out["logprob"] = draw(0.8, -1.5)
    out["old"] = out["logprob"] + draw(step)
    out["reference"] = out["logprob"] + draw(step)
    out["rollout"] = out["old"] + draw(step)
    out["entropy"], out["value"] = np.abs(draw()), draw()
    out["old_value"], out["return"] = out["value"] + draw(0.3), draw()
    out["token_advantage"] = draw()
    out["advantage"] = rng.normal(size=count)
    if count > 2:
        out["token_advantage"][1] = out["advantage"][1] = 0
    if far:  # differences beyond +-20, a sample's beyond 10, and k3 beyond 10
        for at, distance in (((0, 0), 25), ((0, 1), -25), ((0, 2), 4), ((1, 0), -4), ((4, 0), -12)):
            for other in ("old", "reference", "rollout"):
                out[other][at] = out["logprob"][at] + distance
        out["rollout"][0, :2] = out["old"][0, :2] + [22, -25]  # which limits make a ratio of 1 of
        out["token_advantage"][0, 1], out["advantage"][4] = -0.5, -1  # without a clip of large ratios
    out["mask"] = mask.copy()
    if holes:
        out["mask"] *= rng.random(mask.shape) > 0.25
        out["mask"][2] = 0  # a sample that does not count
        out["mask"][[0, 4]] = mask[[0, 4]]
    return {key: value.astype(np.float32).astype(float) if value.dtype.kind == "f" else value
            for key, value in out.items()}


def flat(values, data):
    """Numbers of the samples' tokens, one sample behind the other."""
    return [x for row, n in zip(np.asarray(values), data["length"]) for x in row[:n].tolist()]


def number(x, dtype):
    x = x.item() if isinstance(x, torch.Tensor) else float(x)
    return x if dtype == "f64" else float(f"{x:.9g}")


def numbers(values, data, dtype):
    return [number(x, dtype) for x in flat(values.detach().double().numpy(), data)]


def tensors(data, dtype):
    """The batch in a type; the mask in integers, as in verl's trainer: what verl adds to a count is lost then."""
    out = {key: torch.tensor(value, dtype=DTYPES[dtype]) for key, value in data.items() if key not in ("group", "length")}
    return {**out, "mask": out["mask"].long()}


def config(case):
    return ActorConfig(strategy="fsdp", rollout_n=1, ppo_micro_batch_size_per_gpu=1, clip_ratio_low=case["clip_low"],
                       clip_ratio_high=case["clip_high"], clip_ratio_c=case["dual_clip"] or 1e30)


def of_trainer(t):
    """The numbers that verl's trainer and its engines give agg_loss: those of a mini-batch on one rank."""
    return {"dp_size": 1, "batch_num_tokens": t["mask"].sum().item(), "global_batch_size": len(t["mask"])}


def verl_loss(case, data, dtype):
    """Loss and its gradients by verl: policy, divergence and entropy, each in the same mean."""
    t = tensors(data, dtype)
    logprob, entropy = t["logprob"].requires_grad_(), t["entropy"].requires_grad_()
    mode = {"loss_agg_mode": case["aggregation"]}
    advantages = t["advantage"][:, None].expand_as(logprob) if case["loss"] == "gspo" else t["token_advantage"]
    loss_config = config(case)
    if case["aggregation"] == "seq-mean-token-sum-norm":
        loss_config.global_batch_info["loss_scale_factor"] = HORIZON
    if case["samples_in_mean"] == "all":
        loss_config.global_batch_info.update(of_trainer(t))
    common = dict(log_prob=logprob, advantages=advantages, response_mask=t["mask"], config=loss_config, **mode)
    if case["loss"] == "reinforce":
        loss, _ = core_algos.compute_policy_loss_reinforce(rollout_log_prob=t["old"], **common)
    else:
        name = {"ppo": "vanilla"}.get(case["loss"], case["loss"])
        loss, _ = core_algos.get_policy_loss_fn(name)(old_log_prob=t["old"], **common)
    mean = dict(loss_mask=t["mask"], **mode, **loss_config.global_batch_info)
    if case["kl"] != "none":
        kl = core_algos.kl_penalty(logprob, t["reference"], case["kl"])
        loss = loss + case["kl_coef"] * core_algos.agg_loss(loss_mat=kl, **mean)
    loss = loss - case["entropy_coef"] * core_algos.agg_loss(loss_mat=entropy, **mean)
    loss.backward()
    return {"loss": number(loss, dtype), "dlogprob": numbers(logprob.grad, data, dtype),
            "dentropy": numbers(entropy.grad, data, dtype)}


def verl_losses(batches):
    kinds = [("ppo", 0.2, 0.2, 0), ("ppo", 0.2, 0.28, 1.5), ("cispo", 0.2, 0.28, 0), ("reinforce", 0.2, 0.2, 0),
             ("gspo", 0.03, 0.05, 0)]
    cases = []
    for name in VERL_BATCHES:
        for i, (loss, low, high, dual) in enumerate(kinds):
            for j, mode in enumerate(MODES):
                for samples in ("trained", "all") if name == "holes" and loss in ("ppo", "gspo") else ("trained",):
                    case = {"batch": name, "loss": loss, "clip_low": low, "clip_high": high, "dual_clip": dual,
                            "aggregation": mode, "samples_in_mean": samples,
                            "kl": ["none", "k1", "k2", "k3"][(i + j) % 4], "kl_coef": 0.25, "entropy_coef": 0.125}
                    cases.append({**case, **{dtype: verl_loss(case, batches[name], dtype) for dtype in DTYPES}})
    return cases


def verl_values(batches):
    cases = []
    for name in VERL_BATCHES:
        data = batches[name]
        for clip, samples in ((0.2, "trained"), (0.0, "trained"), (0.2, "all")):
            for mode in MODES if clip and (samples == "trained" or name == "holes") else MODES[:1]:
                case = {"batch": name, "clip": clip, "aggregation": mode, "samples_in_mean": samples}
                for dtype in DTYPES:
                    t = tensors(data, dtype)
                    value = t["value"].requires_grad_()
                    loss, _ = core_algos.compute_value_loss(
                        value, t["return"], t["old_value"], t["mask"], clip or 1e9, loss_agg_mode=mode,
                        loss_scale_factor=HORIZON, **(of_trainer(t) if samples == "all" else {}))
                    loss.backward()
                    case[dtype] = {"loss": number(loss, dtype), "dvalue": numbers(value.grad, data, dtype)}
                cases.append(case)
    return cases


def verl_advantage(case, data, dtype, mask=None):
    """`mask`: of the tokens that are trained, as a rejection leaves it after the divergence is in the rewards."""
    t = tensors(data, dtype)
    full = torch.tensor(np.arange(t["mask"].shape[1]) < data["length"][:, None], dtype=DTYPES[dtype])
    rewards = torch.zeros_like(full)
    rewards[torch.arange(len(full)), torch.tensor(data["length"]) - 1] = t["reward"]
    if case["kl"] != "none":  # as apply_kl_penalty of verl's ray_trainer.py
        rewards = rewards - case["kl_coef"] * core_algos.kl_penalty(t["old"], t["reference"], case["kl"]) * full
    common = dict(token_level_rewards=rewards, response_mask=full if mask is None else mask)
    index = data["group"]
    estimator = case["advantage"]
    if estimator == "gae":
        lam = case["lambda"]
        if case["lambda_length"]:
            lam = 1 - 1 / (case["lambda_length"] * torch.tensor(data["length"], dtype=DTYPES[dtype]))
        made = core_algos.compute_gae_advantage_return(**common, values=t["old_value"], gamma=case["gamma"], lam=lam)
    elif estimator in ("grpo", "dr_grpo"):
        made = core_algos.compute_grpo_outcome_advantage(**common, index=index,
                                                         norm_adv_by_std_in_grpo=estimator == "grpo")
    else:
        settings = types.SimpleNamespace(gamma=case["gamma"])
        made = core_algos.get_adv_estimator_fn(estimator)(**common, index=index, config=settings)
    out = {"advantages": numbers(made[0], data, dtype)}
    if estimator == "gae":
        out["returns"] = numbers(made[1], data, dtype)
    return out


def verl_advantages(batches):
    cases = []
    for name in VERL_BATCHES:
        data = batches[name]
        for i, estimator in enumerate(["grpo", "dr_grpo", "rloo", "reinforce_plus_plus", "reinforce_plus_plus_baseline",
                                       "gae", "gae", "gae"]):
            kind = ["k1", "k2", "k3"][i % 3]
            for kl, masked in (("none", False), (kind, False), (kind, True)):
                if masked and name != "holes":
                    continue
                case = {"batch": name, "advantage": estimator, "gamma": 0.9 if i % 2 else 1.0, "kl": kl, "kl_coef": 0.05,
                        "lambda": 0.8 if i < 7 else 1.0, "lambda_length": 0.7 if i == 6 else 0.0, "masked": masked}
                if case["lambda_length"] and min(data["length"]) * case["lambda_length"] < 1:
                    case["lambda_length"] = 1.5
                for dtype in DTYPES:
                    torch.set_default_dtype(DTYPES[dtype])  # of verl's mean and deviation of a group of one
                    mask = torch.tensor(data["mask"], dtype=DTYPES[dtype]) if masked else None
                    case[dtype] = verl_advantage(case, data, dtype, mask)
                torch.set_default_dtype(torch.float32)
                cases.append(case)
    return cases


def verl_corrections(batches):
    """Weights of tis, masks of mis, and advantages under such a mask.

    verl bounds mu / pi_old where we bound pi_old / mu: its bounds are inverse."""
    cases = []
    for name in VERL_BATCHES:
        data = batches[name]
        for kind, level, low, high in (("tis", "token", 0.5, 1.25), ("tis", "sequence", 0.5, 2.0),
                                       ("mis", "token", 0.7, 1.4), ("mis", "sequence", 0.5, 1.9),
                                       ("mis", "geometric", 0.9, 1.2)):
            case = {"batch": name, "type": kind, "level": level, "low": low, "high": high}
            for dtype in DTYPES:
                t = tensors(data, dtype)
                full = torch.tensor(np.arange(t["mask"].shape[1]) < data["length"][:, None], dtype=DTYPES[dtype])
                ratio = (t["old"] - t["rollout"]) * full
                if kind == "tis":
                    made, _ = compute_rollout_correction_weights(ratio, full, level, high)
                else:
                    option = {"token": "token_k1", "sequence": "seq_sum_k1", "geometric": "seq_mean_k1"}[level]
                    made, _ = compute_rollout_rejection_mask(ratio, full, option, f"{1 / high}_{1 / low}")
                metrics = compute_offpolicy_metrics(t["old"], t["rollout"], full)
                case[dtype] = {"weights": numbers(made, data, dtype), "kl": number(metrics["k3_kl"], dtype)}
                if kind == "mis" and level == "token" and made.sum() > 1:
                    gae = {"advantage": "gae", "gamma": 0.9, "lambda": 0.8, "lambda_length": 0, "kl": "none"}
                    case[dtype].update(verl_advantage(gae, data, dtype, made))
            cases.append(case)
    return cases


class Trainer(types.SimpleNamespace):
    """The part of TRL's trainer that its loss reads. The model is the log-probabilities themselves."""
    def _get_per_token_logps_and_entropies(self, model, *_, **__):
        return model["logprob"], model["entropy"], None


def trl_loss(case, data, dtype):
    t = tensors(data, dtype)
    leaves = {"logprob": t["logprob"].requires_grad_(), "entropy": t["entropy"].requires_grad_()}
    rows, updates = slice(case["begin"], case["end"]), len(t["mask"]) // (case["end"] - case["begin"])
    num_items = t["mask"].sum()  # of the generation batch
    model, t = {key: x[rows] for key, x in leaves.items()}, {key: x[rows] for key, x in t.items()}
    shape = t["mask"].shape
    accelerator = types.SimpleNamespace(num_processes=1, sync_gradients=False, gather=lambda x: x,
                                        reduce=lambda x, reduction: x)
    args = types.SimpleNamespace(delta=case["dual_clip"] or None, use_bias_correction_kl=False, steps_per_generation=updates)
    trainer = Trainer(
        aux_loss_enabled=False, top_entropy_quantile=1.0, off_policy_mask_threshold=None, accelerator=accelerator,
        importance_sampling_level="sequence" if case["loss"] == "gspo" else "token", beta=case["kl_coef"],
        loss_type=case["trl"], epsilon_low=case["clip_low"],
        epsilon_high=case["clip_high"] + (1 if case["loss"] == "cispo" else 0), args=args, use_vllm=False,
        vllm_importance_sampling_correction=False, current_gradient_accumulation_steps=1, max_completion_length=HORIZON,
        model=types.SimpleNamespace(training=True), _entropy_bonus_enabled=case["entropy_coef"] != 0,
        use_adaptive_entropy=False, entropy_coef=case["entropy_coef"],
        _metrics={"train": collections.defaultdict(list)})
    inputs = {"prompt_ids": torch.zeros(shape[0], 1), "prompt_mask": torch.ones(shape[0], 1),
              "completion_ids": torch.zeros(shape), "completion_mask": t["mask"], "advantages": t["advantage"],
              "old_per_token_logps": t["old"], "ref_per_token_logps": t["reference"],
              "num_items_in_batch": num_items}
    loss = GRPOTrainer._compute_loss(trainer, model, inputs)
    loss.backward()
    grads = {key: x.grad if x.grad is not None else torch.zeros(x.shape) for key, x in leaves.items()}
    return {"loss": number(loss, dtype), "dlogprob": numbers(grads["logprob"], data, dtype),
            "dentropy": numbers(grads["entropy"], data, dtype)}


def trl_losses(batches):
    """TRL adds the entropy as a mean over tokens whatever the loss type, so only token means have it here.

    With one update to a generation batch, and for the token means of a generation batch with two: samples [begin, end)."""
    cases = []
    for name in TRL_BATCHES:
        count = len(batches[name]["length"])
        for loss, kind, mode, low, high, dual, entropy in (
                ("ppo", "grpo", "seq-mean-token-mean", 0.2, 0.2, 0, 0), ("ppo", "dapo", "token-mean", 0.2, 0.28, 0, 0.125),
                ("ppo", "dapo", "token-mean", 0.2, 0.28, 1.5, 0), ("ppo", "dr_grpo", "seq-mean-token-sum-norm", 0.2, 0.2, 0, 0),
                ("ppo", "bnpo", "token-mean", 0.2, 0.2, 0, 0.125), ("ppo", "luspo", "seq-mean-token-sum", 0.2, 0.2, 0, 0),
                ("cispo", "cispo", "token-mean", 1.0, 0.5, 0, 0),
                ("gspo", "grpo", "seq-mean-token-mean", 0.03, 0.05, 0, 0)):
            halves = name == "mixed" and kind in ("dapo", "cispo") and not entropy
            for begin, end in ((0, count), (0, count // 2), (count // 2, count)) if halves else ((0, count),):
                case = {"batch": name, "loss": loss, "trl": kind, "clip_low": low, "clip_high": high, "dual_clip": dual,
                        "aggregation": mode, "tokens_in_mean": "step", "samples_in_mean": "all", "begin": begin,
                        "end": end, "kl": "k3", "kl_coef": 0.25, "entropy_coef": entropy}
                cases.append({**case, **{dtype: trl_loss(case, batches[name], dtype) for dtype in DTYPES}})
    return cases


def main():
    batches = {name: batch(name) for name in BATCHES}
    for name, (seed, groups, *_) in BATCHES.items():
        print(f"batch {name}: seed {seed}, groups of {groups}, lengths {batches[name]['length'].tolist()}")
    held = {"versions": {"torch": torch.__version__, "verl": verl.__version__, "trl": trl.__version__}, "horizon": HORIZON,
            "batches": {}}
    for name, data in batches.items():
        per_sample = ("group", "length", "reward", "advantage")
        held["batches"][name] = {"seed": BATCHES[name][0], **{key: data[key].tolist() for key in per_sample},
                                 **{key: flat(data[key], data) for key in data if key not in per_sample}}
    held["verl"] = {"losses": verl_losses(batches), "values": verl_values(batches), "advantages": verl_advantages(batches),
                    "corrections": verl_corrections(batches)}
    held["trl"] = {"losses": trl_losses(batches)}
    path = HERE / "fixtures" / "losses.json"
    path.parent.mkdir(exist_ok=True)
    sections = ",\n".join(f'"{key}": {json.dumps(value, separators=(",", ":"))}' for key, value in held.items())
    path.write_text("{" + sections + "}\n", encoding="utf-8")
    print(f"{os.path.relpath(path)}: {path.stat().st_size / 1e3:.0f} kB; {held['versions']}")


if __name__ == "__main__":
    main()
