#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains the model of peer_torch.py data-parallel on several ranks over Gloo: the PyTorch peers.

Run on every rank by a launcher (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT), e.g.
    tools/cluster --hosts 4 --rate 1gbit -- .venv/bin/python bench/peer_dist.py --mode ddp --batch 1
Modes, each with PyTorch's defaults and, with `--best`, with the settings that were fastest here:
    ddp      DistributedDataParallel: buckets of 25 MiB, reduced while the backward goes on. --best: the
             gradients lie in the buckets, of 5 MiB, and the graph is static; --bucket-mib sets their size
    fsdp2    fully_shard of the embedding, each layer, and norm with head. --best: gathers run beside the
             computation and are prefetched by one part; --keep: parameters stay whole between forward
             and backward
`--batch` sequences on each rank; the step is that of peer_torch.py: forward, backward, clipping by the norm
over all ranks, fused AdamW.

Exposed communication, by a definition that holds for any trainer:
    exposed = step time - quiet time
where the quiet time is that of the same step in which every collective returns at once, without a byte on
the wire and without a reduction. All else (kernels, copies into and out of buckets, optimizer, the number of
ranks that share the cores) is unchanged. Both are wall times of blocks of `--block` steps, from a barrier of all
ranks to the end of the last one, taken in turn in one run; `exposed_ms` is the median of the differences
of neighbouring blocks. Here quiet is a second copy of the model: DistributedDataParallel with a
communication hook that returns each bucket unchanged; fully_shard with an all-gather that leaves its output
unchanged, and a reduce-scatter that returns the rank's own addend.

Rank 0 prints one JSON line: {"name", "world", "parameters", "tokens_per_step", "step_ms": [per block],
"quiet_ms": [per block], "median_ms", "quiet_median_ms", "exposed_ms", "loss", ...}."""
import argparse
import functools
import json
import os
import statistics
import sys
import time

import peer_torch as peer

peer.keep_freed_pages()
peer.bind()

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.device_mesh import DeviceMesh  # noqa: E402
from torch.distributed.fsdp import fully_shard  # noqa: E402
from torch.distributed.fsdp._fully_shard._fsdp_api import AllGather, ReduceScatter  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

import peer_ops  # noqa: E402


class Part(nn.Module):
    """A module: some parameters of the model, with the part of its math that uses them."""

    def __init__(self, model, names, math):
        super().__init__()
        self.names, self.math = names, math
        for n in names:
            self.register_parameter(n.replace(".", "_"), nn.Parameter(model.params[n].detach()))

    def forward(self, *inputs, **others):
        p = {n: self._parameters[n.replace(".", "_")] for n in self.names}
        return self.math(*inputs, {**p, **others})


class Network(nn.Module):
    """The model as a module whose forward is the loss; its parts are the modules that torchtitan shards one by one."""

    def __init__(self, model):
        super().__init__()
        self.cfg = model.cfg
        self.tied = "head" not in model.params
        self.embed = Part(model, ["embed"], lambda ids, p: nn.functional.embedding(ids.view(-1), p["embed"]))
        self.layers = nn.ModuleList(
            Part(model, [n for n in model.params if n.startswith(f"{i}.")], functools.partial(model.layer, i))
            for i in range(model.cfg["num_hidden_layers"]))
        self.head = Part(model, ["norm"] if self.tied else ["norm", "head"], model.head_loss)

    def parts(self):
        return [self.embed, *self.layers, self.head]

    def forward(self, ids, target):
        b, s = ids.shape
        balance = 0.0
        x = self.embed(ids)
        for layer in self.layers:
            x, aux = layer(x, b, s)
            balance = balance + aux
        loss = self.head(x, target, **({"embed": self.embed.embed} if self.tied else {}))
        if self.cfg["model_type"] == "qwen3_moe":
            return loss + self.cfg["router_aux_loss_coef"] * balance, loss.detach()
        return loss, loss.detach()


class QuietAllGather(AllGather):
    """An all-gather that returns at once; its outputs are buffers of zeros, one per size."""

    def __init__(self):
        self.buffers = {}

    def allocate(self, size, *, dtype, device):
        key = (tuple(size), dtype)
        if key not in self.buffers:
            self.buffers[key] = torch.zeros(*size, dtype=dtype, device=device)
        return self.buffers[key]

    def __call__(self, output_tensor, input_tensor, group, async_op=False):
        return None


class QuietReduceScatter(ReduceScatter):
    """A reduce-scatter that returns the rank's own addend."""

    def allocate(self, size, *, dtype, device):
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(self, output_tensor, input_tensor, group, op, async_op=False):
        output_tensor.copy_(input_tensor.view(dist.get_world_size(), -1)[dist.get_rank()].view_as(output_tensor))
        return None


