#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The PyTorch eager peer: one training step of a Llama-like or Qwen3-MoE-like model on the CPU.

Reads the same Hugging Face config.json as `hocket bench step` and builds the model from plain tensors. It
trains on random tokens (4 x 512, fp32, 2 threads) with fused AdamW and gradient clipping. Every formulation
that was faster in eager mode is on by default; `--help` lists the alternatives.

peer_ops.py lists the formulations that were tried.
"""
import argparse
import ctypes
import json
import os
import resource
import statistics
import sys
import time

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # an idle process must not spin beside the other one

torch = F = ops = None  # bound in main(), once the allocator is set and before idle memory is read


def read_status(key):
    """Returns a memory line of /proc/self/status, in MiB (VmRSS: current, VmHWM: peak)."""
    with open("/proc/self/status") as f:
        for line in f:
            if line.startswith(key + ":"):
                return int(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def keep_freed_pages():
    """Makes glibc serve large blocks from the heap and keep them, so that no step page-faults its buffers anew."""
    libc = ctypes.CDLL("libc.so.6")
    libc.mallopt(-4, 0)  # M_MMAP_MAX
    libc.mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD


# -------------------------------------------------------------------------------------------------- model


class Model:
    """Parameters under short names, and the loss of one batch."""

    def __init__(self, cfg, args):
        self.cfg, self.args = cfg, args
        d, v, h = cfg["hidden_size"], cfg["vocab_size"], cfg["num_attention_heads"]
        self.heads, self.kv = h, cfg.get("num_key_value_heads", h)
        self.head_dim = cfg.get("head_dim") or d // h
        self.moe = cfg["model_type"] == "qwen3_moe"
        self.eps = cfg["rms_norm_eps"]
        std = cfg.get("initializer_range", 0.02)
        gen = torch.Generator().manual_seed(args.seed)

        def normal(*shape):
            return torch.empty(*shape).normal_(0.0, std, generator=gen)

        p = self.params = {"embed": normal(v, d)}
        for i in range(cfg["num_hidden_layers"]):
            p[f"{i}.norm1"], p[f"{i}.norm2"] = torch.ones(d), torch.ones(d)
            p[f"{i}.qkv"] = normal((h + 2 * self.kv) * self.head_dim, d)
            p[f"{i}.o"] = normal(d, h * self.head_dim)
            if self.moe:
                p[f"{i}.qnorm"], p[f"{i}.knorm"] = torch.ones(self.head_dim), torch.ones(self.head_dim)
                p[f"{i}.router"] = normal(cfg["num_experts"], d)
                for e in range(cfg["num_experts"]):
                    p[f"{i}.gate_up.{e}"] = normal(2 * cfg["moe_intermediate_size"], d)
                    p[f"{i}.down.{e}"] = normal(d, cfg["moe_intermediate_size"])
            else:
                p[f"{i}.gate_up"] = normal(2 * cfg["intermediate_size"], d)
                p[f"{i}.down"] = normal(d, cfg["intermediate_size"])
        p["norm"] = torch.ones(d)
        if not cfg["tie_word_embeddings"]:
            p["head"] = normal(v, d)
        for t in p.values():
            t.requires_grad_()
        theta = (cfg.get("rope_parameters") or cfg).get("rope_theta", 10000.0)
        freq = theta ** (-torch.arange(0, self.head_dim, 2).double() / self.head_dim)
        angle = torch.outer(torch.arange(args.seq).double(), freq)
        self.cis = torch.polar(torch.ones_like(angle), angle).to(torch.complex64).unsqueeze(1)

    def count(self):
        return sum(t.numel() for t in self.params.values())

    def mix(self, i, x, p):
        """Returns the output and balance loss of layer i's mixture-of-experts block on x [t,d]."""
        cfg = self.cfg
        n, k = cfg["num_experts"], cfg["num_experts_per_tok"]
        probs = torch.softmax(F.linear(x, p[f"{i}.router"]), -1)
        top_w, top = probs.topk(k, -1)
        if cfg["norm_topk_prob"]:
            top_w = top_w / top_w.sum(-1, keepdim=True)
        flat = top.view(-1)
        counts = flat.bincount(minlength=n)
        ws = [p[f"{i}.{w}.{e}"] for e in range(n) for w in ("gate_up", "down")]
        y = ops.Experts.apply(x, top_w, flat.argsort(), counts.tolist(), *ws)
        return y, n * torch.dot(probs.mean(0), counts / x.shape[0])

    def layer(self, i, x, b, s, p):
        """Returns the output of layer i on x [b*s,d] with the parameters p, and its balance loss (0 for a dense
        layer)."""
        h, k, d = self.heads, self.kv, self.head_dim
        balance = 0.0
        y = ops.RmsNorm.apply(x, p[f"{i}.norm1"], self.eps)
        qkv = ops.Linear.apply(y, p[f"{i}.qkv"]).view(b, s, h + 2 * k, d)
        a = ops.Attention.apply(qkv, p.get(f"{i}.qnorm"), p.get(f"{i}.knorm"), self.eps, self.cis[:s], h,
                                self.args.attention == "blocked")
        x = ops.Linear.apply(a.view(b * s, h * d), p[f"{i}.o"]).add_(x)
        y = ops.RmsNorm.apply(x, p[f"{i}.norm2"], self.eps)
        if self.moe:
            y, balance = self.mix(i, y, p)
        else:
            y = ops.Linear.apply(ops.SwiGlu.apply(ops.Linear.apply(y, p[f"{i}.gate_up"])), p[f"{i}.down"])
        return y.add_(x), balance

    def head_loss(self, x, target, p):
        """Returns the mean next-token loss of the last hidden states x [t,d]."""
        x = ops.RmsNorm.apply(x, p["norm"], self.eps)
        w = p["head"] if "head" in p else p["embed"]
        if self.args.loss == "chunked":
            return ops.HeadLoss.apply(x, w, target.view(-1), self.args.loss_rows)
        if self.args.loss == "linear_cross_entropy":
            return F.linear_cross_entropy(x, w, target.view(-1), options=torch.nn.LinearCrossEntropyOptions())
        with torch.profiler.record_function("loss"):
            return F.cross_entropy(ops.Linear.apply(x, w), target.view(-1))

    def loss(self, ids, target):
        """Returns the mean next-token loss of ids [b,s] plus the weighted balance loss, and the next-token part
        alone."""
        p, (b, s) = self.params, ids.shape
        balance = 0.0
        x = F.embedding(ids.view(-1), p["embed"])
        for i in range(self.cfg["num_hidden_layers"]):
            x, aux = self.layer(i, x, b, s, p)
            balance = balance + aux
        loss = self.head_loss(x, target, p)
        if self.moe:
            return loss + self.cfg["router_aux_loss_coef"] * balance, loss
        return loss, loss


