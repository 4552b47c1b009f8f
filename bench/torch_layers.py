"""The same layers as bench/layers.c in PyTorch: attention by scaled_dot_product_attention, over ranks with keys and values gathered; experts with an
all-to-all, by Gloo. Alone, or under torchrun --nproc-per-node N. --reference is a folder with reference_model.py and reference_train.py, whose
gathered attention and mixture of experts are what runs.

    torch_layers.py attention|experts --reference DIR [--tokens 1024,4096] [--heads 8] ... [--seconds 2] [--threads N]
"""
import argparse
import json
import os
import resource
import statistics
import sys
import time

import torch
import torch.distributed as dist


def options():
    parser = argparse.ArgumentParser()
    parser.add_argument("layer", choices=["attention", "experts"])
    parser.add_argument("--reference", required=True)
    parser.add_argument("--tokens", default="1024,4096")
    for name, value in dict(heads=8, kv_heads=8, head_dim=64, hidden=512, ffn=1024, experts=8, top_k=2, threads=1).items():
        parser.add_argument("--" + name.replace("_", "-"), type=int, default=value)
    parser.add_argument("--seconds", type=float, default=2)
    return parser.parse_args()


def attention_job(o, tokens, rank, size):
    import reference_model
    import reference_train

    local = tokens // size
    q, k, v = (torch.randn(1, local, heads, o.head_dim, requires_grad=True) for heads in (o.heads, o.kv_heads, o.kv_heads))
    d_o = torch.randn(1, local, o.heads, o.head_dim)
    attend = reference_train.allgather_attention(dist.group.WORLD) if size > 1 else reference_model.attention
    return lambda: attend(q, k, v), d_o, [q, k, v]


def experts_job(o, tokens, rank, size):
    import reference_model

    config = reference_model.Config("mixtral", hidden=o.hidden, experts=o.experts, top_k=o.top_k, moe_ffn=o.ffn)
    torch.manual_seed(1)
    layer = reference_model.MoE(config, o.experts // size)
    for p in layer.parameters():
        torch.nn.init.normal_(p, std=0.05)
    layer.ep_group = dist.group.WORLD if size > 1 else None
    torch.manual_seed(2 + rank)
    x = torch.randn(1, tokens // size, o.hidden, requires_grad=True)
    dy = torch.randn(1, tokens // size, o.hidden)
    return lambda: layer(x), dy, [x, *layer.parameters()]


def slowest(value, size):
    if size == 1:
        return value
    cell = torch.tensor([value], dtype=torch.float64)
    dist.all_reduce(cell, dist.ReduceOp.MAX)
    return cell.item()


def run_once(job, size):
    call, gradient, leaves = job
    for leaf in leaves:
        if leaf.grad is not None:
            leaf.grad.zero_()
    slowest(0, size)
    start = time.perf_counter()
    out = call()
    forward = time.perf_counter() - start
    out.backward(gradient)
    both = time.perf_counter() - start
    return slowest(forward, size), slowest(both, size)


def main():
    o = options()
    sys.path.insert(0, o.reference)
    torch.set_num_threads(o.threads)
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size > 1:
        dist.init_process_group("gloo")
    rank = dist.get_rank() if size > 1 else 0
    for tokens in map(int, o.tokens.split(",")):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        job = {"attention": attention_job, "experts": experts_job}[o.layer](o, tokens, rank, size)
        run_once(job, size)
        runs = []
        while len(runs) < 3 or (sum(both for _, both in runs) < o.seconds and len(runs) < 200):
            runs.append(run_once(job, size))
        if rank == 0:
            grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1e3
            print(json.dumps({"layer": o.layer, "who": "torch", "ranks": size, "tokens": tokens, "ms": round(1e3 * statistics.median(b for _, b in runs), 3),
                              "forward_ms": round(1e3 * statistics.median(f for f, _ in runs), 3), "runs": len(runs), "rss_grown_mb": round(grown, 1)}), flush=True)
    if size > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
