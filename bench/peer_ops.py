#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Implements the autograd Functions and GEMM choice of the PyTorch eager peer (see peer_torch.py).

The formulations that were tried, each kept only where it was faster (numbers in bench/results/peer_torch.md):
  malloc     the allocator keeps freed pages (mallopt) instead of mmap/munmap for each large tensor
  gemm       F.linear (MKL) or oneDNN through mkldnn::_linear_pointwise; `auto` times both at start
  rms_norm   aten::_fused_rms_norm forward; own backward (two mv, four elementwise) instead of the composed one
  swiglu     one Function over the fused gate-up output; backward writes both halves of one buffer
  rope       complex multiply over q and k together (weights permuted), not rotate_half
  attention  flash SDPA called on the packed qkv, backward writes straight into d(qkv); GQA without expanding;
             `blocked` (GEMMs over blocks of rows) takes 5 to 9 % less CPU time but more memory, and is not SDPA
  loss       chunks of 512 rows that form loss, dX and dW at once: as fast as F.cross_entropy, 600 MiB less;
             F.linear_cross_entropy with chunks is slower
  experts    argsort, index_select, one mm per expert (separate parameters: no slice gradients to zero-fill),
             gather instead of index_add to combine; torch.nn.functional.grouped_mm refuses odd strides
  optimizer  fused AdamW; the clip factor is handed to it as grad_scale instead of a pass over the gradients