def batches_of(cfg, args, seed):
    """Returns 8 batches [batch, seq + 1] of Zipf-like tokens, used in turn, so that the loss moves."""
    gen = torch.Generator().manual_seed(seed)
    weights = 1.0 / torch.arange(1, cfg["vocab_size"] + 1)
    return [torch.multinomial(weights, args.batch * (args.seq + 1), True, generator=gen).view(args.batch, -1)
            for _ in range(8)]


class Trainer:
    def __init__(self, cfg, args):
        self.model = Model(cfg, args)
        self.args, self.at = args, 0
        self.params = list(self.model.params.values())
        matrices = [t for t in self.params if t.dim() > 1]
        vectors = [t for t in self.params if t.dim() == 1]
        self.opt = torch.optim.AdamW(
            [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}],
            lr=args.lr, betas=(0.9, 0.95), eps=1e-8, fused=True)
        self.batches = batches_of(cfg, args, args.seed + 1)

    def step(self):
        """Runs one optimizer step; returns (seconds, CPU seconds of all threads, next-token loss)."""
        t, c = time.perf_counter(), time.process_time()
        tokens = self.batches[self.at % len(self.batches)]
        self.at += 1
        total, loss = self.model.loss(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())
        total.backward()
        with torch.profiler.record_function("clip"):
            grads = [p.grad.view(-1) for p in self.params]
            norm = torch.stack([torch.dot(g, g) for g in grads]).sum().sqrt()
            # AdamW divides the gradients by grad_scale inside its own pass.
            self.opt.grad_scale = torch.clamp(norm / self.args.clip, min=1.0)
        with torch.profiler.record_function("optimizer"):
            self.opt.step()
        self.opt.zero_grad(set_to_none=True)
        loss = loss.item()
        return time.perf_counter() - t, time.process_time() - c, loss