def return_at_once(_, bucket):
    """Returns the bucket unchanged, as a communication hook."""
    done = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done


def wrap_ddp(network, args, quiet):
    best = {"gradient_as_bucket_view": True, "static_graph": True, "bucket_cap_mb": 5} if args.best else {}
    if args.bucket_mib:
        best["bucket_cap_mb"] = args.bucket_mib
    module = DistributedDataParallel(network, **best)
    if quiet:
        module.register_comm_hook(None, return_at_once)
    return module


def wrap_fsdp2(network, args, quiet):
    if network.tied:
        sys.exit("peer_dist.py: fsdp2 shards embedding and head one by one; expected tie_word_embeddings: false")
    mesh = DeviceMesh("cpu", list(range(dist.get_world_size())))
    parts = network.parts()
    for part in parts:
        fully_shard(part, mesh=mesh, reshard_after_forward=not args.keep and part is not network.head)
    fully_shard(network, mesh=mesh)
    if args.best:
        network._set_unshard_async_op(True)
        for a, b in zip(parts, parts[1:]):
            a.set_modules_to_forward_prefetch([b])
            b.set_modules_to_backward_prefetch([a])
    if quiet:
        for part in parts:
            part.set_custom_all_gather(QuietAllGather())
            part.set_custom_reduce_scatter(QuietReduceScatter())
    return network


class Side:
    """A model with its optimizer: the real one, or the quiet one."""

    def __init__(self, cfg, args, quiet):
        network = Network(peer.Model(cfg, args))
        self.count = sum(p.numel() for p in network.parameters())
        self.args, self.quiet, self.at = args, quiet, 0
        self.batches = peer.batches_of(cfg, args, args.seed + 1 + dist.get_rank())
        self.module = (wrap_ddp if args.mode == "ddp" else wrap_fsdp2)(network, args, quiet)
        self.params = list(self.module.parameters())
        # The optimizer works on a rank's own memory: a DTensor only costs dispatch here.
        self.held = [p.to_local() if args.mode == "fsdp2" else p for p in self.params]
        self.held = [h.detach() if h is not p else p for h, p in zip(self.held, self.params)]
        matrices = [h for h, p in zip(self.held, self.params) if p.dim() > 1]
        vectors = [h for h, p in zip(self.held, self.params) if p.dim() == 1]
        self.opt = torch.optim.AdamW(
            [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}],
            lr=args.lr, betas=(0.9, 0.95), eps=1e-8, fused=True)

    def step(self):
        tokens = self.batches[self.at % len(self.batches)]
        self.at += 1
        total, loss = self.module(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())
        total.backward()
        if self.args.mode == "fsdp2":
            for held, p in zip(self.held, self.params):
                held.grad = p.grad.to_local()
        square = torch.stack([torch.dot(h.grad.view(-1), h.grad.view(-1)) for h in self.held]).sum()
        if self.args.mode == "fsdp2" and not self.quiet:
            dist.all_reduce(square)
        self.opt.grad_scale = torch.clamp(square.sqrt() / self.args.clip, min=1.0)
        self.opt.step()
        for p in self.params:
            p.grad = None
        if self.args.mode == "fsdp2":
            for held in self.held:
                held.grad = None
        self.loss = loss

    def block(self):
        """Returns milliseconds per step of a block, from a barrier to the end of the last rank."""
        dist.barrier()
        began = time.perf_counter()
        for _ in range(self.args.block):
            self.step()
        dist.barrier()
        return (time.perf_counter() - began) * 1e3 / self.args.block