"""
import itertools
import time

import torch
import torch.nn.functional as F
from torch.autograd import Function

FLASH = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
FLASH_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def mm_nt(a, w, out=None):
    """Multiplies a [m,k] by w [n,k] transposed, with the chosen GEMM."""
    if Gemm.onednn:
        y = torch.ops.mkldnn._linear_pointwise(a, w, None, "none", [], "")
        return y if out is None else out.copy_(y)
    return torch.mm(a, w.t(), out=out) if out is not None else torch.mm(a, w.t())


def rms_norm_backward(g, x, w, rstd):
    """Returns the gradients of y = x * rstd * w for x and w; the two sums are matrix-vector products."""
    d = x.shape[-1]
    x2, g2, r = x.reshape(-1, d), g.reshape(-1, d), rstd.reshape(-1, 1)
    m = g2 * x2
    dw = torch.mv(m.t(), r.view(-1))
    c = torch.mv(m, w).unsqueeze(1).mul_(r * r * r).mul_(-1.0 / d)
    return torch.mul(g2, w, out=m).mul_(r).addcmul_(x2, c).view(x.shape), dw


class Gemm:
    onednn = False

    @staticmethod
    def choose(cfg, mode):
        """Times forward, dX and dW of one layer shape with both libraries (mode auto) and keeps the faster."""
        if mode != "auto":
            Gemm.onednn = mode == "onednn"
            return
        x = torch.randn(2048, cfg["hidden_size"])
        w = torch.randn(2 * cfg["intermediate_size"], cfg["hidden_size"])
        g = torch.randn(2048, w.shape[0])
        best = {}
        for onednn in (False, True):
            Gemm.onednn = onednn
            ms = []
            for _ in range(6):
                t = time.perf_counter()
                mm_nt(x, w), mm_nt(g, w.t()), mm_nt(g.t(), x.t())
                ms.append(time.perf_counter() - t)
            best[onednn] = min(ms)
        Gemm.onednn = best[True] < best[False]


class Linear(Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return mm_nt(x, w)

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return mm_nt(g, w.t()), mm_nt(g.t(), x.t())


class RmsNorm(Function):
    @staticmethod
    def forward(ctx, x, w, eps):
        y, rstd = torch.ops.aten._fused_rms_norm(x, [x.shape[-1]], w, eps)
        ctx.save_for_backward(x, w, rstd)
        return y

    @staticmethod
    def backward(ctx, g):
        return *rms_norm_backward(g, *ctx.saved_tensors), None


class SwiGlu(Function):
    @staticmethod
    def forward(ctx, gu):
        gate, up = gu.chunk(2, -1)
        s = F.silu(gate)
        ctx.save_for_backward(gu, s)
        return s * up

    @staticmethod
    def backward(ctx, g):
        gu, s = ctx.saved_tensors
        gate, up = gu.chunk(2, -1)
        d = torch.empty_like(gu)
        dgate, dup = d.chunk(2, -1)
        torch.mul(g, s, out=dup)
        torch.ops.aten.silu_backward.grad_input(g * up, gate, grad_input=dgate)
        return d


def blocked_attention(q, k, v, rows=128):
    """Computes causal attention by GEMMs over blocks of query rows, the heads of a group stacked.

    q is [b,h,s,d]; k and v are [b,kv,s,d]. Returns the output [b,h,s,d] and the backward's inputs; probabilities are
    kept (1.25 x half of b*h*s*s)."""
    b, h, s, d = q.shape
    kv = k.shape[1]
    n, m = b * kv, h // kv
    q = (q * d**-0.5).reshape(n, m, s, d)
    k, v = k.reshape(n, s, d), v.reshape(n, s, d)
    out, probs = torch.empty(n, m, s, d), []
    mask = torch.full((rows, rows), float("-inf")).triu_(1).repeat(m, 1)
    for j in range(n):
        for i in range(0, s, rows):
            e = i + rows
            p = mm_nt(q[j, :, i:e].reshape(m * rows, d), k[j, :e])
            p[:, i:e] += mask
            torch.softmax(p, -1, out=p)
            out[j, :, i:e] = mm_nt(p, v[j, :e].t()).view(m, rows, d)
            probs.append(p)
    return out.view(b, h, s, d), (q, k, v, out, probs, rows)


def blocked_attention_backward(g, q, k, v, out, probs, rows):
    """Returns the gradients [b,h,s,d] and [b,kv,s,d] of blocked_attention for g [b,h,s,d]."""
    n, m, s, d = q.shape
    b, h = g.shape[:2]
    g = g.reshape(n, m, s, d)
    delta = torch.linalg.vecdot(g, out).unsqueeze(-1)
    dq, dk, dv = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
    probs = iter(probs)
    for j in range(n):
        for i in range(0, s, rows):
            e = i + rows
            p, gb = next(probs), g[j, :, i:e].reshape(m * rows, d)
            dv[j, :e] += mm_nt(p.t(), gb.t())
            ds = mm_nt(gb, v[j, :e]).sub_(delta[j, :, i:e].reshape(-1, 1)).mul_(p)
            dq[j, :, i:e] = mm_nt(ds, k[j, :e].t()).view(m, rows, d)
            dk[j, :e] += mm_nt(ds.t(), q[j, :, i:e].reshape(m * rows, d).t())
    return dq.mul_(d**-0.5).view(b, h, s, d), dk.view(b, h // m, s, d), dv.view(b, h // m, s, d)


class Attention(Function):
    """qkv [b,s,h+2k,d] -> [b,s,h*d]: per-head RMSNorm of q and k where given, RoPE, causal attention."""

    @staticmethod
    def forward(ctx, qkv, q_norm, k_norm, eps, cis, h, blocked=False):
        b, s, n, d = qkv.shape
        k = (n - h) // 2
        qk, rstd = qkv[:, :, : h + k], ()
        if q_norm is not None:
            q, qr = torch.ops.aten._fused_rms_norm(qk[:, :, :h], [d], q_norm, eps)
            key, kr = torch.ops.aten._fused_rms_norm(qk[:, :, h:], [d], k_norm, eps)
            qk, rstd = torch.cat((q, key), 2), (qr, kr)
        rot = torch.view_as_complex(qk.view(b, s, h + k, d // 2, 2)) * cis
        rot = torch.view_as_real(rot).view(b, s, h + k, d).transpose(1, 2)
        q, key, v = rot[:, :h], rot[:, h:], qkv[:, :, h + k :].transpose(1, 2)
        ctx.blocked = None
        if blocked:
            o, ctx.blocked = blocked_attention(q, key, v)
            lse = None
        else:
            o, lse = FLASH(q, key, v, 0.0, True)
        ctx.save_for_backward(qkv, q, key, o, lse, cis, q_norm, k_norm, *rstd)
        return o.transpose(1, 2).reshape(b, s, h * d)

    @staticmethod
    def backward(ctx, g):
        qkv, q, key, o, lse, cis, q_norm, k_norm, *rstd = ctx.saved_tensors
        b, h, s, d = q.shape
        k = key.shape[1]
        v = qkv[:, :, h + k :].transpose(1, 2)
        g = g.view(b, s, h, d).transpose(1, 2)
        if ctx.blocked:
            grads = blocked_attention_backward(g, *ctx.blocked)
        else:
            grads = FLASH_BACKWARD(g, q, key, v, o, lse, 0.0, True)
        dqkv, dnorm = torch.empty_like(qkv), [None, None]
        dqkv[:, :, h + k :] = grads[2].transpose(1, 2)
        back = cis.conj().resolve_conj()
        for j, (r, w) in enumerate(((slice(0, h), q_norm), (slice(h, h + k), k_norm))):
            grad = torch.view_as_complex(grads[j].transpose(1, 2).reshape(b, s, -1, d // 2, 2))
            out = dqkv[:, :, r]
            if w is None:
                torch.mul(grad, back, out=torch.view_as_complex(out.view(b, s, -1, d // 2, 2)))
            else:
                grad = torch.view_as_real(grad * back).view(out.shape)
                dx, dnorm[j] = rms_norm_backward(grad, qkv[:, :, r], w, rstd[j])
                out.copy_(dx)
        return dqkv, *dnorm, None, None, None, None


class Experts(Function):
    """Applies the experts of every (token, choice) to x [t,d]; weights top_w [t,k]; ws: gate_up, down per expert."""

    @staticmethod
    def forward(ctx, x, top_w, order, counts, *ws):
        t, k = top_w.shape
        # With oneDNN every expert's rows are padded to a multiple of 32 (weight 0): each new row count would cost a new
        # JIT-compiled kernel.
        pad = 32 if Gemm.onednn else 1
        counts, real = [-(-n // pad) * pad for n in counts], counts
        rows = torch.arange(t * k) if pad == 1 else torch.cat(
            [torch.arange(n) + a for n, a in zip(real, [0, *itertools.accumulate(counts[:-1])])])
        total = sum(counts)
        choice = order.new_zeros(total).index_copy_(0, rows, order)
        scale = x.new_zeros(total, 1).index_copy_(0, rows, top_w.view(-1, 1).index_select(0, order))
        token = choice // k
        inverse = torch.empty_like(order).index_copy_(0, order, rows)
        f = ws[0].shape[0] // 2
        most = t * k + (pad - 1) * len(counts)

        def rows_of(width):  # the same allocation for any routing, so that the heap does not fragment
            return x.new_empty(most, width)[:total]

        xs = torch.index_select(x, 0, token, out=rows_of(x.shape[1]))
        gu, s, a, ys = rows_of(2 * f), rows_of(f), rows_of(f), rows_of(x.shape[1])
        at = 0
        for e, n in enumerate(counts):
            if n:
                r = slice(at, at + n)
                mm_nt(xs[r], ws[2 * e], out=gu[r])
                gate, up = gu[r].chunk(2, -1)
                torch.ops.aten.silu.out(gate, out=s[r])
                torch.mul(s[r], up, out=a[r])
                mm_nt(a[r], ws[2 * e + 1], out=ys[r])
                at += n
        y = ys.index_select(0, inverse).view(t, k, -1)
        out = y[:, 0] * top_w[:, :1]
        for j in range(1, k):
            out.addcmul_(y[:, j], top_w[:, j : j + 1])
        ctx.save_for_backward(xs, token, scale, inverse, gu, s, a, ys, *ws)
        ctx.shape, ctx.rows_of = (t, k), rows_of
        ctx.counts = counts
        return out

    @staticmethod
    def backward(ctx, g):
        xs, token, scale, inverse, gu, s, a, ys, *ws = ctx.saved_tensors
        t, k = ctx.shape
        dys = torch.index_select(g, 0, token, out=ctx.rows_of(g.shape[1]))
        dtop = torch.linalg.vecdot(ys, dys).index_select(0, inverse).view(t, k)
        dys.mul_(scale)
        dxs, dgu = ctx.rows_of(xs.shape[1]), ctx.rows_of(gu.shape[1])
        grads, at = [], 0
        for e, n in enumerate(ctx.counts):
            r = slice(at, at + n)
            if not n:
                grads += [torch.zeros_like(ws[2 * e]), torch.zeros_like(ws[2 * e + 1])]
                continue
            da = mm_nt(dys[r], ws[2 * e + 1].t())
            ddown = mm_nt(dys[r].t(), a[r].t())
            gate, up = gu[r].chunk(2, -1)
            dgate, dup = dgu[r].chunk(2, -1)
            torch.mul(da, s[r], out=dup)
            torch.ops.aten.silu_backward.grad_input(da.mul_(up), gate, grad_input=dgate)
            mm_nt(dgu[r], ws[2 * e].t(), out=dxs[r])
            grads += [mm_nt(dgu[r].t(), xs[r].t()), ddown]
            at += n
        dx = dxs.index_select(0, inverse).view(t, k, -1)
        dx = dx[:, 0] + dx[:, 1] if k == 2 else dx.sum(1)
        return dx, dtop, None, None, *grads


class HeadLoss(Function):
    """Mean cross-entropy of x [t,d] against w [v,d]; dX and dW are formed with the loss, chunk by chunk."""

    @staticmethod
    def forward(ctx, x, w, target, rows):
        t = x.shape[0]
        dx, dw, loss = torch.empty_like(x), None, 0.0
        for i in range(0, t, rows):
            xc, yc = x[i : i + rows], target[i : i + rows, None]
            with torch.profiler.record_function("loss"):
                z = mm_nt(xc, w)
                p = torch.softmax(z, 1, out=z)
                loss = loss - p.gather(1, yc).log_().sum()
                p.scatter_add_(1, yc, p.new_full(yc.shape, -1.0))
                mm_nt(p, w.t(), out=dx[i : i + rows])
                if dw is None:
                    dw = mm_nt(p.t(), xc.t())
                elif Gemm.onednn:
                    dw += mm_nt(p.t(), xc.t())
                else:
                    dw.addmm_(p.t(), xc)
        ctx.save_for_backward(dx.div_(t), dw.div_(t))
        return loss / t

    @staticmethod
    def backward(ctx, g):  # g is 1: the loss is the root of the graph up to a sum
        return *ctx.saved_tensors, None, None