# ------------------------------------------------------------------------------------------------ reports


def step_gemm_flops(cfg, tokens):
    """Returns the FLOPs of a step's matrix products (forward, dX, dW; active experts only), and of causal attention."""
    d, h = cfg["hidden_size"], cfg["num_attention_heads"]
    k, hd = cfg.get("num_key_value_heads", h), cfg.get("head_dim") or d // h
    layer = d * (h + 2 * k) * hd + h * hd * d
    if cfg["model_type"] == "qwen3_moe":
        layer += cfg["num_experts"] * d + cfg["num_experts_per_tok"] * 3 * d * cfg["moe_intermediate_size"]
    else:
        layer += 3 * d * cfg["intermediate_size"]
    return 6 * tokens * (cfg["num_hidden_layers"] * layer + cfg["vocab_size"] * d)


def gemm_rate(cfg, args):
    """Measures GFLOP/s of the step's shapes: forward, dX and dW with MKL (torch.mm) and with oneDNN."""
    d, h, k = cfg["hidden_size"], cfg["num_attention_heads"], cfg["num_key_value_heads"]
    hd, t = cfg["head_dim"], args.batch * args.seq
    layers = cfg["num_hidden_layers"]
    shapes = {"qkv": (t, d, (h + 2 * k) * hd, layers), "o": (t, h * hd, d, layers)}
    if cfg["model_type"] == "qwen3_moe":
        f, n = cfg["moe_intermediate_size"], cfg["num_experts"]
        per = t * cfg["num_experts_per_tok"] // n
        shapes["expert gate-up"] = (per, d, 2 * f, layers * n)
        shapes["expert down"] = (per, f, d, layers * n)
    else:
        f = cfg["intermediate_size"]
        shapes["gate-up"], shapes["down"] = (t, d, 2 * f, layers), (t, f, d, layers)
    rows = args.loss_rows
    shapes["head"] = (rows, d, cfg["vocab_size"], t // rows)
    out = []
    total = {"mkl": 0.0, "onednn": 0.0}
    for name, (m, kk, n, times) in shapes.items():
        x, w, g = torch.randn(m, kk), torch.randn(n, kk), torch.randn(m, n)
        row = {"name": name, "m": m, "k": kk, "n": n}
        for lib in ("mkl", "onednn"):
            ops.Gemm.onednn = lib == "onednn"
            for what, fn in (("forward", lambda: ops.mm_nt(x, w)), ("dX", lambda: ops.mm_nt(g, w.t())),
                             ("dW", lambda: ops.mm_nt(g.t(), x.t()))):
                ts = []
                for _ in range(13):
                    s = time.perf_counter()
                    fn()
                    ts.append(time.perf_counter() - s)
                median = statistics.median(ts[3:])
                total[lib] += median * times
                row[f"{lib} {what}"] = 2e-9 * m * kk * n / median
        out.append(row)
    flops = step_gemm_flops(cfg, t)
    if args.json:
        print(json.dumps({"shapes": out, "step_gemm_gflop": flops * 1e-9,
                          "step_gemm_ms": {k: v * 1e3 for k, v in total.items()}}))
        return
    keys = list(out[0])[4:]
    print(f"{'GFLOP/s':16}{'m,k,n':>20}" + "".join(f"{k:>16}" for k in keys))
    for r in out:
        print(f"{r['name']:16}{r['m']:>8},{r['k']:>5},{r['n']:>5}" + "".join(f"{r[k]:16.0f}" for k in keys))
    for lib, s in total.items():
        print(f"all GEMMs of a step with {lib}: {s * 1e3:.0f} ms = {flops * 1e-9 / s:.0f} GFLOP/s")


GEMM_OPS = ("aten::mm", "aten::addmm", "aten::addmm_", "aten::bmm", "mkldnn::_linear_pointwise")
KINDS = ("gemm", "attention", "loss", "experts", "norm/rope/swiglu/residual", "embedding", "zero-fill", "clip",
         "optimizer", "python and dispatch")


def kind_of(event):
    names = []
    e = event
    while e is not None:
        names.append(e.name)
        e = e.cpu_parent
    if any(n in ("optimizer", "clip") for n in names):
        return next(n for n in names if n in ("optimizer", "clip"))
    if any("flash_attention" in n or n in ("Attention", "AttentionBackward") for n in names):
        return "attention"
    if names[0] in GEMM_OPS:
        return "gemm"
    if any(n == "loss" or "HeadLoss" in n or "cross_entropy" in n or "LogSoftmax" in n or "NllLoss" in n
           for n in names):
        return "loss"
    if names[0] in ("aten::zero_", "aten::fill_", "aten::zeros"):
        return "zero-fill"
    if any("mbedding" in n for n in names):
        return "embedding"
    if any("Experts" in n for n in names):
        return "experts"
    return "norm/rope/swiglu/residual"


def profile(trainer, args):
    """Prints a step's self times from torch.profiler; the remainder to wall time is Python and dispatch."""
    for _ in range(args.warmup):
        trainer.step()
    plain = statistics.median(trainer.step()[0] for _ in range(args.steps))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as prof:
        for _ in range(args.steps):
            trainer.step()
    ms = dict.fromkeys(KINDS, 0.0)
    for e in prof.events():
        ms[kind_of(e)] += e.self_cpu_time_total / 1e3 / args.steps
    ms["python and dispatch"] = max(0.0, plain * 1e3 - sum(ms.values()))
    if args.json:
        print(json.dumps({"step_ms": plain * 1e3, "kinds_ms": ms}))
        return
    print(f"step {plain * 1e3:.0f} ms")
    for k, v in sorted(ms.items(), key=lambda kv: -kv[1]):
        print(f"  {k:28}{v:8.1f} ms {v / plain / 10:5.1f} %")
    if args.top:
        print(prof.key_averages().table(sort_by="self_cpu_time_total", row_limit=args.top, max_name_column_width=50))


def memory(idle):
    return {"rss_mib": round(read_status("VmRSS"), 1), "peak_mib": round(read_status("VmHWM"), 1),
            "idle_mib": round(idle, 1)}


def interactive(trainer, idle):
    """Answers `step`, `memory` and `quit` on stdin with one JSON line each; blocks (idle) in between."""
    for line in sys.stdin:
        command = line.strip()
        if command == "step":
            seconds, cpu, loss = trainer.step()
            print(json.dumps({"ms": round(seconds * 1e3, 3), "cpu_ms": round(cpu * 1e3, 3), "loss": loss}), flush=True)
        elif command == "memory":
            print(json.dumps(memory(idle)), flush=True)
        elif command == "quit":
            return
        elif command:
            print(json.dumps({"error": f"unknown command {command!r}; expected step, memory or quit"}), flush=True)


def bind():
    """Imports the libraries that the rest of this file uses."""
    global torch, F, ops
    import torch as torch_
    import torch.nn.functional as F_

    import peer_ops as ops_

    torch, F, ops = torch_, F_, ops_


def read_config(name):
    """Reads a Hugging Face config.json, given its path, its folder, `dense` or `moe`."""
    here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    path = os.path.join(here, "configs/models", {"dense": "dense-26m", "moe": "moe-36m"}[name]) if name in ("dense", "moe") else name
    if os.path.isdir(path):
        path = os.path.join(path, "config.json")
    with open(path) as f:
        return json.load(f)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--model", choices=("dense", "moe"), default="dense")
    ap.add_argument("--config", help="a Hugging Face config.json or its folder (default: configs/models/ of MODEL)")
    ap.add_argument("--steps", type=int, default=10)
    ap.add_argument("--warmup", type=int, default=3)
    ap.add_argument("--batch", type=int, default=4)
    ap.add_argument("--seq", type=int, default=512)
    ap.add_argument("--threads", type=int, default=2)
    ap.add_argument("--lr", type=float, default=3e-4)
    ap.add_argument("--clip", type=float, default=1.0)
    ap.add_argument("--seed", type=int, default=0)
    ap.add_argument("--gemm", choices=("auto", "mkl", "onednn"), default="auto")
    ap.add_argument("--attention", choices=("sdpa", "blocked"), default="sdpa")
    ap.add_argument("--loss", choices=("chunked", "plain", "linear_cross_entropy"), default="chunked")
    ap.add_argument("--loss-rows", type=int, default=512)
    ap.add_argument("--malloc", choices=("keep", "default"), default="keep")
    ap.add_argument("--interactive", action="store_true")
    ap.add_argument("--profile", action="store_true")
    ap.add_argument("--top", type=int, default=0, help="with --profile: also the N dearest operators")
    ap.add_argument("--gemm-rate", action="store_true")
    ap.add_argument("--json", action="store_true")
    args = ap.parse_args()
    cfg = read_config(args.config or args.model)
    if args.malloc == "keep":
        keep_freed_pages()
    bind()
    idle = read_status("VmRSS")
    with open("/proc/self/clear_refs", "w") as f:
        f.write("5")  # resets the peak RSS, which would include the import
    torch.set_num_threads(args.threads)

    if args.gemm_rate:
        return gemm_rate(cfg, args)
    ops.Gemm.choose(cfg, args.gemm)
    trainer = Trainer(cfg, args)
    if args.interactive:
        return interactive(trainer, idle)
    if args.profile:
        return profile(trainer, args)
    times, cpus, losses = [], [], []
    for i in range(args.warmup + args.steps):
        seconds, cpu, loss = trainer.step()
        if i >= args.warmup:
            times.append(seconds)
            cpus.append(cpu)
            losses.append(loss)
            if not args.json:
                print(f"step {i - args.warmup:3}  {seconds * 1e3:8.1f} ms  loss {loss:.4f}", flush=True)
    tokens = args.batch * args.seq
    median = statistics.median(times)
    mem = memory(idle)
    result = {
        "model": cfg["model_type"], "parameters": trainer.model.count(), "torch": torch.__version__,
        "threads": args.threads, "gemm": "onednn" if ops.Gemm.onednn else "mkl", "loss_form": args.loss,
        "step_ms": [round(t * 1e3, 2) for t in times], "median_ms": round(median * 1e3, 2),
        "cpu_ms": round(statistics.median(cpus) * 1e3, 2), "tokens_per_s": round(tokens / median, 1), "gemm_gflop": round(step_gemm_flops(cfg, tokens) * 1e-9, 1),
        "loss": losses[-1], **mem, "peak_above_idle_mib": round(mem["peak_mib"] - mem["idle_mib"], 1)}
    if args.json:
        print(json.dumps(result))
    else:
        print(f"{result['parameters'] / 1e6:.1f} M parameters, gemm {result['gemm']}: median {median * 1e3:.1f} ms "
              f"(CPU {result['cpu_ms']:.0f} ms), "
              f"{result['tokens_per_s']:.0f} tokens/s, peak {result['peak_above_idle_mib']:.0f} MiB above idle")


if __name__ == "__main__":
    main()
