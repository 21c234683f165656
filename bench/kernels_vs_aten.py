#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares each kernel with the best ATen equivalent: same shapes, same threads, one after the other.

kernels_vs_aten.py [--bench build/hocket_bench] [--threads 2] [--filter linear]
Prints microseconds of both and the ratio (above 1: ours is faster)."""
import argparse
import json
import os
import subprocess
import time

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
import torch
import torch.nn.functional as F

T, SEQ, D, H, G, HEAD, FF, V, E, K, FE, WINDOW = 2048, 512, 384, 6, 2, 64, 1152, 16384, 8, 2, 384, 64
onednn = torch.ops.mkldnn._linear_pointwise
flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
flash_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def product(name, a, b):
    """Times a [m,k] times b [n,k] transposed with MKL and oneDNN; the faster counts."""
    out = torch.empty(a.shape[0], b.shape[0])
    return name, [lambda: torch.mm(a, b.t(), out=out), lambda: onednn(a, b, None, "none", [], "")]


def grouped(name, pairs):
    return name, [lambda: [torch.mm(a, b.t()) for a, b in pairs],
                  lambda: [onednn(a, b, None, "none", [], "") for a, b in pairs]]


def loss_chunks(h, w, target, rows=512):
    """Computes loss, dX and dW in chunks of rows, as the peer of compare_peer.py does."""
    dw, dh, total = None, torch.empty_like(h), 0.0
    for i in range(0, T, rows):
        x, t = h[i:i + rows], target[i:i + rows]
        logits = onednn(x, w, None, "none", [], "")
        logits.sub_(logits.amax(-1, keepdim=True))
        picked = logits.gather(1, t[:, None])
        logits.exp_()
        z = logits.sum(-1, keepdim=True)
        total += (z.log() - picked).sum()
        logits.div_(z).scatter_add_(1, t[:, None], torch.full((len(t), 1), -1.0))
        dh[i:i + rows] = onednn(logits, w.t(), None, "none", [], "")
        part = onednn(logits.t(), x.t(), None, "none", [], "")
        dw = part if dw is None else dw.add_(part)
    return total, dh, dw


def cases():
    r = torch.randn
    for name, n, k in [("q", H * HEAD, D), ("kv", G * HEAD, D), ("gate_up", 2 * FF, D), ("down", D, FF)]:
        x, w, y = r(T, k), r(n, k), r(T, n)
        yield product(f"linear/{name}", x, w)
        yield product(f"linear_dx/{name}", y, w.t())
        yield product(f"linear_dw/{name}", y.t(), x.t())
    h, w, target = r(T, D), r(V, D) * 0.02, torch.randint(V, (T,))

    def loss_eager():
        a, b = h.detach().requires_grad_(), w.detach().requires_grad_()
        with torch.enable_grad():
            F.cross_entropy(F.linear(a, b), target).backward()
    yield "linear_cross_entropy", [loss_eager, lambda: loss_chunks(h, w, target)]
    q, k, v = r(4, SEQ, H, HEAD).transpose(1, 2), r(4, SEQ, G, HEAD).transpose(1, 2), r(4, SEQ, G, HEAD).transpose(1, 2)
    o, lse = flash(q, k, v, 0.0, True)
    yield "attention", [lambda: flash(q, k, v, 0.0, True)]
    yield "attention_bwd", [lambda: flash_backward(q, q, k, v, o, lse, 0.0, True)]
    ahead = torch.arange(SEQ)[:, None] - torch.arange(SEQ)[None, :]
    window = torch.zeros(SEQ, SEQ).masked_fill((ahead < 0) | (ahead >= WINDOW), -torch.inf)
    o_window, lse_window = flash(q, k, v, 0.0, False, attn_mask=window)
    yield "attention/window", [lambda: flash(q, k, v, 0.0, False, attn_mask=window)]
    yield "attention_bwd/window", [lambda: flash_backward(q, q, k, v, o_window, lse_window, 0.0, False,
                                                          attn_mask=window)]
    o1, o2, lse1, lse2 = r(T, H, HEAD), r(T, H, HEAD), r(T, H), r(T, H)

    def merge():
        both = torch.logaddexp(lse1, lse2)
        return torch.lerp(o2, o1, (lse1 - both).exp_().unsqueeze(-1)), both
    yield "softmax_merge", [merge]
    z, z_targets = r(T // 4, V), torch.randint(V, (T // 4,))
    z_max, z_lse = z.amax(-1), z.logsumexp(-1)

    def dlogits():
        dz = torch.exp(z - z_lse[:, None])
        return dz.scatter_add_(1, z_targets[:, None], torch.full((T // 4, 1), -1.0)).mul_(0.5)
    yield "rowmax", [lambda: z.amax(-1)]
    yield "sumexp", [lambda: (z - z_max[:, None]).exp_().sum(-1)]
    yield "lse_of", [lambda: z_max + z_lse.log()]
    yield "lse", [lambda: z.logsumexp(-1)]
    yield "pick", [lambda: z.gather(1, z_targets[:, None])]
    yield "nll", [lambda: (z_lse - z_max).sum() * 0.5]
    yield "dlogits", [dlogits]
    yield "softcap", [lambda: torch.tanh(z / 30).mul_(30)]
    capped = torch.tanh(z / 30)
    yield "softcap_bwd", [lambda: torch.ops.aten.tanh_backward(z, capped)]
    x, g = r(T, D), r(D)
    _, rstd = torch.ops.aten._fused_rms_norm(x, [D], g, 1e-6)
    yield "rms_norm", [lambda: torch.ops.aten._fused_rms_norm(x, [D], g, 1e-6)]

    def norm_backward():
        m = x * x
        dw = torch.mv(m.t(), rstd.view(-1))
        c = torch.mv(m, g).unsqueeze(1).mul_(rstd ** 3).mul_(-1.0 / D)
        return torch.mul(x, g, out=m).mul_(rstd).addcmul_(x, c), dw
    yield "rms_norm_bwd", [norm_backward,
                           lambda: torch.ops.aten._fused_rms_norm_backward(x, x, [D], rstd, g, [True, True])]
    _, mean, spread = torch.native_layer_norm(x, [D], g, g, 1e-6)
    yield "layer_norm", [lambda: torch.native_layer_norm(x, [D], g, g, 1e-6)]
    yield "layer_norm_bwd", [lambda: torch.ops.aten.native_layer_norm_backward(x, x, [D], mean, spread, g, g,
                                                                               [True, True, True])]
    y = torch.empty(T, D)
    yield "bias_add", [lambda: torch.add(x, g, out=y)]
    yield "bias_add_db", [lambda: x.sum(0)]
    yield "scale", [lambda: torch.mul(x, 0.5, out=y)]
    cis = torch.polar(torch.ones(SEQ, HEAD // 2), r(SEQ, HEAD // 2)).unsqueeze(1)
    for name, heads in (("q", H), ("k", G)):
        c = torch.view_as_complex(r(4, SEQ, heads, HEAD // 2, 2))
        yield f"rope/{name}", [lambda c=c: c * cis]
    gu, dh = r(T, 2, FF), r(T, FF)

    def swiglu_backward():
        gate, up = gu[:, 0], gu[:, 1]
        d = torch.empty_like(gu)
        torch.mul(dh, gate, out=d[:, 1])
        torch.ops.aten.silu_backward.grad_input(dh * up, gate, grad_input=d[:, 0])
        return d
    yield "swiglu", [lambda: F.silu(gu[:, 0]) * gu[:, 1]]
    yield "swiglu_bwd", [swiglu_backward]
    for kind, approximate in (("gelu", "none"), ("gelu_tanh", "tanh")):
        yield f"activation/{kind}", [lambda a=approximate: F.gelu(dh, approximate=a)]
        yield f"activation_bwd/{kind}", [lambda a=approximate: torch.ops.aten.gelu_backward(dh, dh, approximate=a)]

        def geglu_backward(a=approximate):
            gate, up = gu[:, 0], gu[:, 1]
            d = torch.empty_like(gu)
            torch.mul(dh, F.gelu(gate, approximate=a), out=d[:, 1])
            torch.ops.aten.gelu_backward.grad_input(dh * up, gate, approximate=a, grad_input=d[:, 0])
            return d
        yield f"geglu/{approximate}", [lambda a=approximate: F.gelu(gu[:, 0], approximate=a) * gu[:, 1]]
        yield f"geglu_bwd/{approximate}", [geglu_backward]
    x2, out = r(T, D), torch.empty(T, D)
    yield "add", [lambda: torch.add(x, x2, out=out)]
    yield "maximum", [lambda: torch.maximum(x, x2, out=out)]
    ids, table = torch.randint(V, (T,)), r(V, D)
    yield "embedding", [lambda: F.embedding(ids, table)]
    yield "embedding_dw", [lambda: torch.ops.aten.embedding_dense_backward(x, ids, V, -1, False)]
    flat = table.view(-1)
    yield "sumsq", [lambda: torch.dot(flat, flat)]
    p, m, s = r(V, D), r(V, D), r(V, D).abs_()
    steps = torch.tensor(3.0)
    yield "adamw", [lambda: torch._fused_adamw_([p], [table], [m], [s], [], [steps], amsgrad=False, lr=1e-3, beta1=0.9,
                                                beta2=0.95, weight_decay=0.1, eps=1e-8, maximize=False)]
    logits, dw = r(T, E), r(T, K)

    def route():
        probs = torch.softmax(logits, -1)
        w, i = probs.topk(K, -1)
        return w / w.sum(-1, keepdim=True), i, probs.sum(0)
    yield "router", [route]
    top = route()[1]
    order = top.view(-1).argsort(stable=True)
    yield "route_plan", [lambda: (top.view(-1).argsort(stable=True), top.view(-1).bincount(minlength=E))]
    token = order // K
    xs = x.index_select(0, token)
    yield "dispatch", [lambda: x.index_select(0, token)]
    inverse = order.argsort()
    yield "dispatch_bwd", [lambda: xs.index_select(0, inverse).view(T, K, D).sum(1)]
    yield "combine", [lambda: torch.bmm(dw.unsqueeze(1), xs.index_select(0, inverse).view(T, K, D))]
    yield "combine_bwd", [lambda: (x.index_select(0, token) * dw.view(-1)[order].unsqueeze(1),
                                   (xs.index_select(0, inverse).view(T, K, D) * x.unsqueeze(1)).sum(-1))]
    per = T * K // E
    for name, n, k in (("gate_up", 2 * FE, D), ("down", D, FE)):
        a, b, ws = [r(per, k) for _ in range(E)], [r(per, n) for _ in range(E)], [r(n, k) for _ in range(E)]
        yield grouped(f"grouped_linear/{name}", list(zip(a, ws)))
        yield grouped(f"grouped_linear_dx/{name}", [(y, w.t()) for y, w in zip(b, ws)])
        yield grouped(f"grouped_linear_dw/{name}", [(y.t(), x.t()) for y, x in zip(b, a)])


def best_us(fn, seconds=0.4):
    fn(), fn()
    end, best = time.perf_counter() + seconds, float("inf")
    while time.perf_counter() < end:
        t = time.perf_counter()
        fn()
        best = min(best, time.perf_counter() - t)
    return best * 1e6


def ours_us(args, name):
    env = dict(os.environ, HOCKET_BENCH_THREADS=str(args.threads))
    out = subprocess.run([args.bench, f"--benchmark_filter=^kernel/{name}/real_time$", "--benchmark_format=json",
                          "--benchmark_repetitions=5", "--benchmark_min_time=0.08"],
                         env=env, check=True, capture_output=True, text=True).stdout
    return min(b["real_time"] for b in json.loads(out)["benchmarks"] if b["run_type"] == "iteration")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bench", default="build/hocket_bench")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--filter", default="")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    print(f"{'kernel':28} {'ours us':>9} {'ATen us':>9} {'ATen/ours':>9}")
    with torch.inference_mode(False), torch.no_grad():
        for name, variants in cases():
            if args.filter not in name:
                continue
            ours, aten = ours_us(args, name), min(best_us(f) for f in variants)
            print(f"{name:28} {ours:9.0f} {aten:9.0f} {aten / ours:9.2f}", flush=True)


if __name__ == "__main__":
    main()