def mean_loss(side):
    loss = side.loss.clone()
    dist.all_reduce(loss)
    return loss.item() / dist.get_world_size()


def measure(cfg, args):
    sides = [Side(cfg, args, quiet) for quiet in (False, True)]
    for side in sides:
        for _ in range(args.warmup):
            side.step()
    times = {False: [], True: []}
    for b in range(args.blocks):
        for side in sides if b % 2 == 0 else sides[::-1]:
            times[side.quiet].append(side.block())
    loss = mean_loss(sides[0])
    world = dist.get_world_size()
    exposed = [a - q for a, q in zip(times[False], times[True])]
    return {
        "name": args.mode + (" best" if args.best else "") + (" keep" if args.keep else ""), "world": world, "parameters": sides[0].count,
        "model": cfg["model_type"], "tokens_per_step": world * args.batch * args.seq, "torch": torch.__version__,
        "threads": args.threads, "gemm": "onednn" if peer_ops.Gemm.onednn else "mkl",
        "step_ms": [round(t, 2) for t in times[False]], "quiet_ms": [round(t, 2) for t in times[True]],
        "median_ms": round(statistics.median(times[False]), 2),
        "quiet_median_ms": round(statistics.median(times[True]), 2),
        "exposed_ms": round(statistics.median(exposed), 2), "loss": round(loss, 6)}


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--mode", choices=("ddp", "fsdp2"), default="ddp")
    ap.add_argument("--best", action="store_true", help="the settings found fastest instead of the defaults")
    ap.add_argument("--bucket-mib", type=float, help="ddp: MiB of a bucket")
    ap.add_argument("--keep", action="store_true", help="fsdp2: reshard_after_forward=False")
    ap.add_argument("--config", default="dense", help="dense, moe, or a Hugging Face config.json or its folder")
    ap.add_argument("--blocks", type=int, default=6, help="blocks of each, the true step and the quiet one")
    ap.add_argument("--block", type=int, default=3, help="steps of a block")
    ap.add_argument("--warmup", type=int, default=3, help="steps before the first block")
    ap.add_argument("--batch", type=int, default=1, help="sequences of a rank")
    ap.add_argument("--seq", type=int, default=512)
    ap.add_argument("--threads", type=int, default=1, help="of a rank")
    ap.add_argument("--lr", type=float, default=3e-4)
    ap.add_argument("--clip", type=float, default=1.0)
    ap.add_argument("--seed", type=int, default=0)
    ap.add_argument("--gemm", choices=("auto", "mkl", "onednn"), default="auto")
    ap.add_argument("--attention", choices=("sdpa", "blocked"), default="sdpa")
    ap.add_argument("--loss", choices=("chunked", "plain"), default="chunked")
    ap.add_argument("--loss-rows", type=int, default=512)
    args = ap.parse_args()
    missing = [v for v in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT") if v not in os.environ]
    if missing:
        ap.error(f"{', '.join(missing)} not set; start it with tools/cluster or torchrun")
    cfg = peer.read_config(args.config)
    torch.set_num_threads(args.threads)
    torch.set_flush_denormal(True)  # a quiet model learns nothing real: its numbers must not become slow denormals
    peer_ops.Gemm.choose(cfg, args.gemm)
    dist.init_process_group("gloo")
    result = measure(cfg, args)
    if dist.get_rank() == 0:
        print(json.dumps(result), flush=True)
    dist.barrier()
    # Gloo's threads may still wait on connections that the others close, and would abort a normal exit.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
